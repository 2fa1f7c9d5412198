/* Owns the kernels of folds whose sources or sum are packed granules, one for each pair of types.
 * Squares are added by the kernel of norm.cu, which then reads what was stored: it has the bits
 * that they must have, and sums of granules have few bytes beside those that came over a link. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/packed_body.h"
#include "kernels/cuda/warp_most.h"

/* The other steps of the transform: those between lanes. */
static __forceinline__ __device__ zi_quad lanes_hadamard(zi_quad quad, uint32_t lane)
{
    quad = zi_quad_hadamard(quad);
#pragma unroll
    for (uint32_t distance = 1; distance < ZI_HADAMARD / ZI_QUAD; distance *= 2) {
#pragma unroll
        for (int i = 0; i < ZI_QUAD; i++) {
            const float own = (lane & distance) != 0 ? -quad.value[i] : quad.value[i];
            quad.value[i] = __shfl_xor_sync(ZI_ALL_LANES, quad.value[i], distance) + own;
        }
    }
    return quad;
}

static __forceinline__ __device__ void sum_hadamard(zi_fold_sum *sum, uint32_t lane)
{
#pragma unroll
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        sum->quad[q] = lanes_hadamard(sum->quad[q], lane);
    }
}

template <zero_dtype dst, zero_dtype source>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    packed_fold_kernel(const __grid_constant__ zi_packed_args args)
{
    const zi_warp_range range =
        zi_warp_range_of(zi_kernel_warp(), args.fold.warp_count, args.fold.count);
    const uint32_t lane = zi_kernel_lane();
    zi_rounding_sequence sequence = {0, 0};
    ZI_NO_UNROLL
    for (uint64_t tile = range.begin; tile < range.end; tile += ZI_FOLD_TILE) {
        zi_fold_sum sum = zi_packed_sources_sum(source, &args.fold, tile, lane);
        if (source == ZERO_DTYPE_INT4_BLOCK) {
            sum_hadamard(&sum, lane);
            zi_fold_multiply(&sum, ZI_HADAMARD_INVERSE);
        }
        zi_fold_multiply(&sum, args.fold.scale);
        if (!zi_dtype_is_packed(dst)) {
            zi_packed_put_numbers(dst, &args.fold, tile, lane, sum);
            continue;
        }
        const uint64_t element = args.first + tile;
        if (tile == range.begin || element % ZI_ROUNDING_BLOCK == 0) {
            sequence = zi_packed_sequence(args.key, element / ZI_ROUNDING_BLOCK);
        }
        if (dst == ZERO_DTYPE_INT4_BLOCK) {
            sum_hadamard(&sum, lane);
        }
#pragma unroll
        for (int q = 0; q < ZI_FOLD_QUADS; q++) {
            const uint32_t most = zi_warp_most(zi_quad_most(sum.quad[q]), ZI_WARP_LANES);
            zi_packed_put_codes(dst, &args, tile, q, lane, sum.quad[q], most, sequence);
        }
    }
}

/* dst: packed. */
template <zero_dtype dst> static const void *packed_of(zero_dtype source)
{
    switch (source) {
    case ZERO_DTYPE_F32:
        return (const void *)packed_fold_kernel<dst, ZERO_DTYPE_F32>;
    case ZERO_DTYPE_BF16:
        return (const void *)packed_fold_kernel<dst, ZERO_DTYPE_BF16>;
    case ZERO_DTYPE_F16:
        return (const void *)packed_fold_kernel<dst, ZERO_DTYPE_F16>;
    default:
        return (const void *)packed_fold_kernel<dst, ZERO_DTYPE_INT8_BLOCK>;
    }
}

/* source: packed. */
template <zero_dtype source> static const void *numbers_of(zero_dtype dst)
{
    switch (dst) {
    case ZERO_DTYPE_F32:
        return (const void *)packed_fold_kernel<ZERO_DTYPE_F32, source>;
    case ZERO_DTYPE_BF16:
        return (const void *)packed_fold_kernel<ZERO_DTYPE_BF16, source>;
    default:
        return (const void *)packed_fold_kernel<ZERO_DTYPE_F16, source>;
    }
}

/* Of types that are known. */
static const void *choose_packed_fold(zero_dtype dst, zero_dtype source)
{
    if (zi_dtype_is_packed(dst)) {
        return dst == ZERO_DTYPE_INT8_BLOCK ? packed_of<ZERO_DTYPE_INT8_BLOCK>(source)
                                            : packed_of<ZERO_DTYPE_INT4_BLOCK>(source);
    }
    return source == ZERO_DTYPE_INT8_BLOCK ? numbers_of<ZERO_DTYPE_INT8_BLOCK>(dst)
                                           : numbers_of<ZERO_DTYPE_INT4_BLOCK>(dst);
}

extern "C" cudaError_t zi_cuda_load_packed(void)
{
    const zero_dtype dtypes[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16,
                                 ZERO_DTYPE_INT8_BLOCK, ZERO_DTYPE_INT4_BLOCK};
    cudaError_t code = cudaSuccess;
    for (const zero_dtype to : dtypes) {
        for (const zero_dtype from : dtypes) {
            if (code == cudaSuccess && zi_packed_fold_is_known(to, from)) {
                code = zi_kernel_load(choose_packed_fold(to, from));
            }
        }
    }
    return code;
}

/* Nothing of a fold is asked of it that granules have not. */
static bool is_whole(const zi_fold *fold)
{
    return fold->count % ZI_GRANULE == 0 &&
           (!zi_dtype_is_packed(fold->dst_dtype) ||
            (fold->first % ZI_GRANULE == 0 && !fold->accumulate && fold->squares == NULL));
}

extern "C" cudaError_t zi_cuda_launch_packed_fold(cudaStream_t stream, const zi_fold *fold)
{
    if (fold->source_count > ZI_CUDA_SOURCES_MAX ||
        !zi_packed_fold_is_known(fold->dst_dtype, fold->source_dtype) || !is_whole(fold)) {
        return cudaErrorInvalidValue;
    }
    const zi_cuda_grid grid = zi_cuda_grid_of(fold->count);
    zi_packed_args args;
    zi_fold_args_fill(&args.fold, fold->dst, fold->dst_dtype, fold->sources, fold->source_count,
                      fold->source_dtype);
    args.fold.count = fold->count;
    args.fold.warp_count = grid.warp_count;
    args.fold.squares = NULL;
    args.fold.passes = 0;
    args.fold.accumulate = fold->accumulate;
    args.fold.scale = zi_fold_scale(fold);
    args.key = fold->key;
    args.first = fold->first;
    const cudaError_t code = zi_kernel_launch(
        choose_packed_fold(fold->dst_dtype, fold->source_dtype), grid.blocks, &args, stream);
    return code == cudaSuccess && fold->squares != NULL
               ? zi_cuda_launch_square_sum(stream, fold->dst, fold->dst_dtype, fold->count,
                                           fold->squares)
               : code;
}
