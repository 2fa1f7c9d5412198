/* A rank's GPU, over the fake of the CUDA runtime. */
#ifndef TESTS_COMM_GPU_RIG_H
#define TESTS_COMM_GPU_RIG_H

#include "comm/nccl/nccl_memory.h"
#include "core/error.h"
#include "fake/fake_cuda.h"
#include "harness.h"
#include "kernels/kernels.h"

typedef struct gpu {
    zi_device device;
    zi_kernels kernels;
    zi_stream *stream;
    zi_event *done;
    unsigned char *scratch; /* lent to its groups, whose batches are all on one stream, or NULL */
    size_t scratch_bytes;
    unsigned char *known; /* a page that all its groups register; NULL: they register nothing */
} gpu;

/* queued: for groups that meet on the host. */
static inline void gpu_open_as(gpu *g, bool queued)
{
    *g = (gpu){.scratch = NULL};
    CHECK_OK(zi_cuda_device_create(&g->device));
    if (queued) {
        zi_device_issue_on_threads(&g->device);
    }
    CHECK_OK(zi_cuda_kernels_create(&g->device, &g->kernels));
    CHECK_OK(g->device.ops->stream_create(g->device.self, "collectives", &g->stream));
    CHECK_OK(g->device.ops->event_create(g->device.self, &g->done));
}

static inline void gpu_open(gpu *g)
{
    gpu_open_as(g, false);
}

static inline void gpu_close(gpu *g)
{
    g->device.ops->stream_destroy(g->device.self, g->stream);
    g->device.ops->event_destroy(g->device.self, g->done);
    g->device.ops->memory_free(g->device.self, g->scratch, g->scratch_bytes);
    zi_nccl_memory_free(g->known);
    zi_kernels_destroy(&g->kernels);
    zi_device_destroy(&g->device);
}

static inline zero_status gpu_wait(const gpu *g)
{
    ZI_TRY(g->device.ops->event_record(g->device.self, g->done, g->stream));
    return g->device.ops->event_wait(g->device.self, g->done, NULL);
}

static _Thread_local gpu own;

#endif
