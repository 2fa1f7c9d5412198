/* Updates whose moments are 8-bit codes. A run of elements passes through fp32 arrays in the
 * first-level cache, one simple loop after the other: a block's scale is known only when all its
 * elements are, and so there is one function per optimizer and none per combination of types. For
 * lanes.c only: what is inlined here is compiled for its instruction set.
 *
 * Loops are over whole blocks. Elements behind the end of the last one are zeros, which stay zeros,
 * have the code 0 and do not count for a scale. */
#ifndef ZI_KERNELS_CPU_CODED_UPDATE_H
#define ZI_KERNELS_CPU_CODED_UPDATE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/update_form.h"
#include "kernels/math/code.h"

#define CODED_BLOCK ((size_t)ZERO_CODE_BLOCK)
/* Blocks of a run. */
#define RUN_BLOCKS 16
#define RUN_COUNT (RUN_BLOCKS * CODED_BLOCK)
#define HALF_BLOCK (CODED_BLOCK / 2)

_Static_assert(ZI_ROUNDING_BLOCK % RUN_COUNT == 0 && RUN_COUNT % STEP == 0,
               "a run is whole steps of one sequence of random words");

/* A moment's codes in memory, and what they come to in a run. */
typedef struct coded_moment {
    uint8_t *codes;
    uint16_t *scales;
    _Alignas(64) int32_t greater[RUN_COUNT / 2]; /* of two elements' magnitudes, as bits */
    _Alignas(64) float factor[RUN_BLOCKS];       /* the step of its codes, then the gain */
} coded_moment;

#define RUN_ARRAYS 5

/* An array that is prefetched as a run goes on. */
typedef struct coded_ahead {
    const unsigned char *base;
    size_t step_bytes; /* of STEP elements */
} coded_ahead;

/* A run. */
typedef struct coded_run {
    _Alignas(64) float p[RUN_COUNT];
    _Alignas(64) float grad[RUN_COUNT];
    _Alignas(64) float m[RUN_COUNT];
    _Alignas(64) float v[RUN_COUNT]; /* after the update of AdamW its root */
    size_t blocks;
    coded_moment moment[ZI_MOMENTS_MAX];
    coded_ahead ahead[RUN_ARRAYS];
    size_t ahead_count;
} coded_run;

/* The lines that come after those of block b and the next. */
ALWAYS_INLINE void prefetch_blocks(const coded_run *run, size_t b)
{
    for (size_t k = 0; k < run->ahead_count; k++) {
        const coded_ahead *array = &run->ahead[k];
        const uintptr_t start = (uintptr_t)array->base + AHEAD_BYTES + b / 2 * array->step_bytes;
        for (size_t i = 0; i < array->step_bytes; i += LINE_BYTES) {
            __builtin_prefetch((const void *)(start + i), 0, 2);
        }
    }
}

/* The kinds of codes are constants wherever this is inlined, as in what follows; so is the number
 * of blocks of a whole run. */
ALWAYS_INLINE void decode_run(coded_run *restrict run, uint32_t moment, size_t blocks,
                              zero_dtype dtype)
{
    const uint8_t *restrict codes = run->moment[moment].codes;
    float *restrict values = moment == 0 ? run->m : run->v;
    float *restrict steps = run->moment[moment].factor;
    uint16_t scales[RUN_BLOCKS];
    memcpy(scales, run->moment[moment].scales, blocks * sizeof scales[0]);
    for (size_t b = 0; b < blocks; b++) {
        steps[b] = zi_code_step(dtype, scales[b]);
    }
    for (size_t i = 0; i < blocks * CODED_BLOCK; i++) {
        values[i] = zi_code_steps(dtype, codes[i]);
    }
}

/* A magnitude as a number that compares as it does, and never is below 0. */
ALWAYS_INLINE int32_t magnitude_of(float value)
{
    return (int32_t)zi_code_magnitude(value);
}

ALWAYS_INLINE int32_t greater(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* The optimizer over one block, an element of each half at a time; and the greater magnitudes of
 * both. */
ALWAYS_INLINE void update_block(zero_optimizer optimizer, coded_run *restrict run, size_t b,
                                zi_coeffs coeffs, float grad_scale)
{
    float *restrict p = run->p + b * CODED_BLOCK;
    float *restrict m = run->m + b * CODED_BLOCK;
    float *restrict v = run->v + b * CODED_BLOCK;
    const float *restrict grad = run->grad + b * CODED_BLOCK;
    int32_t *restrict m_most = run->moment[0].greater + b * HALF_BLOCK;
    int32_t *restrict v_most = run->moment[1].greater + b * HALF_BLOCK;
    const bool second = zi_optimizer_moments(optimizer) > 1;
    const float m_step = run->moment[0].factor[b];
    const float v_step = second ? run->moment[1].factor[b] : 0.0f;
    for (size_t i = 0; i < HALF_BLOCK; i++) {
        const size_t k = i + HALF_BLOCK;
        const zi_element_state near = zi_optimizer_lane(
            optimizer, (zi_element_state){p[i], m[i] * m_step, second ? v[i] * v_step : 0.0f, 0.0f},
            grad[i] * grad_scale, coeffs);
        const zi_element_state far = zi_optimizer_lane(
            optimizer, (zi_element_state){p[k], m[k] * m_step, second ? v[k] * v_step : 0.0f, 0.0f},
            grad[k] * grad_scale, coeffs);
        p[i] = near.p;
        p[k] = far.p;
        m[i] = near.m;
        m[k] = far.m;
        m_most[i] = greater(magnitude_of(near.m), magnitude_of(far.m));
        if (second) {
            v[i] = near.root;
            v[k] = far.root;
            v_most[i] = greater(magnitude_of(near.v), magnitude_of(far.v));
        }
    }
}

/* Of each two neighbours the greater. */
ALWAYS_INLINE void halve(int32_t *restrict target, const int32_t *restrict source, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        target[i] = greater(source[2 * i], source[2 * i + 1]);
    }
}

/* Each block's greatest magnitude. */
ALWAYS_INLINE void find_most(int32_t *restrict most, const int32_t *restrict greater_of,
                             size_t blocks)
{
    _Alignas(64) int32_t eights[RUN_BLOCKS * 8];
    _Alignas(64) int32_t fours[RUN_BLOCKS * 4];
    _Alignas(64) int32_t twos[RUN_BLOCKS * 2];
    halve(eights, greater_of, blocks * 8);
    halve(fours, eights, blocks * 4);
    halve(twos, fours, blocks * 2);
    halve(most, twos, blocks);
}

/* New scales of all blocks, and the gains that go with them. */
ALWAYS_INLINE void scale_run(coded_run *restrict run, uint32_t moment, size_t blocks,
                             zero_dtype dtype)
{
    _Alignas(64) int32_t most[RUN_BLOCKS];
    float *restrict gains = run->moment[moment].factor;
    uint32_t wide[RUN_BLOCKS];
    uint16_t scales[RUN_BLOCKS];
    find_most(most, run->moment[moment].greater, blocks);
    for (size_t b = 0; b < blocks; b++) {
        wide[b] = zi_code_scale((uint32_t)most[b]);
    }
    for (size_t b = 0; b < blocks; b++) {
        gains[b] = zi_code_gain(dtype, (uint16_t)wide[b]);
    }
    for (size_t b = 0; b < blocks; b++) {
        scales[b] = (uint16_t)wide[b];
    }
    memcpy(run->moment[moment].scales, scales, blocks * sizeof scales[0]);
}

/* New codes of a block's moments, as numbers. at: the first element's random word, unmixed. */
ALWAYS_INLINE void encode_block(uint32_t *restrict m_codes, uint32_t *restrict v_codes,
                                const coded_run *restrict run, size_t b, zero_dtype first,
                                zero_dtype second, uint32_t at, uint32_t step)
{
    const float *restrict m = run->m + b * CODED_BLOCK;
    const float *restrict root = run->v + b * CODED_BLOCK;
    const float m_gain = run->moment[0].factor[b];
    const float v_gain = second != ZERO_DTYPE_NONE ? run->moment[1].factor[b] : 0.0f;
    for (uint32_t i = 0; i < CODED_BLOCK; i++) {
        const uint32_t word = zi_rounding_mix(at + i * step);
        m_codes[i] = (uint32_t)zi_code_number(first, m[i], zi_code_measure(first, m[i]), m_gain,
                                              zi_rounding_half(word, ZI_ROUNDING_MOMENT1));
        if (second != ZERO_DTYPE_NONE) {
            v_codes[i] = (uint32_t)zi_code_number(second, root[i], root[i], v_gain,
                                                  zi_rounding_half(word, ZI_ROUNDING_MOMENT2));
        }
    }
}

/* Two blocks at a time where there are two, so that their codes fill the widest registers. */
ALWAYS_INLINE void encode_blocks(const coded_run *restrict run, size_t b, size_t count,
                                 zero_dtype first, zero_dtype second, uint32_t at, uint32_t step)
{
    _Alignas(64) uint32_t m_codes[2 * CODED_BLOCK];
    _Alignas(64) uint32_t v_codes[2 * CODED_BLOCK];
    uint8_t *restrict m = run->moment[0].codes + b * CODED_BLOCK;
    uint8_t *restrict v = second != ZERO_DTYPE_NONE ? run->moment[1].codes + b * CODED_BLOCK : NULL;
    for (uint32_t k = 0; k < count; k++) {
        encode_block(m_codes + k * CODED_BLOCK, v_codes + k * CODED_BLOCK, run, b + k, first,
                     second, at + ((uint32_t)b + k) * ZERO_CODE_BLOCK * step, step);
    }
    for (size_t i = 0; i < count * CODED_BLOCK; i++) {
        m[i] = (uint8_t)m_codes[i];
    }
    if (second != ZERO_DTYPE_NONE) {
        for (size_t i = 0; i < count * CODED_BLOCK; i++) {
            v[i] = (uint8_t)v_codes[i];
        }
    }
}

ALWAYS_INLINE void encode_run(const coded_run *restrict run, size_t blocks, zero_dtype first,
                              zero_dtype second, uint32_t at, uint32_t step)
{
    size_t b = 0;
    for (; b + 2 <= blocks; b += 2) {
        encode_blocks(run, b, 2, first, second, at, step);
    }
    if (b < blocks) {
        encode_blocks(run, b, 1, first, second, at, step);
    }
}

ALWAYS_INLINE void update_blocks(zero_optimizer optimizer, coded_run *run, size_t blocks,
                                 const update_scalars *scalars)
{
    const zi_coeffs coeffs = scalars->coeffs;
    const float grad_scale = scalars->grad_scale;
    const zero_dtype first = zi_optimizer_code(optimizer, 0);
    const zero_dtype second = zi_optimizer_code(optimizer, 1);
    decode_run(run, 0, blocks, first);
    if (second != ZERO_DTYPE_NONE) {
        decode_run(run, 1, blocks, second);
    }
    for (size_t b = 0; b < blocks; b++) {
        if (b % 2 == 0) {
            prefetch_blocks(run, b);
        }
        update_block(optimizer, run, b, coeffs, grad_scale);
    }
    scale_run(run, 0, blocks, first);
    if (second != ZERO_DTYPE_NONE) {
        scale_run(run, 1, blocks, second);
    }
    encode_run(run, blocks, first, second, scalars->moments_at, scalars->moments_step);
}

typedef void (*run_fn)(coded_run *run, const update_scalars *scalars);

#define UPDATE_RUN(KIND, name)                                               \
    static void name##_run(coded_run *run, const update_scalars *scalars)    \
    {                                                                        \
        if (run->blocks == RUN_BLOCKS) {                                     \
            update_blocks(ZERO_OPTIMIZER_##KIND, run, RUN_BLOCKS, scalars);  \
        } else {                                                             \
            update_blocks(ZERO_OPTIMIZER_##KIND, run, run->blocks, scalars); \
        }                                                                    \
    }
ZI_OPTIMIZERS(UPDATE_RUN)

static run_fn run_choose(zero_optimizer optimizer)
{
#define RUN_TABLE(KIND, name) [ZERO_OPTIMIZER_##KIND] = name##_run,
    static const run_fn by_optimizer[] = {ZI_OPTIMIZERS(RUN_TABLE)};
    zi_assert_cmp(optimizer, <, sizeof by_optimizer / sizeof by_optimizer[0]);
    zi_assert(by_optimizer[optimizer] != NULL);
    return by_optimizer[optimizer];
}

/* Masters to fp32 and back, and how many of these have stalled, where it compares. One function per
 * kind that is not fp32: as in lanes.c, the arrays are its parameters. */
#define MASTER_RUN(master_type, param_type)                                                 \
    static void open_##master_type##_##param_type(float *restrict p, void *restrict master, \
                                                  void *restrict param, size_t count)       \
    {                                                                                       \
        const update_form form = {.master = ZERO_DTYPE_##master_type,                       \
                                  .param = ZERO_DTYPE_##param_type};                        \
        for (size_t i = 0; i < count; i++) {                                                \
            p[i] = get_master(form, (update_arrays){.master = master, .param = param}, i);  \
        }                                                                                   \
    }                                                                                       \
    static uint32_t close_##master_type##_##param_type(                                     \
        const float *restrict p, const float *restrict grad, void *restrict master,         \
        void *restrict param, const update_scalars *all)                                    \
    {                                                                                       \
        const update_form form = {.master = ZERO_DTYPE_##master_type,                       \
                                  .param = ZERO_DTYPE_##param_type};                        \
        const update_scalars scalars = *all;                                                \
        uint32_t stalled = 0;                                                               \
        for (size_t i = 0; i < scalars.count; i++) {                                        \
            const uint32_t same = put_master(                                               \
                form, (update_arrays){.master = master, .param = param}, scalars, i, p[i]); \
            if (compares(form) && scalars.counts) {                                         \
                stalled += same & (uint32_t)(grad[i] * scalars.grad_scale != 0.0f);         \
            }                                                                               \
        }                                                                                   \
        return stalled;                                                                     \
    }
MASTER_RUN(NONE, BF16)
MASTER_RUN(NONE, F16)
MASTER_RUN(REMAINDER16, BF16)
MASTER_RUN(REMAINDER8, BF16)

static void open_masters(float *p, update_form form, update_arrays arrays, size_t count)
{
    if (form.master == ZERO_DTYPE_F32) {
        memcpy(p, arrays.master, count * sizeof *p);
    } else if (form.master == ZERO_DTYPE_REMAINDER16) {
        open_REMAINDER16_BF16(p, arrays.master, arrays.param, count);
    } else if (form.master == ZERO_DTYPE_REMAINDER8) {
        open_REMAINDER8_BF16(p, arrays.master, arrays.param, count);
    } else if (form.param == ZERO_DTYPE_BF16) {
        open_NONE_BF16(p, NULL, arrays.param, count);
    } else {
        open_NONE_F16(p, NULL, arrays.param, count);
    }
}

static uint32_t close_masters(const coded_run *run, update_form form, update_arrays arrays,
                              const update_scalars *scalars)
{
    if (form.master == ZERO_DTYPE_REMAINDER16) {
        return close_REMAINDER16_BF16(run->p, run->grad, arrays.master, arrays.param, scalars);
    }
    if (form.master == ZERO_DTYPE_REMAINDER8) {
        return close_REMAINDER8_BF16(run->p, run->grad, arrays.master, arrays.param, scalars);
    }
    if (form.master == ZERO_DTYPE_F32) {
        memcpy(arrays.master, run->p, scalars->count * sizeof run->p[0]);
        if (form.param != ZERO_DTYPE_NONE) {
            store(arrays.param, form.param, run->p, scalars->count);
        }
        return 0;
    }
    return form.param == ZERO_DTYPE_BF16
               ? close_NONE_BF16(run->p, run->grad, NULL, arrays.param, scalars)
               : close_NONE_F16(run->p, run->grad, NULL, arrays.param, scalars);
}

static void add_ahead(coded_run *run, const void *base, zero_dtype dtype)
{
    if (base != NULL) {
        run->ahead[run->ahead_count++] = (coded_ahead){base, STEP * width(dtype)};
    }
}

/* At most RUN_COUNT elements from element i on. */
static uint32_t update_coded_run(const zi_lanes_update *all, run_fn update, size_t i,
                                 const update_scalars *scalars)
{
    const update_form form = form_of(all);
    const update_arrays arrays = arrays_at(all, form, i);
    const size_t count = scalars->count;
    const size_t block = i / CODED_BLOCK;
    coded_run run;
    run.blocks = (count + CODED_BLOCK - 1) / CODED_BLOCK;
    run.moment[0].codes = arrays.m;
    run.moment[0].scales = all->scale1 + block;
    run.moment[1].codes = arrays.v;
    run.moment[1].scales = arrays.v != NULL ? all->scale2 + block : NULL;
    const size_t padding = run.blocks * CODED_BLOCK - count;
    if (padding > 0) {
        memset(run.p + count, 0, padding * sizeof run.p[0]);
        memset(run.grad + count, 0, padding * sizeof run.grad[0]);
        memset(run.moment[0].codes + count, 0, padding);
        if (arrays.v != NULL) {
            memset(run.moment[1].codes + count, 0, padding);
        }
    }
    run.ahead_count = 0;
    add_ahead(&run, arrays.master, form.master);
    add_ahead(&run, arrays.param, form.param);
    add_ahead(&run, arrays.m, form.moment);
    add_ahead(&run, arrays.v, form.moment);
    add_ahead(&run, arrays.grad, form.grad);
    load_values(run.grad, arrays.grad, form.grad, count);
    open_masters(run.p, form, arrays, count);
    update(&run, scalars);
    return close_masters(&run, form, arrays, scalars);
}

/* Elements [begin, end), where begin is the first of a block. Returns how many have stalled, where
 * it compares. */
static uint64_t update_coded(const zi_lanes_update *all, size_t begin, size_t end)
{
    uint64_t stalled = 0;
    const run_fn update = run_choose(all->optimizer);
    update_scalars scalars = {
        .grad_scale = all->grad_scale, .coeffs = all->coeffs, .counts = all->counts_stalled};
    zi_assert_cmp((all->first + begin) % CODED_BLOCK, ==, 0);
    for (size_t i = begin; i < end;) {
        scalars.count = end - i;
        set_random(&scalars, all, i);
        for (size_t left = scalars.count; left > 0; left -= scalars.count) {
            scalars.count = least(RUN_COUNT, left);
            stalled += update_coded_run(all, update, i, &scalars);
            scalars.param_at += (uint32_t)RUN_COUNT * scalars.param_step;
            scalars.moments_at += (uint32_t)RUN_COUNT * scalars.moments_step;
            i += scalars.count;
        }
    }
    return stalled;
}

#endif
