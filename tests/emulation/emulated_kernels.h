/* The library's kernels in the emulation: what a .cu file of src/kernels/cuda finds in place of
 * launch_kernel.h, what its threads do together, and other names for its functions, so that they
 * stand beside those that launch on a GPU. Included before the file. */
#ifndef TESTS_EMULATION_EMULATED_KERNELS_H
#define TESTS_EMULATION_EMULATED_KERNELS_H

#include "emulation.h"

/* The guard of the header that this one stands in for. */
#define ZI_KERNELS_CUDA_LAUNCH_KERNEL_H

#define zi_cuda_load_update emulated_load_update
#define zi_cuda_load_measure emulated_load_measure
#define zi_cuda_load_norm emulated_load_norm
#define zi_cuda_load_fold emulated_load_fold
#define zi_cuda_load_block emulated_load_block
#define zi_cuda_load_packed emulated_load_packed
#define zi_cuda_launch_update emulated_update
#define zi_cuda_launch_measure emulated_measure
#define zi_cuda_launch_layers emulated_layers
#define zi_cuda_launch_square_sum emulated_square_sum
#define zi_cuda_launch_decide emulated_decide
#define zi_cuda_launch_fold emulated_fold
#define zi_cuda_launch_packed_fold emulated_packed_fold
#define zi_cuda_launch_cast emulated_cast
#define zi_cuda_launch_encode emulated_encode
#define zi_cuda_launch_decode emulated_decode
#define cudaMemcpyAsync emulated_memcpy

#undef __forceinline__
#define __forceinline__ inline
#undef __grid_constant__
#define __grid_constant__

#include "kernels/cuda/geometry.h"
#include "zero/dtype.h"

/* --- launches: as launch_kernel.h's ----------------------------------------------------------- */

static inline uint64_t zi_kernel_warp()
{
    return (uint64_t)blockIdx.x * ZI_BLOCK_WARPS + threadIdx.x / ZI_WARP_LANES;
}

static inline uint32_t zi_kernel_lane()
{
    return threadIdx.x % ZI_WARP_LANES;
}

static const zero_dtype zi_elements[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};

static inline bool zi_is_element(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_F32 || dtype == ZERO_DTYPE_BF16 || dtype == ZERO_DTYPE_F16;
}

static inline cudaError_t emulated_memcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

static inline cudaError_t zi_kernel_load(const void *)
{
    return cudaSuccess;
}

template <typename kernel_args> struct emulated_call {
    const void *kernel;
    const kernel_args *args;
};

template <typename kernel_args> static void emulated_run(const void *call)
{
    const emulated_call<kernel_args> *it = (const emulated_call<kernel_args> *)call;
    ((void (*)(kernel_args))it->kernel)(*it->args);
}

template <typename kernel_args>
static inline cudaError_t zi_kernel_launch(const void *kernel, uint64_t blocks, kernel_args *args,
                                           cudaStream_t)
{
    const emulated_call<kernel_args> call = {kernel, args};
    return blocks == 0 ? cudaSuccess
                       : emulated_launch(dim3((unsigned)blocks), dim3(ZI_BLOCK_THREADS), 0,
                                         emulated_run<kernel_args>, &call);
}

/* --- what threads do together: whole warps and blocks alone ----------------------------------- */

static inline void emulated_check_mask(unsigned mask)
{
    if (mask != UINT32_MAX) {
        emulated_fault("a part of a warp does something together");
    }
}

static inline void __syncthreads()
{
    emulated_sync_block();
}

static inline void __syncwarp()
{
    emulated_wait(AT_WARP);
}

template <typename type> static inline type __shfl_sync(unsigned mask, type value, int lane)
{
    emulated_check_mask(mask);
    return emulated_from(value, lane % ZI_WARP_LANES);
}

template <typename type> static inline type __shfl_xor_sync(unsigned mask, type value, int other)
{
    emulated_check_mask(mask);
    return emulated_from(value, emulated->now->lane ^ other);
}

static inline unsigned __ballot_sync(unsigned mask, int mine)
{
    emulated_thread *self = emulated->now;
    unsigned votes = 0;
    emulated_check_mask(mask);
    self->warp[self->lane].words[0] = mine != 0;
    emulated_wait(AT_WARP);
    for (int lane = 0; lane < ZI_WARP_LANES; lane++) {
        votes |= self->warp[lane].words[0] << lane;
    }
    emulated_wait(AT_WARP);
    return votes;
}

static inline int __any_sync(unsigned mask, int mine)
{
    return __ballot_sync(mask, mine) != 0;
}

static inline int __ffs(int bits)
{
    return __builtin_ffs(bits);
}

template <typename type> static inline type atomicAdd(type *sum, type value)
{
    const type before = *sum;
    *sum = before + value;
    return before;
}

template <typename type> static inline type atomicMin(type *least, type value)
{
    const type before = *least;
    *least = value < before ? value : before;
    return before;
}

#endif
