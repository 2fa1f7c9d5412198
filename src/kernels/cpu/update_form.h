/* An update's types, scalars and arrays, and how it reads and writes masters, as the loops of
 * lanes.c have them. For lanes.c only: what is inlined here is compiled for its instruction set. */
#ifndef ZI_KERNELS_CPU_UPDATE_FORM_H
#define ZI_KERNELS_CPU_UPDATE_FORM_H

#include <stdbool.h>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/pairs.h"
#include "kernels/math/rounding.h"
#include "optimizer/optimizer.h"

/* Elements from `element` on that have the same block of the generator, at most `left`. */
static inline size_t rounding_span(uint64_t element, size_t left)
{
    return least(ZI_ROUNDING_BLOCK - (size_t)(element % ZI_ROUNDING_BLOCK), left);
}

/* The optimizer and the types of an update; constants wherever this is inlined. */
typedef struct update_form {
    zero_optimizer optimizer;
    zero_dtype grad;
    zero_dtype param;  /* NONE: only the master is written */
    zero_dtype moment; /* F32, or BF16 and rounded stochastically */
    zero_dtype master; /* F32, or a remainder of `param`; NONE: that is rounded stochastically */
} update_form;

/* The scalars that an update needs beside its arrays. */
typedef struct update_scalars {
    size_t count; /* elements, all of one block of the generator where it is needed */
    float grad_scale;
    zi_coeffs coeffs;
    bool non_temporal; /* the copy is written by non-temporal stores */
    /* The first element's random words before they are mixed, and by how much the next element's
     * are greater. */
    uint32_t param_at;
    uint32_t param_step;
    uint32_t moments_at;
    uint32_t moments_step;
} update_scalars;

/* The arrays of an update, from one element on. */
typedef struct update_arrays {
    void *master; /* unused where its type is NONE, as the parameter */
    void *m;
    void *v;
    const void *grad;
    void *param;
    uint32_t *rest; /* of loops over pairs: REMAINDER8 in words, as widen_bytes makes them */
} update_arrays;

ALWAYS_INLINE bool has_second(update_form form)
{
    return zi_optimizer_moments(form.optimizer) > 1;
}

/* The parameter, from where it is exact. */
ALWAYS_INLINE float get_master(update_form form, update_arrays arrays, size_t i)
{
    if (zi_dtype_is_remainder(form.master)) {
        return get_joined(arrays.param, arrays.master, form.master, i);
    }
    return form.master == ZERO_DTYPE_F32 ? get(arrays.master, ZERO_DTYPE_F32, i)
                                         : get(arrays.param, form.param, i);
}

/* The parameter's random bits of element i. */
ALWAYS_INLINE uint32_t param_random(update_form form, update_scalars scalars, size_t i)
{
    const uint32_t word = scalars.param_at + (uint32_t)i * scalars.param_step;
    return zi_rounding_half(zi_rounding_mix_for(form.master, word), ZI_ROUNDING_PARAM);
}

ALWAYS_INLINE uint32_t same_bits(float left, float right)
{
    return zi_f32_bits(left) == zi_f32_bits(right);
}

/* Store p in the place of `before`. Returns 1 if its bits are those that were there. */
ALWAYS_INLINE uint32_t put_master(update_form form, update_arrays arrays, update_scalars scalars,
                                  size_t i, float before, float p)
{
    if (zi_dtype_is_remainder(form.master)) {
        return put_split(arrays.param, arrays.master, form.master, i, p,
                         param_random(form, scalars, i));
    }
    if (form.master == ZERO_DTYPE_F32) {
        put(arrays.master, ZERO_DTYPE_F32, i, p);
        return same_bits(before, p);
    }
    const uint16_t old = ((const uint16_t *)arrays.param)[i];
    put_random(arrays.param, form.param, i, p, param_random(form, scalars, i));
    return ((const uint16_t *)arrays.param)[i] == old;
}

/* The same of pair i. */
ALWAYS_INLINE pair_f32 get_master_pair(update_form form, update_arrays arrays, size_t i)
{
    if (!zi_dtype_is_remainder(form.master)) {
        return form.master == ZERO_DTYPE_F32 ? get_pair(arrays.master, ZERO_DTYPE_F32, i)
                                             : get_pair(arrays.param, form.param, i);
    }
    const uint32_t param = get_word(arrays.param, i);
    int32_t first = 0;
    int32_t second = 0;
    if (form.master == ZERO_DTYPE_REMAINDER16) {
        const uint32_t rest = get_word(arrays.master, i);
        first = (int32_t)(rest << 16) >> 16;
        second = (int32_t)rest >> 16;
    } else {
        const uint32_t rest = arrays.rest[i] << 16;
        first = (int32_t)(rest << 8) >> 16 & -256;
        second = (int32_t)rest >> 16 & -256;
    }
    return (pair_f32){zi_join_signed(param, first), zi_join_signed(param >> 16, second)};
}

/* Returns words that are 0 where the bits are those that were there. */
ALWAYS_INLINE pair_words put_master_pair(update_form form, update_arrays arrays,
                                         update_scalars scalars, size_t i, pair_f32 before,
                                         pair_f32 p)
{
    if (form.master == ZERO_DTYPE_F32) {
        put_pair(arrays.master, ZERO_DTYPE_F32, i, p);
        return (pair_words){zi_f32_bits(before.first) ^ zi_f32_bits(p.first),
                            zi_f32_bits(before.second) ^ zi_f32_bits(p.second)};
    }
    const uint32_t old = get_word(arrays.param, i);
    const uint32_t first = param_random(form, scalars, 2 * i);
    const uint32_t second = param_random(form, scalars, 2 * i + 1);
    if (form.master == ZERO_DTYPE_NONE) {
        put_pair_random(arrays.param, form.param, i, p, first, second);
        const uint32_t changed = get_word(arrays.param, i) ^ old;
        return (pair_words){changed & UINT32_C(0xffff), changed >> 16};
    }
    const bool exact = form.master == ZERO_DTYPE_REMAINDER16;
    const uint32_t bits[2] = {zi_split_result_bits(p.first), zi_split_result_bits(p.second)};
    const zi_split low = exact ? zi_split16_bits(bits[0]) : zi_split8_bits(bits[0], first);
    const zi_split high = exact ? zi_split16_bits(bits[1]) : zi_split8_bits(bits[1], second);
    const uint32_t param = pack_words(low.param, high.param);
    put_word(arrays.param, i, param);
    if (exact) {
        const uint32_t rest = pack_words(low.rest, high.rest);
        const uint32_t changed = (param ^ old) | (rest ^ get_word(arrays.master, i));
        put_word(arrays.master, i, rest);
        return (pair_words){changed & UINT32_C(0xffff), changed >> 16};
    }
    const uint32_t rest = low.rest | high.rest << 8;
    const uint32_t moved = rest ^ arrays.rest[i];
    arrays.rest[i] = rest;
    return (pair_words){((param ^ old) & UINT32_C(0xffff)) | (moved & UINT32_C(0xff)),
                        (param ^ old) >> 16 | moved >> 8};
}

/* 1 if an element has stalled: its gradient is not 0, and `changed` is. */
ALWAYS_INLINE uint32_t has_stalled(uint32_t changed, float grad)
{
    return changed == 0 && grad != 0.0f ? 1 : 0;
}

/* A pair after its update. */
typedef struct pair_state {
    zi_element_state first;
    zi_element_state second;
} pair_state;

/* The optimizer over pair i, whose moments are m and v; its masters are stored. stalled: a count to
 * add to. */
ALWAYS_INLINE pair_state update_pair(update_form form, update_arrays arrays, update_scalars scalars,
                                     size_t i, pair_f32 m, pair_f32 v, uint32_t *restrict stalled)
{
    const pair_f32 p = get_master_pair(form, arrays, i);
    const pair_f32 sum = get_pair(arrays.grad, form.grad, i);
    const pair_f32 grad = {sum.first * scalars.grad_scale, sum.second * scalars.grad_scale};
    const zi_element_state first = {p.first, m.first, v.first, 0.0f};
    const zi_element_state second = {p.second, m.second, v.second, 0.0f};
    const pair_state next = {
        zi_optimizer_lane(form.optimizer, first, grad.first, scalars.coeffs),
        zi_optimizer_lane(form.optimizer, second, grad.second, scalars.coeffs)};
    const pair_words changed =
        put_master_pair(form, arrays, scalars, i, p, (pair_f32){next.first.p, next.second.p});
    *stalled += has_stalled(changed.first, grad.first) + has_stalled(changed.second, grad.second);
    return next;
}

/* The arrays from element i of these on. */
ALWAYS_INLINE update_arrays arrays_from(update_form form, update_arrays arrays, size_t i)
{
    return (update_arrays){.master = at(arrays.master, form.master, i),
                           .m = at(arrays.m, form.moment, i),
                           .v = has_second(form) ? at(arrays.v, form.moment, i) : NULL,
                           .grad = at_const(arrays.grad, form.grad, i),
                           .param = at(arrays.param, form.param, i)};
}

/* Prefetch what is read AHEAD_BYTES after STEP elements. */
ALWAYS_INLINE void prefetch_arrays(update_form form, update_arrays arrays)
{
    if (form.master != ZERO_DTYPE_NONE) {
        prefetch(arrays.master, form.master, STEP);
    }
    if (form.master != ZERO_DTYPE_F32) {
        prefetch(arrays.param, form.param, STEP);
    }
    prefetch(arrays.m, form.moment, STEP);
    if (has_second(form)) {
        prefetch(arrays.v, form.moment, STEP);
    }
    prefetch(arrays.grad, form.grad, STEP);
}

static update_form form_of(const zi_lanes_update *all)
{
    return (update_form){all->optimizer, all->grad_dtype, all->param_dtype, all->moment_dtype,
                         all->master != NULL ? all->master_dtype : ZERO_DTYPE_NONE};
}

/* The arrays from element i on, which begins a block where there are codes. */
static update_arrays arrays_at(const zi_lanes_update *all, update_form form, size_t i)
{
    return arrays_from(form,
                       (update_arrays){.master = all->master,
                                       .m = all->moment1,
                                       .v = all->moment2,
                                       .grad = all->grad,
                                       .param = all->param},
                       i);
}

/* The random words of `scalars.count` elements from element i on. */
static void set_random(update_scalars *scalars, const zi_lanes_update *all, size_t i)
{
    const uint64_t element = all->first + i;
    const uint32_t index = (uint32_t)(element % ZI_ROUNDING_BLOCK);
    const zi_rounding_block block = zi_rounding_block_of(all->key, element / ZI_ROUNDING_BLOCK);
    scalars->count = rounding_span(element, scalars->count);
    scalars->param_at = zi_rounding_at(block.param, index);
    scalars->param_step = block.param.step;
    scalars->moments_at = zi_rounding_at(block.moments, index);
    scalars->moments_step = block.moments.step;
}

#endif
