/* Owns the inner loops of the CPU kernels. Compiled once per instruction set, with
 * ZI_LANES_SUFFIX naming it; nothing here chooses one or runs in parallel.
 * Invariant: no value depends on the block sizes below, on vector width or on alignment.
 *
 * Updates and the fold have a loop for each combination of types: they are bound by memory where
 * nothing is stored and loaded again in between. Casts and squares pass through fp32 blocks that
 * stay in the first-level cache. */
#include "kernels/cpu/lanes.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/check.h"
#include "kernels/cpu/block_loops.h"
#include "kernels/cpu/coded_update.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/fold_loops.h"
#include "kernels/cpu/measure.h"
#include "kernels/cpu/packed_fold.h"
#include "kernels/cpu/square_adder.h"
#include "kernels/cpu/update_form.h"
#include "kernels/math/normal.h"
#include "optimizer/optimizer.h"

#define JOIN_(left, right) left##right
#define JOIN(left, right) JOIN_(left, right)
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

/* `count` elements of one block, rounded stochastically; `at` is the first one's word, unmixed. */
ALWAYS_INLINE void round_loop(void *restrict target, zero_dtype dtype, const float *restrict source,
                              size_t count, uint32_t at, uint32_t step, zi_rounding_purpose purpose)
{
    for (size_t i = 0; i < count; i++) {
        put_random(target, dtype, i, zi_f32_quiet(source[i]),
                   zi_rounding_half(zi_rounding_mix(at + (uint32_t)i * step), purpose));
    }
}

/* The same to parameters and their REMAINDER8. */
ALWAYS_INLINE void split_loop(uint16_t *restrict param, uint8_t *restrict rest,
                              const float *restrict source, size_t count, uint32_t at,
                              uint32_t step)
{
    for (size_t i = 0; i < count; i++) {
        (void)put_split(
            param, rest, ZERO_DTYPE_REMAINDER8, i, zi_f32_quiet(source[i]),
            zi_rounding_half(zi_rounding_mix_for(ZERO_DTYPE_REMAINDER8, at + (uint32_t)i * step),
                             ZI_ROUNDING_PARAM));
    }
}

static void lanes_round(const zi_lanes_rounding *rounding)
{
    size_t count = 0;
    for (size_t i = 0; i < rounding->count; i += count) {
        const uint64_t element = rounding->first + i;
        const zi_rounding_sequence sequence = zi_rounding_sequence_for(
            zi_rounding_block_of(rounding->key, element / ZI_ROUNDING_BLOCK),
            rounding->key.purpose);
        const uint32_t first = zi_rounding_at(sequence, (uint32_t)(element % ZI_ROUNDING_BLOCK));
        count = rounding_span(element, rounding->count - i);
        if (rounding->dtype == ZERO_DTYPE_BF16) {
            round_loop(at(rounding->target, ZERO_DTYPE_BF16, i), ZERO_DTYPE_BF16,
                       rounding->source + i, count, first, sequence.step, rounding->key.purpose);
        } else if (rounding->dtype == ZERO_DTYPE_REMAINDER8) {
            split_loop(at(rounding->target, ZERO_DTYPE_BF16, i), rounding->rest + i,
                       rounding->source + i, count, first, sequence.step);
        } else {
            zi_assert(rounding->dtype == ZERO_DTYPE_F16);
            round_loop(at(rounding->target, ZERO_DTYPE_F16, i), ZERO_DTYPE_F16,
                       rounding->source + i, count, first, sequence.step, rounding->key.purpose);
        }
    }
}

ALWAYS_INLINE zi_element_state load_state(update_form form, update_arrays arrays, size_t i)
{
    return (zi_element_state){.p = get_master(form, arrays, i),
                              .m = get(arrays.m, form.moment, i),
                              .v = has_second(form) ? get(arrays.v, form.moment, i) : 0.0f};
}

ALWAYS_INLINE void store_moments(update_form form, update_arrays arrays, update_scalars scalars,
                                 size_t i, zi_element_state next)
{
    if (form.moment == ZERO_DTYPE_F32) {
        put(arrays.m, ZERO_DTYPE_F32, i, next.m);
        if (has_second(form)) {
            put(arrays.v, ZERO_DTYPE_F32, i, next.v);
        }
        return;
    }
    const uint32_t word = zi_rounding_mix(scalars.moments_at + (uint32_t)i * scalars.moments_step);
    put_random(arrays.m, form.moment, i, next.m, zi_rounding_half(word, ZI_ROUNDING_MOMENT1));
    if (has_second(form)) {
        put_random(arrays.v, form.moment, i, next.v, zi_rounding_half(word, ZI_ROUNDING_MOMENT2));
    }
}

/* Store the rounded parameters of a step. */
ALWAYS_INLINE void store_copy(update_arrays arrays, update_scalars scalars, const uint16_t *narrow)
{
    if (scalars.non_temporal) {
        zi_stream_store(arrays.param, narrow, scalars.count * sizeof narrow[0]);
    } else {
        memcpy(arrays.param, narrow, scalars.count * sizeof narrow[0]);
    }
}

/* stalled: counts of each element of a step, to add to. */
ALWAYS_INLINE void update_step(update_form form, update_arrays arrays, update_scalars scalars,
                               uint32_t *restrict stalled)
{
    const bool has_copy = form.master == ZERO_DTYPE_F32 && form.param != ZERO_DTYPE_NONE;
    _Alignas(64) uint16_t narrow[STEP];
    for (size_t i = 0; i < scalars.count; i++) {
        const zi_element_state state = load_state(form, arrays, i);
        const float grad = get(arrays.grad, form.grad, i) * scalars.grad_scale;
        const zi_element_state next =
            zi_optimizer_lane(form.optimizer, state, grad, scalars.coeffs);
        const uint32_t same = put_master(form, arrays, scalars, i, state.p, next.p);
        stalled[i] += same & (uint32_t)(grad != 0.0f);
        if (has_copy) {
            put_result(narrow, form.param, i, next.p);
        }
        store_moments(form, arrays, scalars, i, next);
    }
    if (has_copy) {
        store_copy(arrays, scalars, narrow);
    }
}

/* A whole step, by pairs. stalled: of each pair. */
ALWAYS_INLINE void update_pairs(update_form form, update_arrays arrays, update_scalars scalars,
                                uint32_t *restrict stalled)
{
    const bool has_copy = form.master == ZERO_DTYPE_F32 && form.param != ZERO_DTYPE_NONE;
    _Alignas(64) uint16_t narrow[STEP];
    _Alignas(64) uint32_t rest[STEP / 2];
    if (form.master == ZERO_DTYPE_REMAINDER8) {
        widen_bytes(rest, arrays.master, STEP / 2);
        arrays.rest = rest;
    }
    for (size_t i = 0; i < STEP / 2; i++) {
        const pair_f32 m = get_pair(arrays.m, form.moment, i);
        const pair_f32 v =
            has_second(form) ? get_pair(arrays.v, form.moment, i) : (pair_f32){0.0f, 0.0f};
        const pair_state next = update_pair(form, arrays, scalars, i, m, v, &stalled[i]);
        if (has_copy) {
            put_pair(narrow, form.param, i, (pair_f32){next.first.p, next.second.p});
        }
        const uint32_t at = scalars.moments_at + (uint32_t)(2 * i) * scalars.moments_step;
        const uint32_t word = zi_rounding_mix(at);
        const uint32_t other = zi_rounding_mix(at + scalars.moments_step);
        put_pair_random(arrays.m, form.moment, i, (pair_f32){next.first.m, next.second.m},
                        zi_rounding_half(word, ZI_ROUNDING_MOMENT1),
                        zi_rounding_half(other, ZI_ROUNDING_MOMENT1));
        if (has_second(form)) {
            put_pair_random(arrays.v, form.moment, i, (pair_f32){next.first.v, next.second.v},
                            zi_rounding_half(word, ZI_ROUNDING_MOMENT2),
                            zi_rounding_half(other, ZI_ROUNDING_MOMENT2));
        }
    }
    if (form.master == ZERO_DTYPE_REMAINDER8) {
        narrow_bytes(arrays.master, rest, STEP / 2);
    }
    if (has_copy) {
        store_copy(arrays, scalars, narrow);
    }
}

/* Returns how many have stalled. */
ALWAYS_INLINE uint64_t update_loop(update_form form, update_arrays arrays,
                                   const update_scalars *all)
{
    _Alignas(64) uint32_t stalled[STEP] = {0};
    update_scalars scalars = *all; /* kept in registers */
    scalars.count = STEP;
    for (size_t left = all->count; left > 0; left -= scalars.count) {
        if (left < STEP) {
            scalars.count = left;
            update_step(form, arrays, scalars, stalled);
            break;
        }
        prefetch_arrays(form, arrays);
        if (form.moment == ZERO_DTYPE_BF16) {
            update_pairs(form, arrays, scalars, stalled);
        } else {
            update_step(form, arrays, scalars, stalled);
        }
        arrays = arrays_from(form, arrays, STEP);
        scalars.param_at += STEP * scalars.param_step;
        scalars.moments_at += STEP * scalars.moments_step;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < STEP; i++) {
        sum += stalled[i];
    }
    return sum;
}

typedef uint64_t (*update_fn)(void *restrict master, void *restrict m, void *restrict v,
                              const void *restrict grad, void *restrict param,
                              const update_scalars *all);

/* One function per optimizer and combination of types. The arrays are its parameters because that
 * is where compilers believe `restrict`. */
#define UPDATE(KIND, name, grad_type, moment_type, master_type, param_type)                   \
    static uint64_t name##_##grad_type##_##moment_type##_##master_type##_##param_type(        \
        void *restrict master, void *restrict m, void *restrict v, const void *restrict grad, \
        void *restrict param, const update_scalars *all)                                      \
    {                                                                                         \
        return update_loop((update_form){ZERO_OPTIMIZER_##KIND, ZERO_DTYPE_##grad_type,       \
                                         ZERO_DTYPE_##param_type, ZERO_DTYPE_##moment_type,   \
                                         ZERO_DTYPE_##master_type},                           \
                           (update_arrays){master, m, v, grad, param, NULL}, all);            \
    }
#define UPDATE_PARAMS(KIND, name, grad_type, moment_type)         \
    UPDATE(KIND, name, grad_type, moment_type, NONE, BF16)        \
    UPDATE(KIND, name, grad_type, moment_type, NONE, F16)         \
    UPDATE(KIND, name, grad_type, moment_type, F32, BF16)         \
    UPDATE(KIND, name, grad_type, moment_type, F32, F16)          \
    UPDATE(KIND, name, grad_type, moment_type, F32, NONE)         \
    UPDATE(KIND, name, grad_type, moment_type, REMAINDER16, BF16) \
    UPDATE(KIND, name, grad_type, moment_type, REMAINDER8, BF16)
#define UPDATE_TYPES(KIND, name)          \
    UPDATE_PARAMS(KIND, name, F32, F32)   \
    UPDATE_PARAMS(KIND, name, F32, BF16)  \
    UPDATE_PARAMS(KIND, name, BF16, F32)  \
    UPDATE_PARAMS(KIND, name, BF16, BF16) \
    UPDATE_PARAMS(KIND, name, F16, F32)   \
    UPDATE_PARAMS(KIND, name, F16, BF16)
ZI_OPTIMIZERS(UPDATE_TYPES)

/* By the master's type and the parameter's. */
#define UPDATE_ROW(name, grad_type, moment_type)                                                 \
    {                                                                                            \
        [ZERO_DTYPE_NONE] = {[ZERO_DTYPE_BF16] = name##_##grad_type##_##moment_type##_NONE_BF16, \
                             [ZERO_DTYPE_F16] = name##_##grad_type##_##moment_type##_NONE_F16},  \
        [ZERO_DTYPE_F32] = {[ZERO_DTYPE_BF16] = name##_##grad_type##_##moment_type##_F32_BF16,   \
                            [ZERO_DTYPE_F16] = name##_##grad_type##_##moment_type##_F32_F16,     \
                            [ZERO_DTYPE_NONE] = name##_##grad_type##_##moment_type##_F32_NONE},  \
        [ZERO_DTYPE_REMAINDER16] = {[ZERO_DTYPE_BF16] =                                          \
                                        name##_##grad_type##_##moment_type##_REMAINDER16_BF16},  \
        [ZERO_DTYPE_REMAINDER8] = {[ZERO_DTYPE_BF16] =                                           \
                                       name##_##grad_type##_##moment_type##_REMAINDER8_BF16},    \
    }
#define UPDATE_TABLE(KIND, name)                                     \
    [ZERO_OPTIMIZER_##KIND] = {                                      \
        {UPDATE_ROW(name, F32, F32), UPDATE_ROW(name, F32, BF16)},   \
        {UPDATE_ROW(name, BF16, F32), UPDATE_ROW(name, BF16, BF16)}, \
        {UPDATE_ROW(name, F16, F32), UPDATE_ROW(name, F16, BF16)},   \
    },

static update_fn update_choose(update_form form)
{
    static const update_fn by_form[][3][2][ZERO_DTYPE_REMAINDER8 + 1][ZERO_DTYPE_NONE + 1] = {
        ZI_OPTIMIZERS(UPDATE_TABLE)};
    zi_assert_cmp(form.optimizer, <, sizeof by_form / sizeof by_form[0]);
    zi_assert(form.grad >= ZERO_DTYPE_F32 && form.grad <= ZERO_DTYPE_F16);
    zi_assert(form.moment >= ZERO_DTYPE_F32 && form.moment <= ZERO_DTYPE_BF16);
    zi_assert_cmp(form.master, <=, ZERO_DTYPE_REMAINDER8);
    zi_assert_cmp(form.param, <=, ZERO_DTYPE_NONE);
    const update_fn fn = by_form[form.optimizer][form.grad - ZERO_DTYPE_F32]
                                [form.moment - ZERO_DTYPE_F32][form.master][form.param];
    zi_assert(fn != NULL);
    return fn;
}

static uint64_t update_plain(const zi_lanes_update *all, bool non_temporal)
{
    uint64_t stalled = 0;
    const update_form form = form_of(all);
    const bool random = form.master == ZERO_DTYPE_NONE || form.master == ZERO_DTYPE_REMAINDER8 ||
                        form.moment != ZERO_DTYPE_F32;
    const update_fn update = update_choose(form);
    update_scalars scalars = {
        .grad_scale = all->grad_scale, .coeffs = all->coeffs, .non_temporal = non_temporal};
    for (size_t i = 0; i < all->count; i += scalars.count) {
        const update_arrays arrays = arrays_at(all, form, i);
        scalars.count = all->count - i;
        if (random) {
            set_random(&scalars, all, i);
        }
        stalled += update(arrays.master, arrays.m, arrays.v, arrays.grad, arrays.param, &scalars);
    }
    return stalled;
}

static uint64_t lanes_update(const zi_lanes_update *all)
{
    const bool has_copy = all->master != NULL && all->master_dtype == ZERO_DTYPE_F32 &&
                          all->param_dtype != ZERO_DTYPE_NONE;
    const bool non_temporal =
        has_copy && all->count >= STREAM_COUNT_MIN && (uintptr_t)all->param % LINE_BYTES == 0;
    const uint64_t stalled =
        zi_dtype_is_code(all->moment_dtype) ? update_coded(all) : update_plain(all, non_temporal);
    if (non_temporal) {
        zi_stream_fence();
    }
    return stalled;
}

static void lanes_fold(const zi_fold *fold, size_t begin, size_t end, zi_norm_sum *squares)
{
    square_adder adder = {{{0}, 0, 0}, 0, 0, {0.0}};
    const fold_state state = {fold, squares != NULL ? &adder : NULL,
                              fold->source_count + (fold->accumulate ? 1u : 0u) > FOLLOWED_MAX,
                              zi_fold_scale(fold)};
    if (zi_fold_is_packed(fold)) {
        fold_packed(&state, begin, end);
    } else {
        fold_plain(&state, begin, end);
    }
    if (squares != NULL) {
        close_squares(&adder, squares);
    }
}

static void lanes_cast(void *target, zero_dtype target_dtype, const void *source,
                       zero_dtype source_dtype, size_t count)
{
    _Alignas(64) float values[BLOCK];
    if (target_dtype == source_dtype) {
        if (target != source) {
            memcpy(target, source, count * width(source_dtype));
        }
        return;
    }
    const bool non_temporal = count >= STREAM_COUNT_MIN && (uintptr_t)target % LINE_BYTES == 0;
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t block = least(BLOCK, count - i);
        lanes_load(values, at_const(source, source_dtype, i), source_dtype, block);
        if (non_temporal) {
            store_non_temporal(at(target, target_dtype, i), target_dtype, values, block);
        } else {
            store(at(target, target_dtype, i), target_dtype, values, block);
        }
    }
    if (non_temporal) {
        zi_stream_fence();
    }
}

static void lanes_scale(float *restrict target, const void *restrict source,
                        zero_dtype source_dtype, float scale, size_t count)
{
    lanes_load(target, source, source_dtype, count);
    for (size_t i = 0; i < count; i++) {
        target[i] *= scale;
    }
}

static void lanes_square_sum(const void *source, zero_dtype dtype, size_t count, zi_norm_sum *sum)
{
    _Alignas(64) float values[BLOCK];
    square_adder adder = {{{0}, 0, 0}, 0, 0, {0.0}};
    for (size_t i = 0; i < count; i += BLOCK) {
        const size_t block = least(BLOCK, count - i);
        lanes_load(values, at_const(source, dtype, i), dtype, block);
        add_squares(&adder, values, block);
    }
    close_squares(&adder, sum);
}

/* Pairs that are drawn at a time. */
#define DRAWN_PAIRS 64

/* Pairs [from, from + count) of the draw. One loop for each part, so that compilers vectorise it.
 */
ALWAYS_INLINE void draw_pairs(const zi_lanes_normal *normal, size_t from, size_t count)
{
    _Alignas(64) uint32_t words[2][DRAWN_PAIRS];
    _Alignas(64) double radius[DRAWN_PAIRS];
    const uint64_t pair = normal->first / 2 + from;
    float *values = normal->values + 2 * from;
    for (size_t i = 0; i < count; i++) {
        const zi_philox_words drawn = zi_philox(normal->seed, pair + i, normal->stream);
        words[0][i] = drawn.word[0];
        words[1][i] = drawn.word[1];
    }
    for (size_t i = 0; i < count; i++) {
        radius[i] = sqrt(-2.0 * zi_log(zi_unit_open(words[0][i])));
    }
    for (size_t i = 0; i < count; i++) {
        const zi_circle at = zi_circle_at(zi_unit_open(words[1][i]));
        values[2 * i] = normal->mean + normal->stddev * (float)(radius[i] * at.cosine);
        values[2 * i + 1] = normal->mean + normal->stddev * (float)(radius[i] * at.sine);
    }
}

static void lanes_normal(const zi_lanes_normal *normal)
{
    size_t done = 0;
    for (; normal->pairs - done >= DRAWN_PAIRS; done += DRAWN_PAIRS) {
        draw_pairs(normal, done, DRAWN_PAIRS);
    }
    draw_pairs(normal, done, normal->pairs - done);
}

const zi_cpu_lanes JOIN(zi_cpu_lanes_, ZI_LANES_SUFFIX) = {
    .struct_bytes = sizeof(zi_cpu_lanes),
    .name = TEXT(ZI_LANES_SUFFIX),
    .update = lanes_update,
    .measure = lanes_measure,
    .round = lanes_round,
    .fold = lanes_fold,
    .cast = lanes_cast,
    .scale = lanes_scale,
    .square_sum = lanes_square_sum,
    .encode_blocks = lanes_encode_blocks,
    .decode_blocks = lanes_decode_blocks,
    .normal = lanes_normal,
};
