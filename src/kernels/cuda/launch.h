/* The CUDA kernels as C functions that put them on a stream.
 * - Arguments: what their pointers point to is device memory, but for the arguments themselves,
 *   `input` of a decision (host memory that the device reaches) and a fold's list of sources (host
 *   memory, read before return). Arrays need only the alignment of their elements; 16 bytes are
 *   faster.
 * - Errors: that of the launch; cudaErrorInvalidValue for types that no element or block has, or a
 *   fold of more than ZI_CUDA_SOURCES_MAX sources, or of granules that are not whole. An error
 * while a kernel runs shows on the stream. */
#ifndef ZI_KERNELS_CUDA_LAUNCH_H
#define ZI_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/geometry.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Load the kernels of a file onto the current GPU, before anything is launched. CUDA would load
 * each at its first launch. That takes memory, and may wait for all that is on the GPU, collectives
 * included whose other ranks wait likewise. */
cudaError_t zi_cuda_load_update(void);
cudaError_t zi_cuda_load_measure(void);
cudaError_t zi_cuda_load_norm(void);
cudaError_t zi_cuda_load_fold(void);
cudaError_t zi_cuda_load_block(void);
cudaError_t zi_cuda_load_packed(void);

/* An update of a job's segments by an optimizer of the library. */
cudaError_t zi_cuda_launch_update(cudaStream_t stream, const zi_update_job *job);
/* The measurement of a job's segments, of an optimizer with layer-wise rates. */
cudaError_t zi_cuda_launch_measure(cudaStream_t stream, const zi_update_job *job);
cudaError_t zi_cuda_launch_layers(cudaStream_t stream, const zi_layers_job *job);
cudaError_t zi_cuda_launch_square_sum(cudaStream_t stream, const void *source, zero_dtype dtype,
                                      uint64_t count, zi_norm_sum *sum);
cudaError_t zi_cuda_launch_decide(cudaStream_t stream, const zi_decide_job *job);
cudaError_t zi_cuda_launch_fold(cudaStream_t stream, const zi_fold *fold);
/* Of a fold with a packed type, which the one above calls. */
cudaError_t zi_cuda_launch_packed_fold(cudaStream_t stream, const zi_fold *fold);
cudaError_t zi_cuda_launch_cast(cudaStream_t stream, void *target, zero_dtype target_dtype,
                                const void *source, zero_dtype source_dtype, uint64_t count);
cudaError_t zi_cuda_launch_encode(cudaStream_t stream, void *codes, void *scales, zero_dtype dtype,
                                  const void *source, zero_dtype source_dtype, uint64_t count);
cudaError_t zi_cuda_launch_decode(cudaStream_t stream, void *target, zero_dtype target_dtype,
                                  const void *codes, const void *scales, zero_dtype dtype,
                                  uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
