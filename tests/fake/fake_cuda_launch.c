/* The launches of src/kernels/cuda/launch.h over the fake: each is one kernel that declares just
 * what it reads and writes, and runs the very bodies that nvcc compiles
 * (tests/kernels/fake_launch.c) with no other device memory within reach. */
#include "fake_cuda.h"

#include "fake_launch.h"
#include "fake_stream.h"
#include "kernels/cuda/launch.h"

/* The ranges of one launch. */
typedef struct range_list {
    size_t count;
    fake_cuda_range ranges[ZI_CUDA_SOURCES_MAX + 8];
} range_list;

static void reads(range_list *list, const void *pointer, uint64_t bytes)
{
    if (pointer != NULL) {
        list->ranges[list->count++] = (fake_cuda_range){pointer, bytes, false};
    }
}

static void writes(range_list *list, const void *pointer, uint64_t bytes)
{
    if (pointer != NULL) {
        list->ranges[list->count++] = (fake_cuda_range){pointer, bytes, true};
    }
}

/* The files of src/kernels/cuda, and on which devices their kernels were loaded: CUDA would load
 * them at a launch, and wait there for what may never end. */
typedef enum kernel_file { UPDATE_FILE, NORM_FILE, FOLD_FILE, FILES } kernel_file;
static bool loaded[FILES][FAKE_CUDA_DEVICES_MAX];

static cudaError_t load(const char *name, kernel_file file)
{
    const cudaError_t code = fake_enter(name);
    loaded[file][fake_device] |= code == cudaSuccess;
    return fake_leave(code);
}

cudaError_t zi_cuda_load_update(void)
{
    return load(__func__, UPDATE_FILE);
}

cudaError_t zi_cuda_load_norm(void)
{
    return load(__func__, NORM_FILE);
}

cudaError_t zi_cuda_load_fold(void)
{
    return load(__func__, FOLD_FILE);
}

static cudaError_t launch(cudaStream_t stream, kernel_file file, const char *name,
                          void (*run)(void *payload), const void *payload, size_t payload_bytes,
                          const range_list *list)
{
    fake_lock();
    if (!loaded[file][fake_device]) {
        race_fault(RACE_MISUSE, "%s before its kernels were loaded on device %d", name,
                   fake_device);
    }
    fake_unlock();
    const fake_cuda_work work = {.name = name,
                                 .kind = FAKE_CUDA_KERNEL,
                                 .run = run,
                                 .payload = payload,
                                 .payload_bytes = payload_bytes,
                                 .ranges = list->ranges,
                                 .range_count = list->count};
    return fake_cuda_enqueue(stream, &work);
}

static void run_update(void *payload)
{
    zi_fake_run_update(payload);
}

/* Elements between segments count as touched: only the device knows the segments. */
cudaError_t zi_cuda_launch_update(cudaStream_t stream, const zi_update_job *job)
{
    if (job->update != NULL) {
        return cudaErrorInvalidValue;
    }
    const uint64_t moment_bytes = job->count * zero_dtype_bytes(job->moment_dtype);
    const uint64_t param_bytes = job->count * zero_dtype_bytes(job->param_dtype);
    const uint64_t master_bytes = job->count * zero_dtype_bytes(ZERO_DTYPE_F32);
    range_list list = {0};
    reads(&list, job->segments, job->segment_count * sizeof job->segments[0]);
    reads(&list, job->decision, sizeof *job->decision);
    reads(&list, job->grad, job->count * zero_dtype_bytes(job->grad_dtype));
    if (job->param_dtype == ZERO_DTYPE_F32 || job->master == NULL) {
        reads(&list, job->param, param_bytes);
    }
    reads(&list, job->master, master_bytes);
    reads(&list, job->moment1, moment_bytes);
    reads(&list, job->moment2, moment_bytes);
    writes(&list, job->param, param_bytes);
    writes(&list, job->master, master_bytes);
    writes(&list, job->moment1, moment_bytes);
    writes(&list, job->moment2, moment_bytes);
    return launch(stream, UPDATE_FILE, __func__, run_update, job, sizeof *job, &list);
}

typedef struct square_sum_payload {
    const void *source;
    uint64_t count;
    zi_norm_sum *sum;
    zero_dtype dtype;
} square_sum_payload;

static void run_square_sum(void *payload)
{
    const square_sum_payload *p = payload;
    zi_fake_run_square_sum(p->source, p->dtype, p->count, p->sum);
}

cudaError_t zi_cuda_launch_square_sum(cudaStream_t stream, const void *source, zero_dtype dtype,
                                      uint64_t count, zi_norm_sum *sum)
{
    const square_sum_payload payload = {source, count, sum, dtype};
    range_list list = {0};
    reads(&list, source, count * zero_dtype_bytes(dtype));
    reads(&list, sum, sizeof *sum);
    writes(&list, sum, sizeof *sum);
    return launch(stream, NORM_FILE, __func__, run_square_sum, &payload, sizeof payload, &list);
}

static void run_decide(void *payload)
{
    zi_fake_run_decide(payload);
}

cudaError_t zi_cuda_launch_decide(cudaStream_t stream, const zi_decide_job *job)
{
    range_list list = {0};
    reads(&list, job->input, sizeof *job->input);
    reads(&list, job->state, sizeof *job->state);
    if ((job->phases & ZI_DECIDE_COLLECT) != 0) {
        reads(&list, job->messages.first, (size_t)job->messages.count * job->messages.bytes);
        writes(&list, job->part, sizeof *job->part);
    }
    if ((job->phases & ZI_DECIDE_CONCLUDE) != 0) {
        reads(&list, job->parts, job->part_count * sizeof *job->parts);
        writes(&list, job->state, sizeof *job->state);
        /* A skipped step leaves the groups of the decision as they were, and one that is refused
         * leaves all but what it says of that. */
        reads(&list, job->decision, sizeof *job->decision);
        writes(&list, job->decision, sizeof *job->decision);
    }
    return launch(stream, NORM_FILE, __func__, run_decide, job, sizeof *job, &list);
}

typedef struct fold_payload {
    zi_fold fold;
    const void *sources[ZI_CUDA_SOURCES_MAX];
} fold_payload;

static void run_fold(void *payload)
{
    fold_payload *p = payload;
    p->fold.sources = p->sources; /* of this copy of the payload */
    zi_fake_run_fold(&p->fold);
}

cudaError_t zi_cuda_launch_fold(cudaStream_t stream, const zi_fold *fold)
{
    if (fold->source_count > ZI_CUDA_SOURCES_MAX) {
        return cudaErrorInvalidValue;
    }
    const uint64_t dst_bytes = fold->count * zero_dtype_bytes(fold->dst_dtype);
    fold_payload payload = {.fold = *fold};
    range_list list = {0};
    for (uint32_t i = 0; i < fold->source_count; i++) {
        payload.sources[i] = fold->sources[i];
        reads(&list, fold->sources[i], fold->count * zero_dtype_bytes(fold->source_dtype));
    }
    if (fold->accumulate) {
        reads(&list, fold->dst, dst_bytes);
    }
    writes(&list, fold->dst, dst_bytes);
    reads(&list, fold->squares, sizeof *fold->squares);
    writes(&list, fold->squares, sizeof *fold->squares);
    return launch(stream, FOLD_FILE, __func__, run_fold, &payload, sizeof payload, &list);
}

typedef struct cast_payload {
    void *target;
    const void *source;
    uint64_t count;
    zero_dtype target_dtype;
    zero_dtype source_dtype;
} cast_payload;

static void run_cast(void *payload)
{
    const cast_payload *p = payload;
    zi_fake_run_cast(p->target, p->target_dtype, p->source, p->source_dtype, p->count);
}

cudaError_t zi_cuda_launch_cast(cudaStream_t stream, void *target, zero_dtype target_dtype,
                                const void *source, zero_dtype source_dtype, uint64_t count)
{
    const cast_payload payload = {target, source, count, target_dtype, source_dtype};
    range_list list = {0};
    reads(&list, source, count * zero_dtype_bytes(source_dtype));
    writes(&list, target, count * zero_dtype_bytes(target_dtype));
    return launch(stream, FOLD_FILE, __func__, run_cast, &payload, sizeof payload, &list);
}
