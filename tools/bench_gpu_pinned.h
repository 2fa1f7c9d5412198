/* Copies between pinned host memory and the GPU's, which is the most that anything can do that
 * lives in host memory. */
#ifndef TOOLS_BENCH_GPU_PINNED_H
#define TOOLS_BENCH_GPU_PINNED_H

#include "bench_gpu_clock.h"

/* The direction of copies, or both at once, each on a stream of its own. */
typedef enum gpu_pinned_way {
    GPU_PINNED_TO_GPU,
    GPU_PINNED_TO_HOST,
    GPU_PINNED_BOTH,
    GPU_PINNED_WAYS
} gpu_pinned_way;

typedef struct gpu_pinned_pair {
    void *host;
    void *gpu;
} gpu_pinned_pair;

typedef struct gpu_pinned {
    cudaStream_t stream;
    cudaStream_t other; /* of the second direction */
    cudaEvent_t forked;
    cudaEvent_t joined;
    gpu_clock clock;
    gpu_pinned_pair pair[2]; /* by direction */
    size_t bytes;            /* of each */
    gpu_timed timed[GPU_PINNED_WAYS];
} gpu_pinned;

/* `bytes` for each direction. 0, or 1 after bench_fail; close accepts what is half open. */
int gpu_pinned_open(gpu_pinned *rig, size_t bytes);
void gpu_pinned_close(gpu_pinned *rig);

/* Copies of all bytes, timed. */
bench_side gpu_pinned_side(gpu_pinned *rig, gpu_pinned_way way);

#endif
