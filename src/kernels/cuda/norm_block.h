/* Shared by the kernels that add squares: from a warp's totals to its block's accumulator, and from
 * that to the launch's. All additions are exact and of integers, so the order of blocks and warps
 * shows in no bit. */
#ifndef ZI_KERNELS_CUDA_NORM_BLOCK_H
#define ZI_KERNELS_CUDA_NORM_BLOCK_H

#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/norm_body.h"

/* A sum's words, as atomics see them. */
#define ZI_SUM_WORDS (ZI_NORM_LIMBS + 2)
typedef unsigned long long zi_sum_word;
static_assert(sizeof(zi_norm_sum) == ZI_SUM_WORDS * sizeof(zi_sum_word),
              "a sum is limbs and two counts");

/* Zeros are most of what there is to add. */
static __forceinline__ __device__ void zi_norm_add_word(zi_sum_word *target, uint64_t value)
{
    if (value != 0) {
        atomicAdd(target, (zi_sum_word)value);
    }
}

static __forceinline__ __device__ uint64_t zi_norm_warp_add(uint64_t value)
{
#pragma unroll
    for (int distance = ZI_WARP_LANES / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ZI_ALL_LANES, value, distance);
    }
    return value;
}

/* Empties a warp's windows into the block's words. All lanes come here together. */
static __forceinline__ __device__ void zi_norm_window_close(zi_norm_window *window,
                                                            zi_sum_word *words)
{
#pragma unroll
    for (uint32_t i = 0; i < ZI_NORM_WINDOW; i++) {
        const uint64_t limb = zi_norm_warp_add(window->limb[i]);
        if (zi_kernel_lane() == 0) {
            zi_norm_add_word(&words[window->base + i], limb);
        }
    }
}

/* Adds the totals of the lanes with `owns`. All lanes come here together. Totals that do not fit in
 * the window go to the block at once; when none does the window moves. */
static __forceinline__ __device__ void
zi_norm_add_totals(zi_norm_window *window, zi_sum_word *words, double total, bool owns)
{
    const zi_norm_addend addend = zi_norm_addend_of(total);
    const bool adds = owns && addend.finite && !addend.zero;
    const uint32_t adding = __ballot_sync(ZI_ALL_LANES, adds);
    if (adding != 0 && !__any_sync(ZI_ALL_LANES, adds && zi_norm_window_fits(window, &addend))) {
        if (window->base != ZI_NORM_NO_BASE) {
            zi_norm_window_close(window, words);
        }
        const uint32_t first = __shfl_sync(ZI_ALL_LANES, addend.first, __ffs((int)adding) - 1);
        zi_norm_window_open(window, zi_norm_window_base(first));
    }
    if (adds && zi_norm_window_fits(window, &addend)) {
        zi_norm_window_add(window, &addend);
    } else if (adds) {
#pragma unroll
        for (uint32_t i = 0; i < 3; i++) {
            zi_norm_add_word(&words[addend.first + i], addend.limb[i]);
        }
    } else if (owns && !addend.finite) {
        atomicAdd(&words[isnan(total) ? ZI_NORM_LIMBS + 1 : ZI_NORM_LIMBS], 1ull);
    }
}

/* The lanes of a pair both get their chunk's total. */
static __forceinline__ __device__ double zi_norm_pair_total(const zi_norm_half *half, uint32_t lane)
{
    const zi_norm_sent sent = zi_norm_half_sends(half, lane);
    zi_norm_sent received;
    received.first = __shfl_xor_sync(ZI_ALL_LANES, sent.first, 1);
    received.second = __shfl_xor_sync(ZI_ALL_LANES, sent.second, 1);
    const double sum = zi_norm_half_sum(half, lane, received);
    return sum + __shfl_xor_sync(ZI_ALL_LANES, sum, 1);
}

/* The block's accumulator, empty. All threads come here together. */
static __forceinline__ __device__ zi_sum_word *zi_norm_block_open(zi_norm_sum *block)
{
    zi_sum_word *const words = (zi_sum_word *)block;
    if (threadIdx.x < ZI_SUM_WORDS) {
        words[threadIdx.x] = 0;
    }
    __syncthreads();
    return words;
}

/* Empties a warp's windows and then the block into the launch's sum. All threads come here
 * together. */
static __forceinline__ __device__ void zi_norm_block_close(zi_norm_window *window,
                                                           zi_norm_sum *block, zi_norm_sum *sum)
{
    zi_sum_word *const words = (zi_sum_word *)block;
    if (window->base != ZI_NORM_NO_BASE) {
        zi_norm_window_close(window, words);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        zi_norm_normalise(block);
    }
    __syncthreads();
    if (threadIdx.x < ZI_SUM_WORDS) {
        zi_norm_add_word((zi_sum_word *)sum + threadIdx.x, words[threadIdx.x]);
    }
}

#endif
