/* Owns conversions between fp32 and the small forms of optimizer states: masters as remainders,
 * moments as 8-bit codes.
 * Invariant: the bits are those of the lane functions in math/, and nothing beyond `count` elements
 * is read or written. Loops are over whole blocks where they can be, so that compilers vectorise
 * them. */
#include "kernels/cpu/cpu_kernels.h"

#include "core/check.h"
#include "core/dtype.h"
#include "kernels/math/code.h"
#include "kernels/math/remainder.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define BLOCK ((size_t)ZERO_CODE_BLOCK)

static void join16(float *restrict values, const uint16_t *restrict param,
                   const uint16_t *restrict rest, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = zi_join16(param[i], rest[i]);
    }
}

static void join8(float *restrict values, const uint16_t *restrict param,
                  const uint8_t *restrict rest, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        values[i] = zi_join8(param[i], rest[i]);
    }
}

void zi_cpu_join(float *values, const uint16_t *param, const void *rest, zero_dtype dtype,
                 size_t count)
{
    if (dtype == ZERO_DTYPE_REMAINDER16) {
        join16(values, param, rest, count);
    } else {
        zi_assert_cmp(dtype, ==, ZERO_DTYPE_REMAINDER8);
        join8(values, param, rest, count);
    }
}

static void split16(uint16_t *restrict param, uint16_t *restrict rest, const float *restrict values,
                    size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const zi_split split = zi_split16(values[i]);
        param[i] = (uint16_t)split.param;
        rest[i] = (uint16_t)split.rest;
    }
}

static void split8(uint16_t *restrict param, uint8_t *restrict rest, const float *restrict values,
                   size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const zi_split split = zi_split8(values[i], ZI_SPLIT_NEAREST);
        param[i] = (uint16_t)split.param;
        rest[i] = (uint8_t)split.rest;
    }
}

void zi_cpu_split(uint16_t *param, void *rest, zero_dtype dtype, const float *values, size_t count)
{
    if (dtype == ZERO_DTYPE_REMAINDER16) {
        split16(param, rest, values, count);
    } else {
        zi_assert_cmp(dtype, ==, ZERO_DTYPE_REMAINDER8);
        split8(param, rest, values, count);
    }
}

/* dtype: a constant wherever this is inlined, as in the functions below. */
ALWAYS_INLINE void decode_block(float *restrict values, const uint8_t *restrict codes,
                                uint16_t scale, zero_dtype dtype, size_t count)
{
    const float step = zi_code_step(dtype, scale);
    for (size_t i = 0; i < count; i++) {
        values[i] = zi_code_value(dtype, codes[i], step);
    }
}

ALWAYS_INLINE void decode_blocks(float *values, const uint8_t *codes, const uint16_t *scales,
                                 zero_dtype dtype, size_t count)
{
    size_t i = 0;
    for (; i + BLOCK <= count; i += BLOCK) {
        decode_block(values + i, codes + i, scales[i / BLOCK], dtype, BLOCK);
    }
    if (i < count) {
        decode_block(values + i, codes + i, scales[i / BLOCK], dtype, count - i);
    }
}

void zi_cpu_decode(float *values, const void *codes, const uint16_t *scales, zero_dtype dtype,
                   size_t count)
{
    zi_assert(zi_dtype_is_code(dtype));
    if (dtype == ZERO_DTYPE_I8) {
        decode_blocks(values, codes, scales, ZERO_DTYPE_I8, count);
    } else if (dtype == ZERO_DTYPE_COMPANDED8) {
        decode_blocks(values, codes, scales, ZERO_DTYPE_COMPANDED8, count);
    } else {
        decode_blocks(values, codes, scales, ZERO_DTYPE_U8_ROOT, count);
    }
}

/* Returns the scale. */
ALWAYS_INLINE uint16_t encode_block(uint8_t *restrict codes, zero_dtype dtype,
                                    const float *restrict values, size_t count)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = zi_code_magnitude(values[i]);
        most = magnitude > most ? magnitude : most;
    }
    const uint16_t scale = zi_code_scale(most);
    const float gain = zi_code_gain(dtype, scale);
    for (size_t i = 0; i < count; i++) {
        codes[i] = zi_code_of(dtype, values[i], zi_code_measure(dtype, values[i]), gain,
                              zi_code_nearest(dtype));
    }
    return scale;
}

ALWAYS_INLINE void encode_blocks(uint8_t *codes, uint16_t *scales, zero_dtype dtype,
                                 const float *values, size_t count)
{
    size_t i = 0;
    for (; i + BLOCK <= count; i += BLOCK) {
        scales[i / BLOCK] = encode_block(codes + i, dtype, values + i, BLOCK);
    }
    if (i < count) {
        scales[i / BLOCK] = encode_block(codes + i, dtype, values + i, count - i);
    }
}

void zi_cpu_encode(void *codes, uint16_t *scales, zero_dtype dtype, const float *values,
                   size_t count)
{
    zi_assert(zi_dtype_is_code(dtype));
    if (dtype == ZERO_DTYPE_I8) {
        encode_blocks(codes, scales, ZERO_DTYPE_I8, values, count);
    } else if (dtype == ZERO_DTYPE_COMPANDED8) {
        encode_blocks(codes, scales, ZERO_DTYPE_COMPANDED8, values, count);
    } else {
        encode_blocks(codes, scales, ZERO_DTYPE_U8_ROOT, values, count);
    }
}
