/* Moments in 8-bit codes: blocks of ZERO_CODE_BLOCK neighbouring elements with one bf16 scale.
 *
 * The scale is the block's greatest magnitude, rounded up, so that no value is beyond it. A code
 * is the upper bits of an fp32 number, the level: the measure of a value, which is its magnitude or
 * its root, times the block's gain, added to a base. Where a base and the levels above it are in
 * one power of two, codes are linear in the measure (I8, U8_ROOT); those of COMPANDED8 go through
 * four, of 32 levels each and twice as far apart as those before, as in ITU-T G.711. Linear in
 * its root is what an update divides by, and steps that grow suit what is near 0 most of the time.
 *
 * Rounding goes by at least 15 random bits. To nearest, a moment that changes by less than half a
 * step at a time would stay for ever, as a second moment with beta2 = 0.999 does, which falls by a
 * thousandth a step. A second moment that is not 0 never gets the code 0: an element beside a far
 * greater one then moves by less than it should, and not by far more.
 *
 * A block of zeros has the scale 0. What is not finite becomes the greatest code.
 *
 * INT4_BLOCK is no moment's: packed sums of gradients (packed.h) have codes as I8 and its, of 4
 * bits and linear as well. */
#ifndef ZI_KERNELS_MATH_CODE_H
#define ZI_KERNELS_MATH_CODE_H

#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/convert.h"
#include "zero/dtype.h"

#define ZI_BF16_FINITE_MAX UINT32_C(0x7f7f)
#define ZI_F32_FINITE_MAX 0x1.fffffep127f
/* Of COMPANDED8. */
#define ZI_CODE_SIGN UINT32_C(0x80)
#define ZI_CODE_LEVELS UINT32_C(0x7f)
/* Of INT4_BLOCK. */
#define ZI_INT4_BITS UINT32_C(0xf)
#define ZI_INT4_SIGN UINT32_C(0x8)

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

/* The level of a value of 0, whose code is 0. dtype: a constant wherever this is inlined, as in
 * what follows. */
ZI_LANE float zi_code_base(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_U8_ROOT      ? 256.0f
           : dtype == ZERO_DTYPE_I8         ? 128.0f
           : dtype == ZERO_DTYPE_INT4_BLOCK ? 8.0f
                                            : 2.0f;
}

/* By how much the level of the greatest code is above it. */
ZI_LANE float zi_code_span(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_U8_ROOT      ? 255.0f
           : dtype == ZERO_DTYPE_I8         ? 127.0f
           : dtype == ZERO_DTYPE_INT4_BLOCK ? 7.0f
                                            : 29.5f;
}

/* Bits of a level behind its code. */
ZI_LANE uint32_t zi_code_shift(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_U8_ROOT      ? 15
           : dtype == ZERO_DTYPE_I8         ? 16
           : dtype == ZERO_DTYPE_INT4_BLOCK ? 20
                                            : 18;
}

/* The bits that a code is rounded by, of a random word. A second moment's upper 15 and a first's
 * lower 18 share one, which is the last of the second's. */
ZI_LANE uint32_t zi_code_random(zero_dtype dtype, uint32_t word)
{
    const uint32_t shift = zi_code_shift(dtype);
    return dtype == ZERO_DTYPE_U8_ROOT ? word >> (32 - shift) : word & ((UINT32_C(1) << shift) - 1);
}

/* In place of them: rounds to nearest. */
ZI_LANE uint32_t zi_code_nearest(zero_dtype dtype)
{
    return UINT32_C(1) << (zi_code_shift(dtype) - 1);
}

/* By which a block's codes are multiplied. */
ZI_LANE float zi_code_step(zero_dtype dtype, uint16_t scale)
{
    const float span = zi_code_span(dtype);
    return zi_f32_from_bf16(scale) / (dtype == ZERO_DTYPE_U8_ROOT ? span * span : span);
}

/* By which the measures of its values are. It ends at the greatest finite number, so the codes of
 * I8 and COMPANDED8 in a block below 2^-121 are smaller than they could be. */
ZI_LANE float zi_code_gain(zero_dtype dtype, uint16_t scale)
{
    const float whole = zi_f32_from_bf16(scale);
    const float gain = zi_code_span(dtype) / (dtype == ZERO_DTYPE_U8_ROOT ? sqrtf(whole) : whole);
    return gain < ZI_F32_FINITE_MAX ? gain : ZI_F32_FINITE_MAX;
}

/* A code in steps. */
ZI_LANE float zi_code_steps(zero_dtype dtype, uint32_t code)
{
    if (dtype == ZERO_DTYPE_I8) {
        return (float)(int8_t)code;
    }
    if (dtype == ZERO_DTYPE_INT4_BLOCK) {
        return (float)((int32_t)((code & ZI_INT4_BITS) ^ ZI_INT4_SIGN) - (int32_t)ZI_INT4_SIGN);
    }
    if (dtype == ZERO_DTYPE_U8_ROOT) {
        const float root = (float)(int32_t)code;
        return root * root;
    }
    const float base = zi_code_base(dtype);
    const float above =
        zi_f32_from_bits(zi_f32_bits(base) | (code & ZI_CODE_LEVELS) << zi_code_shift(dtype)) -
        base;
    return zi_f32_from_bits(zi_f32_bits(above) | (code & ZI_CODE_SIGN) << 24);
}

/* The value of a code; step: of its block. */
ZI_LANE float zi_code_value(zero_dtype dtype, uint32_t code, float step)
{
    return zi_code_steps(dtype, code) * step;
}

/* A value's measure: its magnitude, or the root of that. */
ZI_LANE float zi_code_measure(zero_dtype dtype, float value)
{
    const float magnitude = fabsf(value);
    return dtype == ZERO_DTYPE_U8_ROOT ? sqrtf(magnitude) : magnitude;
}

/* The code of a value, in the lower 8 or 4 bits: others are of nothing particular. measure: its
 * zi_code_measure; gain: of its block; random: of zi_code_random. */
ZI_LANE uint32_t zi_code_word(zero_dtype dtype, float value, float measure, float gain,
                              uint32_t random)
{
    const uint32_t shift = zi_code_shift(dtype);
    const uint32_t level = zi_f32_bits(fmaf(measure, gain, zi_code_base(dtype)));
    const uint32_t most = zi_f32_bits(zi_code_base(dtype) + zi_code_span(dtype));
    /* As integers, so that a NaN is beyond it too. */
    const uint32_t within = level < most ? level : most;
    const uint32_t code = (within + random) >> shift;
    if (dtype == ZERO_DTYPE_U8_ROOT) {
        const uint32_t least = (zi_f32_bits(zi_code_base(dtype)) >> shift) + (measure != 0.0f);
        return code < least ? least : code;
    }
    if (dtype == ZERO_DTYPE_I8 || dtype == ZERO_DTYPE_INT4_BLOCK) {
        return value < 0.0f ? 0 - code : code;
    }
    return code | (zi_f32_bits(value) >> 24 & ZI_CODE_SIGN);
}

ZI_LANE uint8_t zi_code_of(zero_dtype dtype, float value, float measure, float gain,
                           uint32_t random)
{
    return (uint8_t)zi_code_word(dtype, value, measure, gain, random);
}

#endif
