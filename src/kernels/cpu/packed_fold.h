/* Folds of packed granules (core/block_codec.h), and to them: one granule at a time, whose sums
 * stay in the first-level cache as fp32. For lanes.c only: what is inlined here is compiled for its
 * instruction set. */
#ifndef ZI_KERNELS_CPU_PACKED_FOLD_H
#define ZI_KERNELS_CPU_PACKED_FOLD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/check.h"
#include "core/codec.h"
#include "kernels/cpu/block_loops.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/fold_loops.h"
#include "kernels/math/packed.h"

/* The elements of a granule, as the length of a loop. */
#define GRANULE 256
/* Elements of a vector that neighbours are exchanged in. */
#define NEAR 8

_Static_assert(GRANULE == ZI_GRANULE && GRANULE % STEP == 0 && ZI_ROUNDING_BLOCK % GRANULE == 0,
               "a granule is whole steps and in one block of the rounding");

/* One step of the transform, within each NEAR neighbours: the other of its two elements is added to
 * each, and so to the second with its sign changed. As a product with a constant: compilers make
 * one shuffle of a vector for it. */
ALWAYS_INLINE void hadamard_near(float *restrict to, const float *restrict from, size_t distance)
{
    for (size_t i = 0; i < GRANULE; i += NEAR) {
        for (size_t k = 0; k < NEAR; k++) {
            const float sign = (k & distance) != 0 ? -1.0f : 1.0f;
            to[i + k] = from[i + (k ^ distance)] + sign * from[i + k];
        }
    }
}

/* The same of whole runs of neighbours. */
ALWAYS_INLINE void hadamard_far(float *restrict to, const float *restrict from, size_t distance)
{
    for (size_t i = 0; i < GRANULE; i += 2 * distance) {
        for (size_t k = i; k < i + distance; k++) {
            to[k] = from[k] + from[k + distance];
            to[k + distance] = from[k] - from[k + distance];
        }
    }
}

static void hadamard_granule(float *restrict to, const float *restrict from)
{
    _Alignas(64) float between[GRANULE];
    hadamard_near(to, from, 1);
    hadamard_near(between, to, 2);
    hadamard_near(to, between, 4);
    hadamard_far(between, to, 8);
    hadamard_far(to, between, 16);
}

/* ---- a granule's values ---- */

/* codes: of 8 bits, or of 4 in each byte's lower half. */
ALWAYS_INLINE void add_codes(float *restrict sums, zero_dtype dtype, const uint8_t *restrict codes,
                             const unsigned char *scales)
{
    for (size_t i = 0; i < GRANULE; i += ZI_INT8_BLOCK) {
        const float step =
            zi_packed_step(dtype, get_scale(scales, ZERO_DTYPE_INT8_BLOCK, i / ZI_INT8_BLOCK));
        for (size_t k = i; k < i + ZI_INT8_BLOCK; k++) {
            sums[k] += zi_packed_value(dtype, codes[k], step);
        }
    }
}

static void add_int8(float *restrict sums, const unsigned char *granule)
{
    add_codes(sums, ZERO_DTYPE_INT8_BLOCK, granule + ZI_PACKED_SCALES_BYTES, granule);
}

static void add_int4(float *restrict sums, const unsigned char *granule)
{
    _Alignas(64) uint8_t codes[GRANULE];
    const uint8_t *pairs = granule + ZI_PACKED_SCALES_BYTES;
    for (size_t i = 0; i < GRANULE / 2; i++) {
        codes[2 * i] = pairs[i];
        codes[2 * i + 1] = (uint8_t)(pairs[i] >> 4);
    }
    add_codes(sums, ZERO_DTYPE_INT4_BLOCK, codes, granule);
}

ALWAYS_INLINE void add_numbers(float *restrict sums, const void *source, zero_dtype dtype)
{
    for (size_t i = 0; i < GRANULE; i += STEP) {
        float values[STEP];
        load_step(values, at_const(source, dtype, i), dtype, STEP);
        for (size_t k = 0; k < STEP; k++) {
            sums[i + k] += values[k];
        }
    }
}

/* Of any type; the values of INT4_BLOCK are transformed. */
static void add_granule(float *sums, const void *source, zero_dtype dtype)
{
    if (dtype == ZERO_DTYPE_INT8_BLOCK) {
        add_int8(sums, source);
    } else if (dtype == ZERO_DTYPE_INT4_BLOCK) {
        add_int4(sums, source);
    } else if (dtype == ZERO_DTYPE_F32) {
        add_numbers(sums, source, ZERO_DTYPE_F32);
    } else if (dtype == ZERO_DTYPE_BF16) {
        add_numbers(sums, source, ZERO_DTYPE_BF16);
    } else {
        zi_assert(dtype == ZERO_DTYPE_F16);
        add_numbers(sums, source, ZERO_DTYPE_F16);
    }
}

static void scale_granule(float *sums, float scale)
{
    for (size_t i = 0; i < GRANULE && scale != 1.0f; i++) {
        sums[i] *= scale;
    }
}

/* The fold's sums of the granule that begins at element i. */
static void sum_granule(float *restrict sums, const fold_state *state, size_t i)
{
    const zi_fold *fold = state->fold;
    const size_t place = (size_t)zi_packed_bytes(fold->source_dtype, i);
    const size_t bytes = (size_t)zi_packed_bytes(fold->source_dtype, GRANULE);
    memset(sums, 0, GRANULE * sizeof *sums);
    for (uint32_t k = 0; k < fold->source_count; k++) {
        const unsigned char *source = fold->sources[k];
        if (source != NULL) {
            prefetch_bytes(source + place, bytes);
            add_granule(sums, source + place, fold->source_dtype);
        }
    }
    if (fold->source_dtype == ZERO_DTYPE_INT4_BLOCK) {
        _Alignas(64) float transformed[GRANULE];
        memcpy(transformed, sums, sizeof transformed);
        hadamard_granule(sums, transformed);
        scale_granule(sums, ZI_HADAMARD_INVERSE);
    }
    scale_granule(sums, state->scale);
    if (fold->accumulate) {
        add_granule(sums, at_const(fold->dst, fold->dst_dtype, i), fold->dst_dtype);
    }
}

/* ---- a granule's codes ---- */

/* Returns the scale. index: of the first value in its block of the rounding. */
ALWAYS_INLINE uint32_t encode_packed(uint32_t *restrict words, zero_dtype dtype,
                                     const float *restrict values, zi_rounding_sequence sequence,
                                     uint32_t index)
{
    const uint32_t scale = zi_packed_scale(greatest(values, ZI_INT8_BLOCK));
    const float gain = zi_packed_gain(dtype, scale);
    for (uint32_t i = 0; i < ZI_INT8_BLOCK; i++) {
        words[i] = zi_packed_code(dtype, values[i], gain, zi_rounding_at(sequence, index + i));
    }
    return scale;
}

ALWAYS_INLINE void store_granule(unsigned char *restrict granule, zero_dtype dtype,
                                 const float *restrict values, zi_rounding_sequence sequence,
                                 uint32_t index)
{
    _Alignas(64) uint32_t words[GRANULE];
    _Alignas(64) uint8_t bytes[GRANULE];
    uint8_t *codes = granule + ZI_PACKED_SCALES_BYTES;
    for (uint32_t i = 0; i < GRANULE; i += ZI_INT8_BLOCK) {
        put_scale(granule, ZERO_DTYPE_INT8_BLOCK, i / ZI_INT8_BLOCK,
                  encode_packed(words + i, dtype, values + i, sequence, index + i));
    }
    for (size_t i = 0; i < GRANULE; i++) {
        bytes[i] = (uint8_t)words[i];
    }
    if (dtype == ZERO_DTYPE_INT8_BLOCK) {
        memcpy(codes, bytes, GRANULE);
        return;
    }
    for (size_t i = 0; i < GRANULE / 2; i++) {
        codes[i] = (uint8_t)((bytes[2 * i] & ZI_INT4_BITS) | (uint32_t)bytes[2 * i + 1] << 4);
    }
}

static void put_granule(void *granule, zero_dtype dtype, const float *sums,
                        zi_rounding_sequence sequence, uint32_t index)
{
    _Alignas(64) float transformed[GRANULE];
    if (dtype == ZERO_DTYPE_INT8_BLOCK) {
        store_granule(granule, ZERO_DTYPE_INT8_BLOCK, sums, sequence, index);
    } else {
        zi_assert_cmp(dtype, ==, ZERO_DTYPE_INT4_BLOCK);
        hadamard_granule(transformed, sums);
        store_granule(granule, ZERO_DTYPE_INT4_BLOCK, transformed, sequence, index);
    }
}

/* ---- folds ---- */

static void fold_to_packed(const fold_state *state, size_t begin, size_t end)
{
    _Alignas(64) float sums[GRANULE];
    const zi_fold *fold = state->fold;
    zi_rounding_sequence sequence = {0, 0};
    zi_assert(!fold->accumulate && state->adder == NULL);
    zi_assert_cmp(fold->first % ZI_GRANULE, ==, 0);
    for (size_t i = begin; i < end; i += GRANULE) {
        const uint64_t element = fold->first + i;
        const uint32_t index = (uint32_t)(element % ZI_ROUNDING_BLOCK);
        if (i == begin || index == 0) {
            sequence = zi_packed_sequence(fold->key, element / ZI_ROUNDING_BLOCK);
        }
        sum_granule(sums, state, i);
        put_granule((unsigned char *)fold->dst + zi_packed_bytes(fold->dst_dtype, i),
                    fold->dst_dtype, sums, sequence, index);
    }
}

/* A step of sums to a type of numbers. */
static void put_step(const fold_state *state, float *sums, size_t i)
{
    const zero_dtype dtype = state->fold->dst_dtype;
    if (dtype == ZERO_DTYPE_F32) {
        fold_put(state, sums, i, STEP, ZERO_DTYPE_F32, false);
    } else if (dtype == ZERO_DTYPE_BF16) {
        fold_put(state, sums, i, STEP, ZERO_DTYPE_BF16, false);
    } else {
        fold_put(state, sums, i, STEP, ZERO_DTYPE_F16, false);
    }
}

static void fold_of_packed(const fold_state *state, size_t begin, size_t end)
{
    _Alignas(64) float sums[GRANULE];
    for (size_t i = begin; i < end; i += GRANULE) {
        sum_granule(sums, state, i);
        for (size_t j = 0; j < GRANULE; j += STEP) {
            put_step(state, sums + j, i + j);
        }
    }
}

/* begin, end: multiples of GRANULE. */
static void fold_packed(const fold_state *state, size_t begin, size_t end)
{
    const zi_fold *fold = state->fold;
    zi_assert(zi_packed_fold_is_known(fold->dst_dtype, fold->source_dtype));
    zi_assert(begin % GRANULE == 0 && end % GRANULE == 0);
    if (zi_dtype_is_packed(fold->dst_dtype)) {
        fold_to_packed(state, begin, end);
    } else {
        fold_of_packed(state, begin, end);
    }
}

#endif
