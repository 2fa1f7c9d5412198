/** @file
 *  Engines on NVIDIA GPUs; needs the CUDA toolkit's headers and a build with CUDA.
 *
 *  Set zero_engine_options.device to ZERO_DEVICE_CUDA and make the GPU current (cudaSetDevice) on
 *  each thread that creates the engine or calls its hooks. Views of parameters, gradients and
 *  shards are then memory of that GPU; shards on the host tier are host memory.
 *
 *  Hooks enqueue and return. These calls wait for the GPU on the host:
 *
 *  - zero_step_wait, zero_grad_norm, a dynamic zero_loss_scale, zero_step_state_get and
 *    zero_step_state_set;
 *  - zero_engine_fill and the calls of zero/shard.h and zero/evict.h;
 *  - hooks that are given the host stream;
 *  - zero_step and zero_micro_begin when the host is four steps ahead of the GPU. */
#ifndef ZERO_CUDA_H
#define ZERO_CUDA_H

#include "zero/stream.h"
#include <cuda_runtime_api.h>

ZERO_BEGIN

/** The CUDA stream on which forward and backward run. 0 is the legacy default stream. */
static inline zero_stream zero_stream_cuda(cudaStream_t native)
{
    zero_stream stream;
    stream.native = native != 0 ? (void *)native : (void *)cudaStreamLegacy;
    return stream;
}

ZERO_END

#endif
