/* The greatest of what the lanes of a warp have, for kernels that give blocks a scale. */
#ifndef ZI_KERNELS_CUDA_WARP_MOST_H
#define ZI_KERNELS_CUDA_WARP_MOST_H

#include "kernels/cuda/launch_kernel.h"

/* Each `lanes` neighbours all get the greatest of what they have. All lanes come here together.
 * lanes: a power of two, and a constant wherever this is inlined. */
static __forceinline__ __device__ uint32_t zi_warp_most(uint32_t most, uint32_t lanes)
{
#pragma unroll
    for (uint32_t half = lanes / 2; half > 0; half /= 2) {
        const uint32_t other = __shfl_xor_sync(ZI_ALL_LANES, most, half);
        most = other > most ? other : most;
    }
    return most;
}

#endif
