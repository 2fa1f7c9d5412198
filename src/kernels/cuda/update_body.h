/* The work of one lane of the update's kernel: find the segments under its warp, and update them
 * tile by tile. Moments in codes, whose blocks several lanes share, are in update_codes.h. */
#ifndef ZI_KERNELS_CUDA_UPDATE_BODY_H
#define ZI_KERNELS_CUDA_UPDATE_BODY_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/quad.h"
#include "kernels/cuda/quick.h"
#include "kernels/kernels.h"
#include "kernels/math/remainder.h"
#include "kernels/math/rounding.h"
#include "optimizer/optimizer.h"

/* A lane's two quads lie half a tile apart, so that both accesses of a warp are runs of memory. */
#define ZI_UPDATE_QUADS 2
#define ZI_UPDATE_TILE (ZI_UPDATE_QUADS * ZI_WARP_QUADS)

/* The optimizer and the types of a job. Constants in a kernel. */
typedef struct zi_update_form {
    zero_optimizer optimizer;
    zero_dtype grad;   /* DEFAULT: any, which the kernel is told when it runs */
    zero_dtype param;  /* NONE: only the master is written */
    zero_dtype moment; /* rounded stochastically unless F32; I8: codes, of the optimizer's kinds */
    zero_dtype master; /* DEFAULT: `param` is the master, and rounded stochastically; or F32, or a
                          remainder, whose `param` is read too */
} zi_update_form;

/* A job as its kernel gets it, by value. */
typedef struct zi_update_args {
    const zi_segment *segments;
    uint64_t segment_count;
    uint64_t count;
    uint64_t warp_count;
    const void *grad;
    void *param;
    void *master;
    void *moment1;
    void *moment2;
    uint16_t *scale1;
    uint16_t *scale2;
    uint64_t seed;
    const zi_step_decision *decision;
    uint64_t *stalled;
    zi_layer_sums *sums;
    const zi_layer_norms *norms;
    zero_dtype grad_dtype;
    int32_t aligned; /* quads are single accesses in every array */
} zi_update_args;

ZI_LANE int zi_update_has_remainder(zi_update_form form)
{
    return form.master == ZERO_DTYPE_REMAINDER16 || form.master == ZERO_DTYPE_REMAINDER8;
}

ZI_LANE int zi_update_has_codes(zi_update_form form)
{
    return form.moment == ZERO_DTYPE_I8;
}

ZI_LANE zi_update_form zi_update_form_of(const zi_update_job *job)
{
    const int own_master = job->param_dtype == ZERO_DTYPE_F32;
    zi_update_form form;
    form.optimizer = job->optimizer;
    form.param = own_master || job->param == 0 ? ZERO_DTYPE_NONE : job->param_dtype;
    form.moment = job->moment_dtype;
    form.master = job->master_dtype != ZERO_DTYPE_DEFAULT ? job->master_dtype : ZERO_DTYPE_F32;
    if (own_master) {
        form.master = ZERO_DTYPE_F32;
    } else if (job->state[ZI_STATE_MASTER] == 0) {
        form.master = ZERO_DTYPE_DEFAULT;
    }
    form.grad = zi_update_has_remainder(form) || zi_update_has_codes(form) ? ZERO_DTYPE_DEFAULT
                                                                           : job->grad_dtype;
    return form;
}

ZI_LANE int zi_update_has_second(zi_update_form form)
{
    return zi_optimizer_moments((uint32_t)form.optimizer) > 1;
}

/* True if the parameter, or the master, is rounded stochastically. */
ZI_LANE int zi_update_rounds_param(zi_update_form form)
{
    return form.master == ZERO_DTYPE_DEFAULT || form.master == ZERO_DTYPE_REMAINDER8;
}

/* True if anything of a job is. */
ZI_LANE int zi_update_is_random(zi_update_form form)
{
    return zi_update_rounds_param(form) || form.moment != ZERO_DTYPE_F32;
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
    return (zi_update_rounds_param(form) || zi_update_has_codes(form)) && job->count >= ZI_MANY_FROM
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
    args.master = job->param_dtype == ZERO_DTYPE_F32 ? job->param : job->state[ZI_STATE_MASTER];
    args.moment1 = job->state[ZI_STATE_MOMENT1];
    args.moment2 = job->state[ZI_STATE_MOMENT2];
    args.scale1 = (uint16_t *)job->state[ZI_STATE_SCALE1];
    args.scale2 = (uint16_t *)job->state[ZI_STATE_SCALE2];
    args.seed = job->seed;
    args.decision = job->decision;
    args.stalled = job->stalled;
    args.sums = job->sums;
    args.norms = job->norms;
    args.grad_dtype = job->grad_dtype;
    args.aligned =
        zi_quad_aligned(args.grad, job->grad_dtype) && zi_quad_aligned(args.param, form.param) &&
        zi_quad_aligned(args.master, form.master) && zi_quad_aligned(args.moment1, form.moment) &&
        zi_quad_aligned(args.moment2, form.moment);
    return args;
}

/* A walk over neighbouring elements of one segment, and what they have in common. */
typedef struct zi_update_walk {
    const zi_segment *segment;
    uint64_t at;      /* in the shard */
    uint32_t left;    /* elements from there on */
    uint32_t element; /* the lower bits of the place of `at` in the tensor */
    zi_coeffs coeffs;
    float grad_scale;
    zi_rounding_block random; /* of the block that the last tile began in; a step that is
 0: there has been none */
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

ZI_LANE uint64_t zi_update_place_in_tensor(const zi_update_walk *walk)
{
    return walk->segment->tensor_first + (walk->at - walk->segment->offset);
}

/* The part of the segment in the warp's range; the segment begins before the range's end and does
 * not end before its begin. */
ZI_LANE zi_update_walk zi_update_walk_of(zi_update_form form, const zi_update_args *args,
                                         const zi_segment *segment, zi_warp_range range)
{
    const zi_step_decision *const decision = args->decision;
    const uint64_t segment_end = segment->offset + segment->count;
    const zi_rounding_block none = {{0, 0}, {0, 0}};
    zi_update_walk walk;
    walk.segment = segment;
    walk.at = segment->offset > range.begin ? segment->offset : range.begin;
    walk.left = (uint32_t)((segment_end < range.end ? segment_end : range.end) - walk.at);
    walk.element = (uint32_t)zi_update_place_in_tensor(&walk);
    walk.random = none;
    walk.coeffs = zi_optimizer_coeffs((uint32_t)form.optimizer, decision->groups[segment->group],
                                      segment->flags);
    walk.grad_scale = decision->grad_scale;
    return walk;
}

/* Go by the norms of the walk's tensor, where the optimizer has them. */
ZI_LANE void zi_update_trust(zi_update_form form, const zi_update_args *args, zi_update_walk *walk)
{
    if (zi_optimizer_is_layerwise((uint32_t)form.optimizer)) {
        walk->coeffs = zi_optimizer_trust((uint32_t)form.optimizer, walk->coeffs,
                                          args->norms[walk->segment->layer]);
    }
}

/* Of the block of element `i` from where the walk is. */
ZI_LANE zi_rounding_block zi_update_random(const zi_update_args *args, const zi_update_walk *walk,
                                           uint32_t i)
{
    const zi_rounding_key key = {args->seed, args->decision->update, walk->segment->tensor,
                                 ZI_ROUNDING_PARAM};
    return zi_rounding_block_of(key, (zi_update_place_in_tensor(walk) + i) / ZI_ROUNDING_BLOCK);
}

/* To the random words of the next tile. 0: they are of two blocks, which is not usual: layouts of
 * ours let segments begin at multiples of a tile. */
ZI_LANE int zi_update_tile_begin(zi_update_form form, const zi_update_args *args,
                                 zi_update_walk *walk)
{
    const uint32_t first = walk->element % ZI_ROUNDING_BLOCK;
    if (!zi_update_is_random(form)) {
        return 1;
    }
    if (walk->random.param.step == 0 || first < ZI_UPDATE_TILE) {
        walk->random = zi_update_random(args, walk, 0);
    }
    return first <= ZI_ROUNDING_BLOCK - ZI_UPDATE_TILE;
}

/* The random words that the quad at `offset` in the last tile is rounded to dtype by. */
ZI_LANE zi_quad_words zi_quad_random(const zi_update_walk *walk, zero_dtype dtype,
                                     zi_rounding_purpose purpose, uint32_t offset)
{
    zi_quad_words words;
    const zi_rounding_sequence sequence = zi_rounding_sequence_for(walk->random, purpose);
    const uint32_t index = walk->element % ZI_ROUNDING_BLOCK + offset;
    ZI_UNROLL
    for (uint32_t i = 0; i < ZI_QUAD; i++) {
        words.word[i] = zi_rounding_mix_for(dtype, zi_rounding_at(sequence, index + i));
    }
    return words;
}

/* The bits in which an element's value is kept from step to step. */
typedef struct zi_update_kept {
    uint32_t param; /* unless the master is F32 */
    uint32_t master;
} zi_update_kept;

ZI_LANE float zi_update_value(zi_update_form form, zi_update_kept kept)
{
    if (form.master == ZERO_DTYPE_F32) {
        return zi_f32_from_bits(kept.master);
    }
    if (form.master == ZERO_DTYPE_DEFAULT) {
        return zi_f32_from_narrow(kept.param, form.param);
    }
    return form.master == ZERO_DTYPE_REMAINDER8 ? zi_join8(kept.param, kept.master)
                                                : zi_join16(kept.param, kept.master);
}

/* random: the element's 16 bits, if its parameter is rounded by them. */
ZI_LANE zi_update_kept zi_update_keep(zi_update_form form, float p, uint32_t random)
{
    zi_update_kept kept = {0, 0};
    if (form.master == ZERO_DTYPE_F32) {
        kept.master = zi_f32_bits(p);
    } else if (form.master == ZERO_DTYPE_DEFAULT) {
        kept.param = zi_narrow_stochastic(p, form.param, random);
    } else {
        const zi_split split =
            form.master == ZERO_DTYPE_REMAINDER8 ? zi_split8(p, random) : zi_split16(p);
        kept.param = split.param;
        kept.master = split.rest;
    }
    return kept;
}

/* The same of a value that is usual. */
ZI_LANE zi_update_kept zi_update_keep_quickly(zi_update_form form, float p, uint32_t random)
{
    zi_update_kept kept;
    if (!zi_update_has_remainder(form)) {
        return zi_update_keep(form, p, random);
    }
    const zi_split split =
        form.master == ZERO_DTYPE_REMAINDER8 ? zi_quick_split8(p, random) : zi_quick_split16(p);
    kept.param = split.param;
    kept.master = split.rest;
    return kept;
}

ZI_LANE uint32_t zi_update_is_kept(zi_update_kept before, zi_update_kept after)
{
    return (uint32_t)(before.param == after.param) & (uint32_t)(before.master == after.master);
}

/* A lane's elements of a tile, one quad of each array. */
typedef struct zi_update_quad {
    zi_quad_words param; /* what the values are kept in, as it lies in memory */
    zi_quad_words master;
    zi_quad_words g;
    uint32_t pulled;  /* by the update: bit i if gradient i is not 0 */
    uint32_t stalled; /* how many of the elements have */
    zi_quad p;
    zi_quad m;
    zi_quad v;
    zi_quad root; /* of v, by the update, if the optimizer takes it */
} zi_update_quad;

/* The bits of element i of a quad. */
ZI_LANE zi_update_kept zi_update_kept_in(zi_update_form form, const zi_update_quad *quad, int i)
{
    zi_update_kept kept;
    kept.param = form.master != ZERO_DTYPE_F32 ? zi_words_half(quad->param, i) : 0;
    kept.master = form.master == ZERO_DTYPE_F32           ? quad->master.word[i]
                  : form.master == ZERO_DTYPE_REMAINDER16 ? zi_words_half(quad->master, i)
                  : form.master == ZERO_DTYPE_REMAINDER8  ? zi_words_byte(quad->master, i)
                                                          : 0;
    return kept;
}

/* All but the moments. */
ZI_LANE zi_update_quad zi_update_load_param(zi_update_form form, const zi_update_args *args,
                                            uint64_t place)
{
    const zi_quad_words none = {{0, 0, 0, 0}};
    const zero_dtype grad = form.grad != ZERO_DTYPE_DEFAULT ? form.grad : args->grad_dtype;
    zi_update_quad quad;
    quad.g = grad == ZERO_DTYPE_F32
                 ? zi_words_load16(zi_place_const(args->grad, ZERO_DTYPE_F32, place), ZI_USE_ONCE)
                 : zi_words_load8(zi_place_const(args->grad, ZERO_DTYPE_BF16, place), ZI_USE_ONCE);
    quad.param = form.master != ZERO_DTYPE_F32
                     ? zi_words_load(args->param, form.param, place, ZI_USE_AGAIN)
                     : none;
    quad.master = form.master != ZERO_DTYPE_DEFAULT
                      ? zi_words_load(args->master, form.master, place, ZI_USE_AGAIN)
                      : none;
    return quad;
}

ZI_LANE zi_update_quad zi_update_load(zi_update_form form, const zi_update_args *args,
                                      uint64_t place)
{
    zi_update_quad quad = zi_update_load_param(form, args, place);
    quad.m = zi_quad_load(args->moment1, form.moment, place, ZI_USE_AGAIN);
    quad.v = zi_update_has_second(form)
                 ? zi_quad_load(args->moment2, form.moment, place, ZI_USE_AGAIN)
                 : quad.m; /* unused */
    return quad;
}

/* The gradient's values, of whichever type. */
ZI_LANE zi_quad zi_update_grad(zi_update_form form, const zi_update_args *args, zi_quad_words words)
{
    const zero_dtype grad = form.grad != ZERO_DTYPE_DEFAULT ? form.grad : args->grad_dtype;
    if (grad == ZERO_DTYPE_F32) {
        return zi_quad_of(words, ZERO_DTYPE_F32);
    }
    return grad == ZERO_DTYPE_BF16 ? zi_quad_of(words, ZERO_DTYPE_BF16)
                                   : zi_quad_of(words, ZERO_DTYPE_F16);
}

/* zi_optimizer_lane with no branch on the way: roots and quotients by quick functions, which clear
 * *usual where some argument was not usual; what came of it is not to be used then. */
ZI_LANE zi_element_state zi_update_quickly(zi_update_form form, zi_element_state state, float grad,
                                           zi_coeffs coeffs, int *usual)
{
    if (form.optimizer == ZERO_OPTIMIZER_LAMB) {
        zi_element_state next = zi_lamb_moments(state, grad, coeffs.lamb);
        next.root = zi_quick_sqrt(next.v, usual);
        const float denominator = zi_lamb_denominator(next.root, coeffs.lamb);
        const float quotient =
            zi_quick_quotient(zi_lamb_numerator(next.m, coeffs.lamb), denominator, usual);
        next.p =
            zi_lamb_param(state.p, zi_lamb_decayed(state.p, quotient, coeffs.lamb), coeffs.lamb);
        return next;
    }
    if (form.optimizer != ZERO_OPTIMIZER_ADAMW) {
        return zi_optimizer_lane((uint32_t)form.optimizer, state, grad, coeffs);
    }
    zi_element_state next = zi_adamw_moments(state, grad, coeffs.adamw);
    next.root = zi_quick_sqrt(next.v, usual);
    const float denominator = zi_adamw_denominator(next.root, coeffs.adamw);
    const float direction = zi_quick_quotient(next.m, denominator, usual);
    next.p = zi_adamw_param(state.p, direction, coeffs.adamw);
    return next;
}

/* True of the forms that spill without zi_update_pin; others would be slower with it, or spill. */
ZI_LANE int zi_update_is_short_of_registers(zi_update_form form)
{
    return zi_update_has_codes(form) ||
           (zi_update_rounds_param(form) && form.param == ZERO_DTYPE_BF16);
}

/* Compute it here and not later, so that what it is computed from takes no register any more. */
ZI_LANE void zi_update_pin(uint32_t *value)
{
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(*value));
#else
    (void)value;
#endif
}

/* Keep what the quad has come to. random: a word for each element whose parameter is rounded. */
ZI_LANE void zi_update_keep_quad(zi_update_form form, zi_update_quad *quad, zi_quad_words random)
{
    uint32_t param[ZI_QUAD];
    uint32_t master[ZI_QUAD];
    quad->stalled = 0;
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        const zi_update_kept kept = zi_update_keep_quickly(
            form, quad->p.value[i], zi_rounding_half(random.word[i], ZI_ROUNDING_PARAM));
        quad->stalled +=
            (quad->pulled >> i & 1) & zi_update_is_kept(zi_update_kept_in(form, quad, i), kept);
        param[i] = kept.param;
        master[i] = kept.master;
    }
    quad->param = zi_words_of_halves(param);
    if (form.master == ZERO_DTYPE_F32) {
        ZI_UNROLL
        for (int i = 0; i < ZI_QUAD; i++) {
            quad->master.word[i] = master[i];
        }
    } else {
        quad->master = form.master == ZERO_DTYPE_REMAINDER8 ? zi_words_of_bytes(master)
                                                            : zi_words_of_halves(master);
    }
}

/* The quad's elements. 0: some argument was not usual, and what came of the quad is not to be used.
 */
ZI_LANE int zi_update_advance(zi_update_form form, const zi_update_args *args,
                              const zi_update_walk *walk, zi_update_quad *quad)
{
    int usual = 1;
    const zi_quad grads = zi_update_grad(form, args, quad->g);
    quad->pulled = 0;
    ZI_UNROLL
    for (int i = 0; i < ZI_QUAD; i++) {
        const zi_element_state state = {zi_update_value(form, zi_update_kept_in(form, quad, i)),
                                        quad->m.value[i], quad->v.value[i], 0.0f};
        const float grad = grads.value[i] * walk->grad_scale;
        const zi_element_state next = zi_update_quickly(form, state, grad, walk->coeffs, &usual);
        quad->pulled |= (uint32_t)(grad != 0.0f) << i;
        quad->p.value[i] = next.p;
        quad->m.value[i] = next.m;
        quad->v.value[i] = next.v;
        quad->root.value[i] = next.root;
        usual &= !zi_update_has_remainder(form) || fabsf(next.p) < ZI_QUICK_SPLIT_END;
    }
    if (zi_update_is_short_of_registers(form)) {
        zi_update_pin(&quad->pulled);
    }
    return usual;
}

/* A quad of the moments, rounded stochastically unless it is F32. */
ZI_LANE void zi_update_store_moments(zi_update_form form, const zi_update_args *args,
                                     const zi_update_walk *walk, uint32_t offset,
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
    const zi_quad_words random = zi_quad_random(walk, form.moment, ZI_ROUNDING_MOMENT1, offset);
    zi_words_store8(zi_place(args->moment1, form.moment, place),
                    zi_quad_round(form.moment, quad->m, random, ZI_ROUNDING_MOMENT1), ZI_USE_AGAIN);
    if (zi_update_has_second(form)) {
        zi_words_store8(zi_place(args->moment2, form.moment, place),
                        zi_quad_round(form.moment, quad->v, random, ZI_ROUNDING_MOMENT2),
                        ZI_USE_AGAIN);
    }
}

/* A quad of the parameter in what it is kept in, and the copy of an fp32 one. */
ZI_LANE void zi_update_store_param(zi_update_form form, const zi_update_args *args, uint64_t place,
                                   const zi_update_quad *quad)
{
    if (form.master == ZERO_DTYPE_F32) {
        zi_words_store16(zi_place(args->master, form.master, place), quad->master, ZI_USE_AGAIN);
        if (form.param != ZERO_DTYPE_NONE) {
            zi_quad_store(args->param, form.param, place, quad->p, ZI_USE_ONCE);
        }
        return;
    }
    zi_words_store8(zi_place(args->param, form.param, place), quad->param, ZI_USE_AGAIN);
    if (form.master == ZERO_DTYPE_REMAINDER16) {
        zi_words_store8(zi_place(args->master, form.master, place), quad->master, ZI_USE_AGAIN);
    } else if (form.master == ZERO_DTYPE_REMAINDER8) {
        zi_words_store4(zi_place(args->master, form.master, place), quad->master);
    }
}

/* The value of the element at `at`, by which *before is filled. */
ZI_LANE float zi_element_value(zi_update_form form, const zi_update_args *args, uint64_t at,
                               zi_update_kept *before)
{
    before->param =
        form.master != ZERO_DTYPE_F32 ? zi_element_bits(args->param, form.param, at) : 0;
    before->master =
        form.master != ZERO_DTYPE_DEFAULT ? zi_element_bits(args->master, form.master, at) : 0;
    return zi_update_value(form, *before);
}

/* An element of a walk: where it is, and its random words by purpose. */
typedef struct zi_update_place {
    uint64_t at;
    uint32_t param;
    uint32_t moments;
} zi_update_place;

ZI_LANE zi_update_place zi_update_place_of(zi_update_form form, const zi_update_args *args,
                                           const zi_update_walk *walk, uint32_t i)
{
    zi_update_place place = {walk->at + i, 0, 0};
    if (zi_update_is_random(form)) {
        const uint32_t index = (walk->element + i) % ZI_ROUNDING_BLOCK;
        const zi_rounding_block random = zi_update_random(args, walk, i);
        place.param = zi_rounding_mix_for(form.master, zi_rounding_at(random.param, index));
        place.moments = zi_rounding_mix_for(form.moment, zi_rounding_at(random.moments, index));
    }
    return place;
}

/* The new value of an element, and what it was kept in. 1: it has stalled. */
ZI_LANE uint32_t zi_element_keep(zi_update_form form, const zi_update_args *args,
                                 zi_update_place place, float p, float grad, zi_update_kept before)
{
    const zi_update_kept kept =
        zi_update_keep(form, p, zi_rounding_half(place.param, ZI_ROUNDING_PARAM));
    if (form.master != ZERO_DTYPE_DEFAULT) {
        zi_element_set(args->master, form.master, place.at, kept.master);
    }
    if (form.master != ZERO_DTYPE_F32) {
        zi_element_set(args->param, form.param, place.at, kept.param);
    } else if (form.param != ZERO_DTYPE_NONE) {
        zi_element_put(args->param, form.param, place.at, p);
    }
    return (uint32_t)(grad != 0.0f) & zi_update_is_kept(before, kept);
}

/* A moment of an element, rounded stochastically unless it is F32. */
ZI_LANE void zi_element_keep_moment(zi_update_form form, void *moment, zi_update_place place,
                                    float value, zi_rounding_purpose purpose)
{
    zi_element_set(
        moment, form.moment, place.at,
        form.moment == ZERO_DTYPE_F32
            ? zi_f32_bits(value)
            : zi_narrow_stochastic(value, form.moment, zi_rounding_half(place.moments, purpose)));
}

/* Element `i` from where the walk is. 1: it has stalled. */
ZI_LANE uint32_t zi_update_element(zi_update_form form, const zi_update_args *args,
                                   const zi_update_walk *walk, uint32_t i)
{
    const zi_update_place place = zi_update_place_of(form, args, walk, i);
    const uint64_t at = place.at;
    const int has_second = zi_update_has_second(form);
    zi_update_kept before;
    const zi_element_state state = {
        zi_element_value(form, args, at, &before), zi_element_get(args->moment1, form.moment, at),
        has_second ? zi_element_get(args->moment2, form.moment, at) : 0.0f, 0.0f};
    const float grad = zi_element_get(args->grad, args->grad_dtype, at) * walk->grad_scale;
    const zi_element_state next =
        zi_optimizer_lane((uint32_t)form.optimizer, state, grad, walk->coeffs);
    zi_element_keep_moment(form, args->moment1, place, next.m, ZI_ROUNDING_MOMENT1);
    if (has_second) {
        zi_element_keep_moment(form, args->moment2, place, next.v, ZI_ROUNDING_MOMENT2);
    }
    return zi_element_keep(form, args, place, next.p, grad, before);
}

/* Returns how many of the elements have stalled. */
ZI_LANE uint32_t zi_update_store(zi_update_form form, const zi_update_args *args,
                                 const zi_update_walk *walk, uint32_t offset, zi_update_quad *quad)
{
    zi_update_keep_quad(form, quad, zi_quad_random(walk, form.master, ZI_ROUNDING_PARAM, offset));
    zi_update_store_param(form, args, walk->at + offset, quad);
    zi_update_store_moments(form, args, walk, offset, quad);
    return quad->stalled;
}

/* A lane's quads of a tile, element by element. Returns how many have stalled. */
ZI_LANE uint32_t zi_update_tile_slowly(zi_update_form form, const zi_update_args *args,
                                       const zi_update_walk *walk, uint32_t offset)
{
    uint32_t stalled = 0;
    ZI_NO_UNROLL
    for (uint32_t i = 0; i < ZI_UPDATE_QUADS * ZI_QUAD; i++) {
        stalled +=
            zi_update_element(form, args, walk, offset + i / ZI_QUAD * ZI_WARP_QUADS + i % ZI_QUAD);
    }
    return stalled;
}

/* The next ZI_UPDATE_TILE elements of a walk, of aligned arrays. Likewise. */
ZI_LANE uint32_t zi_update_tile(zi_update_form form, const zi_update_args *args,
                                zi_update_walk *walk, uint32_t lane)
{
    const uint32_t offset = lane * ZI_QUAD;
    int usual = zi_update_tile_begin(form, args, walk);
    zi_update_quad first = zi_update_load(form, args, walk->at + offset);
    zi_update_quad second = zi_update_load(form, args, walk->at + offset + ZI_WARP_QUADS);
    usual &= zi_update_advance(form, args, walk, &first);
    usual &= zi_update_advance(form, args, walk, &second);
    if (!usual) {
        return zi_update_tile_slowly(form, args, walk, offset);
    }
    const uint32_t stalled = zi_update_store(form, args, walk, offset, &first);
    return stalled + zi_update_store(form, args, walk, offset + ZI_WARP_QUADS, &second);
}

/* True if the next elements of a walk can be updated as a tile. Quads are rounded by whole quads of
 * the tensor; no layout of ours lets a segment begin elsewhere. */
ZI_LANE int zi_update_has_tile(zi_update_form form, const zi_update_args *args,
                               const zi_update_walk *walk)
{
    return args->aligned && walk->left >= ZI_UPDATE_TILE &&
           (!zi_update_is_random(form) || walk->element % ZI_QUAD == 0);
}

/* Behind a tile. */
ZI_LANE void zi_update_step(zi_update_walk *walk)
{
    walk->at += ZI_UPDATE_TILE;
    walk->element += ZI_UPDATE_TILE;
    walk->left -= ZI_UPDATE_TILE;
}

/* All of a walk. Returns how many of the lane's elements have stalled. */
ZI_LANE uint32_t zi_update_walk_through(zi_update_form form, const zi_update_args *args,
                                        zi_update_walk *walk, uint32_t lane)
{
    uint32_t stalled = 0;
    ZI_NO_UNROLL
    while (zi_update_has_tile(form, args, walk)) {
        stalled += zi_update_tile(form, args, walk, lane);
        zi_update_step(walk);
    }
    ZI_NO_UNROLL
    for (uint32_t i = lane; i < walk->left; i += ZI_WARP_LANES) {
        stalled += zi_update_element(form, args, walk, i);
    }
    return stalled;
}

#endif
