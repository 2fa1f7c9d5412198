/* A sum of squares whose bits do not depend on the order or the split of the addition.
 *
 * Squares of ZI_NORM_CHUNK neighbouring elements are added in double in one fixed order; the
 * chunk's total is then added exactly to a wide fixed-point number. Exact addition commutes, so
 * ranks, threads and devices may take chunks in any order (after Kulisch, "Computer arithmetic and
 * validity", long accumulator). Limb k holds bits of weight 2^(32 k
 * - 320) and up, in 32 bits plus space for 2^32 carries. */
#ifndef ZI_KERNELS_MATH_NORM_H
#define ZI_KERNELS_MATH_NORM_H

#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/float_bits.h"

#define ZI_NORM_CHUNK 64
#define ZI_NORM_LIMBS 20
#define ZI_NORM_LOW_EXPONENT 320
/* Exponent bits of a double whose last place is bit 0 of the first limb. */
#define ZI_NORM_LOWEST (UINT32_C(1075) - ZI_NORM_LOW_EXPONENT)

/* Lanes of a chunk: element i is added to lane i % 8, in ascending order, then the lanes in a tree.
 */
#define ZI_NORM_LANES 8

typedef struct zi_norm_sum {
    uint64_t limb[ZI_NORM_LIMBS];
    uint64_t infinite_chunks; /* chunks whose total is infinite */
    uint64_t nan_chunks;      /* chunks whose total is NaN */
} zi_norm_sum;

/* The sum of the squares of ZI_NORM_CHUNK elements; a shorter chunk is filled up with zeros, which
 * changes no bit. A square of an fp32 value is exact in double, so contraction could not show. */
ZI_LANE double zi_norm_chunk(const float *values)
{
    double lane[ZI_NORM_LANES];
    for (int i = 0; i < ZI_NORM_LANES; i++) {
        lane[i] = (double)values[i] * (double)values[i];
    }
    for (int row = ZI_NORM_LANES; row < ZI_NORM_CHUNK; row += ZI_NORM_LANES) {
        for (int i = 0; i < ZI_NORM_LANES; i++) {
            const double value = (double)values[row + i];
            lane[i] += value * value;
        }
    }
    for (int half = ZI_NORM_LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    return lane[0];
}

/* Move carries up until every limb has 32 bits: one number has one form. */
ZI_LANE void zi_norm_normalise(zi_norm_sum *sum)
{
    uint64_t carry = 0;
    for (int i = 0; i < ZI_NORM_LIMBS; i++) {
        const uint64_t limb = sum->limb[i] + carry;
        sum->limb[i] = limb & UINT32_MAX;
        carry = limb >> 32;
    }
}

/* Add value 2^(place - ZI_NORM_LOW_EXPONENT), exactly: as one addition of those below. */
ZI_LANE void zi_norm_add_at(zi_norm_sum *sum, uint64_t value, uint32_t place)
{
    const uint32_t first = place / 32;
    const uint32_t shift = place % 32;
    const uint64_t low = (value & UINT32_MAX) << shift;
    const uint64_t high = (value >> 32) << shift;
    sum->limb[first] += low & UINT32_MAX;
    sum->limb[first + 1] += (low >> 32) + (high & UINT32_MAX);
    sum->limb[first + 2] += high >> 32;
}

/* Add a chunk's total, exactly. total: of zi_norm_chunk, so 0, in [2^-298, 2^262], inf or NaN. At
 * most ZI_NORM_ADDITIONS_MAX additions to a normalised sum before it is normalised again. */
#define ZI_NORM_ADDITIONS_MAX (UINT64_C(1) << 30)
ZI_LANE void zi_norm_add(zi_norm_sum *sum, double total)
{
    const uint64_t bits = zi_f64_bits(total);
    const uint32_t exponent = (uint32_t)(bits >> 52) & UINT32_C(0x7ff);
    const uint64_t fraction = bits & UINT64_C(0xfffffffffffff);
    if (exponent == UINT32_C(0x7ff)) {
        sum->infinite_chunks += fraction == 0;
        sum->nan_chunks += fraction != 0;
        return;
    }
    if (exponent == 0) {
        return;
    }
    /* total = mantissa 2^(exponent - 1075). What would fall below the first limb is zero, for
     * squares of fp32 are multiples of 2^-298. */
    const uint32_t under = exponent < ZI_NORM_LOWEST ? ZI_NORM_LOWEST - exponent : 0;
    zi_norm_add_at(sum, (fraction | UINT64_C(0x10000000000000)) >> under,
                   exponent + under - ZI_NORM_LOWEST);
}

/* sum += other, exactly. Both may have carries waiting; the result has none. */
ZI_LANE void zi_norm_merge(zi_norm_sum *sum, const zi_norm_sum *other)
{
    uint64_t carry = 0;
    for (int i = 0; i < ZI_NORM_LIMBS; i++) {
        /* Halves apart, since two full limbs need not fit in 64 bits. */
        const uint64_t low = (sum->limb[i] & UINT32_MAX) + (other->limb[i] & UINT32_MAX) + carry;
        carry = (sum->limb[i] >> 32) + (other->limb[i] >> 32) + (low >> 32);
        sum->limb[i] = low & UINT32_MAX;
    }
    sum->infinite_chunks += other->infinite_chunks;
    sum->nan_chunks += other->nan_chunks;
}

/* The sum rounded once to the nearest double; NaN if any chunk was, else inf if any chunk was. */
ZI_LANE double zi_norm_value(const zi_norm_sum *sum)
{
    if (sum->nan_chunks != 0) {
        return (double)NAN;
    }
    if (sum->infinite_chunks != 0) {
        return (double)INFINITY;
    }
    zi_norm_sum plain = *sum;
    zi_norm_normalise(&plain);
    int top = ZI_NORM_LIMBS - 1;
    while (top > 0 && plain.limb[top] == 0) {
        top--;
    }
    if (plain.limb[top] == 0) {
        return 0.0;
    }
    /* The upper 64 bits from the first one that is set, the last of them sticky for all below: 11
     * more than a double has, so that the conversion rounds the whole sum once. */
    const uint64_t third = top >= 2 ? plain.limb[top - 2] : 0;
    uint64_t upper = (plain.limb[top] << 32) | (top >= 1 ? plain.limb[top - 1] : 0);
    int shift = 0;
    while ((upper >> 63) == 0) {
        upper <<= 1;
        shift++;
    }
    upper |= third >> (32 - shift);
    uint64_t below = (third << shift) & UINT32_MAX;
    for (int i = 0; i < top - 2; i++) {
        below |= plain.limb[i];
    }
    upper |= below != 0;
    const int exponent = 32 * (top - 1) - ZI_NORM_LOW_EXPONENT - shift;
    return ldexp((double)upper, exponent);
}

#endif
