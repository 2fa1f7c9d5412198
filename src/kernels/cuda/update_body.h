/* The work of one lane of the update's kernel: find the segments under its warp, and update them
 * tile by tile. */
#ifndef ZI_KERNELS_CUDA_UPDATE_BODY_H
#define ZI_KERNELS_CUDA_UPDATE_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/quad.h"
#include "kernels/cuda/quick.h"
#include "kernels/kernels.h"
#include "kernels/math/rounding.h"
#include "optimizer/optimizer.h"

/* A lane's two quads lie half a tile apart, so that both accesses of a warp are runs of memory. */
#define ZI_UPDATE_QUADS 2
#define ZI_UPDATE_TILE (ZI_UPDATE_QUADS * ZI_WARP_QUADS)

/* The optimizer and the types of a job. Constants in a kernel. */
typedef struct zi_update_form {
    zero_optimizer optimizer;
    zero_dtype grad;
    zero_dtype param;   /* NONE: only the master is written */
    zero_dtype moment;  /* rounded stochastically unless F32 */
    int32_t has_master; /* 0: `param` is the master, and rounded stochastically */
} zi_update_form;

/* A job as its kernel gets it, by value. */
typedef struct zi_update_args {
    const zi_segment *segments;
    uint64_t segment_count;
    uint64_t count;
    uint64_t warp_count;
    const void *grad;
    void *param;
    float *master;
    void *moment1;
    void *moment2;
    uint64_t seed;
    const zi_step_decision *decision;
    int32_t aligned; /* quads are single accesses in every array */
} zi_update_args;

ZI_LANE zi_update_form zi_update_form_of(const zi_update_job *job)
{
    const int own_master = job->param_dtype == ZERO_DTYPE_F32;
    zi_update_form form;
    form.optimizer = job->optimizer;
    form.grad = job->grad_dtype;
    form.param = own_master || job->param == 0 ? ZERO_DTYPE_NONE : job->param_dtype;
    form.moment = job->moment_dtype;
    form.has_master = own_master || job->state[ZI_STATE_MASTER] != 0;
    return form;
}

ZI_LANE int zi_update_has_second(zi_update_form form)
{
    return zi_optimizer_moments((uint32_t)form.optimizer) > 1;
}

/* True if anything of a job is rounded stochastically. */
ZI_LANE int zi_update_is_random(zi_update_form form)
{
    return !form.has_master || form.moment != ZERO_DTYPE_F32;
}

ZI_LANE zi_cuda_grid zi_update_grid_of(const zi_update_job *job)
{
    const zi_update_form form = zi_update_form_of(job);
    if (job->over_bus) {
        return zi_cuda_grid_of_bus(job->count);
    }
    if (!zi_update_is_random(form)) {
        return zi_cuda_grid_with(job->count, form.param == ZERO_DTYPE_NONE ? ZI_WARP_COUNT_FEW
                                                                           : ZI_WARP_COUNT_LEAST);
    }
    return !form.has_master && job->count >= ZI_MANY_FROM
               ? zi_cuda_grid_with(job->count, ZI_WARP_COUNT_MOST)
               : zi_cuda_grid_of(job->count);
}

ZI_LANE zi_update_args zi_update_args_of(const zi_update_job *job)
{
    const zi_update_form form = zi_update_form_of(job);
    zi_update_args args;
    args.segments = job->segments;
    args.segment_count = job->segment_count;
    args.count = job->count;
    args.warp_count = zi_update_grid_of(job).warp_count;
    args.grad = job->grad;
    args.param = form.param == ZERO_DTYPE_NONE ? 0 : job->param;
    args.master =
        (float *)(job->param_dtype == ZERO_DTYPE_F32 ? job->param : job->state[ZI_STATE_MASTER]);
    args.moment1 = job->state[ZI_STATE_MOMENT1];
    args.moment2 = job->state[ZI_STATE_MOMENT2];
    args.seed = job->seed;
    args.decision = job->decision;
    args.aligned =
        zi_quad_aligned(args.grad, form.grad) && zi_quad_aligned(args.param, form.param) &&
        zi_quad_aligned(args.master, ZERO_DTYPE_F32) &&
        zi_quad_aligned(args.moment1, form.moment) && zi_quad_aligned(args.moment2, form.moment);
    return args;
}

/* A walk over neighbouring elements of one segment, and what they have in common. */
typedef struct zi_update_walk {
    uint64_t at;      /* in the shard */
    uint64_t left;    /* elements from there on */
    uint64_t element; /* place of `at` in the tensor */
    zi_rounding_key key;
    zi_rounding_block random; /* of block `block` of the tensor */
    uint64_t block;           /* that of the lane's last quad */
    zi_coeffs coeffs;
    float grad_scale;
} zi_update_walk;

/* The first segment that ends behind `place`; segment_count: none does. */
ZI_LANE uint64_t zi_segment_find(const zi_segment *segments, uint64_t segment_count, uint64_t place)
{
    uint64_t low = 0;
    uint64_t high = segment_count;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (segments[middle].offset + segments[middle].count > place) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* The part of the segment in the warp's range; the segment begins before the range's end and does
 * not end before its begin. */
ZI_LANE zi_update_walk zi_update_walk_of(zi_update_form form, const zi_update_args *args,
                                         const zi_segment *segment, zi_warp_range range)
{
    const zi_step_decision *const decision = args->decision;
    const uint64_t segment_end = segment->offset + segment->count;
    const uint64_t end = segment_end < range.end ? segment_end : range.end;
    zi_update_walk walk;
    walk.at = segment->offset > range.begin ? segment->offset : range.begin;
    walk.left = end - walk.at;
    walk.element = segment->tensor_first + (walk.at - segment->offset);
    walk.key.seed = args->seed;
    walk.key.update = decision->update;
    walk.key.tensor = segment->tensor;
    walk.key.purpose = ZI_ROUNDING_PARAM;
    walk.block = UINT64_MAX;
    walk.coeffs = zi_optimizer_coeffs((uint32_t)form.optimizer, decision->groups[segment->group],
                                      segment->flags);
    walk.grad_scale = decision->grad_scale;
    return walk;
}

/* To the block of the lane's quad that begins with `element`. A lane's elements ascend, so it calls
 * Philox once for each block that it comes to. */
ZI_LANE void zi_update_move_to(zi_update_walk *walk, uint64_t element)
{
    if (element / ZI_ROUNDING_BLOCK != walk->block) {
        walk->block = element / ZI_ROUNDING_BLOCK;
        walk->random = zi_rounding_block_of(walk->key, walk->block);
    }
}

/* The random words of the quad that begins with `element`, a multiple of ZI_QUAD in walk->block. */
ZI_LANE zi_quad_words zi_quad_random(const zi_update_walk *walk, zi_rounding_purpose purpose,
                                     uint64_t element)
{
    zi_quad_words words;
    const zi_rounding_sequence sequence = zi_rounding_sequence_for(walk->random, purpose);
    const uint32_t index = (uint32_t)(element % ZI_ROUNDING_BLOCK);
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        words.word[i] = zi_rounding_mix(zi_rounding_at(sequence, index + i));
    }
    return words;
}

/* A lane's elements of a tile, one quad of each array. */
typedef struct zi_update_quad {
    zi_quad p;
    zi_quad m;
    zi_quad v;
    zi_quad g;
} zi_update_quad;

ZI_LANE zi_update_quad zi_update_load(zi_update_form form, const zi_update_args *args,
                                      uint64_t place)
{
    zi_update_quad quad;
    quad.g = zi_quad_load(args->grad, form.grad, place, ZI_USE_ONCE);
    quad.p = form.has_master ? zi_quad_load(args->master, ZERO_DTYPE_F32, place, ZI_USE_AGAIN)
                             : zi_quad_load(args->param, form.param, place, ZI_USE_AGAIN);
    quad.m = zi_quad_load(args->moment1, form.moment, place, ZI_USE_AGAIN);
    quad.v = zi_update_has_second(form)
                 ? zi_quad_load(args->moment2, form.moment, place, ZI_USE_AGAIN)
                 : quad.m; /* unused */
    return quad;
}

/* zi_optimizer_lane with no branch on the way: AdamW's root and quotient by quick functions, which
 * clear *usual where some argument was not usual; what came of it is not to be used then. */
ZI_LANE zi_element_state zi_update_quickly(zi_update_form form, zi_element_state state, float grad,
                                           zi_coeffs coeffs, int *usual)
{
    if (form.optimizer != ZERO_OPTIMIZER_ADAMW) {
        return zi_optimizer_lane((uint32_t)form.optimizer, state, grad, coeffs);
    }
    zi_element_state next = zi_adamw_moments(state, grad, coeffs.adamw);
    const float root = zi_quick_sqrt(next.v, usual);
    const float denominator = zi_adamw_denominator(root, coeffs.adamw);
    const float direction = zi_quick_quotient(next.m, denominator, usual);
    next.p = zi_adamw_param(state.p, direction, coeffs.adamw);
    return next;
}

/* The quad's elements. 0: some argument was not usual, and what came of the quad is not to be used.
 */
ZI_LANE int zi_update_advance(zi_update_form form, const zi_update_walk *walk, zi_update_quad *quad)
{
    int usual = 1;
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        const zi_element_state state = {quad->p.value[i], quad->m.value[i], quad->v.value[i]};
        const zi_element_state next = zi_update_quickly(
            form, state, quad->g.value[i] * walk->grad_scale, walk->coeffs, &usual);
        quad->p.value[i] = next.p;
        quad->m.value[i] = next.m;
        quad->v.value[i] = next.v;
    }
    return usual;
}

/* A quad of the moments, rounded stochastically unless it is F32. */
ZI_LANE void zi_update_store_moments(zi_update_form form, const zi_update_args *args,
                                     const zi_update_walk *walk, uint64_t offset,
                                     const zi_update_quad *quad)
{
    const uint64_t place = walk->at + offset;
    if (form.moment == ZERO_DTYPE_F32) {
        zi_quad_store(args->moment1, ZERO_DTYPE_F32, place, quad->m, ZI_USE_AGAIN);
        if (zi_update_has_second(form)) {
            zi_quad_store(args->moment2, ZERO_DTYPE_F32, place, quad->v, ZI_USE_AGAIN);
        }
        return;
    }
    const zi_quad_words random = zi_quad_random(walk, ZI_ROUNDING_MOMENT1, walk->element + offset);
    zi_quad_round(args->moment1, form.moment, place, quad->m, random, ZI_ROUNDING_MOMENT1);
    if (zi_update_has_second(form)) {
        zi_quad_round(args->moment2, form.moment, place, quad->v, random, ZI_ROUNDING_MOMENT2);
    }
}

/* A quad of the parameter: as fp32 with its copy, or rounded stochastically. */
ZI_LANE void zi_update_store_param(zi_update_form form, const zi_update_args *args,
                                   const zi_update_walk *walk, uint64_t offset, zi_quad p)
{
    const uint64_t place = walk->at + offset;
    if (!form.has_master) {
        const zi_quad_words random =
            zi_quad_random(walk, ZI_ROUNDING_PARAM, walk->element + offset);
        zi_quad_round(args->param, form.param, place, p, random, ZI_ROUNDING_PARAM);
        return;
    }
    zi_quad_store(args->master, ZERO_DTYPE_F32, place, p, ZI_USE_AGAIN);
    if (form.param != ZERO_DTYPE_NONE) {
        zi_quad_store(args->param, form.param, place, p, ZI_USE_ONCE);
    }
}

ZI_LANE void zi_element_round(void *base, zero_dtype dtype, uint64_t index, float value,
                              zi_rounding_key key, zi_rounding_purpose purpose, uint64_t element)
{
    const uint32_t word = zi_rounding_word(key, purpose, element);
    ((uint16_t *)base)[index] = zi_narrow_stochastic(value, dtype, zi_rounding_half(word, purpose));
}

/* Element `i` from where the walk is. */
ZI_LANE void zi_update_element(zi_update_form form, const zi_update_args *args,
                               const zi_update_walk *walk, uint64_t i)
{
    const uint64_t at = walk->at + i;
    const int has_second = zi_update_has_second(form);
    const zi_element_state state = {
        form.has_master ? args->master[at] : zi_element_get(args->param, form.param, at),
        zi_element_get(args->moment1, form.moment, at),
        has_second ? zi_element_get(args->moment2, form.moment, at) : 0.0f};
    const float grad = zi_element_get(args->grad, form.grad, at) * walk->grad_scale;
    const zi_element_state next =
        zi_optimizer_lane((uint32_t)form.optimizer, state, grad, walk->coeffs);
    if (!form.has_master) {
        zi_element_round(args->param, form.param, at, next.p, walk->key, ZI_ROUNDING_PARAM,
                         walk->element + i);
    } else {
        args->master[at] = next.p;
        if (form.param != ZERO_DTYPE_NONE) {
            zi_element_put(args->param, form.param, at, next.p);
        }
    }
    if (form.moment == ZERO_DTYPE_F32) {
        ((float *)args->moment1)[at] = next.m;
        if (has_second) {
            ((float *)args->moment2)[at] = next.v;
        }
        return;
    }
    zi_element_round(args->moment1, form.moment, at, next.m, walk->key, ZI_ROUNDING_MOMENT1,
                     walk->element + i);
    if (has_second) {
        zi_element_round(args->moment2, form.moment, at, next.v, walk->key, ZI_ROUNDING_MOMENT2,
                         walk->element + i);
    }
}

ZI_LANE void zi_update_store(zi_update_form form, const zi_update_args *args, zi_update_walk *walk,
                             uint64_t offset, const zi_update_quad *quad)
{
    if (zi_update_is_random(form)) {
        zi_update_move_to(walk, walk->element + offset);
    }
    zi_update_store_param(form, args, walk, offset, quad->p);
    zi_update_store_moments(form, args, walk, offset, quad);
}

/* A lane's quads of a tile, element by element. */
ZI_LANE void zi_update_tile_slowly(zi_update_form form, const zi_update_args *args,
                                   const zi_update_walk *walk, uint64_t offset)
{
    ZI_NO_UNROLL
    for (uint64_t i = 0; i < ZI_UPDATE_QUADS * ZI_QUAD; i++) {
        zi_update_element(form, args, walk, offset + i / ZI_QUAD * ZI_WARP_QUADS + i % ZI_QUAD);
    }
}

/* The next ZI_UPDATE_TILE elements of a walk, of aligned arrays. */
ZI_LANE void zi_update_tile(zi_update_form form, const zi_update_args *args, zi_update_walk *walk,
                            uint32_t lane)
{
    const uint64_t offset = (uint64_t)lane * ZI_QUAD;
    zi_update_quad first = zi_update_load(form, args, walk->at + offset);
    zi_update_quad second = zi_update_load(form, args, walk->at + offset + ZI_WARP_QUADS);
    const int usual = zi_update_advance(form, walk, &first);
    if (!(zi_update_advance(form, walk, &second) & usual)) {
        zi_update_tile_slowly(form, args, walk, offset);
        return;
    }
    zi_update_store(form, args, walk, offset, &first);
    zi_update_store(form, args, walk, offset + ZI_WARP_QUADS, &second);
}

/* True if the next elements of a walk can be updated as a tile. Quads are rounded by whole quads of
 * the tensor; no layout of ours lets a segment begin elsewhere. */
ZI_LANE int zi_update_has_tile(zi_update_form form, const zi_update_args *args,
                               const zi_update_walk *walk)
{
    return args->aligned && walk->left >= ZI_UPDATE_TILE &&
           (!zi_update_is_random(form) || walk->element % ZI_QUAD == 0);
}

/* All work of lane `lane` of warp `warp`. */
ZI_LANE void zi_update_lane(zi_update_form form, const zi_update_args *args, uint64_t warp,
                            uint32_t lane)
{
    const zi_warp_range range = zi_warp_range_of(warp, args->warp_count, args->count);
    if (args->decision->skip || range.begin == range.end) {
        return;
    }
    uint64_t index = zi_segment_find(args->segments, args->segment_count, range.begin);
    ZI_NO_UNROLL
    for (; index < args->segment_count && args->segments[index].offset < range.end; index++) {
        zi_update_walk walk = zi_update_walk_of(form, args, &args->segments[index], range);
        ZI_NO_UNROLL
        while (zi_update_has_tile(form, args, &walk)) {
            zi_update_tile(form, args, &walk, lane);
            walk.at += ZI_UPDATE_TILE;
            walk.element += ZI_UPDATE_TILE;
            walk.left -= ZI_UPDATE_TILE;
        }
        ZI_NO_UNROLL
        for (uint64_t i = lane; i < walk.left; i += ZI_WARP_LANES) {
            zi_update_element(form, args, &walk, i);
        }
    }
}

#endif
