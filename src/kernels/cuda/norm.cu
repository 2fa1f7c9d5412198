/* Owns the kernels from gradients to a step's decision: the sum of squares, and the decision.
 * Invariant: all additions to accumulators are exact and of integers, so the order in which blocks
 * and warps come shows in no bit. */
#include "kernels/cuda/decide_body.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/norm_block.h"
#include "kernels/math/step.h"

typedef struct square_sum_args {
    const void *source;
    uint64_t count;
    uint64_t passes;
    zi_norm_sum *sum;
} square_sum_args;

/* Four blocks a processor leave enough registers to load a whole chunk's half at once. */
template <zero_dtype dtype>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    square_sum_kernel(const __grid_constant__ square_sum_args args)
{
    __shared__ zi_norm_sum sum;
    zi_sum_word *const words = zi_norm_block_open(&sum);
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
        zi_norm_add_totals(&window, words, zi_norm_pair_total(&half, lane),
                           lane % 2 == 0 && chunk < chunks);
    }
    zi_norm_block_close(&window, &sum, args.sum);
}

static const void *choose_square_sum(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_DTYPE_F32:
        return (const void *)square_sum_kernel<ZERO_DTYPE_F32>;
    case ZERO_DTYPE_BF16:
        return (const void *)square_sum_kernel<ZERO_DTYPE_BF16>;
    default:
        return (const void *)square_sum_kernel<ZERO_DTYPE_F16>;
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
    return zi_kernel_launch(choose_square_sum(dtype), grid.blocks, &args, stream);
}

/* One block: all its threads compare and add up columns, one of them decides, then each takes a
 * group: divisions and roots in double, one after another, would be the longest part of all. */
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS)
    decide_kernel(const __grid_constant__ zi_decide_job job)
{
    __shared__ uint32_t lowest;
    __shared__ uint32_t groups;
    __shared__ uint32_t refused;
    __shared__ zi_decide_columns columns;
    if (threadIdx.x == 0) {
        lowest = ZI_STEP_ALIKE;
        refused = ZI_STEP_ALIKE;
        groups = 0;
    }
    __syncthreads();
    const bool collects = (job.phases & ZI_DECIDE_COLLECT) != 0;
    const uint32_t places = collects ? zi_step_places(&job.messages) : 0;
    for (uint32_t i = threadIdx.x; i < places; i += ZI_BLOCK_THREADS) {
        if (zi_step_differs(&job.messages, i)) {
            atomicMin(&lowest, i);
        }
    }
    if (collects) {
        const uint32_t warp = threadIdx.x / ZI_WARP_LANES;
        const uint32_t lane = zi_kernel_lane();
        zi_decide_add(&job.messages, warp, lane, &columns);
        const uint32_t first = zi_decide_add_weights(&job.messages, warp, lane, &columns);
        if (lane == 0 && first != ZI_STEP_ALIKE) {
            atomicMin(&refused, first);
        }
    }
    __syncthreads();
    if (threadIdx.x < ZI_WARP_LANES && collects) {
        zi_decide_join(threadIdx.x, &columns);
        __syncwarp();
    }
    if (threadIdx.x == 0 && collects) {
        const zi_step_totals totals = zi_decide_totals(&columns, refused, lowest);
        zi_step_collect_totals(job.input, &job.messages, &totals, job.state, job.part);
    }
    if (threadIdx.x == 0 && (job.phases & ZI_DECIDE_CONCLUDE) != 0) {
        groups =
            zi_step_conclude_scalars(job.input, job.parts, job.part_count, job.state, job.decision);
        zi_step_take_stalled(job.stalled, job.decision);
    }
    __syncthreads();
    if (threadIdx.x < groups) {
        zi_step_decide_group(job.input, threadIdx.x, job.state, job.decision);
    }
}

static_assert(ZI_GROUPS_MAX <= ZI_BLOCK_THREADS, "a thread for each group");

extern "C" cudaError_t zi_cuda_launch_decide(cudaStream_t stream, const zi_decide_job *job)
{
    zi_decide_job args = *job;
    return zi_kernel_launch((const void *)decide_kernel, 1, &args, stream);
}

extern "C" cudaError_t zi_cuda_load_norm(void)
{
    cudaError_t code = zi_kernel_load((const void *)decide_kernel);
    for (const zero_dtype dtype : zi_elements) {
        code = code == cudaSuccess ? zi_kernel_load(choose_square_sum(dtype)) : code;
    }
    return code;
}
