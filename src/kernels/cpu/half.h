/* Arrays of binary16 to fp32 and back, by the machine's instructions where the compilation may use
 * them, else by those of math/convert.h. Both give the same bits (tests/kernels/test_convert.c). */
#ifndef ZI_KERNELS_CPU_HALF_H
#define ZI_KERNELS_CPU_HALF_H

#include <stddef.h>

#include "kernels/math/convert.h"

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

static inline void zi_half_load(float *restrict target, const uint16_t *restrict source,
                                size_t count)
{
    size_t i = 0;
    size_t tail = count;
#if defined(__AVX512F__)
    tail = count % 16;
    for (; i + 16 <= count; i += 16) {
        const __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        _mm512_storeu_ps(target + i, _mm512_cvtph_ps(halves));
    }
#elif defined(__F16C__)
    tail = count % 8;
    for (; i + 8 <= count; i += 8) {
        const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
        _mm256_storeu_ps(target + i, _mm256_cvtph_ps(halves));
    }
#endif
    for (size_t k = 0; k < tail; k++) {
        target[i + k] = zi_f32_from_f16(source[i + k]);
    }
}

/* Rounds to nearest even, whatever the thread's rounding mode is. */
static inline void zi_half_store(uint16_t *restrict target, const float *restrict source,
                                 size_t count)
{
    size_t i = 0;
    size_t tail = count;
#if defined(__AVX512F__)
    tail = count % 16;
    for (; i + 16 <= count; i += 16) {
        const __m256i halves =
            _mm512_cvtps_ph(_mm512_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256((__m256i *)(void *)(target + i), halves);
    }
#elif defined(__F16C__)
    tail = count % 8;
    for (; i + 8 <= count; i += 8) {
        const __m128i halves =
            _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(target + i), halves);
    }
#endif
    for (size_t k = 0; k < tail; k++) {
        target[i + k] = zi_f16_from_f32(source[i + k]);
    }
}

#endif
