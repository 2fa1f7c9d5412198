/* Floating-point numbers as the integers that have their bits. */
#ifndef ZI_KERNELS_MATH_FLOAT_BITS_H
#define ZI_KERNELS_MATH_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

#include "core/lane.h"

ZI_LANE uint32_t zi_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ZI_LANE float zi_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ZI_LANE uint64_t zi_f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ZI_LANE double zi_f64_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
