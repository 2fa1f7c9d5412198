/* The launches of src/kernels/cuda/launch.h over the fake: each is one kernel that declares just
 * what it reads and writes, and runs the .cu file itself (tests/emulation) with no other device
 * memory within reach. */
#include "fake_cuda.h"

#include "core/block_codec.h"
#include "core/dtype.h"
#include "fake_stream.h"
#include "kernel_ranges.h"
#include "kernels/cuda/launch.h"
#include "launch_now.h"

_Static_assert(ZI_CUDA_SOURCES_MAX <= KERNEL_SOURCES_MAX, "a fold's ranges have room");

/* The files of src/kernels/cuda, and on which devices their kernels were loaded: CUDA would load
 * them at a launch, and wait there for what may never end. */
typedef enum kernel_file {
    UPDATE_FILE,
    MEASURE_FILE,
    NORM_FILE,
    FOLD_FILE,
    BLOCK_FILE,
    PACKED_FILE,
    FILES
} kernel_file;
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

cudaError_t zi_cuda_load_measure(void)
{
    return load(__func__, MEASURE_FILE);
}

cudaError_t zi_cuda_load_norm(void)
{
    return load(__func__, NORM_FILE);
}

cudaError_t zi_cuda_load_fold(void)
{
    return load(__func__, FOLD_FILE);
}

cudaError_t zi_cuda_load_block(void)
{
    return load(__func__, BLOCK_FILE);
}

cudaError_t zi_cuda_load_packed(void)
{
    return load(__func__, PACKED_FILE);
}

static cudaError_t launch(cudaStream_t stream, kernel_file file, const char *name,
                          void (*run)(void *payload), const void *payload, size_t payload_bytes,
                          const kernel_ranges *list)
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
    launch_update_now(payload);
}

cudaError_t zi_cuda_launch_update(cudaStream_t stream, const zi_update_job *job)
{
    if (job->update != NULL) {
        return cudaErrorInvalidValue;
    }
    const kernel_ranges list = kernel_ranges_update(job);
    return launch(stream, UPDATE_FILE, __func__, run_update, job, sizeof *job, &list);
}

static void run_measure(void *payload)
{
    launch_measure_now(payload);
}

cudaError_t zi_cuda_launch_measure(cudaStream_t stream, const zi_update_job *job)
{
    const kernel_ranges list = kernel_ranges_measure(job);
    return launch(stream, MEASURE_FILE, __func__, run_measure, job, sizeof *job, &list);
}

static void run_layers(void *payload)
{
    launch_layers_now(payload);
}

cudaError_t zi_cuda_launch_layers(cudaStream_t stream, const zi_layers_job *job)
{
    const kernel_ranges list = kernel_ranges_layers(job);
    return launch(stream, MEASURE_FILE, __func__, run_layers, job, sizeof *job, &list);
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
    launch_square_sum_now(p->source, p->dtype, p->count, p->sum);
}

cudaError_t zi_cuda_launch_square_sum(cudaStream_t stream, const void *source, zero_dtype dtype,
                                      uint64_t count, zi_norm_sum *sum)
{
    const square_sum_payload payload = {source, count, sum, dtype};
    const kernel_ranges list = kernel_ranges_square_sum(source, dtype, count, sum);
    return launch(stream, NORM_FILE, __func__, run_square_sum, &payload, sizeof payload, &list);
}

static void run_decide(void *payload)
{
    launch_decide_now(payload);
}

cudaError_t zi_cuda_launch_decide(cudaStream_t stream, const zi_decide_job *job)
{
    const kernel_ranges list = kernel_ranges_decide(job);
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
    launch_fold_now(&p->fold);
}

cudaError_t zi_cuda_launch_fold(cudaStream_t stream, const zi_fold *fold)
{
    if (fold->source_count > ZI_CUDA_SOURCES_MAX) {
        return cudaErrorInvalidValue;
    }
    fold_payload payload = {.fold = *fold};
    for (uint32_t i = 0; i < fold->source_count; i++) {
        payload.sources[i] = fold->sources[i];
    }
    const kernel_ranges list = kernel_ranges_fold(fold);
    return launch(stream, zi_fold_is_packed(fold) ? PACKED_FILE : FOLD_FILE, __func__, run_fold,
                  &payload, sizeof payload, &list);
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
    launch_cast_now(p->target, p->target_dtype, p->source, p->source_dtype, p->count);
}

cudaError_t zi_cuda_launch_cast(cudaStream_t stream, void *target, zero_dtype target_dtype,
                                const void *source, zero_dtype source_dtype, uint64_t count)
{
    const cast_payload payload = {target, source, count, target_dtype, source_dtype};
    const kernel_ranges list =
        kernel_ranges_cast(target, target_dtype, source, source_dtype, count);
    return launch(stream, FOLD_FILE, __func__, run_cast, &payload, sizeof payload, &list);
}

/* Of an encoding, whose source has no scales, or a decoding, whose target has none. */
typedef struct block_payload {
    void *target;
    void *target_scales;
    const void *source;
    const void *source_scales;
    uint64_t count;
    zero_dtype target_dtype;
    zero_dtype source_dtype;
} block_payload;

static void run_encode(void *payload)
{
    const block_payload *p = payload;
    launch_encode_now(p->target, p->target_scales, p->target_dtype, p->source, p->source_dtype,
                      p->count);
}

cudaError_t zi_cuda_launch_encode(cudaStream_t stream, void *codes, void *scales, zero_dtype dtype,
                                  const void *source, zero_dtype source_dtype, uint64_t count)
{
    if (!zi_dtype_is_block(dtype) || !zi_dtype_is_number(source_dtype)) {
        return cudaErrorInvalidValue;
    }
    const block_payload payload = {codes, scales, source, NULL, count, dtype, source_dtype};
    const kernel_ranges list =
        kernel_ranges_encode(codes, scales, dtype, source, source_dtype, count);
    return launch(stream, BLOCK_FILE, __func__, run_encode, &payload, sizeof payload, &list);
}

static void run_decode(void *payload)
{
    const block_payload *p = payload;
    launch_decode_now(p->target, p->target_dtype, p->source, p->source_scales, p->source_dtype,
                      p->count);
}

cudaError_t zi_cuda_launch_decode(cudaStream_t stream, void *target, zero_dtype target_dtype,
                                  const void *codes, const void *scales, zero_dtype dtype,
                                  uint64_t count)
{
    if (!zi_dtype_is_block(dtype) || !zi_dtype_is_number(target_dtype)) {
        return cudaErrorInvalidValue;
    }
    const block_payload payload = {target, NULL, codes, scales, count, target_dtype, dtype};
    const kernel_ranges list =
        kernel_ranges_decode(target, target_dtype, codes, scales, dtype, count);
    return launch(stream, BLOCK_FILE, __func__, run_decode, &payload, sizeof payload, &list);
}
