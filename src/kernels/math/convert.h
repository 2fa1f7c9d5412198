/* Conversions between fp32 and the two 16-bit types, in integer arithmetic that every compiler
 * vectorises. Round to nearest even gives the bits of the hardware's instructions. Stochastic
 * rounding goes up with a probability equal to the part that does not fit.
 *
 * No branches: both sides of every choice are computed and one is selected. */
#ifndef ZI_KERNELS_MATH_CONVERT_H
#define ZI_KERNELS_MATH_CONVERT_H

#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/float_bits.h"

#define ZI_F32_INF UINT32_C(0x7f800000)
#define ZI_F32_MAGNITUDE UINT32_C(0x7fffffff)
#define ZI_BF16_MAX 0x1.fep127f
#define ZI_F16_INF UINT32_C(0x7c00)
#define ZI_F16_MAX UINT32_C(0x7bff)
/* Fp32 bits of 2^-14, the least normal binary16, and of 2^16, the first power beyond its range. */
#define ZI_F16_NORMAL_MIN UINT32_C(0x38800000)
#define ZI_F16_BEYOND UINT32_C(0x47800000)
/* From the exponent bias of fp32 (127) to that of binary16 (15), in place. */
#define ZI_F16_REBIAS (UINT32_C(112) << 23)

/* `chosen` where `condition` is 1, `other` where it is 0. Written with a mask because compilers
 * turn a ?: whose sides contain floating-point work back into a branch. */
ZI_LANE uint32_t zi_select_u32(uint32_t condition, uint32_t chosen, uint32_t other)
{
    const uint32_t mask = UINT32_C(0) - condition;
    return (chosen & mask) | (other & ~mask);
}

/* Fp32 bits of the least magnitudes that round to nearest even to infinity: 65520, and half a step
 * beyond the largest bfloat16. */
#define ZI_F16_OVERFLOW UINT32_C(0x477ff000)
#define ZI_BF16_OVERFLOW UINT32_C(0x7f7f8000)

/* True if a finite value becomes infinite in a type whose least such magnitude is `limit`. */
ZI_LANE uint32_t zi_f32_overflows(float value, uint32_t limit)
{
    const uint32_t magnitude = zi_f32_bits(value) & ZI_F32_MAGNITUDE;
    return (uint32_t)(magnitude >= limit) & (uint32_t)(magnitude < ZI_F32_INF);
}

ZI_LANE float zi_f32_from_bf16(uint16_t value)
{
    return zi_f32_from_bits((uint32_t)value << 16);
}

/* `value` with a quiet NaN in place of a signalling one. */
ZI_LANE float zi_f32_quiet(float value)
{
    return zi_f32_from_bits(zi_f32_bits(value) | (value != value ? UINT32_C(0x400000) : 0));
}

/* Of a value that arithmetic has left: its NaN are quiet, and stay NaN when they are cut off. */
ZI_LANE uint16_t zi_bf16_from_result(float value)
{
    const uint32_t bits = zi_f32_bits(value);
    const uint32_t up = UINT32_C(0x7fff) + ((bits >> 16) & 1);
    return (uint16_t)((bits + zi_select_u32(value == value, up, 0)) >> 16);
}

ZI_LANE uint16_t zi_bf16_from_f32(float value)
{
    return zi_bf16_from_result(zi_f32_quiet(value));
}

ZI_LANE float zi_f32_from_f16(uint16_t value)
{
    const uint32_t sign = ((uint32_t)value & UINT32_C(0x8000)) << 16;
    const uint32_t half = (uint32_t)value & UINT32_C(0x7fff);
    const uint32_t shifted = half << 13;
    const uint32_t normal = shifted + ZI_F16_REBIAS;
    /* A subnormal's bits are put under the exponent of 2^-14, which is then subtracted: exact. */
    const uint32_t subnormal =
        zi_f32_bits(zi_f32_from_bits(shifted + ZI_F16_NORMAL_MIN) - 0x1p-14f);
    const uint32_t special =
        shifted | ZI_F32_INF | (half > ZI_F16_INF ? UINT32_C(0x400000) : UINT32_C(0));
    const uint32_t finite = zi_select_u32(half < UINT32_C(0x400), subnormal, normal);
    return zi_f32_from_bits(sign | (half >= ZI_F16_INF ? special : finite));
}

ZI_LANE uint16_t zi_f16_from_f32(float value)
{
    const uint32_t bits = zi_f32_bits(value);
    const uint32_t sign = (bits >> 16) & UINT32_C(0x8000);
    const uint32_t magnitude = bits & ZI_F32_MAGNITUDE;
    const uint32_t normal =
        (magnitude + UINT32_C(0xfff) + ((magnitude >> 13) & 1) - ZI_F16_REBIAS) >> 13;
    /* Adding 1/2, whose last place is 2^-24, makes the adder round to the subnormals' grid. */
    const uint32_t subnormal =
        zi_f32_bits(zi_f32_from_bits(magnitude) + 0.5f) - UINT32_C(0x3f000000);
    const uint32_t special = magnitude > ZI_F32_INF
                                 ? UINT32_C(0x7e00) | ((magnitude >> 13) & UINT32_C(0x3ff))
                                 : ZI_F16_INF;
    const uint32_t finite = zi_select_u32(magnitude < ZI_F16_NORMAL_MIN, subnormal, normal);
    return (uint16_t)(sign | (magnitude >= ZI_F16_BEYOND ? special : finite));
}

/* Stochastic rounding. `random` is 16 uniform bits. Values of the target type, infinities and NaN
 * (quietened) stay. Between the target's largest value and the next step of its grid there is
 * nothing to go up to: the largest value is taken. From that step on the value overflows. */
ZI_LANE uint16_t zi_bf16_from_result_stochastic(float value, uint32_t random)
{
    const uint32_t up = fabsf(value) < ZI_BF16_MAX ? random : UINT32_C(0);
    return (uint16_t)((zi_f32_bits(value) + up) >> 16);
}

ZI_LANE uint16_t zi_bf16_from_f32_stochastic(float value, uint32_t random)
{
    return zi_bf16_from_result_stochastic(zi_f32_quiet(value), random);
}

/* Normal results drop 13 bits, so the upper 13 random bits decide without bias. A subnormal one may
 * drop more than there are random bits: its probability is rounded to a multiple of 2^-16. */
ZI_LANE uint16_t zi_f16_from_f32_stochastic(float value, uint32_t random)
{
    const uint32_t bits = zi_f32_bits(value);
    const uint32_t sign = (bits >> 16) & UINT32_C(0x8000);
    const uint32_t magnitude = bits & ZI_F32_MAGNITUDE;
    const uint32_t raised = (magnitude + (random >> 3) - ZI_F16_REBIAS) >> 13;
    const uint32_t normal = raised > ZI_F16_MAX ? ZI_F16_MAX : raised;
    /* In 2^-16ths of the subnormals' step; the selection keeps the conversion in range. */
    const float small =
        zi_f32_from_bits(magnitude < ZI_F16_NORMAL_MIN ? magnitude : UINT32_C(0)) * 0x1p40f;
    const uint32_t fixed = (uint32_t)(int32_t)(small + (small < 0x1p23f ? 0.5f : 0.0f));
    const uint32_t subnormal = (fixed + random) >> 16;
    const uint32_t special = magnitude > ZI_F32_INF
                                 ? UINT32_C(0x7e00) | ((magnitude >> 13) & UINT32_C(0x3ff))
                                 : ZI_F16_INF;
    const uint32_t finite = zi_select_u32(magnitude < ZI_F16_NORMAL_MIN, subnormal, normal);
    return (uint16_t)(sign | (magnitude >= ZI_F16_BEYOND ? special : finite));
}

#endif
