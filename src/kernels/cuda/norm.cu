/* Owns the kernels from gradients to a step's decision: the sum of squares, and the decision.
 * Invariant: all additions to accumulators are exact and of integers, so the order in which blocks
 * and warps come shows in no bit. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/norm_body.h"
#include "kernels/math/step.h"

#define ALL_LANES 0xffffffffu

/* A sum's words, as atomics see them. */
#define SUM_WORDS (ZI_NORM_LIMBS + 2)
typedef unsigned long long word;
static_assert(sizeof(zi_norm_sum) == SUM_WORDS * sizeof(word), "a sum is limbs and two counts");

typedef struct square_sum_args {
    const void *source;
    uint64_t count;
    uint64_t passes;
    zi_norm_sum *sum;
} square_sum_args;

/* Zeros are most of what there is to add. */
static __forceinline__ __device__ void add_word(word *target, uint64_t value)
{
    if (value != 0) {
        atomicAdd(target, (word)value);
    }
}

static __forceinline__ __device__ uint64_t warp_add(uint64_t value)
{
#pragma unroll
    for (int distance = ZI_WARP_LANES / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(ALL_LANES, value, distance);
    }
    return value;
}

/* Empties a warp's windows into the block's words. All lanes come here together. */
static __forceinline__ __device__ void window_close(zi_norm_window *window, word *words)
{
#pragma unroll
    for (uint32_t i = 0; i < ZI_NORM_WINDOW; i++) {
        const uint64_t limb = warp_add(window->limb[i]);
        if (zi_kernel_lane() == 0) {
            add_word(&words[window->base + i], limb);
        }
    }
}

/* Adds the totals of the lanes with `owns`. All lanes come here together. Totals that do not fit in
 * the window go to the block at once; when none does the window moves. */
static __forceinline__ __device__ void add_totals(zi_norm_window *window, word *words, double total,
                                                  bool owns)
{
    const zi_norm_addend addend = zi_norm_addend_of(total);
    const bool adds = owns && addend.finite && !addend.zero;
    const uint32_t adding = __ballot_sync(ALL_LANES, adds);
    if (adding != 0 && !__any_sync(ALL_LANES, adds && zi_norm_window_fits(window, &addend))) {
        if (window->base != ZI_NORM_NO_BASE) {
            window_close(window, words);
        }
        const uint32_t first = __shfl_sync(ALL_LANES, addend.first, __ffs((int)adding) - 1);
        zi_norm_window_open(window, zi_norm_window_base(first));
    }
    if (adds && zi_norm_window_fits(window, &addend)) {
        zi_norm_window_add(window, &addend);
    } else if (adds) {
#pragma unroll
        for (uint32_t i = 0; i < 3; i++) {
            add_word(&words[addend.first + i], addend.limb[i]);
        }
    } else if (owns && !addend.finite) {
        atomicAdd(&words[isnan(total) ? ZI_NORM_LIMBS + 1 : ZI_NORM_LIMBS], 1ull);
    }
}

/* The lanes of a pair both get their chunk's total. */
static __forceinline__ __device__ double pair_total(const zi_norm_half *half, uint32_t lane)
{
    const zi_norm_sent sent = zi_norm_half_sends(half, lane);
    zi_norm_sent received;
    received.first = __shfl_xor_sync(ALL_LANES, sent.first, 1);
    received.second = __shfl_xor_sync(ALL_LANES, sent.second, 1);
    const double sum = zi_norm_half_sum(half, lane, received);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}

/* Four blocks of a processor leave the registers for a whole chunk's half on its way. */
template <zero_dtype dtype>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    square_sum_kernel(const __grid_constant__ square_sum_args args)
{
    __shared__ zi_norm_sum sum;
    word *const words = (word *)&sum;
    if (threadIdx.x < SUM_WORDS) {
        words[threadIdx.x] = 0;
    }
    __syncthreads();
    const uint32_t lane = zi_kernel_lane();
    const uint64_t chunks = args.count / ZI_NORM_CHUNK + (args.count % ZI_NORM_CHUNK != 0);
    zi_norm_window window;
    zi_norm_window_open(&window, ZI_NORM_NO_BASE);
    for (uint64_t pass = 0; pass < args.passes; pass++) {
        const uint64_t chunk = zi_norm_chunk_of(blockIdx.x, args.passes, pass, threadIdx.x);
        if (chunk - lane / 2 >= chunks) {
            break; /* nothing is left for the whole warp */
        }
        const zi_norm_half half = zi_norm_half_of(args.source, dtype, args.count, chunk, lane);
        add_totals(&window, words, pair_total(&half, lane), lane % 2 == 0 && chunk < chunks);
    }
    if (window.base != ZI_NORM_NO_BASE) {
        window_close(&window, words);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        zi_norm_normalise(&sum);
    }
    __syncthreads();
    if (threadIdx.x < SUM_WORDS) {
        add_word((word *)args.sum + threadIdx.x, words[threadIdx.x]);
    }
}

extern "C" cudaError_t zi_cuda_launch_square_sum(cudaStream_t stream, const void *source,
                                                 zero_dtype dtype, uint64_t count, zi_norm_sum *sum)
{
    if (!zi_is_element(dtype)) {
        return cudaErrorInvalidValue;
    }
    const zi_norm_grid grid = zi_norm_grid_of(count);
    square_sum_args args = {source, count, grid.passes, sum};
    const void *kernel = dtype == ZERO_DTYPE_F32 ? (const void *)square_sum_kernel<ZERO_DTYPE_F32>
                         : dtype == ZERO_DTYPE_BF16
                             ? (const void *)square_sum_kernel<ZERO_DTYPE_BF16>
                             : (const void *)square_sum_kernel<ZERO_DTYPE_F16>;
    return zi_kernel_launch(kernel, grid.blocks, &args, stream);
}

/* One thread. */
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS)
    decide_kernel(const __grid_constant__ zi_decide_job job)
{
    if (threadIdx.x != 0) {
        return;
    }
    zi_norm_sum total = {{0}, 0, 0};
    for (uint32_t i = 0; i < job.norm_count; i++) {
        zi_norm_merge(&total, &job.norms[i]);
    }
    zi_step_decide(job.input, &total, job.state, job.decision);
}

extern "C" cudaError_t zi_cuda_launch_decide(cudaStream_t stream, const zi_decide_job *job)
{
    zi_decide_job args = *job;
    return zi_kernel_launch((const void *)decide_kernel, 1, &args, stream);
}
