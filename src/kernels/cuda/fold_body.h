/* What one lane of the fold's and the cast's kernels does. */
#ifndef ZI_KERNELS_CUDA_FOLD_BODY_H
#define ZI_KERNELS_CUDA_FOLD_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/quad.h"
#include "zero/dtype.h"

/* Quads that a lane has on their way at once. */
#define ZI_FOLD_QUADS 2
#define ZI_FOLD_TILE (ZI_FOLD_QUADS * ZI_WARP_QUADS)
#define ZI_CAST_QUADS 4
#define ZI_CAST_TILE (ZI_CAST_QUADS * ZI_WARP_QUADS)
/* Sources whose quads a lane asks for before it adds the first. */
#define ZI_FOLD_AHEAD 4

/* A fold as its kernel gets it, by value. */
typedef struct zi_fold_args {
    void *dst;
    uint64_t count;
    uint64_t warp_count;
    uint32_t source_count; /* without those that are NULL */
    int32_t accumulate;
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

ZI_LANE uint64_t zi_lane_place(uint64_t tile, int quad, uint32_t lane)
{
    return tile + (uint64_t)quad * ZI_WARP_QUADS + (uint64_t)lane * ZI_QUAD;
}

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

/* A whole tile of aligned arrays. */
ZI_LANE void zi_fold_tile(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
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
    if (args->accumulate) {
        const zi_fold_sum before = zi_fold_load(args->dst, dst, tile, lane);
        zi_fold_add(&sum, &before);
    }
    ZI_UNROLL
    for (int q = 0; q < ZI_FOLD_QUADS; q++) {
        zi_quad_store(args->dst, dst, zi_lane_place(tile, q, lane), sum.quad[q], ZI_USE_AGAIN);
    }
}

ZI_LANE void zi_fold_element(zero_dtype dst, zero_dtype source, const zi_fold_args *args,
                             uint64_t index)
{
    float sum = 0.0f;
    for (uint32_t k = 0; k < args->source_count; k++) {
        sum += zi_element_get(args->sources[k], source, index);
    }
    if (args->accumulate) {
        sum += zi_element_get(args->dst, dst, index);
    }
    zi_element_put(args->dst, dst, index, sum);
}

/* Everything that lane `lane` of warp `warp` does. */
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
