/* Owns the toy's conversions between values and element bits, written without the library's so that
 * the two check each other. Rounding is to nearest even. */
#include "toy.h"

#include <math.h>
#include <string.h>

UNWATCHED static uint32_t float_bits(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

UNWATCHED static float bits_float(uint32_t bits)
{
    float value = 0;
    memcpy(&value, &bits, sizeof value);
    return value;
}

UNWATCHED static float decode_f16(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31);
    const float fraction = (float)(bits & 1023);
    const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return bits_float((bits & 0x8000) << 16 | 0x7f800000 | (bits & 1023) << 13);
    }
    return exponent == 0 ? sign * ldexpf(fraction, -24)
                         : sign * ldexpf(fraction + 1024.0f, exponent - 25);
}

UNWATCHED static uint32_t encode_f16(float value)
{
    const uint32_t sign = float_bits(value) >> 16 & 0x8000;
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

UNWATCHED float toy_decode(uint32_t bits, zero_dtype dtype)
{
    if (dtype == ZERO_DTYPE_F16) {
        return decode_f16(bits);
    }
    return bits_float(dtype == ZERO_DTYPE_BF16 ? bits << 16 : bits);
}

UNWATCHED uint32_t toy_encode(float value, zero_dtype dtype)
{
    if (dtype == ZERO_DTYPE_F16) {
        return encode_f16(value);
    }
    const uint32_t bits = float_bits(value);
    if (dtype != ZERO_DTYPE_BF16) {
        return bits;
    }
    if (isnan(value)) {
        return bits >> 16 | 0x40;
    }
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* DEFAULT is the type of an fp32 parameter, which is its own master. */
static size_t width_of(zero_dtype dtype)
{
    return zero_dtype_bytes(dtype == ZERO_DTYPE_DEFAULT ? ZERO_DTYPE_F32 : dtype);
}

UNWATCHED uint32_t toy_load(const void *data, uint64_t index, zero_dtype dtype)
{
    const size_t width = width_of(dtype);
    uint32_t word = 0; /* its first bytes are the lower ones */
    memcpy(&word, (const unsigned char *)data + width * index, width);
    return word;
}

UNWATCHED void toy_store(void *data, uint64_t index, zero_dtype dtype, uint32_t bits)
{
    const size_t width = width_of(dtype);
    memcpy((unsigned char *)data + width * index, &bits, width);
}
