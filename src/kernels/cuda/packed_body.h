/* The work of one lane of the kernels that fold packed granules (core/block_codec.h), and to them.
 * A tile of a fold is a granule, and a row of it, of a quad for each lane, a block: so the lanes of
 * a block are a warp. What they do together is in packed.cu. */
#ifndef ZI_KERNELS_CUDA_PACKED_BODY_H
#define ZI_KERNELS_CUDA_PACKED_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/block_body.h"
#include "kernels/cuda/fold_body.h"
#include "kernels/cuda/quad.h"
#include "kernels/math/packed.h"
#include "zero/dtype.h"

#if ZI_FOLD_TILE != 256 || ZI_WARP_QUADS != ZI_INT8_BLOCK
#error "a tile is a granule, and a row a block"
#endif

/* A fold as its kernel gets it, by value. */
typedef struct zi_packed_args {
    zi_fold_args fold; /* without squares */
    uint64_t key;
    uint64_t first;
} zi_packed_args;

/* A lane's quads of a tile, as they lie in memory. */
typedef struct zi_packed_quads {
    zi_quad_words words[ZI_FOLD_QUADS];
    uint32_t scales; /* of both blocks of a granule, the first one's in the lower half */
} zi_packed_quads;

/* The granule of a packed array at which a tile lies. */
ZI_LANE uint64_t zi_granule_place(zero_dtype dtype, uint64_t tile)
{
    return tile / ZI_GRANULE * zi_packed_granule_bytes(dtype);
}

/* A lane's codes from the begin of their granule. */
ZI_LANE uint32_t zi_granule_quad_place(zero_dtype dtype, int quad, uint32_t lane)
{
    const uint32_t index = (uint32_t)zi_lane_place(0, quad, lane);
    return ZI_PACKED_SCALES_BYTES + index / ZI_QUAD * (uint32_t)zi_quad_bytes(dtype);
}

/* A quad of numbers, one by one. */
ZI_LANE zi_quad_words zi_words_gather(const void *base, zero_dtype dtype, uint64_t index)
{
    zi_quad_words words;
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        words.word[i] = zi_element_bits(base, dtype, index + i);
    }
    return dtype == ZERO_DTYPE_F32 ? words : zi_words_of_halves(words.word);
}

/* Of a packed type. */
ZI_LANE zi_packed_quads zi_granule_load(zero_dtype dtype, const void *base, uint64_t tile,
                                        uint32_t lane)
{
    zi_packed_quads quads;
    const unsigned char *const granule =
        (const unsigned char *)base + zi_granule_place(dtype, tile);
    quads.scales = zi_words_load4(granule).word[0];
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        const unsigned char *const place = granule + zi_granule_quad_place(dtype, q, lane);
        quads.words[q] =
            dtype == ZERO_DTYPE_INT8_BLOCK ? zi_words_load4(place) : zi_words_load2(place);
    }
    return quads;
}

/* Of any type. */
ZI_LANE zi_packed_quads zi_packed_load(zero_dtype dtype, const void *base, int aligned,
                                       uint64_t tile, uint32_t lane)
{
    zi_packed_quads quads;
    if (zi_dtype_is_packed(dtype)) {
        return zi_granule_load(dtype, base, tile, lane);
    }
    quads.scales = 0;
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        const uint64_t index = zi_lane_place(tile, q, lane);
        quads.words[q] = aligned ? zi_words_load(base, dtype, index, ZI_USE_ONCE)
                                 : zi_words_gather(base, dtype, index);
    }
    return quads;
}

ZI_LANE zi_quad zi_packed_quad_of(zero_dtype dtype, zi_quad_words words, uint32_t scale)
{
    zi_quad quad;
    const float step = zi_packed_step(dtype, scale);
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        const uint32_t code =
            dtype == ZERO_DTYPE_INT8_BLOCK ? zi_words_byte(words, i) : words.word[0] >> (4 * i);
        quad.value[i] = zi_packed_value(dtype, code, step);
    }
    return quad;
}

/* Their values; those of INT4_BLOCK are transformed. */
ZI_LANE zi_fold_sum zi_packed_values(zero_dtype dtype, const zi_packed_quads *quads)
{
    zi_fold_sum values;
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        values.quad[q] = zi_dtype_is_packed(dtype)
                             ? zi_packed_quad_of(dtype, quads->words[q],
                                                 quads->scales >> (16 * q) & UINT32_C(0xffff))
                             : zi_quad_of(quads->words[q], dtype);
    }
    return values;
}

/* The sources' sum, neither transformed nor scaled. */
ZI_LANE zi_fold_sum zi_packed_sources_sum(zero_dtype source, const zi_fold_args *args,
                                          uint64_t tile, uint32_t lane)
{
    zi_fold_sum sum = {{{{0.0f, 0.0f, 0.0f, 0.0f}}, {{0.0f, 0.0f, 0.0f, 0.0f}}}};
    uint32_t k = 0;
    ZI_NO_UNROLL
    for (; k + ZI_FOLD_AHEAD <= args->source_count; k += ZI_FOLD_AHEAD) {
        zi_packed_quads ahead[ZI_FOLD_AHEAD];
        ZI_UNROLL
        for (uint32_t i = 0; i < ZI_FOLD_AHEAD; i++) {
            ahead[i] = zi_packed_load(source, args->sources[k + i], args->aligned, tile, lane);
        }
        ZI_UNROLL
        for (uint32_t i = 0; i < ZI_FOLD_AHEAD; i++) {
            const zi_fold_sum values = zi_packed_values(source, &ahead[i]);
            zi_fold_add(&sum, &values);
        }
    }
    ZI_NO_UNROLL
    for (; k < args->source_count; k++) {
        const zi_packed_quads quads =
            zi_packed_load(source, args->sources[k], args->aligned, tile, lane);
        const zi_fold_sum values = zi_packed_values(source, &quads);
        zi_fold_add(&sum, &values);
    }
    return sum;
}

/* The first two steps of the transform: those within a quad. */
ZI_LANE zi_quad zi_quad_hadamard(zi_quad quad)
{
    const float a = quad.value[0] + quad.value[1];
    const float b = quad.value[0] - quad.value[1];
    const float c = quad.value[2] + quad.value[3];
    const float d = quad.value[2] - quad.value[3];
    zi_quad made;
    made.value[0] = a + c;
    made.value[1] = b + d;
    made.value[2] = a - c;
    made.value[3] = b - d;
    return made;
}

/* Add what is in dst, a type of numbers, where the fold accumulates, and store. */
ZI_LANE void zi_packed_put_numbers(zero_dtype dst, const zi_fold_args *args, uint64_t tile,
                                   uint32_t lane, zi_fold_sum sum)
{
    if (args->accumulate) {
        const zi_packed_quads quads = zi_packed_load(dst, args->dst, args->aligned, tile, lane);
        const zi_fold_sum before = zi_packed_values(dst, &quads);
        zi_fold_add(&sum, &before);
    }
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        const uint64_t index = zi_lane_place(tile, q, lane);
        if (args->aligned) {
            zi_quad_store(args->dst, dst, index, sum.quad[q], ZI_USE_AGAIN);
        } else {
            ZI_UNROLL
            for (uint32_t i = 0; i < ZI_QUAD; i++) {
                zi_element_put(args->dst, dst, index + i, sum.quad[q].value[i]);
            }
        }
    }
}

/* Store a quad in codes. most: of the whole block, whose first lane stores the scale. sequence: of
 * the block of the rounding that the tile is in. */
ZI_LANE void zi_packed_put_codes(zero_dtype dst, const zi_packed_args *args, uint64_t tile, int q,
                                 uint32_t lane, zi_quad quad, uint32_t most,
                                 zi_rounding_sequence sequence)
{
    const uint32_t scale = zi_packed_scale(most);
    const float gain = zi_packed_gain(dst, scale);
    const uint32_t bits = dst == ZERO_DTYPE_INT8_BLOCK ? 8 : 4;
    const uint32_t index =
        (uint32_t)((args->first + zi_lane_place(tile, q, lane)) % ZI_ROUNDING_BLOCK);
    zi_quad_words words = {{0, 0, 0, 0}};
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        const uint32_t code =
            zi_packed_code(dst, quad.value[i], gain, zi_rounding_at(sequence, index + i));
        words.word[0] |= (code & ((UINT32_C(1) << bits) - 1)) << (bits * i);
    }
    unsigned char *const granule = (unsigned char *)args->fold.dst + zi_granule_place(dst, tile);
    unsigned char *const place = granule + zi_granule_quad_place(dst, q, lane);
    if (dst == ZERO_DTYPE_INT8_BLOCK) {
        zi_words_store4(place, words);
    } else {
        zi_words_store2(place, words);
    }
    if (lane == 0) {
        ((uint16_t *)granule)[q] = (uint16_t)scale;
    }
}

#endif
