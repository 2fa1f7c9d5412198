/* The common parts of the tests of groups over NCCL: a rank's GPU, and groups of ranks that are
 * threads, over the fakes of NCCL and of the CUDA runtime. */
#ifndef TESTS_COMM_NCCL_RIG_H
#define TESTS_COMM_NCCL_RIG_H

#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_memory.h"
#include "fake/fake_nccl.h"
#include "fake/fake_nccl_memory.h"
#include "fake/fake_nccl_ranks.h"
#include "gpu_rig.h"

#define LONG_MS 60000
/* A deadline that passes; whoever is not to be late comes within it on any machine. */
#define SHORT_MS 1500
/* The least of eight ranks: a page of zeros, and ten for sums. */
#define SMALL_SCRATCH ((size_t)45056)
#define LARGE_SCRATCH ((size_t)4 << 20)

/* How the ranks of a test make their groups. */
typedef struct setup {
    size_t scratch_bytes;
    uint32_t deadline_ms;
    bool gathers_only;
    zero_reduction reduction;
    bool registered;
    uint32_t per_host; /* neighbouring ranks on one host; 0: all */
} setup;

static setup common = {LARGE_SCRATCH, LONG_MS, false, ZERO_REDUCTION_DEFAULT, false, 0};

/* Lend groups their scratch memory, as an engine does, unless the GPU has lent it already. */
static inline void gpu_lend(gpu *g)
{
    if (g->scratch == NULL && !common.gathers_only) {
        g->scratch_bytes = common.scratch_bytes;
        CHECK_OK(
            g->device.ops->memory_alloc(g->device.self, g->scratch_bytes, (void **)&g->scratch));
    }
    if (g->known == NULL && common.registered) {
        CHECK_OK(zi_nccl_memory_alloc(&g->device, ZI_PAGE_BYTES, (void **)&g->known));
    }
}

/* As the transport's group_create does, with what a test wants otherwise. Collective. */
static inline zero_status make_group(zero_world *world, const uint32_t *members, uint32_t size,
                                     const char *name, zi_group **out)
{
    gpu_lend(&own);
    if (common.per_host != 0) {
        world->comm->host = 1 + zero_world_rank(world) / common.per_host;
    }
    const zi_group_memory memory = {own.known, ZI_PAGE_BYTES, true};
    const zi_group_desc desc = {
        .kernels = &own.kernels,
        .members = members,
        .size = size,
        .name = name,
        .gathers_only = common.gathers_only,
        .reduction = common.reduction,
        .registered = common.registered,
        .memory = &memory,
        .memory_count = own.known != NULL ? 1 : 0,
        .scratch = own.scratch,
        .scratch_bytes = own.scratch_bytes,
    };
    world->comm->deadline_ms = common.deadline_ms;
    ZI_TRY(zi_nccl_base_get(world));
    return zi_nccl_group_create(world, &desc, out);
}

/* Ranks that are threads, over the fake of NCCL. */
static inline zero_status run_world(uint32_t ranks, zero_rank_fn fn, void *user)
{
    zi_nccl_api_replace(fake_nccl_api());
    return fake_nccl_world_run(ranks, LONG_MS, fn, user);
}

static const uint32_t pair_ranks[] = {0, 1};

/* A group of two ranks, and memory for what it carries, on this rank's GPU. */
typedef struct pair {
    zi_group *group;
    unsigned char *memory;
    size_t bytes;
} pair;

static inline pair pair_open(zero_world *world, const char *name, size_t bytes)
{
    pair p = {.bytes = bytes};
    gpu_open(&own);
    CHECK_OK(make_group(world, pair_ranks, 2, name, &p.group));
    CHECK_OK(own.device.ops->memory_alloc(own.device.self, bytes, (void **)&p.memory));
    return p;
}

/* world: to meet on before the GPU goes, or NULL where it has failed. */
static inline zero_status pair_close(const pair *p, zero_world *world)
{
    zi_group_destroy(p->group);
    own.device.ops->memory_free(own.device.self, p->memory, p->bytes);
    if (world != NULL) {
        CHECK_OK(zero_world_barrier(world));
    }
    gpu_close(&own);
    return ZERO_OK;
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
