/* A stream of the GPU with a clock: what is put on it is timed by the GPU's own events. */
#ifndef TOOLS_BENCH_GPU_CLOCK_H
#define TOOLS_BENCH_GPU_CLOCK_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"

/* A call of CUDA's. 0, or 1 after bench_fail with its name and CUDA's text; so for all below. */
#define GPU_TRY(call) bench_gpu_check((call), #call)
int bench_gpu_check(cudaError_t code, const char *call);

/* A stream of its own; close waits for what is on it, and accepts NULL. */
int gpu_stream_open(cudaStream_t *stream);
void gpu_stream_close(cudaStream_t stream);

/* Copies on a stream, to, from and inside the GPU's memory. The first two are done on return. */
int gpu_upload(void *data, const void *host, size_t bytes, cudaStream_t stream);
int gpu_fetch(void *host, const void *data, size_t bytes, cudaStream_t stream);
int gpu_copy_inside(void *data, const void *source, size_t bytes, cudaStream_t stream);

typedef struct gpu_clock {
    cudaStream_t stream;
    cudaEvent_t begin;
    cudaEvent_t end;
} gpu_clock;

/* On a stream of the caller's; close accepts what is half open. */
int gpu_clock_open(gpu_clock *clock, cudaStream_t stream);
void gpu_clock_close(gpu_clock *clock);

/* Puts work on the clock's stream, once. */
typedef int (*gpu_work)(void *argument);

typedef struct gpu_timed {
    const gpu_clock *clock;
    gpu_work work;
    void *argument;
    uint32_t times; /* in one measurement */
} gpu_timed;

/* Seconds of one `work` out of `times` in a row, all of which have run when this returns; negative
 * when one failed. A side of bench_interleave; argument: a gpu_timed. */
double gpu_timed_side(void *argument);

#endif
