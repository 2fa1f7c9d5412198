/* Elements in codes of 8 bits and a scale for each block (core/block_codec.h).
 *
 * MXFP8: the scale is the least power of two with which the block's greatest magnitude is at most
 * 448, as in Transformer Engine and cuBLAS, which round it up (RCEIL): no value is beyond the
 * greatest code. Values are divided by it exactly and rounded to nearest even. So one of at least
 * 0x1.f8p127 becomes 2^128, which is infinite in fp32, as bfloat16 makes it of some.
 *
 * INT8_BLOCK: the scale is the greatest magnitude, rounded to nearest. It may be less than that by
 * half a step of bfloat16, 1/256 of itself at most, so that codes reach 127.496, which is 127. So
 * the greatest magnitude always has the code 127, and what was decoded gets the same codes again;
 * of a scale that is rounded up it would be 126 at times, and smaller each time. A code is the
 * value times the gain, 127 / scale rounded once; the product is rounded once more, to the code,
 * by a fused addition. It is the nearest code but within 2^-16 of the middle between two. A block
 * below 2^-119 becomes one of zeros: so gains are finite, and steps normal numbers.
 *
 * A block with an infinity or a NaN gets a scale of NaN, which all its elements then are. Beside
 * one division for each block all arithmetic is on integers, by powers of two, or fused by name, so
 * that no compiler may make other bits of it. */
#ifndef ZI_KERNELS_MATH_BLOCK_H
#define ZI_KERNELS_MATH_BLOCK_H

#include <math.h>
#include <stdint.h>

#include "core/block_codec.h"
#include "core/lane.h"
#include "kernels/math/code.h"
#include "kernels/math/convert.h"
#include "zero/dtype.h"

/* Of MXFP8's scales: the bias of the exponent, and a NaN. */
#define ZI_E8M0_BIAS 127
#define ZI_E8M0_NAN UINT32_C(0xff)
/* Without a sign. */
#define ZI_E4M3_NAN UINT32_C(0x7f)
/* From the exponent bias of fp32 (127) to that of E4M3 (7), in place. */
#define ZI_E4M3_REBIAS (UINT32_C(120) << 23)
/* Fp32 bits of 2^-6, the least normal number, and of 2^14, whose last place is 2^-9: the step of
 * those below it. */
#define ZI_E4M3_NORMAL_MIN UINT32_C(0x3c800000)
#define ZI_E4M3_SUBNORMAL_BASE UINT32_C(0x46800000)

#define ZI_BF16_NAN UINT32_C(0x7fc0)
/* Fp32 bits of 2^-119, and of 1.5 * 2^23: in its power of two the last place is 1. */
#define ZI_INT8_BLOCK_MIN UINT32_C(0x04000000)
#define ZI_INT8_BASE UINT32_C(0x4b400000)

ZI_LANE uint32_t zi_mxfp8_scale(uint32_t most)
{
    /* 448 is 1.75 * 2^8. A greater fraction carries into the exponent. */
    const uint32_t exponent = (most + UINT32_C(0x1fffff)) >> 23;
    const uint32_t finite = exponent < 8 ? 0 : exponent - 8;
    return most >= ZI_F32_INF ? ZI_E8M0_NAN : finite;
}

ZI_LANE uint32_t zi_int8_scale(uint32_t most)
{
    const uint32_t nearest = zi_bf16_from_result(zi_f32_from_bits(most));
    const uint32_t finite = nearest < ZI_BF16_FINITE_MAX ? nearest : ZI_BF16_FINITE_MAX;
    return most >= ZI_F32_INF ? ZI_BF16_NAN : most < ZI_INT8_BLOCK_MIN ? 0 : finite;
}

/* The scale of a block. most: fp32 bits of its greatest magnitude; of a NaN they are greater than
 * those of any number. dtype: a constant wherever this is inlined, as in what follows. */
ZI_LANE uint32_t zi_block_scale(zero_dtype dtype, uint32_t most)
{
    return dtype == ZERO_DTYPE_MXFP8 ? zi_mxfp8_scale(most) : zi_int8_scale(most);
}

/* How values of a block become codes. */
typedef struct zi_block_encoder {
    float gain;     /* by which they are multiplied */
    uint32_t fixed; /* all ones where codes have nothing of the values but signs; else 0 */
} zi_block_encoder;

ZI_LANE zi_block_encoder zi_block_encoder_of(zero_dtype dtype, uint32_t scale)
{
    zi_block_encoder encoder;
    if (dtype == ZERO_DTYPE_MXFP8) {
        encoder.fixed = scale == ZI_E8M0_NAN ? UINT32_MAX : 0;
        encoder.gain = zi_f32_from_bits((2 * ZI_E8M0_BIAS - scale) << 23 & ~encoder.fixed);
    } else {
        encoder.fixed = scale == 0 || scale == ZI_BF16_NAN ? UINT32_MAX : 0;
        encoder.gain = zi_code_gain(ZERO_DTYPE_I8, (uint16_t)scale);
    }
    return encoder;
}

/* bits: of a number whose magnitude is at most 448. */
ZI_LANE uint32_t zi_e4m3_magnitude(uint32_t bits)
{
    const uint32_t magnitude = bits & ZI_F32_MAGNITUDE;
    const uint32_t normal =
        (magnitude + UINT32_C(0x7ffff) + ((magnitude >> 20) & 1) - ZI_E4M3_REBIAS) >> 20;
    /* The adder rounds to the subnormals' grid. */
    const uint32_t subnormal =
        zi_f32_bits(zi_f32_from_bits(magnitude) + zi_f32_from_bits(ZI_E4M3_SUBNORMAL_BASE)) -
        ZI_E4M3_SUBNORMAL_BASE;
    return zi_select_u32(magnitude < ZI_E4M3_NORMAL_MIN, subnormal, normal);
}

/* The code of a value. In a block that is NaN those of MXFP8 are NaN too. */
ZI_LANE uint32_t zi_block_code(zero_dtype dtype, float value, zi_block_encoder encoder)
{
    if (dtype == ZERO_DTYPE_MXFP8) {
        const uint32_t magnitude = zi_e4m3_magnitude(zi_f32_bits(value * encoder.gain));
        const uint32_t sign = zi_f32_bits(value) >> 24 & ZI_CODE_SIGN;
        return sign | ((magnitude | encoder.fixed) & ZI_E4M3_NAN);
    }
    const float base = zi_f32_from_bits(ZI_INT8_BASE);
    return zi_f32_bits(fmaf(value, encoder.gain, base)) & ~encoder.fixed & UINT32_C(0xff);
}

/* By which a block's codes are multiplied, one after the other. A power of two may be no normal
 * number; these two are. */
typedef struct zi_block_decoder {
    float step;
    float rest; /* 1 in INT8_BLOCK */
} zi_block_decoder;

ZI_LANE zi_block_decoder zi_block_decoder_of(zero_dtype dtype, uint32_t scale)
{
    zi_block_decoder decoder;
    if (dtype == ZERO_DTYPE_MXFP8) {
        const uint32_t half = scale / 2;
        const uint32_t nan = scale == ZI_E8M0_NAN ? UINT32_C(0x7fc00000) : 0;
        /* Their exponents are half - 63 and scale - half - 64. */
        decoder.step = zi_f32_from_bits((half + 64) << 23);
        decoder.rest = zi_f32_from_bits((scale - half + 63) << 23 | nan);
    } else {
        decoder.step = zi_code_step(ZERO_DTYPE_I8, (uint16_t)scale);
        decoder.rest = 1.0f;
    }
    return decoder;
}

ZI_LANE float zi_f32_from_e4m3(uint32_t code)
{
    const uint32_t shifted = (code & ZI_E4M3_NAN) << 20;
    const uint32_t normal = shifted + ZI_E4M3_REBIAS;
    /* A subnormal's bits are put under the exponent of 2^-6, which is then subtracted: exact. */
    const float raised = zi_f32_from_bits(shifted + ZI_E4M3_NORMAL_MIN);
    const uint32_t subnormal = zi_f32_bits(raised - zi_f32_from_bits(ZI_E4M3_NORMAL_MIN));
    const uint32_t number = zi_select_u32(shifted < UINT32_C(0x800000), subnormal, normal);
    const uint32_t nan = shifted == ZI_E4M3_NAN << 20 ? UINT32_C(0x7fc00000) : 0;
    return zi_f32_from_bits((code & ZI_CODE_SIGN) << 24 | number | nan);
}

/* The value of a code. */
ZI_LANE float zi_block_value(zero_dtype dtype, uint32_t code, zi_block_decoder decoder)
{
    if (dtype == ZERO_DTYPE_MXFP8) {
        return zi_f32_from_e4m3(code) * decoder.step * decoder.rest;
    }
    return zi_code_value(ZERO_DTYPE_I8, code, decoder.step);
}

#endif
