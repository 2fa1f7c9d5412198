/* Owns steps without the library's hooks, for what those cost. Invariant: what is put on the stream
 * moves the same bytes through the same kernels as an engine's step of one rank, so that only
 * hooks, streams and events differ. */
#include <stdlib.h>
#include <string.h>

#include "bench_gpu_steps.h"
#include "core/memory.h"
#include "kernels/kernels.h"
#include "zero/cuda.h"
#include "zero/dtype.h"

#define UNITS_MAX 16

/* What a step keeps on the GPU beside the arrays. */
typedef struct direct_block {
    zi_step_state state;
    zi_step_decision decision;
    zi_step_message message;
    zi_step_part part;
    zi_segment segments[UNITS_MAX];
} direct_block;

_Static_assert(sizeof(zi_step_input) <= ZI_PAGE_BYTES, "the input has a page");

struct gpu_direct {
    const gpu_steps_shape *shape;
    const gpu_steps_room *room;
    zi_device device;
    zi_kernels kernels;
    zi_stream *stream;    /* the room's */
    direct_block *block;  /* of the GPU */
    zi_step_input *input; /* of the host, and the GPU reaches it */
    unsigned char *arena; /* of the GPU: every unit's arrays */
    unsigned char *grads[UNITS_MAX];
    zi_update_job jobs[UNITS_MAX];
    zi_decide_job decide;
};

/* Arrays of a unit: parameters and gradients, then master and moments. */
#define NARROW sizeof(uint16_t)
#define BYTES_FOR_ELEMENT (2 * NARROW + 3 * sizeof(float))

static uint64_t unit_count(const gpu_steps_shape *shape, uint32_t unit)
{
    return unit == 0 ? shape->first_count : shape->count;
}

/* As wide as a unit's arrays are apart: kernels want their first elements aligned. */
static uint64_t unit_room(const gpu_steps_shape *shape, uint32_t unit)
{
    return (unit_count(shape, unit) + 255) / 256 * 256;
}

static size_t arena_bytes(const gpu_steps_shape *shape)
{
    size_t bytes = 0;
    for (uint32_t unit = 0; unit < shape->units; unit++) {
        bytes += unit_room(shape, unit) * BYTES_FOR_ELEMENT;
    }
    return bytes;
}

static void lay_out(gpu_direct *direct)
{
    unsigned char *at = direct->arena;
    for (uint32_t unit = 0; unit < direct->shape->units; unit++) {
        const uint64_t room = unit_room(direct->shape, unit);
        unsigned char *grads = at + room * NARROW;
        unsigned char *master = grads + room * NARROW;
        direct->grads[unit] = grads;
        direct->jobs[unit] = (zi_update_job){.segments = &direct->block->segments[unit],
                                             .segment_count = 1,
                                             .count = unit_count(direct->shape, unit),
                                             .grad = grads,
                                             .param = at,
                                             .master = master,
                                             .moment1 = master + room * sizeof(float),
                                             .moment2 = master + 2 * room * sizeof(float),
                                             .grad_dtype = ZERO_DTYPE_BF16,
                                             .param_dtype = ZERO_DTYPE_BF16,
                                             .moment_dtype = ZERO_DTYPE_F32,
                                             .decision = &direct->block->decision,
                                             .update_states = 2};
        at += room * BYTES_FOR_ELEMENT;
    }
    direct->decide = (zi_decide_job){.input = direct->input,
                                     .messages = {.first = (unsigned char *)&direct->block->message,
                                                  .count = 1,
                                                  .bytes = sizeof direct->block->message,
                                                  .peer_stride = 1},
                                     .part = &direct->block->part,
                                     .parts = &direct->block->part,
                                     .part_count = 1,
                                     .phases = ZI_DECIDE_COLLECT | ZI_DECIDE_CONCLUDE,
                                     .state = &direct->block->state,
                                     .decision = &direct->block->decision};
}

static zero_status open_device(gpu_direct *direct)
{
    zero_status status = zi_cuda_device_create(false, &direct->device);
    const zi_device *device = &direct->device;
    void *input = NULL;
    if (status == ZERO_OK) {
        status = zi_cuda_kernels_create(device, &direct->kernels);
    }
    if (status == ZERO_OK) {
        status = device->ops->stream_wrap(device->self, zero_stream_cuda(direct->room->stream),
                                          &direct->stream);
    }
    if (status == ZERO_OK) {
        status = device->ops->host_alloc(device->self, ZI_PAGE_BYTES, &input);
        direct->input = input;
    }
    return status;
}

static zero_status take_memory(gpu_direct *direct)
{
    void *block = NULL;
    void *arena = NULL;
    zero_status status = gpu_steps_check(cudaMalloc(&block, sizeof *direct->block), "cudaMalloc");
    direct->block = block;
    if (status == ZERO_OK) {
        status = gpu_steps_check(cudaMalloc(&arena, arena_bytes(direct->shape)), "cudaMalloc");
        direct->arena = arena;
    }
    return status == ZERO_OK ? gpu_steps_check(cudaMemsetAsync(arena, 0, arena_bytes(direct->shape),
                                                               direct->room->stream),
                                               "cudaMemsetAsync")
                             : status;
}

/* On the room's stream, which is all that orders it with what follows; done when it returns. */
static zero_status upload(const gpu_direct *direct, void *target, const void *source, size_t bytes)
{
    const cudaStream_t stream = direct->room->stream;
    const zero_status status = gpu_steps_check(
        cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    return status == ZERO_OK
               ? gpu_steps_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize")
               : status;
}

/* The state before the first step. */
static zero_status start(gpu_direct *direct)
{
    static const zi_loss_scaler scaler = {
        .scale = 1.0f, .min = 1.0f, .window = 2000, .hysteresis = 1};
    const zero_step_params params = gpu_steps_params();
    direct_block block;
    memset(&block, 0, sizeof block);
    zi_step_state_init(&block.state, scaler);
    for (uint32_t unit = 0; unit < direct->shape->units; unit++) {
        block.segments[unit] = (zi_segment){.count = unit_count(direct->shape, unit)};
    }
    *direct->input =
        (zi_step_input){.divisor = 1.0, .max_norm = (double)params.max_norm, .group_count = 1};
    direct->input->groups[0] = params.hyper.adamw;
    return upload(direct, direct->block, &block, sizeof block);
}

static zero_status fill_unit(const gpu_direct *direct, uint32_t unit, float *values)
{
    const zi_update_job *job = &direct->jobs[unit];
    const zi_kernels *kernels = &direct->kernels;
    gpu_steps_fill(NULL, unit, 0, job->count, values);
    const zero_status status = upload(direct, job->master, values, job->count * sizeof *values);
    return status == ZERO_OK
               ? kernels->ops->cast(kernels->self, direct->stream, job->param, ZERO_DTYPE_BF16,
                                    job->master, ZERO_DTYPE_F32, job->count)
               : status;
}

static zero_status fill_all(const gpu_direct *direct)
{
    const gpu_steps_shape *shape = direct->shape;
    const uint64_t most = shape->first_count > shape->count ? shape->first_count : shape->count;
    float *values = calloc(most, sizeof *values);
    zero_status status = values != NULL ? ZERO_OK : ZERO_OUT_OF_MEMORY;
    for (uint32_t unit = 0; unit < shape->units && status == ZERO_OK; unit++) {
        status = fill_unit(direct, unit, values);
    }
    free(values);
    return status;
}

zero_status gpu_direct_create(const gpu_steps_shape *shape, const gpu_steps_room *room,
                              gpu_direct **direct)
{
    gpu_direct *made = shape->units <= UNITS_MAX ? calloc(1, sizeof *made) : NULL;
    *direct = made;
    if (made == NULL) {
        return ZERO_OUT_OF_MEMORY;
    }
    made->shape = shape;
    made->room = room;
    zero_status status = open_device(made);
    if (status == ZERO_OK) {
        status = take_memory(made);
    }
    if (status == ZERO_OK) {
        lay_out(made);
        status = start(made);
    }
    return status == ZERO_OK ? fill_all(made) : status;
}

void gpu_direct_destroy(gpu_direct *direct)
{
    if (direct == NULL) {
        return;
    }
    const zi_device *device = &direct->device;
    if (device->ops != NULL && direct->input != NULL) {
        device->ops->host_free(device->self, direct->input, ZI_PAGE_BYTES);
    }
    (void)cudaFree(direct->block);
    (void)cudaFree(direct->arena);
    zi_kernels_destroy(&direct->kernels);
    zi_device_destroy(&direct->device);
    free(direct);
}

/* A gradient is cleared before backward adds to it. */
static zero_status backward(const gpu_direct *direct, uint32_t unit)
{
    const gpu_steps_room *room = direct->room;
    const size_t bytes = direct->jobs[unit].count * NARROW;
    zero_status status = gpu_steps_check(
        cudaMemsetAsync(direct->grads[unit], 0, bytes, room->stream), "cudaMemsetAsync");
    if (status == ZERO_OK) {
        status = gpu_steps_compute(room, 2);
    }
    return status == ZERO_OK
               ? gpu_steps_check(cudaMemcpyAsync(direct->grads[unit], room->grads, bytes,
                                                 cudaMemcpyDeviceToDevice, room->stream),
                                 "cudaMemcpyAsync")
               : status;
}

static zero_status update(gpu_direct *direct)
{
    const zi_device *device = &direct->device;
    const zi_kernels *kernels = &direct->kernels;
    zi_norm_sum *norm = &direct->block->message.squares;
    zero_status status = device->ops->fill(device->self, direct->stream, norm, 0, sizeof *norm);
    for (uint32_t unit = 0; unit < direct->shape->units && status == ZERO_OK; unit++) {
        status = kernels->ops->square_sum(kernels->self, direct->stream, direct->grads[unit],
                                          ZERO_DTYPE_BF16, direct->jobs[unit].count, norm);
    }
    if (status == ZERO_OK) {
        status = kernels->ops->decide(kernels->self, direct->stream, &direct->decide);
    }
    for (uint32_t unit = 0; unit < direct->shape->units && status == ZERO_OK; unit++) {
        status = kernels->ops->update(kernels->self, direct->stream, &direct->jobs[unit]);
    }
    return status;
}

zero_status gpu_direct_step(gpu_direct *direct)
{
    const uint32_t units = direct->shape->units;
    zero_status status = ZERO_OK;
    for (uint32_t unit = 0; unit < units && status == ZERO_OK; unit++) {
        status = gpu_steps_compute(direct->room, 1);
    }
    for (uint32_t unit = units; unit-- > 0 && status == ZERO_OK;) {
        status = backward(direct, unit);
    }
    return status == ZERO_OK ? update(direct) : status;
}

const void *gpu_direct_params(const gpu_direct *direct, uint32_t unit, uint64_t *count)
{
    *count = direct->jobs[unit].count;
    return direct->jobs[unit].param;
}
