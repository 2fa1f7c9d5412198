/* A master as the bf16 parameter that callers compute with, and the bits that are left of it.
 *
 * The parameter is the master rounded to the nearest bfloat16, and away from zero where two are
 * equally near; a cast to nearest even takes the even one of those. Half of one up is what makes
 * the remainder a signed number of 16 bits and the pair one to one: of the even rule one value in
 * 65536 has no pair of its own.
 *
 * With 8 bits the master is a float of 24 bits, which an update rounds to stochastically: to
 * nearest, updates below half of its step would be lost again and again. */
#ifndef ZI_KERNELS_MATH_REMAINDER_H
#define ZI_KERNELS_MATH_REMAINDER_H

#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/convert.h"

/* For zi_split8: rounds to nearest, ties away from zero. */
#define ZI_SPLIT_NEAREST UINT32_C(0x8000)

/* In 32 bits each, for loops that have such elements everywhere. */
typedef struct zi_split {
    uint32_t param; /* 16 bits */
    uint32_t rest;  /* 16 bits, of REMAINDER8 8 */
} zi_split;

/* Fp32 bits, with a NaN whose upper half alone is one. */
ZI_LANE uint32_t zi_split_bits(float value)
{
    const uint32_t bits = zi_f32_bits(value);
    return zi_select_u32(value == value, bits, (bits | UINT32_C(0x400000)) & UINT32_C(0xffff0000));
}

/* The same of a value that arithmetic has left, whose NaN are quiet. */
ZI_LANE uint32_t zi_split_result_bits(float value)
{
    const uint32_t bits = zi_f32_bits(value);
    return value == value ? bits : bits & UINT32_C(0xffff0000);
}

/* Exact: zi_join16 gives the value back, whichever it is but for the other bits of a NaN. */
ZI_LANE zi_split zi_split16_bits(uint32_t bits)
{
    zi_split split;
    split.param = (bits + UINT32_C(0x8000)) >> 16;
    split.rest = bits & UINT32_C(0xffff);
    return split;
}

ZI_LANE zi_split zi_split16(float value)
{
    return zi_split16_bits(zi_split_bits(value));
}

/* Rounds to 24 bits by 16 random ones, of which the upper 8 count. The largest finite value of them
 * is not left. */
ZI_LANE zi_split zi_split8_bits(uint32_t bits, uint32_t random)
{
    const uint32_t finite = (uint32_t)((bits & ZI_F32_MAGNITUDE) < UINT32_C(0x7f7fff00));
    const uint32_t rounded = (bits + zi_select_u32(finite, random >> 8, 0)) >> 8;
    zi_split split;
    split.param = (rounded + UINT32_C(0x80)) >> 8 & UINT32_C(0xffff);
    split.rest = rounded & UINT32_C(0xff);
    return split;
}

ZI_LANE zi_split zi_split8(float value, uint32_t random)
{
    return zi_split8_bits(zi_split_bits(value), random);
}

/* A parameter, in 16 bits, and its remainder as a signed number of fp32's last places. A zero has
 * no split with a negative one, so it stays a zero: one that somebody else has set to zero does not
 * become a NaN.
 */
ZI_LANE float zi_join_signed(uint32_t param, int32_t rest)
{
    const int32_t magnitude = (int32_t)((param & UINT32_C(0x7fff)) << 16) + rest;
    const uint32_t sign = (param & UINT32_C(0x8000)) << 16;
    return zi_f32_from_bits(sign | (uint32_t)(magnitude < 0 ? 0 : magnitude));
}

ZI_LANE float zi_join16(uint32_t param, uint32_t rest)
{
    return zi_join_signed(param, (int16_t)rest);
}

ZI_LANE float zi_join8(uint32_t param, uint32_t rest)
{
    return zi_join_signed(param, (int8_t)rest * 256);
}

#endif
