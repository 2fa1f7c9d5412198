/* Owns the CUDA device's table of kernels: each operation is a device task that puts its kernels on
 * the native stream. A task carries what it needs in its argument, but for what must stay in place
 * until it is issued. */
#include "kernels/kernels.h"

#include "core/error.h"
#include "core/memory.h"
#include "device/cuda/cuda_device.h"
#include "kernels/cuda/launch.h"

typedef struct cuda_kernels {
    const zi_device *device;
} cuda_kernels;

/* Arguments of the tasks; copied into the stream's queue. */
typedef struct update_work {
    cudaStream_t stream;
    const zi_update_job *job;
} update_work;

typedef struct layers_work {
    cudaStream_t stream;
    zi_layers_job job;
} layers_work;

typedef struct array_work {
    cudaStream_t stream;
    void *target;
    const void *source;
    void *target_scales; /* of a target or a source in blocks */
    const void *source_scales;
    zi_norm_sum *sum;
    uint64_t count;
    zero_dtype target_dtype;
    zero_dtype source_dtype;
} array_work;

typedef struct decide_work {
    cudaStream_t stream;
    zi_decide_job job;
} decide_work;

typedef struct fold_work {
    cudaStream_t stream;
    const zi_fold *fold;
} fold_work;

_Static_assert(sizeof(array_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");
_Static_assert(sizeof(layers_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");
_Static_assert(sizeof(decide_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

static zero_status issue(void *self, zi_stream *stream, zi_task_fn fn, const void *argument,
                         size_t bytes)
{
    const cuda_kernels *kernels = self;
    return kernels->device->ops->task(kernels->device->self, stream, fn, argument, bytes);
}

static zero_status update_now(void *argument)
{
    const update_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_update(work->stream, work->job), "launch of update");
}

static zero_status cuda_kernels_launch_update(void *self, zi_stream *stream,
                                              const zi_update_job *job)
{
    if (job->update != NULL) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "the caller's own optimizer is host code and the shards are GPU memory; use "
                "ZERO_OPTIMIZER_ADAMW, or an engine on the CPU device");
    }
    const update_work work = {zi_cuda_stream_native(stream), job};
    return issue(self, stream, update_now, &work, sizeof work);
}

static zero_status measure_now(void *argument)
{
    const update_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_measure(work->stream, work->job), "launch of measure");
}

static zero_status cuda_kernels_launch_measure(void *self, zi_stream *stream,
                                               const zi_update_job *job)
{
    const update_work work = {zi_cuda_stream_native(stream), job};
    return issue(self, stream, measure_now, &work, sizeof work);
}

static zero_status layers_now(void *argument)
{
    const layers_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_layers(work->stream, &work->job), "launch of layers");
}

static zero_status cuda_kernels_launch_layers(void *self, zi_stream *stream,
                                              const zi_layers_job *job)
{
    const layers_work work = {zi_cuda_stream_native(stream), *job};
    return issue(self, stream, layers_now, &work, sizeof work);
}

static zero_status square_sum_now(void *argument)
{
    const array_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_square_sum(work->stream, work->source, work->source_dtype,
                                                   work->count, work->sum),
                         "launch of square_sum");
}

static zero_status cuda_kernels_launch_square_sum(void *self, zi_stream *stream, const void *source,
                                                  zero_dtype dtype, size_t count, zi_norm_sum *sum)
{
    const array_work work = {.stream = zi_cuda_stream_native(stream),
                             .source = source,
                             .sum = sum,
                             .count = count,
                             .source_dtype = dtype};
    return issue(self, stream, square_sum_now, &work, sizeof work);
}

static zero_status decide_now(void *argument)
{
    const decide_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_decide(work->stream, &work->job), "launch of decide");
}

static zero_status cuda_kernels_launch_decide(void *self, zi_stream *stream,
                                              const zi_decide_job *job)
{
    const decide_work work = {zi_cuda_stream_native(stream), *job};
    return issue(self, stream, decide_now, &work, sizeof work);
}

static zero_status fold_now(void *argument)
{
    const fold_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_fold(work->stream, work->fold), "launch of fold");
}

static zero_status cuda_kernels_launch_fold(void *self, zi_stream *stream, const zi_fold *fold)
{
    const fold_work work = {zi_cuda_stream_native(stream), fold};
    return issue(self, stream, fold_now, &work, sizeof work);
}

static zero_status cast_now(void *argument)
{
    const array_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_cast(work->stream, work->target, work->target_dtype,
                                             work->source, work->source_dtype, work->count),
                         "launch of cast");
}

static zero_status cuda_kernels_launch_cast(void *self, zi_stream *stream, void *target,
                                            zero_dtype target_dtype, const void *source,
                                            zero_dtype source_dtype, size_t count)
{
    const array_work work = {.stream = zi_cuda_stream_native(stream),
                             .target = target,
                             .source = source,
                             .count = count,
                             .target_dtype = target_dtype,
                             .source_dtype = source_dtype};
    return issue(self, stream, cast_now, &work, sizeof work);
}

static zero_status encode_now(void *argument)
{
    const array_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_encode(work->stream, work->target, work->target_scales,
                                               work->target_dtype, work->source, work->source_dtype,
                                               work->count),
                         "launch of encode");
}

static zero_status cuda_kernels_launch_encode(void *self, zi_stream *stream, void *codes,
                                              void *scales, zero_dtype dtype, const void *source,
                                              zero_dtype source_dtype, size_t count)
{
    const array_work work = {.stream = zi_cuda_stream_native(stream),
                             .target = codes,
                             .source = source,
                             .target_scales = scales,
                             .count = count,
                             .target_dtype = dtype,
                             .source_dtype = source_dtype};
    return issue(self, stream, encode_now, &work, sizeof work);
}

static zero_status decode_now(void *argument)
{
    const array_work *work = argument;
    return zi_cuda_check(zi_cuda_launch_decode(work->stream, work->target, work->target_dtype,
                                               work->source, work->source_scales,
                                               work->source_dtype, work->count),
                         "launch of decode");
}

static zero_status cuda_kernels_launch_decode(void *self, zi_stream *stream, void *target,
                                              zero_dtype target_dtype, const void *codes,
                                              const void *scales, zero_dtype dtype, size_t count)
{
    const array_work work = {.stream = zi_cuda_stream_native(stream),
                             .target = target,
                             .source = codes,
                             .source_scales = scales,
                             .count = count,
                             .target_dtype = target_dtype,
                             .source_dtype = dtype};
    return issue(self, stream, decode_now, &work, sizeof work);
}

static const zi_kernels_ops cuda_kernels_ops = {
    .struct_bytes = sizeof(zi_kernels_ops),
    .name = "cuda",
    .sources_max = ZI_CUDA_SOURCES_MAX,
    .update = cuda_kernels_launch_update,
    .measure = cuda_kernels_launch_measure,
    .layers = cuda_kernels_launch_layers,
    .square_sum = cuda_kernels_launch_square_sum,
    .decide = cuda_kernels_launch_decide,
    .fold = cuda_kernels_launch_fold,
    .cast = cuda_kernels_launch_cast,
    .encode = cuda_kernels_launch_encode,
    .decode = cuda_kernels_launch_decode,
    .destroy = zi_free,
};

static zero_status cuda_kernels_load(void)
{
    ZI_TRY(zi_cuda_check(zi_cuda_load_update(), "loading update"));
    ZI_TRY(zi_cuda_check(zi_cuda_load_measure(), "loading measure and layers"));
    ZI_TRY(zi_cuda_check(zi_cuda_load_norm(), "loading square_sum and decide"));
    ZI_TRY(zi_cuda_check(zi_cuda_load_fold(), "loading fold and cast"));
    ZI_TRY(zi_cuda_check(zi_cuda_load_block(), "loading encode and decode"));
    return zi_cuda_check(zi_cuda_load_packed(), "loading folds of packed granules");
}

zero_status zi_cuda_kernels_create(const zi_device *device, zi_kernels *kernels)
{
    *kernels = (zi_kernels){0};
    ZI_TRY(cuda_kernels_load());
    cuda_kernels *self = NULL;
    ZI_TRY(zi_calloc(1, sizeof *self, (void **)&self));
    self->device = device;
    *kernels = (zi_kernels){.ops = &cuda_kernels_ops, .self = self, .device = device};
    return ZERO_OK;
}
