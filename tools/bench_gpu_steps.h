/* The common parts of steps with hooks and steps without: a model of GPT-2's sizes, and what stands
 * for its forward and backward on a GPU. Functions that can fail return 1 after bench_fail. */
#ifndef TOOLS_BENCH_GPU_STEPS_H
#define TOOLS_BENCH_GPU_STEPS_H

#include "bench_gpu_clock.h"
#include "zero/step.h"

/* Units of one size after the first: GPT-2's blocks and its embedding. */
typedef struct gpu_steps_shape {
    const char *name;
    uint64_t first_count; /* elements */
    uint64_t count;
    uint32_t units;
    uint32_t steps;       /* of one measurement */
    size_t traffic_bytes; /* copied in a unit's forward, and twice in its backward */
} gpu_steps_shape;

/* Elements of a unit, and of the largest. */
uint64_t gpu_steps_count(const gpu_steps_shape *shape, uint32_t unit);
uint64_t gpu_steps_count_max(const gpu_steps_shape *shape);

/* The memory that one rank has on the GPU beside its engines. */
typedef struct gpu_steps_memory {
    cudaStream_t stream;
    void *grads;      /* of the largest unit, made by backward; the rank's own */
    void *traffic[2]; /* NULL: nothing is copied */
    size_t traffic_bytes;
} gpu_steps_memory;

/* Put the cost of forward (times 1) or backward (times 2) of a unit on the GPU. */
int gpu_steps_compute(const gpu_steps_memory *memory, uint32_t times);

/* The parameters of every step. */
zero_step_params gpu_steps_params(void);

/* The values of a tensor before the first step; a zero_fill_fn. */
void gpu_steps_fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values);

/* The same steps by somebody who has the buffers to himself: no engine, one stream, the library's
 * kernels for norm, decision and update. One rank, bf16 with gradients summed in it, fp32 master
 * and moments. memory->stream must be idle when this is destroyed. */
typedef struct gpu_direct gpu_direct;

int gpu_direct_create(const gpu_steps_shape *shape, const gpu_steps_memory *memory,
                      gpu_direct **out);
void gpu_direct_destroy(gpu_direct *direct); /* accepts NULL and what is half made */

/* Enqueue a step on memory->stream. */
int gpu_direct_step(const gpu_direct *direct);

/* The address of a unit's parameters. */
const void *gpu_direct_params(const gpu_direct *direct, uint32_t unit);

#endif
