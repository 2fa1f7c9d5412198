/* Vectors of 64-bit lanes, as wide as the compilation allows, and the one operation on them that
 * compilers do not find by themselves: the 64-bit product of the lanes' lower halves. */
#ifndef ZI_KERNELS_CPU_WIDE_H
#define ZI_KERNELS_CPU_WIDE_H

#include <stdint.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define ZI_WIDE_BYTES 64
#elif defined(__AVX2__)
#define ZI_WIDE_BYTES 32
#else
#define ZI_WIDE_BYTES 16
#endif

#define ZI_WIDE_LANES (ZI_WIDE_BYTES / 8)

typedef uint64_t zi_wide __attribute__((vector_size(ZI_WIDE_BYTES)));

static inline zi_wide zi_wide_of(uint64_t value)
{
    return (zi_wide){0} + value;
}

/* Lane i: i. */
static inline zi_wide zi_wide_indices(void)
{
    zi_wide indices = {0};
    for (uint64_t i = 0; i < ZI_WIDE_LANES; i++) {
        indices[i] = i;
    }
    return indices;
}

/* Lane i: the product of the lower 32 bits of both lanes; their upper bits do not matter. */
static inline zi_wide zi_wide_multiply(zi_wide a, zi_wide b)
{
#if defined(__AVX512F__)
    return (zi_wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (zi_wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (zi_wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & UINT32_MAX) * (b & UINT32_MAX);
#endif
}

#endif
