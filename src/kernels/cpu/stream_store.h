/* Non-temporal stores, where the machine has them: for data that is written once and not read soon.
 * A cache line need not be loaded before it is overwritten. The widest store of the instruction set
 * is used, so that whole lines leave the write-combining buffers at once. */
#ifndef ZI_KERNELS_CPU_STREAM_STORE_H
#define ZI_KERNELS_CPU_STREAM_STORE_H

#include <stddef.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Copies `bytes` bytes; target is aligned to 64 bytes. */
static inline void zi_stream_store(void *restrict target, const void *restrict source, size_t bytes)
{
    unsigned char *to = target;
    const unsigned char *from = source;
    size_t done = 0;
#if defined(__AVX512F__)
    for (; done + sizeof(__m512i) <= bytes; done += sizeof(__m512i)) {
        _mm512_stream_si512((__m512i *)(void *)(to + done), _mm512_loadu_si512(from + done));
    }
#elif defined(__AVX__)
    for (; done + sizeof(__m256i) <= bytes; done += sizeof(__m256i)) {
        _mm256_stream_si256((__m256i *)(void *)(to + done),
                            _mm256_loadu_si256((const __m256i *)(const void *)(from + done)));
    }
#elif defined(__SSE2__)
    for (; done + sizeof(__m128i) <= bytes; done += sizeof(__m128i)) {
        _mm_stream_si128((__m128i *)(void *)(to + done),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + done)));
    }
#endif
    memcpy(to + done, from + done, bytes - done);
}

/* Order the stores above before a later store that lets another thread read them. */
static inline void zi_stream_fence(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

#endif
