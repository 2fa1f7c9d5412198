/* Owns the long copy. The C library has one too, but begins to use it at a share of the last-level
 * cache that a virtual machine may be told wrongly. Without wide stores that bypass the caches it
 * is memcpy. */
#include "comm/peer/peer_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE_BYTES ((size_t)64)
/* How far ahead of the copy the source is asked for. */
#define AHEAD_BYTES ((size_t)2048)

#if defined(__x86_64__)
/* bytes is a multiple of LINE_BYTES, target a multiple of it. The lines asked for may lie behind
 * the source; that is harmless. */
__attribute__((target("avx512f"))) static void
copy_avx512(unsigned char *target, const unsigned char *source, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        _mm_prefetch((const char *)(source + i + AHEAD_BYTES), _MM_HINT_T0);
        _mm512_stream_si512((__m512i *)(void *)(target + i), _mm512_loadu_si512(source + i));
    }
    _mm_sfence();
}

__attribute__((target("avx"))) static void copy_avx(unsigned char *target,
                                                    const unsigned char *source, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE_BYTES) {
        _mm_prefetch((const char *)(source + i + AHEAD_BYTES), _MM_HINT_T0);
        for (size_t k = 0; k < LINE_BYTES; k += sizeof(__m256i)) {
            _mm256_stream_si256(
                (__m256i *)(void *)(target + i + k),
                _mm256_loadu_si256((const __m256i *)(const void *)(source + i + k)));
        }
    }
    _mm_sfence();
}
#endif

void zi_peer_copy(void *target, const void *source, size_t bytes)
{
    unsigned char *to = target;
    const unsigned char *from = source;
#if defined(__x86_64__)
    if (bytes >= ZI_PEER_COPY_FAR && __builtin_cpu_supports("avx")) {
        const size_t head = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES;
        const size_t body = (bytes - head) / LINE_BYTES * LINE_BYTES;
        memcpy(to, from, head);
        if (__builtin_cpu_supports("avx512f")) {
            copy_avx512(to + head, from + head, body);
        } else {
            copy_avx(to + head, from + head, body);
        }
        to += head + body;
        from += head + body;
        bytes -= head + body;
    }
#endif
    memcpy(to, from, bytes);
}
