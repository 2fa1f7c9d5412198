/* Lane functions in fewer operations, for arguments that are usual.
 *
 * Square roots and quotients without a branch, correctly rounded.
 *
 * nvcc makes of each sqrtf and each division an approximation, fused operations that correct it,
 * and a branch to a long way for arguments near the ends of fp32's range. A branch for every
 * element lets no two elements be computed side by side. Here the same operations are made for all
 * elements of a lane, and whoever calls asks once whether all arguments were usual; if not, he
 * computes again with sqrtf and `/`.
 *
 * The corrections give the rounded result whatever the arguments' exponents are, as long as nothing
 * on the way is subnormal or overflows. Subnormal arguments are what moments come to that see no
 * gradient for long, so arguments are scaled by a power of two, which is exact, and results back.
 */
#ifndef ZI_KERNELS_CUDA_QUICK_H
#define ZI_KERNELS_CUDA_QUICK_H

#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/float_bits.h"
#include "kernels/math/remainder.h"

/* The bits of 2^exponent, for a normal fp32. */
#define ZI_POWER_BITS(exponent) ((uint32_t)(127 + (exponent)) << 23)

/* A square root, where `usual` is not 0. Zero and subnormal arguments are usual. */
ZI_LANE float zi_quick_sqrt(float x, int *usual)
{
    *usual &= zi_f32_bits(x) < ZI_POWER_BITS(60); /* nor are negative ones and NaN */
#if defined(__CUDA_ARCH__)
    const float scaled = x * 0x1p64f;
    float inverse;
    /* Of 0 too something finite is made, which then gives 0. */
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(fmaxf(scaled, 0x1p-126f)));
    const float root = scaled * inverse;
    return fmaf(fmaf(-root, root, scaled), 0.5f * inverse, root) * 0x1p-32f;
#else
    return sqrtf(x);
#endif
}

/* True if bits are those of a positive value in [2^low, 2^high). */
#define ZI_IS_BETWEEN(bits, low, high) \
    ((bits)-ZI_POWER_BITS(low) < ZI_POWER_BITS(high) - ZI_POWER_BITS(low))

/* A quotient that is +0 or whose magnitude is in [2^-124, 2^36), by a divisor in [2^-60, 2^20):
 * others are not usual. */
ZI_LANE float zi_quick_quotient(float a, float b, int *usual)
{
#if defined(__CUDA_ARCH__)
    const float scaled = a * 0x1p64f;
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    inverse = fmaf(inverse, fmaf(-b, inverse, 1.0f), inverse);
    const float rough = scaled * inverse;
    const float quotient = fmaf(inverse, fmaf(-b, rough, scaled), rough) * 0x1p-64f;
#else
    const float quotient = a / b;
#endif
    const uint32_t magnitude = zi_f32_bits(quotient) & UINT32_C(0x7fffffff);
    const uint32_t in_range =
        (uint32_t)ZI_IS_BETWEEN(magnitude, -124, 36) | (uint32_t)(zi_f32_bits(a) == 0);
    *usual &= (int)(in_range & (uint32_t)ZI_IS_BETWEEN(zi_f32_bits(b), -60, 20));
    return quotient;
}

/* The splits of values below this one in magnitude are usual. */
#define ZI_QUICK_SPLIT_END 0x1.fffep127f

ZI_LANE zi_split zi_quick_split16(float value)
{
    const uint32_t bits = zi_f32_bits(value);
    zi_split split;
    split.param = (bits + UINT32_C(0x8000)) >> 16;
    split.rest = bits & UINT32_C(0xffff);
    return split;
}

ZI_LANE zi_split zi_quick_split8(float value, uint32_t random)
{
    const uint32_t bits = zi_f32_bits(value) + (random >> 8);
    zi_split split;
    split.param = (bits + UINT32_C(0x8000)) >> 16;
    split.rest = bits >> 8 & UINT32_C(0xff);
    return split;
}

#endif
