/* The functions of launch_now.h in the emulation: the .cu files themselves run. */
#include "launch_now.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the .cu files, by the names that emulated_kernels.h gives them. */
cudaError_t emulated_update(cudaStream_t stream, const zi_update_job *job);
cudaError_t emulated_measure(cudaStream_t stream, const zi_update_job *job);
cudaError_t emulated_layers(cudaStream_t stream, const zi_layers_job *job);
cudaError_t emulated_square_sum(cudaStream_t stream, const void *source, zero_dtype dtype,
                                uint64_t count, zi_norm_sum *sum);
cudaError_t emulated_decide(cudaStream_t stream, const zi_decide_job *job);
cudaError_t emulated_fold(cudaStream_t stream, const zi_fold *fold);
cudaError_t emulated_cast(cudaStream_t stream, void *target, zero_dtype target_dtype,
                          const void *source, zero_dtype source_dtype, uint64_t count);
cudaError_t emulated_encode(cudaStream_t stream, void *codes, void *scales, zero_dtype dtype,
                            const void *source, zero_dtype source_dtype, uint64_t count);
cudaError_t emulated_decode(cudaStream_t stream, void *target, zero_dtype target_dtype,
                            const void *codes, const void *scales, zero_dtype dtype,
                            uint64_t count);

static void must(cudaError_t code)
{
    if (code != cudaSuccess) {
        fprintf(stderr, "emulation: a launch failed with %d\n", (int)code);
        abort();
    }
}

void launch_update_now(const zi_update_job *job)
{
    must(emulated_update(NULL, job));
}

void launch_measure_now(const zi_update_job *job)
{
    must(emulated_measure(NULL, job));
}

void launch_layers_now(const zi_layers_job *job)
{
    must(emulated_layers(NULL, job));
}

void launch_square_sum_now(const void *source, zero_dtype dtype, uint64_t count, zi_norm_sum *sum)
{
    must(emulated_square_sum(NULL, source, dtype, count, sum));
}

void launch_decide_now(const zi_decide_job *job)
{
    must(emulated_decide(NULL, job));
}

void launch_fold_now(const zi_fold *fold)
{
    must(emulated_fold(NULL, fold));
}

void launch_cast_now(void *target, zero_dtype target_dtype, const void *source,
                     zero_dtype source_dtype, uint64_t count)
{
    must(emulated_cast(NULL, target, target_dtype, source, source_dtype, count));
}

void launch_encode_now(void *codes, void *scales, zero_dtype dtype, const void *source,
                       zero_dtype source_dtype, uint64_t count)
{
    must(emulated_encode(NULL, codes, scales, dtype, source, source_dtype, count));
}

void launch_decode_now(void *target, zero_dtype target_dtype, const void *codes, const void *scales,
                       zero_dtype dtype, uint64_t count)
{
    must(emulated_decode(NULL, target, target_dtype, codes, scales, dtype, count));
}
