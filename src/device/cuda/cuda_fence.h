/* Fences of the CUDA device, for the files of this folder: see zi_device_ops. */
#ifndef ZI_DEVICE_CUDA_CUDA_FENCE_H
#define ZI_DEVICE_CUDA_CUDA_FENCE_H

#include "device/cuda/cuda_stream.h"

zero_status zi_cuda_fence_create(int ordinal, zi_fence **out);
void zi_cuda_fence_destroy(zi_fence *fence); /* accepts NULL */
zero_status zi_cuda_fence_mark(zi_fence *fence, const cuda_stream *stream);
/* ordinal: of the stream's GPU. opened: a bit for each GPU whose memory it was let read. */
zero_status zi_cuda_fence_follow(const cuda_stream *stream, int ordinal, _Atomic uint64_t *opened,
                                 const zi_fence *fence);

#endif
