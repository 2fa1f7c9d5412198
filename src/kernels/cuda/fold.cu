/* Owns the kernels of fold, without squares and with them, and of cast, one for each pair of types.
 * Four blocks a processor leave enough registers for ZI_FOLD_AHEAD sources in flight. */
#include "kernels/cuda/fold_body.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/norm_block.h"

template <zero_dtype dst, zero_dtype source>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    fold_kernel(const __grid_constant__ zi_fold_args args)
{
    zi_fold_lane(dst, source, &args, zi_kernel_warp(), zi_kernel_lane());
}

/* The lanes of a chunk all get its total, added up as zi_norm_chunk does. */
static __forceinline__ __device__ double chunk_total(double column)
{
#pragma unroll
    for (int half = ZI_NORM_LANES / 2; half > 0; half /= 2) {
        column += __shfl_xor_sync(ZI_ALL_LANES, column, half);
    }
    return column;
}

template <zero_dtype dst, zero_dtype source>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    fold_squares_kernel(const __grid_constant__ zi_fold_args args)
{
    __shared__ zi_norm_sum sum;
    __shared__ __align__(16) float buffers[ZI_BLOCK_WARPS][ZI_FOLD_BUFFER];
    zi_sum_word *const words = zi_norm_block_open(&sum);
    const uint32_t warp = threadIdx.x / ZI_WARP_LANES;
    const uint32_t lane = zi_kernel_lane();
    zi_norm_window window;
    zi_norm_window_open(&window, ZI_NORM_NO_BASE);
    for (uint64_t pass = 0; pass < args.passes; pass++) {
        const uint64_t first = zi_fold_pass_tile(blockIdx.x, args.passes, pass, warp);
        if (first >= args.count) {
            break; /* nothing is left for the whole warp */
        }
        double own = 0.0;
        ZI_NO_UNROLL
        for (uint32_t i = 0; i < ZI_FOLD_PASS_TILES; i++) {
            const uint64_t tile = first + (uint64_t)i * ZI_FOLD_TILE;
            if (tile >= args.count) {
                break;
            }
            zi_fold_tile_squares(dst, source, &args, tile, lane, buffers[warp]);
            __syncwarp();
            const double total = chunk_total(zi_fold_column(buffers[warp], lane));
            __syncwarp();
            own = zi_fold_keeps(lane) == i ? total : own;
        }
        zi_norm_add_totals(&window, words, own, zi_fold_owns(&args, first, lane));
    }
    zi_norm_block_close(&window, &sum, args.squares);
}

template <zero_dtype target, zero_dtype source>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    cast_kernel(const __grid_constant__ zi_cast_args args)
{
    zi_cast_lane(target, source, &args, zi_kernel_warp(), zi_kernel_lane());
}

template <zero_dtype dst, zero_dtype source> static const void *fold_of(bool squares)
{
    return squares ? (const void *)fold_squares_kernel<dst, source>
                   : (const void *)fold_kernel<dst, source>;
}

template <zero_dtype dst> static const void *choose_source(zero_dtype source, bool squares)
{
    switch (source) {
    case ZERO_DTYPE_F32:
        return fold_of<dst, ZERO_DTYPE_F32>(squares);
    case ZERO_DTYPE_BF16:
        return fold_of<dst, ZERO_DTYPE_BF16>(squares);
    default:
        return fold_of<dst, ZERO_DTYPE_F16>(squares);
    }
}

static const void *choose_fold(zero_dtype dst, zero_dtype source, bool squares)
{
    switch (dst) {
    case ZERO_DTYPE_F32:
        return choose_source<ZERO_DTYPE_F32>(source, squares);
    case ZERO_DTYPE_BF16:
        return choose_source<ZERO_DTYPE_BF16>(source, squares);
    default:
        return choose_source<ZERO_DTYPE_F16>(source, squares);
    }
}

/* Of two types that are not the same. */
static const void *choose_cast(zero_dtype target, zero_dtype source)
{
    switch (target) {
    case ZERO_DTYPE_F32:
        return source == ZERO_DTYPE_BF16
                   ? (const void *)cast_kernel<ZERO_DTYPE_F32, ZERO_DTYPE_BF16>
                   : (const void *)cast_kernel<ZERO_DTYPE_F32, ZERO_DTYPE_F16>;
    case ZERO_DTYPE_BF16:
        return source == ZERO_DTYPE_F32
                   ? (const void *)cast_kernel<ZERO_DTYPE_BF16, ZERO_DTYPE_F32>
                   : (const void *)cast_kernel<ZERO_DTYPE_BF16, ZERO_DTYPE_F16>;
    default:
        return source == ZERO_DTYPE_F32
                   ? (const void *)cast_kernel<ZERO_DTYPE_F16, ZERO_DTYPE_F32>
                   : (const void *)cast_kernel<ZERO_DTYPE_F16, ZERO_DTYPE_BF16>;
    }
}

extern "C" cudaError_t zi_cuda_load_fold(void)
{
    cudaError_t code = cudaSuccess;
    for (const zero_dtype to : zi_elements) {
        for (const zero_dtype from : zi_elements) {
            const void *const kernels[] = {choose_fold(to, from, false),
                                           choose_fold(to, from, true),
                                           to == from ? nullptr : choose_cast(to, from)};
            for (const void *kernel : kernels) {
                code = code == cudaSuccess && kernel != nullptr ? zi_kernel_load(kernel) : code;
            }
        }
    }
    return code;
}

extern "C" cudaError_t zi_cuda_launch_fold(cudaStream_t stream, const zi_fold *fold)
{
    if (zi_fold_is_packed(fold)) {
        return zi_cuda_launch_packed_fold(stream, fold);
    }
    if (fold->source_count > ZI_CUDA_SOURCES_MAX || !zi_is_element(fold->dst_dtype) ||
        !zi_is_element(fold->source_dtype)) {
        return cudaErrorInvalidValue;
    }
    const bool squares = fold->squares != NULL;
    const zi_cuda_grid grid = zi_cuda_grid_of(fold->count);
    const zi_norm_grid norm_grid = zi_norm_grid_of(fold->count);
    zi_fold_args args;
    zi_fold_args_fill(&args, fold->dst, fold->dst_dtype, fold->sources, fold->source_count,
                      fold->source_dtype);
    args.count = fold->count;
    args.warp_count = grid.warp_count;
    args.squares = fold->squares;
    args.passes = norm_grid.passes;
    args.accumulate = fold->accumulate;
    args.scale = zi_fold_scale(fold);
    return zi_kernel_launch(choose_fold(fold->dst_dtype, fold->source_dtype, squares),
                            squares ? norm_grid.blocks : grid.blocks, &args, stream);
}

extern "C" cudaError_t zi_cuda_launch_cast(cudaStream_t stream, void *target,
                                           zero_dtype target_dtype, const void *source,
                                           zero_dtype source_dtype, uint64_t count)
{
    if (!zi_is_element(target_dtype) || !zi_is_element(source_dtype)) {
        return cudaErrorInvalidValue;
    }
    if (target_dtype == source_dtype) {
        return target == source || count == 0
                   ? cudaSuccess
                   : cudaMemcpyAsync(target, source, count * zi_quad_width(source_dtype),
                                     cudaMemcpyDefault, stream);
    }
    const zi_cuda_grid grid = zi_cuda_grid_of(count);
    zi_cast_args args;
    args.target = target;
    args.source = source;
    args.count = count;
    args.warp_count = grid.warp_count;
    args.aligned = zi_quad_aligned(target, target_dtype) && zi_quad_aligned(source, source_dtype);
    return zi_kernel_launch(choose_cast(target_dtype, source_dtype), grid.blocks, &args, stream);
}
