/* Copies between pinned host memory and the GPU's, which is the most that anything can do that
 * lives in host memory. */
#ifndef TOOLS_BENCH_GPU_PINNED_H
#define TOOLS_BENCH_GPU_PINNED_H

#include "bench_gpu_clock.h"

typedef struct gpu_pinned_pair {
    void *host;
    void *gpu;
} gpu_pinned_pair;

typedef struct gpu_pinned {
    gpu_clock clock;
    cudaStream_t other; /* of the second direction */
    cudaEvent_t forked;
    cudaEvent_t joined;
    gpu_pinned_pair pair[2];
    size_t bytes; /* of each */
} gpu_pinned;

/* `bytes` for each direction. 0, or 1 after bench_fail; close accepts what is half open. */
int gpu_pinned_open(gpu_pinned *rig, size_t bytes);
void gpu_pinned_close(gpu_pinned *rig);

/* Sides of bench_interleave; argument: a gpu_pinned. */
double gpu_pinned_to_gpu(void *argument);
double gpu_pinned_to_host(void *argument);
double gpu_pinned_both(void *argument);

#endif
