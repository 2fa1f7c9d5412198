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

#endif
