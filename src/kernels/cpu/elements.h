/* Elements of any type as the loops of lanes.c have them: one, a step of a fixed count, a block.
 * For lanes.c only: what is inlined here is compiled for its instruction set. */
#ifndef ZI_KERNELS_CPU_ELEMENTS_H
#define ZI_KERNELS_CPU_ELEMENTS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/block_codec.h"
#include "core/check.h"
#include "core/dtype.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/stream_store.h"
#include "kernels/math/convert.h"
#include "kernels/math/remainder.h"
#include "zero/dtype.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Elements of a fixed-count loop: whole vectors on every instruction set, whole lines of memory. */
#define STEP 64
/* Elements converted at a time, a multiple of STEP: long enough that the loops' ends do not count,
 * and a function's blocks fit in a quarter of a 32 KiB first-level cache. They are also why a frame
 * may be larger than usual, up to 8 KiB. */
#define BLOCK 1024
/* Bytes between use and prefetch, in every array. */
#define AHEAD_BYTES 2048
/* The hardware prefetches so many arrays by itself: there a fold's prefetches only delay its loads.
 */
#define FOLLOWED_MAX 2
/* From so many elements on, the data does not stay in a cache before its next use. */
#define STREAM_COUNT_MIN ((size_t)1 << 18)
#define LINE_BYTES 64

static inline size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t width(zero_dtype dtype)
{
    const size_t narrow =
        dtype == ZERO_DTYPE_REMAINDER8 || zi_dtype_is_code(dtype) || zi_dtype_is_block(dtype)
            ? 1
            : sizeof(uint16_t);
    return dtype == ZERO_DTYPE_F32 ? sizeof(float) : narrow;
}

static inline const void *at_const(const void *base, zero_dtype dtype, size_t index)
{
    return (const unsigned char *)base + index * width(dtype);
}

/* A place in an array that does not exist is NULL. */
static inline void *at(void *base, zero_dtype dtype, size_t index)
{
    return dtype == ZERO_DTYPE_NONE ? NULL : (unsigned char *)base + index * width(dtype);
}

/* Prefetch the lines of `bytes` bytes that lie AHEAD_BYTES after `base`. Prefetching past an
 * array's end is harmless; the address is an integer because such a pointer would be undefined. */
ALWAYS_INLINE void prefetch_bytes(const void *base, size_t bytes)
{
    const uintptr_t start = (uintptr_t)base + AHEAD_BYTES;
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        __builtin_prefetch((const void *)(start + i), 0, 2);
    }
}

/* The same of `count` elements. */
ALWAYS_INLINE void prefetch(const void *base, zero_dtype dtype, size_t count)
{
    prefetch_bytes(base, count * width(dtype));
}

/* One element as fp32. dtype is a constant wherever this is inlined. */
ALWAYS_INLINE float get(const void *base, zero_dtype dtype, size_t i)
{
    if (dtype == ZERO_DTYPE_F32) {
        return ((const float *)base)[i];
    }
    const uint16_t value = ((const uint16_t *)base)[i];
    return dtype == ZERO_DTYPE_BF16 ? zi_f32_from_bf16(value) : zi_f32_from_f16(value);
}

ALWAYS_INLINE void put(void *base, zero_dtype dtype, size_t i, float value)
{
    if (dtype == ZERO_DTYPE_F32) {
        ((float *)base)[i] = value;
    } else {
        ((uint16_t *)base)[i] =
            dtype == ZERO_DTYPE_BF16 ? zi_bf16_from_f32(value) : zi_f16_from_f32(value);
    }
}

ALWAYS_INLINE void load_step(float *restrict target, const void *restrict source, zero_dtype dtype,
                             size_t count)
{
    if (dtype == ZERO_DTYPE_F16) {
        zi_half_load(target, source, count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        target[i] = get(source, dtype, i);
    }
}

/* target = source. */
static void load_values(float *restrict target, const void *restrict source, zero_dtype dtype,
                        size_t count)
{
    if (dtype == ZERO_DTYPE_F32) {
        memcpy(target, source, count * sizeof *target);
    } else if (dtype == ZERO_DTYPE_BF16) {
        load_step(target, source, ZERO_DTYPE_BF16, count);
    } else {
        zi_assert(dtype == ZERO_DTYPE_F16);
        load_step(target, source, ZERO_DTYPE_F16, count);
    }
}

ALWAYS_INLINE void load_loop(float *restrict target, const void *restrict source, zero_dtype dtype,
                             size_t count)
{
    size_t i = 0;
    for (; i + STEP <= count; i += STEP) {
        prefetch(at_const(source, dtype, i), dtype, STEP);
        load_step(target + i, at_const(source, dtype, i), dtype, STEP);
    }
    load_step(target + i, at_const(source, dtype, i), dtype, count - i);
}

/* target = source, while what comes after it is prefetched. */
static void lanes_load(float *restrict target, const void *restrict source, zero_dtype dtype,
                       size_t count)
{
    if (dtype == ZERO_DTYPE_F32) {
        load_loop(target, source, ZERO_DTYPE_F32, count);
    } else if (dtype == ZERO_DTYPE_BF16) {
        load_loop(target, source, ZERO_DTYPE_BF16, count);
    } else {
        zi_assert(dtype == ZERO_DTYPE_F16);
        load_loop(target, source, ZERO_DTYPE_F16, count);
    }
}

ALWAYS_INLINE void store(void *restrict target, zero_dtype dtype, const float *restrict source,
                         size_t count)
{
    if (dtype == ZERO_DTYPE_F32) {
        memcpy(target, source, count * sizeof *source);
    } else if (dtype == ZERO_DTYPE_BF16) {
        for (size_t i = 0; i < count; i++) {
            put(target, ZERO_DTYPE_BF16, i, source[i]);
        }
    } else {
        zi_assert(dtype == ZERO_DTYPE_F16);
        zi_half_store(target, source, count);
    }
}

/* A block that is not read soon: by non-temporal stores. The target is aligned to a line. */
static void store_non_temporal(void *restrict target, zero_dtype dtype,
                               const float *restrict source, size_t count)
{
    if (dtype == ZERO_DTYPE_F32) {
        zi_stream_store(target, source, count * sizeof *source);
        return;
    }
    _Alignas(64) uint16_t narrow[BLOCK];
    store(narrow, dtype, source, count);
    zi_stream_store(target, narrow, count * sizeof narrow[0]);
}

/* Store a value that arithmetic has left. */
ALWAYS_INLINE void put_result(void *base, zero_dtype dtype, size_t i, float value)
{
    if (dtype == ZERO_DTYPE_BF16) {
        ((uint16_t *)base)[i] = zi_bf16_from_result(value);
    } else {
        put(base, dtype, i, value);
    }
}

/* The same, rounded stochastically by 16 random bits. */
ALWAYS_INLINE void put_random(void *base, zero_dtype dtype, size_t i, float value, uint32_t random)
{
    ((uint16_t *)base)[i] = dtype == ZERO_DTYPE_BF16 ? zi_bf16_from_result_stochastic(value, random)
                                                     : zi_f16_from_f32_stochastic(value, random);
}

/* Of a master that is a remainder: join it with its parameter, and store both of a value that
 * arithmetic has left. `random` is unused where it is exact. */
ALWAYS_INLINE float get_joined(const void *param, const void *rest, zero_dtype dtype, size_t i)
{
    const uint16_t high = ((const uint16_t *)param)[i];
    return dtype == ZERO_DTYPE_REMAINDER16 ? zi_join16(high, ((const uint16_t *)rest)[i])
                                           : zi_join8(high, ((const uint8_t *)rest)[i]);
}

/* Returns 1 if both have the bits that they had. */
ALWAYS_INLINE uint32_t put_split(void *param, void *rest, zero_dtype dtype, size_t i, float value,
                                 uint32_t random)
{
    const uint32_t bits = zi_split_result_bits(value);
    const zi_split split =
        dtype == ZERO_DTYPE_REMAINDER16 ? zi_split16_bits(bits) : zi_split8_bits(bits, random);
    uint32_t changed = split.param ^ ((const uint16_t *)param)[i];
    ((uint16_t *)param)[i] = (uint16_t)split.param;
    if (dtype == ZERO_DTYPE_REMAINDER16) {
        changed |= split.rest ^ ((const uint16_t *)rest)[i];
        ((uint16_t *)rest)[i] = (uint16_t)split.rest;
    } else {
        changed |= split.rest ^ ((const uint8_t *)rest)[i];
        ((uint8_t *)rest)[i] = (uint8_t)split.rest;
    }
    return changed == 0;
}

#endif
