/* Moments in 8-bit codes: blocks of ZERO_CODE_BLOCK neighbouring elements with one bf16 scale.
 *
 * The scale is the block's greatest magnitude, rounded up, so that no value is beyond it. Codes are
 * linear (I8), or of square roots: the step between two values is then the smaller the nearer they
 * are to 0, and a second moment's code is linear in the root that an update divides by. Both decode
 * by one exact integer product and one multiplication.
 *
 * Rounding goes by 16 random bits. To nearest, a moment that changes by less than half a step at
 * a time would stay for ever, as a second moment with beta2 = 0.999 does, which falls by a
 * thousandth a step. A second moment that is not 0 never gets the code 0: an element beside a far
 * greater one then moves by less than it should, and not by far more.
 *
 * A block of zeros has the scale 0. What is not finite becomes the greatest code. */
#ifndef ZI_KERNELS_MATH_CODE_H
#define ZI_KERNELS_MATH_CODE_H

#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/convert.h"
#include "zero/dtype.h"

/* In place of 16 random bits: rounds to nearest. */
#define ZI_CODE_NEAREST UINT32_C(0x8000)
#define ZI_BF16_FINITE_MAX UINT32_C(0x7f7f)
#define ZI_F32_FINITE_MAX 0x1.fffffep127f

/* The scale of a block. most: fp32 bits of its greatest magnitude. */
ZI_LANE uint16_t zi_code_scale(uint32_t most)
{
    const uint32_t up = (most + UINT32_C(0xffff)) >> 16;
    return (uint16_t)(up < ZI_BF16_FINITE_MAX ? up : ZI_BF16_FINITE_MAX);
}

ZI_LANE uint32_t zi_code_magnitude(float value)
{
    return zi_f32_bits(value) & ZI_F32_MAGNITUDE;
}

/* The greatest code. */
ZI_LANE float zi_code_most(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_U8_ROOT ? 255.0f : 127.0f;
}

/* By which a block's codes are multiplied. */
ZI_LANE float zi_code_step(zero_dtype dtype, uint16_t scale)
{
    const float most = zi_code_most(dtype);
    return zi_f32_from_bf16(scale) / (dtype == ZERO_DTYPE_I8 ? most : most * most);
}

/* By which its values, or their roots, are. That of linear codes ends at the greatest finite
 * number, so those of a block below 2^-121 are smaller than they could be. */
ZI_LANE float zi_code_gain(zero_dtype dtype, uint16_t scale)
{
    const float whole = zi_f32_from_bf16(scale);
    const float gain = zi_code_most(dtype) / (dtype == ZERO_DTYPE_I8 ? whole : sqrtf(whole));
    return gain < ZI_F32_FINITE_MAX ? gain : ZI_F32_FINITE_MAX;
}

/* A code in steps. dtype: a constant wherever this is inlined. */
ZI_LANE float zi_code_steps(zero_dtype dtype, uint8_t code)
{
    const int32_t q = dtype == ZERO_DTYPE_U8_ROOT ? (int32_t)code : (int32_t)(int8_t)code;
    const int32_t magnitude = q < 0 ? -q : q;
    return (float)(dtype == ZERO_DTYPE_I8 ? q : q * magnitude);
}

/* The value of a code; step: of its block. */
ZI_LANE float zi_code_value(zero_dtype dtype, uint8_t code, float step)
{
    return zi_code_steps(dtype, code) * step;
}

/* The measure that a value's code is linear in: its magnitude, or the root of that. */
ZI_LANE float zi_code_measure(zero_dtype dtype, float value)
{
    const float magnitude = fabsf(value);
    return dtype == ZERO_DTYPE_I8 ? magnitude : sqrtf(magnitude);
}

/* The code of a value as a number, which loops vectorise better than a byte. measure: its
 * zi_code_measure; gain: of its block. */
ZI_LANE int32_t zi_code_number(zero_dtype dtype, float value, float measure, float gain,
                               uint32_t random)
{
    const float most = zi_code_most(dtype);
    const float scaled = measure * gain;
    /* As integers, so that a NaN is beyond it too. */
    const float within = zi_f32_from_bits(
        zi_f32_bits(scaled) < zi_f32_bits(most) ? zi_f32_bits(scaled) : zi_f32_bits(most));
    const int32_t q = (int32_t)(within + (float)(int32_t)random * 0x1p-16f);
    if (dtype == ZERO_DTYPE_U8_ROOT) {
        const int32_t least = measure != 0.0f;
        return q < least ? least : q;
    }
    return value < 0.0f ? -q : q;
}

ZI_LANE uint8_t zi_code_of(zero_dtype dtype, float value, float measure, float gain,
                           uint32_t random)
{
    return (uint8_t)zi_code_number(dtype, value, measure, gain, random);
}

#endif
