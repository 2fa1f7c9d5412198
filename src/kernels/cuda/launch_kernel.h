/* Shared by the launch functions: the index of a thread, and the launch of a kernel with one
 * argument. */
#ifndef ZI_KERNELS_CUDA_LAUNCH_KERNEL_H
#define ZI_KERNELS_CUDA_LAUNCH_KERNEL_H

#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/geometry.h"
#include "zero/dtype.h"

/* The thread's warp in the grid, and its lane. The warp is asked for wherever it is needed, and
 * takes no register between. */
static __forceinline__ __device__ uint64_t zi_kernel_warp(void)
{
    uint32_t block;
    uint32_t thread;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return (uint64_t)block * ZI_BLOCK_WARPS + thread / ZI_WARP_LANES;
}

static __forceinline__ __device__ uint32_t zi_kernel_lane(void)
{
    return threadIdx.x % ZI_WARP_LANES;
}

static const zero_dtype zi_elements[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};

static inline bool zi_is_element(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_F32 || dtype == ZERO_DTYPE_BF16 || dtype == ZERO_DTYPE_F16;
}

/* Asking for a kernel's attributes loads it. */
static inline cudaError_t zi_kernel_load(const void *kernel)
{
    struct cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel);
}

/* args: what the kernel takes. Without work nothing is launched. The code returned is that of this
 * launch alone, not of an earlier call of the program. */
template <typename kernel_args>
static inline cudaError_t zi_kernel_launch(const void *kernel, uint64_t blocks, kernel_args *args,
                                           cudaStream_t stream)
{
    if (blocks == 0) {
        return cudaSuccess;
    }
    if (blocks > INT32_MAX) {
        return cudaErrorInvalidValue;
    }
    void *list[] = {args};
    return cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3(ZI_BLOCK_THREADS), list, 0,
                            stream);
}

#endif
