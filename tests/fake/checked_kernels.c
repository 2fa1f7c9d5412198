/* Owns the checked device's kernels: each is checked as one operation on what its contract names.
 */
#include <stdlib.h>

#include "checked_device.h"
#include "checked_stream.h"
#include "kernel_ranges.h"

typedef struct checked_kernels_state {
    zi_kernels_ops ops;
    zi_kernels inner;
    zi_device device;
    bool borrows; /* the device is a wrapper of these kernels' own */
} checked_kernels_state;

/* Has the operation checked; *stream is the inner kernels' then. */
static const zi_kernels *put(void *self, zi_stream **stream, const char *what,
                             const kernel_ranges *list)
{
    const checked_kernels_state *kernels = self;
    checked_stream *checked = (checked_stream *)*stream;
    checked_put(checked_device_inner(&kernels->device), checked,
                &(checked_turn){what, list->ranges, list->count, NULL, NULL});
    *stream = checked->inner;
    return &kernels->inner;
}

static zero_status update(void *self, zi_stream *stream, const zi_update_job *job)
{
    const kernel_ranges list = kernel_ranges_update(job);
    const zi_kernels *inner = put(self, &stream, "update", &list);
    return inner->ops->update(inner->self, stream, job);
}

static zero_status measure(void *self, zi_stream *stream, const zi_update_job *job)
{
    const kernel_ranges list = kernel_ranges_measure(job);
    const zi_kernels *inner = put(self, &stream, "measure", &list);
    return inner->ops->measure(inner->self, stream, job);
}

static zero_status layers(void *self, zi_stream *stream, const zi_layers_job *job)
{
    const kernel_ranges list = kernel_ranges_layers(job);
    const zi_kernels *inner = put(self, &stream, "layers", &list);
    return inner->ops->layers(inner->self, stream, job);
}

static zero_status square_sum(void *self, zi_stream *stream, const void *source, zero_dtype dtype,
                              size_t count, zi_norm_sum *sum)
{
    const kernel_ranges list = kernel_ranges_square_sum(source, dtype, count, sum);
    const zi_kernels *inner = put(self, &stream, "square_sum", &list);
    return inner->ops->square_sum(inner->self, stream, source, dtype, count, sum);
}

static zero_status decide(void *self, zi_stream *stream, const zi_decide_job *job)
{
    const kernel_ranges list = kernel_ranges_decide(job);
    const zi_kernels *inner = put(self, &stream, "decide", &list);
    return inner->ops->decide(inner->self, stream, job);
}

static zero_status fold(void *self, zi_stream *stream, const zi_fold *job)
{
    const kernel_ranges list = kernel_ranges_fold(job);
    const zi_kernels *inner = put(self, &stream, "fold", &list);
    return inner->ops->fold(inner->self, stream, job);
}

static zero_status cast(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                        const void *source, zero_dtype source_dtype, size_t count)
{
    const kernel_ranges list =
        kernel_ranges_cast(target, target_dtype, source, source_dtype, count);
    const zi_kernels *inner = put(self, &stream, "cast", &list);
    return inner->ops->cast(inner->self, stream, target, target_dtype, source, source_dtype, count);
}

static zero_status encode(void *self, zi_stream *stream, void *codes, void *scales,
                          zero_dtype dtype, const void *source, zero_dtype source_dtype,
                          size_t count)
{
    const kernel_ranges list =
        kernel_ranges_encode(codes, scales, dtype, source, source_dtype, count);
    const zi_kernels *inner = put(self, &stream, "encode", &list);
    return inner->ops->encode(inner->self, stream, codes, scales, dtype, source, source_dtype,
                              count);
}

static zero_status decode(void *self, zi_stream *stream, void *target, zero_dtype target_dtype,
                          const void *codes, const void *scales, zero_dtype dtype, size_t count)
{
    const kernel_ranges list =
        kernel_ranges_decode(target, target_dtype, codes, scales, dtype, count);
    const zi_kernels *inner = put(self, &stream, "decode", &list);
    return inner->ops->decode(inner->self, stream, target, target_dtype, codes, scales, dtype,
                              count);
}

static void destroy(void *self)
{
    checked_kernels_state *kernels = self;
    if (kernels != NULL) {
        zi_kernels_destroy(&kernels->inner);
        if (kernels->borrows) {
            zi_device_destroy(&kernels->device);
        }
        free(kernels);
    }
}

void checked_kernels(zi_kernels *kernels, const zi_device *checked)
{
    checked_kernels_state *state = race_allocate(sizeof *state);
    state->inner = *kernels;
    if (checked != NULL) {
        state->device = *checked;
    } else {
        checked_device_borrow(kernels->device, &state->device);
        state->borrows = true;
    }
    state->ops = (zi_kernels_ops){.struct_bytes = sizeof(zi_kernels_ops),
                                  .name = kernels->ops->name,
                                  .sources_max = kernels->ops->sources_max,
                                  .update = update,
                                  .measure = measure,
                                  .layers = layers,
                                  .square_sum = square_sum,
                                  .decide = decide,
                                  .fold = fold,
                                  .cast = cast,
                                  .encode = encode,
                                  .decode = decode,
                                  .destroy = destroy};
    *kernels = (zi_kernels){&state->ops, state, &state->device};
}
