/* The work of one lane of the fold's and the cast's kernels. */
#ifndef ZI_KERNELS_CUDA_FOLD_BODY_H
#define ZI_KERNELS_CUDA_FOLD_BODY_H

#include <stdint.h>
#include <string.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/norm_body.h"
#include "kernels/cuda/quad.h"
#include "zero/dtype.h"

/* Quads that a lane has on their way at once. */
#define ZI_FOLD_QUADS 2
#define ZI_FOLD_TILE (ZI_FOLD_QUADS * ZI_WARP_QUADS)
#define ZI_CAST_QUADS 4
#define ZI_CAST_TILE (ZI_CAST_QUADS * ZI_WARP_QUADS)
/* Sources whose quads a lane loads before it adds the first. */
#define ZI_FOLD_AHEAD 4

/* A fold as its kernel gets it, by value. */
typedef struct zi_fold_args {
    void *dst;
    uint64_t count;
    uint64_t warp_count;
    /* Of the kernel that adds squares, which has no warp_count. */
    zi_norm_sum *squares;
    uint64_t passes;
    uint32_t source_count; /* without those that are NULL */
    int32_t accumulate;
    float scale;     /* of the sources' sum */
    int32_t aligned; /* quads are single accesses, in dst and in every source */
    const void *sources[ZI_CUDA_SOURCES_MAX];
} zi_fold_args;

typedef struct zi_cast_args {
    void *target;
    const void *source;
    uint64_t count;
    uint64_t warp_count;
    int32_t aligned;
} zi_cast_args;

/* sources: of the fold, read here; at most ZI_CUDA_SOURCES_MAX. An absent one is left out: the sum
 * is never -0, so adding zeros changes no bit. */
ZI_LANE void zi_fold_args_fill(zi_fold_args *args, void *dst, zero_dtype dst_dtype,
                               const void *const *sources, uint32_t source_count,
                               zero_dtype source_dtype)
{
    args->dst = dst;
    args->source_count = 0;
    args->aligned = zi_quad_aligned(dst, dst_dtype);
    for (uint32_t k = 0; k < source_count; k++) {
        if (sources[k] != 0) {
            args->sources[args->source_count++] = sources[k];
            args->aligned &= zi_quad_aligned(sources[k], source_dtype);
        }
    }
}

typedef struct zi_fold_sum {
    zi_quad quad[ZI_FOLD_QUADS];
} zi_fold_sum;

ZI_LANE zi_fold_sum zi_fold_load(const void *base, zero_dtype dtype, uint64_t tile, uint32_t lane)
{
    zi_fold_sum loaded;
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        loaded.quad[q] = zi_quad_load(base, dtype, zi_lane_place(tile, q, lane), ZI_USE_ONCE);
    }
    return loaded;
}

ZI_LANE void zi_fold_add(zi_fold_sum *sum, const zi_fold_sum *other)
{
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        ZI_UNROLL
        for (int i = 0; i < ZI_QUAD; i++) {
            sum->quad[q].value[i] += other->quad[q].value[i];
        }
    }
}

ZI_LANE void zi_fold_multiply(zi_fold_sum *sum, float scale)
{
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        ZI_UNROLL
        for (int i = 0; i < ZI_QUAD; i++) {
            sum->quad[q].value[i] *= scale;
        }
    }
}

/* The sums of a whole tile of aligned arrays. */
ZI_LANE zi_fold_sum zi_fold_tile_sum(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
                                     uint64_t tile, uint32_t lane)
{
    zi_fold_sum sum = {{{{0.0f, 0.0f, 0.0f, 0.0f}}, {{0.0f, 0.0f, 0.0f, 0.0f}}}};
    uint32_t k = 0;
    ZI_NO_UNROLL
    for (; k + ZI_FOLD_AHEAD <= args->source_count; k += ZI_FOLD_AHEAD) {
        zi_fold_sum ahead[ZI_FOLD_AHEAD];
        ZI_UNROLL
        for (uint32_t i = 0; i < ZI_FOLD_AHEAD; i++) {
            ahead[i] = zi_fold_load(args->sources[k + i], source, tile, lane);
        }
        ZI_UNROLL
        for (uint32_t i = 0; i < ZI_FOLD_AHEAD; i++) {
            zi_fold_add(&sum, &ahead[i]);
        }
    }
    ZI_NO_UNROLL
    for (; k < args->source_count; k++) {
        const zi_fold_sum one = zi_fold_load(args->sources[k], source, tile, lane);
        zi_fold_add(&sum, &one);
    }
    zi_fold_multiply(&sum, args->scale);
    if (args->accumulate) {
        const zi_fold_sum before = zi_fold_load(args->dst, dst, tile, lane);
        zi_fold_add(&sum, &before);
    }
    return sum;
}

ZI_LANE void zi_fold_tile(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
                          uint64_t tile, uint32_t lane)
{
    const zi_fold_sum sum = zi_fold_tile_sum(dst, source, args, tile, lane);
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        zi_quad_store(args->dst, dst, zi_lane_place(tile, q, lane), sum.quad[q], ZI_USE_AGAIN);
    }
}

ZI_LANE float zi_fold_element_sum(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
                                  uint64_t index)
{
    float sum = 0.0f;
    for (uint32_t k = 0; k < args->source_count; k++) {
        sum += zi_element_get(args->sources[k], source, index);
    }
    sum *= args->scale;
    if (args->accumulate) {
        sum += zi_element_get(args->dst, dst, index);
    }
    return sum;
}

ZI_LANE void zi_fold_element(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
                             uint64_t index)
{
    zi_element_put(args->dst, dst, index, zi_fold_element_sum(dst, source, args, index));
}

/* All work of lane `lane` of warp `warp`. */
ZI_LANE void zi_fold_lane(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
                          uint64_t warp, uint32_t lane)
{
    const zi_warp_range range = zi_warp_range_of(warp, args->warp_count, args->count);
    uint64_t at = range.begin;
    ZI_NO_UNROLL
    for (; args->aligned && range.end - at >= ZI_FOLD_TILE; at += ZI_FOLD_TILE) {
        zi_fold_tile(dst, source, args, at, lane);
    }
    ZI_NO_UNROLL
    for (uint64_t i = at + lane; i < range.end; i += ZI_WARP_LANES) {
        zi_fold_element(dst, source, args, i);
    }
}

/* ---- with the squares of what is stored ----
 *
 * A warp writes the values of a tile to a buffer in shared memory. Then each of its lanes takes one
 * lane of zi_norm_chunk: eight neighbours take a chunk, and a tile has four chunks. Of the eight
 * another one keeps the total in every tile of a pass, so that the warp adds all of a pass
 * together. */
#define ZI_FOLD_TILE_CHUNKS (ZI_FOLD_TILE / ZI_NORM_CHUNK)
/* Elements from one chunk to the next, so that lanes of different chunks read different banks. */
#define ZI_FOLD_CHUNK_STRIDE (ZI_NORM_CHUNK + ZI_NORM_LANES)
#define ZI_FOLD_BUFFER (ZI_FOLD_TILE_CHUNKS * ZI_FOLD_CHUNK_STRIDE)
/* Tiles of a warp in one pass of its block; the grid is that of the norm. */
#define ZI_FOLD_PASS_TILES (ZI_NORM_WARP_CHUNKS / ZI_FOLD_TILE_CHUNKS)

#if ZI_FOLD_TILE_CHUNKS * ZI_NORM_LANES != ZI_WARP_LANES
#error "a tile's chunks have a lane for each of a warp's"
#endif
#if ZI_FOLD_PASS_TILES > ZI_NORM_LANES
#error "the lanes of a chunk keep a total each"
#endif

/* The place of element `index` of a tile in the buffer. */
ZI_LANE uint32_t zi_fold_buffer_place(uint32_t index)
{
    return index / ZI_NORM_CHUNK * ZI_FOLD_CHUNK_STRIDE + index % ZI_NORM_CHUNK;
}

/* A value as `dtype` holds it. */
ZI_LANE float zi_fold_rounded(float value, zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_F32 ? value
                                   : zi_f32_from_narrow(zi_narrow_from_f32(value, dtype), dtype);
}

/* Store four neighbours to the buffer by one access: the compiler would split some such stores. */
ZI_LANE void zi_fold_buffer_put(float *place, zi_quad_words words)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(place)), "r"(words.word[0]),
                   "r"(words.word[1]), "r"(words.word[2]), "r"(words.word[3])
                 : "memory");
#else
    memcpy(place, words.word, sizeof words.word);
#endif
}

/* The begin of the first of a warp's tiles in a pass. */
ZI_LANE uint64_t zi_fold_pass_tile(uint64_t block, uint64_t passes, uint64_t pass, uint32_t warp)
{
    return zi_norm_chunk_of(block, passes, pass, warp * ZI_WARP_LANES) * ZI_NORM_CHUNK;
}

/* Of which tile of a pass the lane keeps a total, and whether that is one of the array's. */
ZI_LANE uint32_t zi_fold_keeps(uint32_t lane)
{
    return lane % ZI_NORM_LANES;
}

ZI_LANE int zi_fold_owns(const zi_fold_args *args, uint64_t first_tile, uint32_t lane)
{
    const uint64_t chunk = (uint64_t)zi_fold_keeps(lane) * ZI_FOLD_TILE +
                           (uint64_t)(lane / ZI_NORM_LANES) * ZI_NORM_CHUNK;
    return zi_fold_keeps(lane) < ZI_FOLD_PASS_TILES && first_tile + chunk < args->count;
}

/* Fold the lane's elements of a tile, whole or not, and store them to the warp's buffer, with zeros
 * behind the end of the array. buffer: ZI_FOLD_BUFFER floats, aligned to 16 bytes. */
ZI_LANE void zi_fold_tile_squares(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
                                  uint64_t tile, uint32_t lane, float *buffer)
{
    if (args->aligned && args->count - tile >= ZI_FOLD_TILE) {
        const zi_fold_sum sum = zi_fold_tile_sum(dst, source, args, tile, lane);
        ZI_UNROLL
        for (int q = 0; q < ZI_FOLD_QUADS; q++) {
            zi_quad_words words;
            zi_quad_store(args->dst, dst, zi_lane_place(tile, q, lane), sum.quad[q], ZI_USE_AGAIN);
            ZI_UNROLL
            for (int i = 0; i < ZI_QUAD; i++) {
                words.word[i] = zi_f32_bits(zi_fold_rounded(sum.quad[q].value[i], dst));
            }
            zi_fold_buffer_put(buffer + zi_fold_buffer_place((uint32_t)zi_lane_place(0, q, lane)),
                               words);
        }
        return;
    }
    ZI_NO_UNROLL
    for (uint32_t i = lane; i < ZI_FOLD_TILE; i += ZI_WARP_LANES) {
        float value = 0.0f;
        if (tile + i < args->count) {
            value = zi_fold_element_sum(dst, source, args, tile + i);
            zi_element_put(args->dst, dst, tile + i, value);
        }
        buffer[zi_fold_buffer_place(i)] = zi_fold_rounded(value, dst);
    }
}

/* The sum that zi_norm_chunk has in one of its lanes before it adds these up. */
ZI_LANE double zi_fold_column(const float *buffer, uint32_t lane)
{
    const float *const first =
        buffer + lane / ZI_NORM_LANES * ZI_FOLD_CHUNK_STRIDE + lane % ZI_NORM_LANES;
    double sum = 0.0;
    ZI_UNROLL
    for (uint32_t row = 0; row < ZI_NORM_ROWS; row++) {
        const double value = (double)first[row * ZI_NORM_LANES];
        sum = fma(value, value, sum);
    }
    return sum;
}

/* The same for a cast between different types. */
ZI_LANE void zi_cast_lane(zero_dtype target, zero_dtype source, const zi_cast_args *args,
                          uint64_t warp, uint32_t lane)
{
    const zi_warp_range range = zi_warp_range_of(warp, args->warp_count, args->count);
    uint64_t at = range.begin;
    ZI_NO_UNROLL
    for (; args->aligned && range.end - at >= ZI_CAST_TILE; at += ZI_CAST_TILE) {
        zi_quad quads[ZI_CAST_QUADS];
        ZI_UNROLL
        for (int q = 0; q < ZI_CAST_QUADS; q++) {
            quads[q] = zi_quad_load(args->source, source, zi_lane_place(at, q, lane), ZI_USE_ONCE);
        }
        ZI_UNROLL
        for (int q = 0; q < ZI_CAST_QUADS; q++) {
            zi_quad_store(args->target, target, zi_lane_place(at, q, lane), quads[q], ZI_USE_AGAIN);
        }
    }
    ZI_NO_UNROLL
    for (uint64_t i = at + lane; i < range.end; i += ZI_WARP_LANES) {
        zi_element_put(args->target, target, i, zi_element_get(args->source, source, i));
    }
}

#endif
