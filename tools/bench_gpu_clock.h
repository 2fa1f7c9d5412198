/* A stream of the GPU with a clock: what is put on it is timed by the GPU's own events. */
#ifndef TOOLS_BENCH_GPU_CLOCK_H
#define TOOLS_BENCH_GPU_CLOCK_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"

/* 0, or 1 after bench_fail with the call and CUDA's text. */
int bench_gpu_check(cudaError_t code, const char *call);

typedef struct gpu_clock {
    cudaStream_t stream;
    cudaEvent_t begin;
    cudaEvent_t end;
} gpu_clock;

/* On a stream of the caller's. 0, or 1 after bench_fail; close accepts what is half open. */
int gpu_clock_open(gpu_clock *clock, cudaStream_t stream);
void gpu_clock_close(gpu_clock *clock);

/* Puts work on the clock's stream, once. 0, or 1 after bench_fail. */
typedef int (*gpu_work)(void *argument);

/* Seconds of one `work` out of `times` in a row, all of which have run when this returns; negative
 * when one failed. */
double gpu_clock_time(const gpu_clock *clock, gpu_work work, void *argument, uint32_t times);

/* A copy inside the GPU's memory, the reference of most cases: `bytes` are read and `bytes` are
 * written. */
typedef struct gpu_copy {
    const gpu_clock *clock;
    void *target;
    const void *source;
    size_t bytes;
    uint32_t times; /* in one measurement */
} gpu_copy;

/* A side of bench_interleave; argument: a gpu_copy. */
double gpu_copy_side(void *argument);

#endif
