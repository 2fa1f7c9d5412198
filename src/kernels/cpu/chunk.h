/* The squares of a chunk, as zi_norm_chunk adds them: the same additions in the same order, with
 * the instructions that compilers do not find for it. A square of an fp32 value is exact in double,
 * so fusing it with its addition changes no bit. */
#ifndef ZI_KERNELS_CPU_CHUNK_H
#define ZI_KERNELS_CPU_CHUNK_H

#include "kernels/math/norm.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

/* Lanes 0 to 3 of a chunk whose upper lanes were added to them. */
static inline double zi_chunk_total(__m256d four)
{
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}
#endif

static inline double zi_chunk_squares(const float *values)
{
#if defined(__AVX512F__)
    __m512d lanes = _mm512_setzero_pd();
    for (int row = 0; row < ZI_NORM_CHUNK; row += ZI_NORM_LANES) {
        const __m512d value = _mm512_cvtps_pd(_mm256_loadu_ps(values + row));
        lanes = _mm512_fmadd_pd(value, value, lanes);
    }
    return zi_chunk_total(
        _mm256_add_pd(_mm512_castpd512_pd256(lanes), _mm512_extractf64x4_pd(lanes, 1)));
#elif defined(__AVX2__) && defined(__FMA__)
    __m256d low = _mm256_setzero_pd();
    __m256d high = _mm256_setzero_pd();
    for (int row = 0; row < ZI_NORM_CHUNK; row += ZI_NORM_LANES) {
        const __m256d value = _mm256_cvtps_pd(_mm_loadu_ps(values + row));
        const __m256d other = _mm256_cvtps_pd(_mm_loadu_ps(values + row + ZI_NORM_LANES / 2));
        low = _mm256_fmadd_pd(value, value, low);
        high = _mm256_fmadd_pd(other, other, high);
    }
    return zi_chunk_total(_mm256_add_pd(low, high));
#else
    return zi_norm_chunk(values);
#endif
}

/* Totals that are added at a time: the sum of so many numbers of 58 bits fits in 64 bits. */
#define ZI_CHUNK_TOTALS 64
/* Exponents from the first total's less half of this on are added at once. */
#define ZI_CHUNK_EXPONENTS 32
/* Bits of a significand's lower half; both halves shifted by an exponent have at most 58 bits. */
#define ZI_CHUNK_LOW_BITS 26

/* sum += totals, exactly, as zi_norm_add does it one after the other. Totals of neighbouring chunks
 * are of similar size: where all are near the first, the halves of their significands are added as
 * integers, in a loop that compilers vectorise, and then to the sum. */
static inline void zi_chunk_totals_add(zi_norm_sum *sum, const double *totals, uint32_t count)
{
    const uint64_t implicit = UINT64_C(1) << 52;
    const uint64_t low_mask = (UINT64_C(1) << ZI_CHUNK_LOW_BITS) - 1;
    const uint64_t base = count == 0 ? 0 : (zi_f64_bits(totals[0]) >> 52) - ZI_CHUNK_EXPONENTS / 2;
    uint64_t low = 0;
    uint64_t high = 0;
    uint64_t outside = 0; /* has a bit beyond the exponents' where one is outside */
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bits = zi_f64_bits(totals[i]);
        const uint64_t above = (bits >> 52) - base;
        const uint64_t significand = (bits & (implicit - 1)) | implicit;
        outside |= above;
        low += (significand & low_mask) << (above % ZI_CHUNK_EXPONENTS);
        high += (significand >> ZI_CHUNK_LOW_BITS) << (above % ZI_CHUNK_EXPONENTS);
    }
    /* Neither zeros nor infinities and NaN are among them then. */
    if (outside < ZI_CHUNK_EXPONENTS && base >= ZI_NORM_LOWEST &&
        base < 0x7ff - ZI_CHUNK_EXPONENTS) {
        const uint32_t place = (uint32_t)base - ZI_NORM_LOWEST;
        zi_norm_add_at(sum, low, place);
        zi_norm_add_at(sum, high, place + ZI_CHUNK_LOW_BITS);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        zi_norm_add(sum, totals[i]);
    }
}

#endif
