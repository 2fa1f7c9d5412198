/* Sums of gradients in packed granules (core/block_codec.h): codes of 8 or 4 bits, and a scale for
 * each ZI_INT8_BLOCK.
 *
 * The scale is the block's greatest magnitude, rounded up to bfloat16, so that no value is beyond
 * the greatest code. Those beyond the greatest bfloat16 become it. A code is the value times the
 * gain, 127 or 7 by the scale, rounded stochastically (code.h): sums of many steps and ranks are
 * added up, and what rounding to nearest loses it may lose in each. The mean of what is decoded is
 * the value, to within 2^-17 of a step and the roundings of gain and step. A block with an infinity
 * or a NaN gets a scale of NaN, which all its elements then are. One below 2^-119 becomes one of
 * zeros, as in block.h.
 *
 * In 4 bits it is the Hadamard transform of each ZI_HADAMARD neighbours that is coded: a value far
 * greater than its neighbours is spread over all of them, and so are errors. It is not normalised:
 * for h = 1, 2, 4, 8 and 16, a and b at a distance of h become a + b and a - b. The transform of
 * the transform is ZI_HADAMARD times the values. So a fold adds up what it decodes, transforms the
 * sum alone, and multiplies it by the inverse of that, which is exact but for subnormal numbers. A
 * sum that overflows makes its block NaN.
 *
 * The random word of an element is a pure function of the fold's key, the element's index in its
 * array and the bits of the value that is coded; blocks and sequences are those of rounding.h. The
 * value is in it so that no count of steps needs to be: a step that is captured once and replayed
 * has one key for ever, and still rounds anew as gradients change. */
#ifndef ZI_KERNELS_MATH_PACKED_H
#define ZI_KERNELS_MATH_PACKED_H

#include <stdint.h>

#include "core/block_codec.h"
#include "core/lane.h"
#include "core/rng.h"
#include "kernels/math/block.h"
#include "kernels/math/code.h"
#include "kernels/math/rounding.h"
#include "zero/dtype.h"

/* Neighbours that are transformed together. */
#define ZI_HADAMARD 32
#define ZI_HADAMARD_INVERSE 0x1p-5f

/* 1 if a fold with a packed type, which one of these is, has a kernel: sums of INT4_BLOCK become
 * numbers. */
ZI_LANE int zi_packed_fold_is_known(zero_dtype dst, zero_dtype source)
{
    const int to_number = dst >= ZERO_DTYPE_F32 && dst <= ZERO_DTYPE_F16;
    const int of_number = source >= ZERO_DTYPE_F32 && source <= ZERO_DTYPE_F16;
    return to_number ? zi_dtype_is_packed(source)
                     : zi_dtype_is_packed(dst) && (of_number || source == ZERO_DTYPE_INT8_BLOCK);
}

/* The codes of a packed type, as code.h calls them. dtype: a constant wherever this is inlined, as
 * in what follows. */
ZI_LANE zero_dtype zi_packed_codes(zero_dtype dtype)
{
    return dtype == ZERO_DTYPE_INT8_BLOCK ? ZERO_DTYPE_I8 : ZERO_DTYPE_INT4_BLOCK;
}

/* The scale of a block. most: fp32 bits of its greatest magnitude; of a NaN they are greater than
 * those of any number. */
ZI_LANE uint32_t zi_packed_scale(uint32_t most)
{
    const uint32_t finite = zi_code_scale(most);
    return most >= ZI_F32_INF ? ZI_BF16_NAN : most < ZI_INT8_BLOCK_MIN ? 0 : finite;
}

/* By which the values of a block are multiplied. In one of zeros 0, so that codes are; in one that
 * is NaN codes have no meaning, and are the same everywhere. */
ZI_LANE float zi_packed_gain(zero_dtype dtype, uint32_t scale)
{
    const float gain = zi_code_gain(zi_packed_codes(dtype), (uint16_t)scale);
    return scale == 0 || scale == ZI_BF16_NAN ? 0.0f : gain;
}

/* By which its codes are. */
ZI_LANE float zi_packed_step(zero_dtype dtype, uint32_t scale)
{
    return zi_code_step(zi_packed_codes(dtype), (uint16_t)scale);
}

/* The words of elements [ZI_ROUNDING_BLOCK block, ZI_ROUNDING_BLOCK (block + 1)) of an array,
 * before their values are in them. */
ZI_LANE zi_rounding_sequence zi_packed_sequence(uint64_t key, uint64_t block)
{
    const zi_philox_words words = zi_philox(key, block, 0);
    zi_rounding_sequence sequence;
    sequence.start = words.word[0];
    sequence.step = words.word[1] | 1;
    return sequence;
}

/* The code of a value, in the lower 8 or 4 bits: others are of nothing particular. at: of
 * zi_rounding_at, for the element. */
ZI_LANE uint32_t zi_packed_code(zero_dtype dtype, float value, float gain, uint32_t at)
{
    const zero_dtype codes = zi_packed_codes(dtype);
    const uint32_t word = zi_rounding_mix(at ^ zi_f32_bits(value));
    return zi_code_word(codes, value, zi_code_measure(codes, value), gain,
                        zi_code_random(codes, word));
}

/* The value of a code; step: of its block. */
ZI_LANE float zi_packed_value(zero_dtype dtype, uint32_t code, float step)
{
    return zi_code_value(zi_packed_codes(dtype), code, step);
}

#endif
