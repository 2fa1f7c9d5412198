/* Lane functions of normal values (Box and Muller, "A note on the generation of random normal
 * deviates", 1958): a logarithm, a sine and a cosine to a few units of a double's last place, of
 * operations that are rounded correctly, so that all machines have the same bits. */
#ifndef ZI_KERNELS_MATH_NORMAL_H
#define ZI_KERNELS_MATH_NORMAL_H

#include "core/rng.h"
#include "kernels/math/float_bits.h"

/* The bits of 2^52, to which a small integer is added by adding its bits. */
#define ZI_F64_UNITS UINT64_C(0x4330000000000000)

/* A number of (0, 1) from a random word: 24 bits and a half, so that neither end is met. */
ZI_LANE double zi_unit_open(uint32_t word)
{
    return ((double)(int32_t)(word >> 8) + 0.5) * 0x1p-24;
}

/* ln(x) of a normal x. It is 2 atanh(f) + e ln(2) for x = m 2^e, f = (m - 1) / (m + 1) and m in
 * [sqrt(1/2), sqrt(2)). The series' terms after f^21 are below 2^-60 of it. */
ZI_LANE double zi_log(double x)
{
    const uint64_t to_half_root = UINT64_C(0x3ff0000000000000) - UINT64_C(0x3fe6a09e667f3bcd);
    const uint64_t exponent = (zi_f64_bits(x) + to_half_root) >> 52; /* biased */
    const double m = zi_f64_from_bits(zi_f64_bits(x) - ((exponent - 1023) << 52));
    const double e = zi_f64_from_bits(ZI_F64_UNITS | exponent) - (0x1p52 + 1023.0);
    const double f = (m - 1.0) / (m + 1.0);
    const double s = f * f;
    double series = 1.0 / 21.0;
    series = series * s + 1.0 / 19.0;
    series = series * s + 1.0 / 17.0;
    series = series * s + 1.0 / 15.0;
    series = series * s + 1.0 / 13.0;
    series = series * s + 1.0 / 11.0;
    series = series * s + 1.0 / 9.0;
    series = series * s + 1.0 / 7.0;
    series = series * s + 1.0 / 5.0;
    series = series * s + 1.0 / 3.0;
    return e * 0.6931471805599453 + (f + f + (f + f) * (series * s));
}

typedef struct zi_circle {
    double cosine;
    double sine;
} zi_circle;

/* Cosine and sine of a part of a whole turn, in [0, 1). The nearest quarter is taken off, which is
 * exact, and Taylor's series have the rest, within an eighth of a turn. */
ZI_LANE zi_circle zi_circle_at(double turn)
{
    const double rounded = turn * 4.0 + 0x1p52;
    const uint64_t quarter = zi_f64_bits(rounded) - ZI_F64_UNITS;
    const double angle = (turn * 4.0 - (rounded - 0x1p52)) * 1.5707963267948966;
    const double s = angle * angle;
    double odd = -1.0 / 1307674368000.0;
    odd = odd * s + 1.0 / 6227020800.0;
    odd = odd * s - 1.0 / 39916800.0;
    odd = odd * s + 1.0 / 362880.0;
    odd = odd * s - 1.0 / 5040.0;
    odd = odd * s + 1.0 / 120.0;
    odd = odd * s - 1.0 / 6.0;
    double even = 1.0 / 20922789888000.0;
    even = even * s - 1.0 / 87178291200.0;
    even = even * s + 1.0 / 479001600.0;
    even = even * s - 1.0 / 3628800.0;
    even = even * s + 1.0 / 40320.0;
    even = even * s - 1.0 / 720.0;
    even = even * s + 1.0 / 24.0;
    even = even * s - 0.5;
    const uint64_t sine = zi_f64_bits(angle + angle * (odd * s));
    const uint64_t cosine = zi_f64_bits(1.0 + even * s);
    /* A quarter turn takes (c, d) to (-d, c). */
    const uint64_t swap = (sine ^ cosine) & (0 - (quarter & 1));
    const zi_circle at = {zi_f64_from_bits((cosine ^ swap) ^ ((quarter + 1) / 2 % 2 << 63)),
                          zi_f64_from_bits((sine ^ swap) ^ (quarter / 2 % 2 << 63))};
    return at;
}

#endif
