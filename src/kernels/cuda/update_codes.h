/* Updates whose moments are 8-bit codes. What a block of codes is scaled by depends on all its
 * elements, so its lanes work together: 8 lanes with a quad each in a tile, else a lane for each
 * element. All functions here are called by all lanes of a warp at once.
 *
 * A tile has two quads of a lane, and so up to four blocks for each 8 lanes: a half of the tile and
 * a moment. Of these 8 lanes each looks after one block: it alone loads the block's scale, gets the
 * greatest magnitude and computes what the other lanes multiply by. */
#ifndef ZI_KERNELS_CUDA_UPDATE_CODES_H
#define ZI_KERNELS_CUDA_UPDATE_CODES_H

#include "kernels/cuda/launch_kernel.h"
#include "kernels/cuda/update_body.h"
#include "kernels/math/code.h"

#define ZI_WARP_ALL 0xffffffffu
#define ZI_CODE_LANES (ZERO_CODE_BLOCK / ZI_QUAD)

static_assert(ZI_CODE_LANES == 8, "distances of shuffles");
static_assert(ZERO_CODE_BLOCK == ZI_WARP_LANES, "a lane for each element of a block");

#define ZI_COLLECTIVE static __forceinline__ __device__

ZI_COLLECTIVE uint32_t zi_greater(uint32_t left, uint32_t right)
{
    return left > right ? left : right;
}

/* The block that a lane looks after. */
ZI_COLLECTIVE uint32_t zi_own_half(uint32_t lane)
{
    return lane / 2 % 2;
}

ZI_COLLECTIVE uint32_t zi_own_moment(zi_update_form form, uint32_t lane)
{
    return zi_update_has_second(form) ? lane % 2 : 0;
}

/* The lane that looks after a block of this lane's. */
ZI_COLLECTIVE int zi_keeper(uint32_t lane, uint32_t half, uint32_t moment)
{
    return (int)(lane / ZI_CODE_LANES * ZI_CODE_LANES + half * 2 + moment);
}

/* The kind of a moment's codes. */
ZI_COLLECTIVE zero_dtype zi_code_kind(zi_update_form form, uint32_t moment)
{
    return moment == 0 ? zi_optimizer_code((uint32_t)form.optimizer, 0)
                       : zi_optimizer_code((uint32_t)form.optimizer, 1);
}

ZI_COLLECTIVE uint16_t *zi_own_scale(zi_update_form form, const zi_update_args *args,
                                     const zi_update_walk *walk, uint32_t lane)
{
    uint16_t *const scales = zi_own_moment(form, lane) == 0 ? args->scale1 : args->scale2;
    return scales + walk->at / ZERO_CODE_BLOCK +
           (zi_own_half(lane) * (ZI_WARP_QUADS / ZERO_CODE_BLOCK) + lane / ZI_CODE_LANES);
}

/* A lane's quads of a tile. */
typedef struct zi_coded_tile {
    zi_update_quad half[ZI_UPDATE_QUADS];
} zi_coded_tile;

ZI_COLLECTIVE zi_quad zi_quad_decode(zero_dtype kind, zi_quad_words codes, float step)
{
    zi_quad quad;
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        quad.value[i] = zi_code_value(kind, codes.word[0] >> (8 * i) & UINT32_C(0xff), step);
    }
    return quad;
}

ZI_COLLECTIVE void zi_coded_load(zi_update_form form, const zi_update_args *args,
                                 const zi_update_walk *walk, uint32_t lane, zi_coded_tile *tile)
{
    const uint64_t place = walk->at + (uint64_t)lane * ZI_QUAD;
    zi_quad_words codes[ZI_UPDATE_QUADS][ZI_MOMENTS_MAX];
    const uint16_t scale = *zi_own_scale(form, args, walk, lane);
    ZI_UNROLL
    for (uint32_t h = 0; h < ZI_UPDATE_QUADS; h++) {
        const uint64_t at = place + h * ZI_WARP_QUADS;
        tile->half[h] = zi_update_load_param(form, args, at);
        codes[h][0] = zi_words_load(args->moment1, form.moment, at, ZI_USE_AGAIN);
        codes[h][1] = zi_update_has_second(form)
                          ? zi_words_load(args->moment2, form.moment, at, ZI_USE_AGAIN)
                          : codes[h][0]; /* unused */
    }
    const float step = zi_code_step(zi_code_kind(form, zi_own_moment(form, lane)), scale);
    ZI_UNROLL
    for (uint32_t h = 0; h < ZI_UPDATE_QUADS; h++) {
        const float step1 = __shfl_sync(ZI_WARP_ALL, step, zi_keeper(lane, h, 0));
        tile->half[h].m = zi_quad_decode(zi_code_kind(form, 0), codes[h][0], step1);
        tile->half[h].v = tile->half[h].m; /* unused */
        if (zi_update_has_second(form)) {
            const float step2 = __shfl_sync(ZI_WARP_ALL, step, zi_keeper(lane, h, 1));
            tile->half[h].v = zi_quad_decode(zi_code_kind(form, 1), codes[h][1], step2);
        }
    }
}

ZI_COLLECTIVE uint32_t zi_quad_most(zi_quad quad)
{
    uint32_t most = 0;
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        most = zi_greater(most, zi_code_magnitude(quad.value[i]));
    }
    return most;
}

/* Greatest magnitudes of what a lane has of the blocks in a tile. */
typedef struct zi_lane_most {
    uint32_t m[ZI_UPDATE_QUADS];
    uint32_t v[ZI_UPDATE_QUADS];
} zi_lane_most;

/* The greatest of the block that the lane looks after. Each lane sends what is of a block that its
 * neighbour looks after, and is sent the same. */
ZI_COLLECTIVE uint32_t zi_own_most(zi_update_form form, const zi_lane_most *most, uint32_t lane)
{
    const int high = zi_own_half(lane) != 0;
    const int second = zi_own_moment(form, lane) != 0;
    const uint32_t m = __shfl_xor_sync(ZI_WARP_ALL, high ? most->m[0] : most->m[1], 2);
    uint32_t own = zi_greater(high ? most->m[1] : most->m[0], m);
    uint32_t sent = own;
    if (zi_update_has_second(form)) {
        const uint32_t v = __shfl_xor_sync(ZI_WARP_ALL, high ? most->v[0] : most->v[1], 2);
        const uint32_t other = zi_greater(high ? most->v[1] : most->v[0], v);
        sent = second ? own : other;
        own = second ? other : own;
    }
    own = zi_greater(own, __shfl_xor_sync(ZI_WARP_ALL, sent, 1));
    return zi_greater(own, __shfl_xor_sync(ZI_WARP_ALL, own, 4));
}

/* A quad of a moment in codes. root: that of the values, where the codes are linear in it; else
 * NULL. random: of the moments' sequence. */
ZI_COLLECTIVE void zi_quad_encode(zero_dtype kind, void *place, const zi_quad *values,
                                  const zi_quad *root, float gain, zi_quad_words random)
{
    uint32_t code[ZI_QUAD];
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        const float value = values->value[i];
        code[i] = zi_code_of(kind, value, root != NULL ? root->value[i] : fabsf(value), gain,
                             zi_code_random(kind, random.word[i]));
    }
    zi_words_store4(place, zi_words_of_bytes(code));
}

/* The moments of a tile. most: of the block that the lane looks after. */
ZI_COLLECTIVE void zi_coded_store(zi_update_form form, const zi_update_args *args,
                                  const zi_update_walk *walk, uint32_t lane,
                                  const zi_coded_tile *tile, uint32_t most)
{
    const uint16_t scale = zi_code_scale(most);
    const float gain = zi_code_gain(zi_code_kind(form, zi_own_moment(form, lane)), scale);
    if (lane % ZI_CODE_LANES / 4 == 0 && (zi_update_has_second(form) || lane % 2 == 0)) {
        *zi_own_scale(form, args, walk, lane) = scale;
    }
    ZI_UNROLL
    for (uint32_t h = 0; h < ZI_UPDATE_QUADS; h++) {
        const zi_update_quad *const quad = &tile->half[h];
        const uint32_t offset = h * ZI_WARP_QUADS + lane * ZI_QUAD;
        const float gain1 = __shfl_sync(ZI_WARP_ALL, gain, zi_keeper(lane, h, 0));
        const zi_quad_words random = zi_quad_random(walk, form.moment, ZI_ROUNDING_MOMENT1, offset);
        zi_quad_encode(zi_code_kind(form, 0),
                       zi_place(args->moment1, form.moment, walk->at + offset), &quad->m, NULL,
                       gain1, random);
        if (zi_update_has_second(form)) {
            const float gain2 = __shfl_sync(ZI_WARP_ALL, gain, zi_keeper(lane, h, 1));
            zi_quad_encode(zi_code_kind(form, 1),
                           zi_place(args->moment2, form.moment, walk->at + offset), &quad->v,
                           &quad->root, gain2, random);
        }
    }
}

/* The code of a block's element; that of padding behind the segment's end is 0, as its value is.
 * random: the moments' word. */
ZI_COLLECTIVE void zi_element_encode(zero_dtype kind, void *codes, uint16_t *scales, uint64_t at,
                                     uint32_t lane, float value, uint32_t random)
{
    uint32_t most = zi_code_magnitude(value);
    ZI_UNROLL
    for (int distance = ZI_WARP_LANES / 2; distance > 0; distance /= 2) {
        most = zi_greater(most, __shfl_xor_sync(ZI_WARP_ALL, most, distance));
    }
    const uint16_t scale = zi_code_scale(most);
    ((uint8_t *)codes)[at] = zi_code_of(kind, value, zi_code_measure(kind, value),
                                        zi_code_gain(kind, scale), zi_code_random(kind, random));
    if (lane == 0) {
        scales[at / ZERO_CODE_BLOCK] = scale;
    }
}

ZI_COLLECTIVE float zi_element_decode(zero_dtype kind, const void *codes, const uint16_t *scales,
                                      uint64_t at)
{
    return zi_code_value(kind, ((const uint8_t *)codes)[at],
                         zi_code_step(kind, scales[at / ZERO_CODE_BLOCK]));
}

/* The block of codes that is `first` elements from where the walk is, or what there is of it. 1:
 * the lane's element has stalled. */
ZI_COLLECTIVE uint32_t zi_coded_block(zi_update_form form, const zi_update_args *args,
                                      const zi_update_walk *walk, uint32_t first, uint32_t lane)
{
    const int has_second = zi_update_has_second(form);
    const zi_update_place place = zi_update_place_of(form, args, walk, first + lane);
    zi_element_state next = {0.0f, 0.0f, 0.0f, 0.0f};
    uint32_t stalled = 0;
    if (first + lane < walk->left) {
        zi_update_kept before;
        const zi_element_state state = {
            zi_element_value(form, args, place.at, &before),
            zi_element_decode(zi_code_kind(form, 0), args->moment1, args->scale1, place.at),
            has_second
                ? zi_element_decode(zi_code_kind(form, 1), args->moment2, args->scale2, place.at)
                : 0.0f,
            0.0f};
        const float grad =
            zi_element_get(args->grad, args->grad_dtype, place.at) * walk->grad_scale;
        next = zi_optimizer_lane((uint32_t)form.optimizer, state, grad, walk->coeffs);
        stalled = zi_element_keep(form, args, place, next.p, grad, before);
    }
    zi_element_encode(zi_code_kind(form, 0), args->moment1, args->scale1, place.at, lane, next.m,
                      place.moments);
    if (has_second) {
        zi_element_encode(zi_code_kind(form, 1), args->moment2, args->scale2, place.at, lane,
                          next.v, place.moments);
    }
    return stalled;
}

/* The next `count` elements of a walk, block by block. Returns how many of the lane's have stalled.
 */
ZI_COLLECTIVE uint32_t zi_coded_blocks(zi_update_form form, const zi_update_args *args,
                                       const zi_update_walk *walk, uint32_t count, uint32_t lane)
{
    uint32_t stalled = 0;
    ZI_NO_UNROLL
    for (uint32_t first = 0; first < count; first += ZERO_CODE_BLOCK) {
        stalled += zi_coded_block(form, args, walk, first, lane);
    }
    return stalled;
}

/* The next ZI_UPDATE_TILE elements of a walk, of aligned arrays. Likewise. */
ZI_COLLECTIVE uint32_t zi_coded_tile_update(zi_update_form form, const zi_update_args *args,
                                            zi_update_walk *walk, uint32_t lane)
{
    zi_coded_tile tile;
    zi_lane_most most;
    const zi_quad_words none = {{0, 0, 0, 0}};
    uint32_t stalled = 0;
    int usual = zi_update_tile_begin(form, args, walk);
    zi_coded_load(form, args, walk, lane, &tile);
    ZI_UNROLL
    for (int h = 0; h < ZI_UPDATE_QUADS; h++) {
        usual &= zi_update_advance(form, args, walk, &tile.half[h]);
        if (!zi_update_rounds_param(form)) {
            zi_update_keep_quad(form, &tile.half[h], none);
            zi_update_pin(&tile.half[h].stalled);
        }
        most.m[h] = zi_quad_most(tile.half[h].m);
        most.v[h] = zi_quad_most(tile.half[h].v);
    }
    if (__any_sync(ZI_WARP_ALL, !usual)) {
        return zi_coded_blocks(form, args, walk, ZI_UPDATE_TILE, lane);
    }
    const uint32_t own_most = zi_own_most(form, &most, lane);
    ZI_UNROLL
    for (uint32_t h = 0; h < ZI_UPDATE_QUADS; h++) {
        const uint32_t offset = h * ZI_WARP_QUADS + lane * ZI_QUAD;
        if (zi_update_rounds_param(form)) {
            zi_update_keep_quad(form, &tile.half[h],
                                zi_quad_random(walk, form.master, ZI_ROUNDING_PARAM, offset));
        }
        zi_update_store_param(form, args, walk->at + offset, &tile.half[h]);
        stalled += tile.half[h].stalled;
    }
    zi_coded_store(form, args, walk, lane, &tile, own_most);
    return stalled;
}

/* All of a walk. Likewise. */
ZI_COLLECTIVE uint32_t zi_coded_walk_through(zi_update_form form, const zi_update_args *args,
                                             zi_update_walk *walk, uint32_t lane)
{
    uint32_t stalled = 0;
    ZI_NO_UNROLL
    while (zi_update_has_tile(form, args, walk)) {
        stalled += zi_coded_tile_update(form, args, walk, lane);
        zi_update_step(walk);
    }
    return stalled + zi_coded_blocks(form, args, walk, walk->left, lane);
}

#endif
