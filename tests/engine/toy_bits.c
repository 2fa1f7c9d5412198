/* Owns the toy's conversions of binary16, written without the library's so that the two check each
 * other. Rounding is to nearest even. */
#include "toy_bits.h"

#include <math.h>

UNWATCHED float toy_decode_f16(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31);
    const float fraction = (float)(bits & 1023);
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return toy_float_of((bits & 0x8000) << 16 | 0x7f800000 | (bits & 1023) << 13);
    }
    return exponent == 0 ? sign * ldexpf(fraction, -24)
                         : sign * ldexpf(fraction + 1024.0f, exponent - 25);
}

UNWATCHED uint32_t toy_encode_f16(float value)
{
    const uint32_t sign = toy_bits_of(value) >> 16 & 0x8000;
    if (isnan(value)) {
        return sign | 0x7e00;
    }
    const double size = fabs((double)value);
    if (size >= 65520.0) {
        return sign | 0x7c00;
    }
    /* The spacing of binary16 around `size`; the smallest is that of subnormals. */
    const int exponent = size < 0x1p-14 ? -14 : ilogb(size);
    const double steps = nearbyint(ldexp(size, 10 - exponent));
    /* Rounding up to the next power of two carries into the exponent, as it should. */
    return sign | (uint32_t)((exponent + 14) * 1024 + (int)steps);
}
