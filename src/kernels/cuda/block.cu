/* Owns the kernels that make codes and scales of blocks, and read them, one for each type of codes
 * and of values. */
#include "kernels/cuda/block_body.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/warp_most.h"

template <zero_dtype dtype, zero_dtype source>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    encode_kernel(const __grid_constant__ zi_encode_args args)
{
    const zi_warp_range range = zi_warp_range_of(zi_kernel_warp(), args.warp_count, args.count);
    const uint32_t lane = zi_kernel_lane();
    ZI_NO_UNROLL
    for (uint64_t tile = range.begin; tile < range.end; tile += ZI_CODE_TILE) {
        zi_quad quads[ZI_CODE_QUADS];
#pragma unroll
        for (int q = 0; q < ZI_CODE_QUADS; q++) {
            quads[q] = zi_encode_load(source, &args, zi_lane_place(tile, q, lane), range.end);
        }
#pragma unroll
        for (int q = 0; q < ZI_CODE_QUADS; q++) {
            zi_encode_store(dtype, &args, zi_lane_place(tile, q, lane), range.end, quads[q],
                            zi_warp_most(zi_quad_most(quads[q]), zi_block_lanes(dtype)));
        }
    }
}

template <zero_dtype target, zero_dtype dtype>
static __global__ void __launch_bounds__(ZI_BLOCK_THREADS, 4)
    decode_kernel(const __grid_constant__ zi_decode_args args)
{
    zi_decode_lane(target, dtype, &args, zi_kernel_warp(), zi_kernel_lane());
}

template <zero_dtype dtype> static const void *encode_from(zero_dtype source)
{
    switch (source) {
    case ZERO_DTYPE_F32:
        return (const void *)encode_kernel<dtype, ZERO_DTYPE_F32>;
    case ZERO_DTYPE_BF16:
        return (const void *)encode_kernel<dtype, ZERO_DTYPE_BF16>;
    default:
        return (const void *)encode_kernel<dtype, ZERO_DTYPE_F16>;
    }
}

template <zero_dtype dtype> static const void *decode_to(zero_dtype target)
{
    switch (target) {
    case ZERO_DTYPE_F32:
        return (const void *)decode_kernel<ZERO_DTYPE_F32, dtype>;
    case ZERO_DTYPE_BF16:
        return (const void *)decode_kernel<ZERO_DTYPE_BF16, dtype>;
    default:
        return (const void *)decode_kernel<ZERO_DTYPE_F16, dtype>;
    }
}

static const void *choose_encode(zero_dtype dtype, zero_dtype source)
{
    return dtype == ZERO_DTYPE_MXFP8 ? encode_from<ZERO_DTYPE_MXFP8>(source)
                                     : encode_from<ZERO_DTYPE_INT8_BLOCK>(source);
}

static const void *choose_decode(zero_dtype target, zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_MXFP8 ? decode_to<ZERO_DTYPE_MXFP8>(target)
                                     : decode_to<ZERO_DTYPE_INT8_BLOCK>(target);
}

extern "C" cudaError_t zi_cuda_load_block(void)
{
    const zero_dtype dtypes[] = {ZERO_DTYPE_MXFP8, ZERO_DTYPE_INT8_BLOCK};
    cudaError_t code = cudaSuccess;
    for (const zero_dtype dtype : dtypes) {
        for (const zero_dtype element : zi_elements) {
            code = code == cudaSuccess ? zi_kernel_load(choose_encode(dtype, element)) : code;
            code = code == cudaSuccess ? zi_kernel_load(choose_decode(element, dtype)) : code;
        }
    }
    return code;
}

extern "C" cudaError_t zi_cuda_launch_encode(cudaStream_t stream, void *codes, void *scales,
                                             zero_dtype dtype, const void *source,
                                             zero_dtype source_dtype, uint64_t count)
{
    if (!zi_dtype_is_block(dtype) || !zi_is_element(source_dtype)) {
        return cudaErrorInvalidValue;
    }
    const zi_cuda_grid grid = zi_cuda_grid_of(count);
    zi_encode_args args;
    args.codes = (uint8_t *)codes;
    args.scales = scales;
    args.source = source;
    args.count = count;
    args.warp_count = grid.warp_count;
    args.aligned = zi_quad_aligned(codes, dtype) && zi_quad_aligned(source, source_dtype);
    return zi_kernel_launch(choose_encode(dtype, source_dtype), grid.blocks, &args, stream);
}

extern "C" cudaError_t zi_cuda_launch_decode(cudaStream_t stream, void *target,
                                             zero_dtype target_dtype, const void *codes,
                                             const void *scales, zero_dtype dtype, uint64_t count)
{
    if (!zi_dtype_is_block(dtype) || !zi_is_element(target_dtype)) {
        return cudaErrorInvalidValue;
    }
    const zi_cuda_grid grid = zi_cuda_grid_of(count);
    zi_decode_args args;
    args.target = target;
    args.codes = (const uint8_t *)codes;
    args.scales = scales;
    args.count = count;
    args.warp_count = grid.warp_count;
    args.aligned = zi_quad_aligned(codes, dtype) && zi_quad_aligned(target, target_dtype);
    return zi_kernel_launch(choose_decode(target_dtype, dtype), grid.blocks, &args, stream);
}
