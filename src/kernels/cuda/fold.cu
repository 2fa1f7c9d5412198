/* Owns the kernels of fold and cast, one for each pair of types. Four blocks of a processor leave
 * the registers for ZI_FOLD_AHEAD sources on their way. */
#include "kernels/cuda/fold_body.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"

template <zero_dtype dst, zero_dtype source>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    fold_kernel(const __grid_constant__ zi_fold_args args)
{
    zi_fold_lane(dst, source, &args, zi_kernel_warp(), zi_kernel_lane());
}

template <zero_dtype target, zero_dtype source>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    cast_kernel(const __grid_constant__ zi_cast_args args)
{
    zi_cast_lane(target, source, &args, zi_kernel_warp(), zi_kernel_lane());
}

template <zero_dtype dst> static const void *choose_fold(zero_dtype source)
{
    switch (source) {
    case ZERO_DTYPE_F32:
        return (const void *)fold_kernel<dst, ZERO_DTYPE_F32>;
    case ZERO_DTYPE_BF16:
        return (const void *)fold_kernel<dst, ZERO_DTYPE_BF16>;
    default:
        return (const void *)fold_kernel<dst, ZERO_DTYPE_F16>;
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

extern "C" cudaError_t zi_cuda_launch_fold(cudaStream_t stream, const zi_fold *fold)
{
    if (fold->source_count > ZI_CUDA_SOURCES_MAX || !zi_is_element(fold->dst_dtype) ||
        !zi_is_element(fold->source_dtype)) {
        return cudaErrorInvalidValue;
    }
    const zi_cuda_grid grid = zi_cuda_grid_of(fold->count);
    zi_fold_args args;
    zi_fold_args_fill(&args, fold->dst, fold->dst_dtype, fold->sources, fold->source_count,
                      fold->source_dtype);
    args.count = fold->count;
    args.warp_count = grid.warp_count;
    args.accumulate = fold->accumulate;
    const void *kernel =
        fold->dst_dtype == ZERO_DTYPE_F32    ? choose_fold<ZERO_DTYPE_F32>(fold->source_dtype)
        : fold->dst_dtype == ZERO_DTYPE_BF16 ? choose_fold<ZERO_DTYPE_BF16>(fold->source_dtype)
                                             : choose_fold<ZERO_DTYPE_F16>(fold->source_dtype);
    return zi_kernel_launch(kernel, grid.blocks, &args, stream);
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
