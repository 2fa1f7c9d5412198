/* Folds, whose sums stay in registers or in the first-level cache: a loop for each pair of types.
 * For lanes.c only: what is inlined here is compiled for its instruction set. */
#ifndef ZI_KERNELS_CPU_FOLD_LOOPS_H
#define ZI_KERNELS_CPU_FOLD_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/check.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/square_adder.h"
#include "kernels/kernels.h"

/* True when dst can be written by non-temporal stores: it is long, aligned, and not read here. */
static bool fold_is_non_temporal(const zi_fold *fold)
{
    bool non_temporal = fold->count >= STREAM_COUNT_MIN && !fold->accumulate &&
                        (uintptr_t)fold->dst % LINE_BYTES == 0;
    for (uint32_t k = 0; k < fold->source_count; k++) {
        non_temporal = non_temporal && fold->sources[k] != fold->dst;
    }
    return non_temporal;
}

/* Fp32 of a register, the widest that the compilation may use. */
typedef float wide_f32 __attribute__((vector_size(__BIGGEST_ALIGNMENT__)));

#define WIDE_COUNT (sizeof(wide_f32) / sizeof(float))
/* Registers of sums that a fold keeps while it goes over its sources. With few arrays of f32 there
 * are fewer, so that lines are loaded in the order of memory. */
#define HELD_LESS 2
#define HELD_MOST 4

_Static_assert(STEP % (HELD_MOST * WIDE_COUNT) == 0 && STEP == ZI_NORM_CHUNK,
               "a step is whole registers and one chunk");

/* sum += as many elements as `held` registers have. */
ALWAYS_INLINE void add_held(wide_f32 *sum, const void *source, zero_dtype dtype, size_t held)
{
    for (size_t i = 0; i < held; i++) {
        float loaded[WIDE_COUNT];
        wide_f32 values;
        load_step(loaded, at_const(source, dtype, i * WIDE_COUNT), dtype, WIDE_COUNT);
        memcpy(&values, loaded, sizeof values);
        sum[i] += values;
    }
}

/* A fold as it goes on. */
typedef struct fold_state {
    const zi_fold *fold;
    square_adder *adder; /* NULL: no squares */
    bool many;           /* it reads more arrays than FOLLOWED_MAX */
    float scale;         /* of the sources' sum */
} fold_state;

/* The sources' sum of the elements from `i` on, as many as `held` registers have, scaled and added
 * to what dst has. The sum is never -0, so leaving zeros out changes no bit. */
ALWAYS_INLINE void add_sources(wide_f32 *sum, size_t held, const fold_state *state, size_t i,
                               zero_dtype source_dtype, zero_dtype dst_dtype)
{
    const zi_fold *fold = state->fold;
    for (uint32_t k = 0; k < fold->source_count; k++) {
        if (fold->sources[k] != NULL) {
            const void *source = at_const(fold->sources[k], source_dtype, i);
            if (state->many) {
                prefetch(source, source_dtype, held * WIDE_COUNT);
            }
            add_held(sum, source, source_dtype, held);
        }
    }
    for (size_t h = 0; h < held; h++) {
        sum[h] *= state->scale;
    }
    if (fold->accumulate) {
        const void *source = at_const(fold->dst, dst_dtype, i);
        if (state->many) {
            prefetch(source, dst_dtype, held * WIDE_COUNT);
        }
        add_held(sum, source, dst_dtype, held);
    }
}

/* The fold's sums of elements [i, i + STEP): one pass over the sources, so that memory is asked for
 * all of them at once. */
ALWAYS_INLINE void fold_step(float *restrict sums, const fold_state *state, size_t i,
                             zero_dtype source_dtype, zero_dtype dst_dtype)
{
    if (source_dtype == ZERO_DTYPE_F32 && !state->many) {
        for (size_t h = 0; h < STEP; h += HELD_LESS * WIDE_COUNT) {
            wide_f32 sum[HELD_LESS] = {{0}};
            add_sources(sum, HELD_LESS, state, i + h, source_dtype, dst_dtype);
            memcpy(sums + h, sum, sizeof sum);
        }
        return;
    }
    for (size_t h = 0; h < STEP; h += HELD_MOST * WIDE_COUNT) {
        wide_f32 sum[HELD_MOST] = {{0}};
        add_sources(sum, HELD_MOST, state, i + h, source_dtype, dst_dtype);
        memcpy(sums + h, sum, sizeof sum);
    }
}

/* The same of fewer elements. */
static void fold_rest(float *restrict sums, const fold_state *state, size_t i, size_t count)
{
    const zi_fold *fold = state->fold;
    for (size_t j = 0; j < count; j++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < fold->source_count; k++) {
            sum +=
                fold->sources[k] != NULL ? get(fold->sources[k], fold->source_dtype, i + j) : 0.0f;
        }
        sum *= state->scale;
        sums[j] = fold->accumulate ? sum + get(fold->dst, fold->dst_dtype, i + j) : sum;
    }
}

/* Round sums, in place: squares are those of what is stored. */
ALWAYS_INLINE void fold_narrow(uint16_t *restrict narrow, float *restrict sums, zero_dtype dtype,
                               size_t count, bool squared)
{
    if (dtype == ZERO_DTYPE_F16) {
        zi_half_store(narrow, sums, count);
        if (squared) {
            zi_half_load(sums, narrow, count);
        }
        return;
    }
    if (!squared) {
        for (size_t k = 0; k < count; k++) {
            put_result(narrow, dtype, k, sums[k]);
        }
        return;
    }
    for (size_t k = 0; k < count; k++) {
        uint16_t half;
        put_result(&half, dtype, 0, sums[k]);
        narrow[k] = half;
        sums[k] = get(&half, dtype, 0);
    }
}

/* Sums of at most STEP elements, put in their place: rounded, then squared as they are stored. */
ALWAYS_INLINE void fold_put(const fold_state *state, float *sums, size_t i, size_t count,
                            zero_dtype dst_dtype, bool non_temporal)
{
    _Alignas(64) uint16_t narrow[STEP];
    const void *values = sums;
    if (dst_dtype != ZERO_DTYPE_F32) {
        fold_narrow(narrow, sums, dst_dtype, count, state->adder != NULL);
        values = narrow;
    }
    void *dst = at(state->fold->dst, dst_dtype, i);
    if (non_temporal) {
        zi_stream_store(dst, values, count * width(dst_dtype));
    } else {
        memcpy(dst, values, count * width(dst_dtype));
    }
    if (state->adder != NULL) {
        add_squares(state->adder, sums, count);
    }
}

ALWAYS_INLINE void fold_loop(const fold_state *state, size_t begin, size_t end,
                             zero_dtype source_dtype, zero_dtype dst_dtype, bool non_temporal)
{
    size_t i = begin;
    for (; i + STEP <= end; i += STEP) {
        _Alignas(64) float sums[STEP];
        fold_step(sums, state, i, source_dtype, dst_dtype);
        fold_put(state, sums, i, STEP, dst_dtype, non_temporal);
    }
    if (i < end) {
        _Alignas(64) float sums[STEP];
        fold_rest(sums, state, i, end - i);
        fold_put(state, sums, i, end - i, dst_dtype, non_temporal);
    }
}

/* Two functions per pair of types: the kind of store is constant, so that sums stay in registers.
 */
#define FOLD(source_type, dst_type)                                                                \
    static void fold_##source_type##_##dst_type(const fold_state *state, size_t begin, size_t end, \
                                                bool non_temporal)                                 \
    {                                                                                              \
        if (non_temporal) {                                                                        \
            fold_loop(state, begin, end, ZERO_DTYPE_##source_type, ZERO_DTYPE_##dst_type, true);   \
        } else {                                                                                   \
            fold_loop(state, begin, end, ZERO_DTYPE_##source_type, ZERO_DTYPE_##dst_type, false);  \
        }                                                                                          \
    }
FOLD(F32, F32)
FOLD(F32, BF16)
FOLD(F32, F16)
FOLD(BF16, F32)
FOLD(BF16, BF16)
FOLD(BF16, F16)
FOLD(F16, F32)
FOLD(F16, BF16)
FOLD(F16, F16)

typedef void (*fold_fn)(const fold_state *state, size_t begin, size_t end, bool non_temporal);

static fold_fn fold_choose(zero_dtype source_dtype, zero_dtype dst_dtype)
{
    static const fold_fn by_type[3][3] = {{fold_F32_F32, fold_F32_BF16, fold_F32_F16},
                                          {fold_BF16_F32, fold_BF16_BF16, fold_BF16_F16},
                                          {fold_F16_F32, fold_F16_BF16, fold_F16_F16}};
    zi_assert(source_dtype >= ZERO_DTYPE_F32 && source_dtype <= ZERO_DTYPE_F16);
    zi_assert(dst_dtype >= ZERO_DTYPE_F32 && dst_dtype <= ZERO_DTYPE_F16);
    return by_type[source_dtype - ZERO_DTYPE_F32][dst_dtype - ZERO_DTYPE_F32];
}

static void fold_plain(const fold_state *state, size_t begin, size_t end)
{
    const zi_fold *fold = state->fold;
    const bool non_temporal = fold_is_non_temporal(fold);
    fold_choose(fold->source_dtype, fold->dst_dtype)(state, begin, end, non_temporal);
    if (non_temporal) {
        zi_stream_fence();
    }
}

#endif
