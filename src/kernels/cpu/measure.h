/* The squares of parameters and of the directions that their update will take, for optimizers with
 * layer-wise rates. For lanes.c only: what is inlined here is compiled for its instruction set.
 *
 * Elements of all types pass through fp32 blocks in the first-level cache, so there is one loop for
 * each optimizer. */
#ifndef ZI_KERNELS_CPU_MEASURE_H
#define ZI_KERNELS_CPU_MEASURE_H

#include <math.h>

#include "kernels/cpu/elements.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/square_adder.h"
#include "kernels/math/code.h"
#include "optimizer/optimizer.h"

/* Elements of a block: whole chunks, and whole blocks of codes. */
#define MEASURED_COUNT 256

_Static_assert(MEASURED_COUNT % ZI_NORM_CHUNK == 0 && MEASURED_COUNT % ZERO_CODE_BLOCK == 0,
               "squares and codes are of whole blocks");

typedef struct measured_block {
    _Alignas(64) float p[MEASURED_COUNT];
    _Alignas(64) float m[MEASURED_COUNT];
    _Alignas(64) float v[MEASURED_COUNT];
    _Alignas(64) float grad[MEASURED_COUNT]; /* then the direction */
} measured_block;

ALWAYS_INLINE void join_loop(float *restrict values, const void *restrict param,
                             const void *restrict rest, zero_dtype dtype, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = get_joined(param, rest, dtype, i);
    }
}

/* The parameters from element i on, from where they are exact. */
static void load_params(float *values, const zi_lanes_update *all, size_t i, size_t count)
{
    if (all->master == NULL) {
        lanes_load(values, at_const(all->param, all->param_dtype, i), all->param_dtype, count);
    } else if (all->master_dtype == ZERO_DTYPE_F32) {
        lanes_load(values, at_const(all->master, ZERO_DTYPE_F32, i), ZERO_DTYPE_F32, count);
    } else {
        const void *param = at_const(all->param, ZERO_DTYPE_BF16, i);
        const void *rest = at_const(all->master, all->master_dtype, i);
        if (all->master_dtype == ZERO_DTYPE_REMAINDER16) {
            join_loop(values, param, rest, ZERO_DTYPE_REMAINDER16, count);
        } else {
            join_loop(values, param, rest, ZERO_DTYPE_REMAINDER8, count);
        }
    }
}

ALWAYS_INLINE void decode_loop(float *restrict values, const uint8_t *restrict codes,
                               const uint16_t *restrict scales, zero_dtype kind, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = zi_code_value(kind, codes[i], zi_code_step(kind, scales[i / ZERO_CODE_BLOCK]));
    }
}

/* A moment from element i on, which begins a block where it is in codes: no direction depends on
 * one in linear codes. */
static void load_moment(float *values, const zi_lanes_update *all, uint32_t moment, size_t i,
                        size_t count)
{
    const void *place = at_const(moment == 0 ? all->moment1 : all->moment2, all->moment_dtype, i);
    if (!zi_dtype_is_code(all->moment_dtype)) {
        lanes_load(values, place, all->moment_dtype, count);
        return;
    }
    const uint16_t *scales = (moment == 0 ? all->scale1 : all->scale2) + i / ZERO_CODE_BLOCK;
    const zero_dtype kind = zi_optimizer_code(all->optimizer, moment);
    if (kind == ZERO_DTYPE_COMPANDED8) {
        decode_loop(values, place, scales, ZERO_DTYPE_COMPANDED8, count);
    } else {
        zi_assert(kind == ZERO_DTYPE_U8_ROOT);
        decode_loop(values, place, scales, ZERO_DTYPE_U8_ROOT, count);
    }
}

/* kind: a constant wherever this is inlined. grad: then has the directions. */
ALWAYS_INLINE void direct_loop(uint32_t kind, const float *restrict p, const float *restrict m,
                               const float *restrict v, float *restrict grad,
                               const zi_lanes_update *all, size_t count)
{
    const zi_coeffs coeffs = all->coeffs; /* kept in registers */
    const float scale = all->grad_scale;
    const bool moves = zi_optimizer_measured_moments(kind) != 0;
    for (size_t i = 0; i < count; i++) {
        const zi_element_state state = {p[i], moves ? m[i] : 0.0f, moves ? v[i] : 0.0f, 0.0f};
        grad[i] = zi_optimizer_direction(kind, state, grad[i] * scale, coeffs);
    }
}

#define DIRECT_CASE(KIND, name)                                                                    \
    case ZERO_OPTIMIZER_##KIND:                                                                    \
        direct_loop(ZERO_OPTIMIZER_##KIND, block->p, block->m, block->v, block->grad, all, count); \
        break;

static void direct(measured_block *block, const zi_lanes_update *all, size_t count)
{
    switch ((uint32_t)all->optimizer) {
        ZI_LAYERWISE_OPTIMIZERS(DIRECT_CASE)
    default:
        zi_assert(zi_optimizer_is_layerwise(all->optimizer));
    }
}

static void lanes_measure(const zi_lanes_update *all, zi_layer_sums *sums)
{
    measured_block block;
    square_adder params = {{{0}, 0, 0}, 0, 0, {0.0}};
    square_adder directions = {{{0}, 0, 0}, 0, 0, {0.0}};
    const uint32_t moments = zi_optimizer_measured_moments(all->optimizer);
    for (size_t i = 0; i < all->count; i += MEASURED_COUNT) {
        const size_t count = least(MEASURED_COUNT, all->count - i);
        load_params(block.p, all, i, count);
        lanes_load(block.grad, at_const(all->grad, all->grad_dtype, i), all->grad_dtype, count);
        if (moments > 0) {
            load_moment(block.m, all, 0, i, count);
        }
        if (moments > 1) {
            load_moment(block.v, all, 1, i, count);
        }
        direct(&block, all, count);
        add_squares(&params, block.p, count);
        add_squares(&directions, block.grad, count);
    }
    close_squares(&params, &sums->param);
    close_squares(&directions, &sums->direction);
}

#endif
