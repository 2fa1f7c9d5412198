/* Owns steps without the library's hooks, for what those cost. Invariant: what is put on the stream
 * moves the same bytes through the same kernels as an engine's step of one rank, so that only
 * hooks, streams and events differ. */
#include <stdlib.h>

#include "bench_gpu_step.h"
#include "bench_gpu_steps.h"
#include "zero/cuda.h"
#include "zero/dtype.h"

#define UNITS_MAX GPU_STEP_SEGMENTS_MAX

struct gpu_direct {
    const gpu_steps_shape *shape;
    const gpu_steps_memory *memory;
    zi_device device;
    zi_kernels kernels;
    zi_stream *stream; /* memory->stream */
    gpu_step step;
    void *arena; /* of the GPU: every unit's arrays */
    unsigned char *grads[UNITS_MAX];
    zi_update_job jobs[UNITS_MAX];
};

/* Arrays of a unit: parameters and gradients, then master and moments. */
#define BF16_BYTES sizeof(uint16_t)
#define BYTES_FOR_ELEMENT (2 * BF16_BYTES + 3 * sizeof(float))

/* As wide as a unit's arrays are apart: kernels want their first elements aligned. */
static uint64_t unit_stride(const gpu_steps_shape *shape, uint32_t unit)
{
    return (gpu_steps_count(shape, unit) + 255) / 256 * 256;
}

static int lay_out(gpu_direct *direct)
{
    const gpu_steps_shape *shape = direct->shape;
    size_t bytes = 0;
    for (uint32_t unit = 0; unit < shape->units; unit++) {
        bytes += unit_stride(shape, unit) * BYTES_FOR_ELEMENT;
    }
    if (GPU_TRY(cudaMalloc(&direct->arena, bytes)) ||
        GPU_TRY(cudaMemsetAsync(direct->arena, 0, bytes, direct->memory->stream))) {
        return 1;
    }
    unsigned char *at = direct->arena;
    for (uint32_t unit = 0; unit < shape->units; unit++) {
        const uint64_t stride = unit_stride(shape, unit);
        unsigned char *grads = at + stride * BF16_BYTES;
        unsigned char *master = grads + stride * BF16_BYTES;
        direct->grads[unit] = grads;
        direct->jobs[unit] =
            (zi_update_job){.segments = &direct->step.block->segments[unit],
                            .segment_count = 1,
                            .count = gpu_steps_count(shape, unit),
                            .grad = grads,
                            .param = at,
                            .state[ZI_STATE_MASTER] = master,
                            .state[ZI_STATE_MOMENT1] = master + stride * sizeof(float),
                            .state[ZI_STATE_MOMENT2] = master + 2 * stride * sizeof(float),
                            .grad_dtype = ZERO_DTYPE_BF16,
                            .param_dtype = ZERO_DTYPE_BF16,
                            .moment_dtype = ZERO_DTYPE_F32,
                            .decision = &direct->step.block->decision,
                            .optimizer = ZERO_OPTIMIZER_ADAMW};
        at += stride * BYTES_FOR_ELEMENT;
    }
    return 0;
}

/* The master and the parameters of every unit. */
static int fill_all(const gpu_direct *direct)
{
    const gpu_steps_shape *shape = direct->shape;
    const zi_kernels *kernels = &direct->kernels;
    float *values = calloc(gpu_steps_count_max(shape), sizeof *values);
    int failed = values != NULL ? 0 : bench_fail("gpu: no memory left for a unit's values");
    for (uint32_t unit = 0; unit < shape->units && !failed; unit++) {
        const zi_update_job *job = &direct->jobs[unit];
        gpu_steps_fill(NULL, unit, 0, job->count, values);
        failed =
            gpu_upload(job->state[ZI_STATE_MASTER], values, job->count * sizeof *values,
                       direct->memory->stream) ||
            BENCH_TRY(kernels->ops->cast(kernels->self, direct->stream, job->param, ZERO_DTYPE_BF16,
                                         job->state[ZI_STATE_MASTER], ZERO_DTYPE_F32, job->count));
    }
    free(values);
    return failed;
}

int gpu_direct_create(const gpu_steps_shape *shape, const gpu_steps_memory *memory,
                      gpu_direct **out)
{
    const zero_step_params params = gpu_steps_params();
    uint64_t counts[UNITS_MAX];
    gpu_direct *direct = shape->units <= UNITS_MAX ? calloc(1, sizeof *direct) : NULL;
    *out = direct;
    if (direct == NULL) {
        return bench_fail("gpu: no memory left for %u units without an engine", shape->units);
    }
    for (uint32_t unit = 0; unit < shape->units; unit++) {
        counts[unit] = gpu_steps_count(shape, unit);
    }
    direct->shape = shape;
    direct->memory = memory;
    zi_device *device = &direct->device;
    return BENCH_TRY(zi_cuda_device_create(device)) ||
           BENCH_TRY(zi_cuda_kernels_create(device, &direct->kernels)) ||
           BENCH_TRY(device->ops->stream_wrap(device->self, zero_stream_cuda(memory->stream),
                                              &direct->stream)) ||
           gpu_step_open(&direct->step, device, memory->stream, params.hyper.adamw,
                         (double)params.max_norm, counts, shape->units) ||
           lay_out(direct) || fill_all(direct);
}

void gpu_direct_destroy(gpu_direct *direct)
{
    if (direct != NULL) {
        gpu_step_close(&direct->step);
        (void)cudaFree(direct->arena);
        zi_kernels_destroy(&direct->kernels);
        zi_device_destroy(&direct->device);
        free(direct);
    }
}

/* A gradient is cleared before backward adds to it. */
static int backward(const gpu_direct *direct, uint32_t unit)
{
    const gpu_steps_memory *memory = direct->memory;
    unsigned char *grads = direct->grads[unit];
    const size_t bytes = direct->jobs[unit].count * BF16_BYTES;
    return GPU_TRY(cudaMemsetAsync(grads, 0, bytes, memory->stream)) ||
           gpu_steps_compute(memory, 2) ||
           gpu_copy_inside(grads, memory->grads, bytes, memory->stream);
}

static int update(const gpu_direct *direct)
{
    const zi_device *device = &direct->device;
    const zi_kernels *kernels = &direct->kernels;
    zi_norm_sum *norm = &direct->step.block->message.squares;
    int failed = BENCH_TRY(device->ops->fill(device->self, direct->stream, norm, 0, sizeof *norm));
    for (uint32_t unit = 0; unit < direct->shape->units && !failed; unit++) {
        failed =
            BENCH_TRY(kernels->ops->square_sum(kernels->self, direct->stream, direct->grads[unit],
                                               ZERO_DTYPE_BF16, direct->jobs[unit].count, norm));
    }
    failed = failed ||
             BENCH_TRY(kernels->ops->decide(kernels->self, direct->stream, &direct->step.decide));
    for (uint32_t unit = 0; unit < direct->shape->units && !failed; unit++) {
        failed =
            BENCH_TRY(kernels->ops->update(kernels->self, direct->stream, &direct->jobs[unit]));
    }
    return failed;
}

int gpu_direct_step(const gpu_direct *direct)
{
    int failed = 0;
    for (uint32_t unit = 0; unit < direct->shape->units && !failed; unit++) {
        failed = gpu_steps_compute(direct->memory, 1);
    }
    for (uint32_t unit = direct->shape->units; unit-- > 0 && !failed;) {
        failed = backward(direct, unit);
    }
    return failed || update(direct);
}

const void *gpu_direct_params(const gpu_direct *direct, uint32_t unit)
{
    return direct->jobs[unit].param;
}
