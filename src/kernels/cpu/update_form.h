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
    bool counts;       /* what has stalled, of masters that are compared */
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

/* True of masters whose bits before and after are compared where they are written: with those of
 * others stalled.h does it, so that updates which nobody counts are as fast as they can be. */
ALWAYS_INLINE bool compares(update_form form)
{
    return zi_dtype_is_remainder(form.master);
}

/* Returns 1 if it compares and the bits are those that they were. */
ALWAYS_INLINE uint32_t put_master(update_form form, update_arrays arrays, update_scalars scalars,
                                  size_t i, float p)
{
    const uint32_t random = zi_rounding_half(
        zi_rounding_mix(scalars.param_at + (uint32_t)i * scalars.param_step), ZI_ROUNDING_PARAM);
    if (zi_dtype_is_remainder(form.master)) {
        return put_split(arrays.param, arrays.master, form.master, i, p, random);
    }
    if (form.master == ZERO_DTYPE_F32) {
        put(arrays.master, ZERO_DTYPE_F32, i, p);
    } else {
        put_random(arrays.param, form.param, i, p, random);
    }
    return 0;
}

/* The same of pair i; not for masters of 8 bits. */
ALWAYS_INLINE pair_f32 get_master_pair(update_form form, update_arrays arrays, size_t i)
{
    if (form.master == ZERO_DTYPE_REMAINDER16) {
        const uint32_t param = get_word(arrays.param, i);
        const uint32_t rest = get_word(arrays.master, i);
        return (pair_f32){zi_join_signed((uint16_t)param, (int32_t)(rest << 16) >> 16),
                          zi_join_signed((uint16_t)(param >> 16), (int32_t)rest >> 16)};
    }
    return form.master == ZERO_DTYPE_F32 ? get_pair(arrays.master, ZERO_DTYPE_F32, i)
                                         : get_pair(arrays.param, form.param, i);
}

/* Returns the bits of each half that are not what they were; of no meaning if it does not compare.
 */
ALWAYS_INLINE uint32_t put_master_pair(update_form form, update_arrays arrays,
                                       update_scalars scalars, size_t i, pair_f32 p)
{
    const uint32_t at = scalars.param_at + (uint32_t)(2 * i) * scalars.param_step;
    const uint32_t first = zi_rounding_half(zi_rounding_mix(at), ZI_ROUNDING_PARAM);
    const uint32_t second =
        zi_rounding_half(zi_rounding_mix(at + scalars.param_step), ZI_ROUNDING_PARAM);
    if (form.master == ZERO_DTYPE_F32) {
        put_pair(arrays.master, ZERO_DTYPE_F32, i, p);
        return 0;
    }
    if (form.master == ZERO_DTYPE_NONE) {
        put_pair_random(arrays.param, form.param, i, p, first, second);
        return 0;
    }
    const zi_split splits[2] = {zi_split16_bits(zi_split_result_bits(p.first)),
                                zi_split16_bits(zi_split_result_bits(p.second))};
    const uint32_t param = pack_words(splits[0].param, splits[1].param);
    const uint32_t rest = pack_words(splits[0].rest, splits[1].rest);
    const uint32_t changed =
        (param ^ get_word(arrays.param, i)) | (rest ^ get_word(arrays.master, i));
    put_word(arrays.param, i, param);
    put_word(arrays.master, i, rest);
    return changed;
}

static update_form form_of(const zi_lanes_update *all)
{
    return (update_form){all->optimizer, all->grad_dtype, all->param_dtype, all->moment_dtype,
                         all->master != NULL ? all->master_dtype : ZERO_DTYPE_NONE};
}

/* The arrays from element i on, which begins a block where there are codes. */
static update_arrays arrays_at(const zi_lanes_update *all, update_form form, size_t i)
{
    return (update_arrays){.master = at(all->master, form.master, i),
                           .m = at(all->moment1, form.moment, i),
                           .v = has_second(form) ? at(all->moment2, form.moment, i) : NULL,
                           .grad = at_const(all->grad, form.grad, i),
                           .param = at(all->param, form.param, i)};
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
