/* What the tests of groups over NCCL share: a rank's GPU, and groups of ranks that are threads,
 * over the fakes of NCCL and of the CUDA runtime. */
#ifndef TESTS_COMM_NCCL_RIG_H
#define TESTS_COMM_NCCL_RIG_H

#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_memory.h"
#include "core/error.h"
#include "fake/fake_cuda.h"
#include "fake/fake_nccl.h"
#include "fake/fake_nccl_memory.h"
#include "harness.h"

#define LONG_MS 60000
#define SHORT_MS 300
/* The least for four ranks: 256 fp32 elements from each at once. */
#define SMALL_SCRATCH ((size_t)8192)
#define LARGE_SCRATCH ((size_t)4 << 20)

/* A rank's GPU. */
typedef struct gpu {
    zi_device device;
    zi_kernels kernels;
    zi_stream *stream;
    zi_event *done;
    unsigned char *scratch; /* shared by its groups, whose batches are all on `stream` */
    size_t scratch_bytes;
    unsigned char *known; /* a page that all its groups register; NULL: they register nothing */
} gpu;

/* How the ranks of a test make their groups. */
typedef struct setup {
    size_t scratch_bytes;
    uint32_t deadline_ms;
    bool gathers_only;
    zero_nccl_memory memory_kind;
} setup;

static setup common = {LARGE_SCRATCH, LONG_MS, false, ZERO_NCCL_MEMORY_NONE};
static _Thread_local gpu own;

static inline void gpu_open(gpu *g)
{
    CHECK_OK(zi_cuda_device_create(false, &g->device));
    CHECK_OK(zi_cuda_kernels_create(&g->device, &g->kernels));
    CHECK_OK(g->device.ops->stream_create(g->device.self, "collectives", &g->stream));
    CHECK_OK(g->device.ops->event_create(g->device.self, &g->done));
    g->scratch_bytes = common.gathers_only ? 0 : common.scratch_bytes;
    CHECK_OK(g->device.ops->memory_alloc(g->device.self, g->scratch_bytes, (void **)&g->scratch));
    if (common.memory_kind != ZERO_NCCL_MEMORY_NONE) {
        CHECK_OK(zi_nccl_memory_alloc(&g->device, ZI_PAGE_BYTES, (void **)&g->known));
    }
}

static inline void gpu_close(gpu *g)
{
    g->device.ops->stream_destroy(g->device.self, g->stream);
    g->device.ops->event_destroy(g->device.self, g->done);
    g->device.ops->memory_free(g->device.self, g->scratch, g->scratch_bytes);
    zi_nccl_memory_free(g->known);
    g->known = NULL;
    zi_kernels_destroy(&g->kernels);
    zi_device_destroy(&g->device);
}

static inline zero_status gpu_wait(const gpu *g)
{
    ZI_TRY(g->device.ops->event_record(g->device.self, g->done, g->stream));
    return g->device.ops->event_wait(g->device.self, g->done, NULL);
}

/* As zi_world_group_create does between processes. Collective. */
static inline zero_status make_group(zero_world *world, const uint32_t *members, uint32_t size,
                                     const char *name, zi_group **out)
{
    const zi_group_memory memory = {own.known, ZI_PAGE_BYTES, true};
    ZI_TRY(zi_nccl_base_get(world->comm, world->control, common.deadline_ms));
    const zi_nccl_group_desc desc = {
        .comm = world->comm,
        .control = world->control,
        .kernels = &own.kernels,
        .members = members,
        .size = size,
        .deadline_ms = common.deadline_ms,
        .name = name,
        .gathers_only = common.gathers_only,
        .memory_kind = common.memory_kind,
        .memory = &memory,
        .memory_count = own.known != NULL ? 1 : 0,
        .scratch = own.scratch,
        .scratch_bytes = own.scratch_bytes,
    };
    return zi_nccl_group_create(&desc, out);
}

static inline void finish(void)
{
    CHECK(fake_nccl_check());
    CHECK_EQ(fake_nccl_live(), 0);
    CHECK_EQ(fake_nccl_memory_live(), 0);
    CHECK(fake_cuda_check());
    CHECK_EQ(fake_cuda_live(), 0);
}

#endif
