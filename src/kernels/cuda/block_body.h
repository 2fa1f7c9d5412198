/* The work of one lane of the kernels that make codes and scales of blocks (core/block_codec.h),
 * and read them. A warp takes rows of neighbouring quads, one for each lane; blocks are whole in a
 * row, so a block's lanes are of one warp, which shares the greatest magnitude of theirs. */
#ifndef ZI_KERNELS_CUDA_BLOCK_BODY_H
#define ZI_KERNELS_CUDA_BLOCK_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/quad.h"
#include "kernels/math/block.h"
#include "zero/dtype.h"

/* Quads that a lane has on their way at once. */
#define ZI_CODE_QUADS 4
#define ZI_CODE_TILE (ZI_CODE_QUADS * ZI_WARP_QUADS)

#if ZI_WARP_QUADS % ZI_MXFP8_BLOCK != 0 || ZI_WARP_QUADS % ZI_INT8_BLOCK != 0
#error "a row has whole blocks"
#endif

typedef struct zi_encode_args {
    uint8_t *codes;
    void *scales;
    const void *source;
    uint64_t count;
    uint64_t warp_count;
    int32_t aligned; /* quads are single accesses, in the codes and in the source */
} zi_encode_args;

typedef struct zi_decode_args {
    void *target;
    const uint8_t *codes;
    const void *scales;
    uint64_t count;
    uint64_t warp_count;
    int32_t aligned;
} zi_decode_args;

/* Lanes that share a block. */
ZI_LANE uint32_t zi_block_lanes(zero_dtype dtype)
{
    return zi_block_elements(dtype) / ZI_QUAD;
}

/* Elements from `end` on are zeros, which no maximum shows. */
ZI_LANE zi_quad zi_encode_load(zero_dtype source, const zi_encode_args *args, uint64_t index,
                               uint64_t end)
{
    zi_quad quad;
    if (args->aligned && index + ZI_QUAD <= end) {
        return zi_quad_load(args->source, source, index, ZI_USE_ONCE);
    }
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        quad.value[i] = index + i < end ? zi_element_get(args->source, source, index + i) : 0.0f;
    }
    return quad;
}

/* The greatest magnitude, as bits. */
ZI_LANE uint32_t zi_quad_most(zi_quad quad)
{
    uint32_t most = 0;
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        const uint32_t magnitude = zi_code_magnitude(quad.value[i]);
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

ZI_LANE void zi_scale_put(void *scales, zero_dtype dtype, uint64_t block, uint32_t scale)
{
    if (dtype == ZERO_DTYPE_MXFP8) {
        ((uint8_t *)scales)[block] = (uint8_t)scale;
    } else {
        ((uint16_t *)scales)[block] = (uint16_t)scale;
    }
}

ZI_LANE uint32_t zi_scale_get(const void *scales, zero_dtype dtype, uint64_t block)
{
    return dtype == ZERO_DTYPE_MXFP8 ? ((const uint8_t *)scales)[block]
                                     : ((const uint16_t *)scales)[block];
}

/* most: of the whole block. Its first lane stores the scale. */
ZI_LANE void zi_encode_store(zero_dtype dtype, const zi_encode_args *args, uint64_t index,
                             uint64_t end, zi_quad quad, uint32_t most)
{
    const uint32_t scale = zi_block_scale(dtype, most);
    const zi_block_encoder encoder = zi_block_encoder_of(dtype, scale);
    uint32_t code[ZI_QUAD];
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        code[i] = zi_block_code(dtype, quad.value[i], encoder);
    }
    if (args->aligned && index + ZI_QUAD <= end) {
        zi_words_store4(args->codes + index, zi_words_of_bytes(code));
    } else {
        ZI_UNROLL
        for (uint32_t i = 0; i < ZI_QUAD; i++) {
            if (index + i < end) {
                args->codes[index + i] = (uint8_t)code[i];
            }
        }
    }
    if (index < end && index % zi_block_elements(dtype) == 0) {
        zi_scale_put(args->scales, dtype, index / zi_block_elements(dtype), scale);
    }
}

/* Four codes as they lie in memory, 0 from `end` on. */
ZI_LANE zi_quad_words zi_decode_load(const zi_decode_args *args, uint64_t index, uint64_t end)
{
    uint32_t code[ZI_QUAD];
    if (args->aligned && index + ZI_QUAD <= end) {
        return zi_words_load4(args->codes + index);
    }
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        code[i] = index + i < end ? args->codes[index + i] : 0;
    }
    return zi_words_of_bytes(code);
}

ZI_LANE void zi_decode_store(zero_dtype target, zero_dtype dtype, const zi_decode_args *args,
                             uint64_t index, uint64_t end, zi_quad_words codes)
{
    zi_quad quad;
    if (index >= end) {
        return;
    }
    const zi_block_decoder decoder = zi_block_decoder_of(
        dtype, zi_scale_get(args->scales, dtype, index / zi_block_elements(dtype)));
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        quad.value[i] = zi_block_value(dtype, zi_words_byte(codes, (int)i), decoder);
    }
    if (args->aligned && index + ZI_QUAD <= end) {
        zi_quad_store(args->target, target, index, quad, ZI_USE_AGAIN);
        return;
    }
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        if (index + i < end) {
            zi_element_put(args->target, target, index + i, quad.value[i]);
        }
    }
}

/* All work of lane `lane` of warp `warp`. */
ZI_LANE void zi_decode_lane(zero_dtype target, zero_dtype dtype, const zi_decode_args *args,
                            uint64_t warp, uint32_t lane)
{
    const zi_warp_range range = zi_warp_range_of(warp, args->warp_count, args->count);
    ZI_NO_UNROLL
    for (uint64_t tile = range.begin; tile < range.end; tile += ZI_CODE_TILE) {
        zi_quad_words codes[ZI_CODE_QUADS];
        ZI_UNROLL
        for (int q = 0; q < ZI_CODE_QUADS; q++) {
            codes[q] = zi_decode_load(args, zi_lane_place(tile, q, lane), range.end);
        }
        ZI_UNROLL
        for (int q = 0; q < ZI_CODE_QUADS; q++) {
            zi_decode_store(target, dtype, args, zi_lane_place(tile, q, lane), range.end, codes[q]);
        }
    }
}

#endif
