/* What lets one header serve C and CUDA. */
#ifndef ZI_KERNELS_MATH_HD_H
#define ZI_KERNELS_MATH_HD_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define ZI_HD static inline __host__ __device__
#else
#define ZI_HD static inline
#endif

ZI_HD uint32_t zi_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ZI_HD float zi_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ZI_HD uint64_t zi_f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

#endif
