/* The results that the collectives should give, computed without the library's kernels: values by
 * index, exact roundings in double, sums in ascending world rank. */
#ifndef TESTS_COMM_CONFORMANCE_VALUES_H
#define TESTS_COMM_CONFORMANCE_VALUES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sanitizer.h"
#include "zero/dtype.h"

UNWATCHED static inline uint64_t value_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Element `index` of world rank `rank`'s buffer, before it is rounded to the buffer's type: of
 * either sign, over 2^12, so that the order of a sum shows in its bits; sometimes a zero of either
 * sign. */
UNWATCHED static inline float value_of(uint64_t seed, uint32_t rank, uint64_t index)
{
    const uint64_t word = value_mix(seed * 1000003 + rank * UINT64_C(0x9E3779B97F4A7C15) + index);
    const float sign = (word & 1) != 0 ? -1.0f : 1.0f;
    if ((word & 0xfe) == 0) {
        return sign * 0.0f;
    }
    const float mantissa = 1.0f + (float)((word >> 8) & 0x7fffff) / 8388608.0f;
    return sign * ldexpf(mantissa, (int)((word >> 40) % 12) - 6);
}

/* To nearest even at `digits` binary digits, the last of weight 2^low or more. */
UNWATCHED static inline double value_round(double value, int digits, int low)
{
    int exponent = 0;
    (void)frexp(value, &exponent);
    const int unit = exponent - digits > low ? exponent - digits : low;
    return ldexp(nearbyint(ldexp(value, -unit)), unit);
}

UNWATCHED static inline uint32_t value_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

UNWATCHED static inline uint32_t value_f16_bits(double rounded)
{
    const uint32_t sign = signbit(rounded) ? 0x8000 : 0;
    const double size = fabs(rounded);
    if (size >= 65536.0) {
        return sign | 0x7c00;
    }
    if (size < 0x1p-14) {
        return sign | (uint32_t)(size * 0x1p24);
    }
    int exponent = 0;
    const double fraction = frexp(size, &exponent);
    return sign | ((uint32_t)(exponent + 14) << 10) | ((uint32_t)(fraction * 2048.0) - 1024);
}

/* `value`, rounded once to a type: its bits. */
UNWATCHED static inline uint32_t value_to_bits(zero_dtype dtype, float value)
{
    if (dtype == ZERO_DTYPE_F32) {
        return value_f32_bits(value);
    }
    if (dtype == ZERO_DTYPE_BF16) {
        return value_f32_bits((float)value_round((double)value, 8, -133)) >> 16;
    }
    return value_f16_bits(value_round((double)value, 11, -24));
}

UNWATCHED static inline float value_from_bits(zero_dtype dtype, uint32_t bits)
{
    if (dtype != ZERO_DTYPE_F16) {
        const uint32_t wide = dtype == ZERO_DTYPE_BF16 ? bits << 16 : bits;
        float value = 0;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    const uint32_t exponent = (bits >> 10) & 31;
    const double fraction = (double)(bits & 1023);
    const double size =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024.0 + fraction, (int)exponent - 25);
    return (bits & 0x8000) != 0 ? (float)-size : (float)size;
}

/* Store `value`, rounded once, as element `index` of `array`. */
static inline void value_store(void *array, zero_dtype dtype, uint64_t index, float value)
{
    if (dtype == ZERO_DTYPE_F32) {
        ((float *)array)[index] = value;
    } else {
        ((uint16_t *)array)[index] = (uint16_t)value_to_bits(dtype, value);
    }
}

static inline float value_load(const void *array, zero_dtype dtype, uint64_t index)
{
    if (dtype == ZERO_DTYPE_F32) {
        return ((const float *)array)[index];
    }
    return value_from_bits(dtype, ((const uint16_t *)array)[index]);
}

/* value_of as a buffer of type `dtype` holds it. */
UNWATCHED static inline float value_held(uint64_t seed, uint32_t rank, uint64_t index,
                                         zero_dtype dtype)
{
    return value_from_bits(dtype, value_to_bits(dtype, value_of(seed, rank, index)));
}

#endif
