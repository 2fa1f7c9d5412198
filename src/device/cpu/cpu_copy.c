/* Owns the copy by non-temporal stores. The C library has one too, but begins to use it at a share
 * of the last-level cache, whose size a virtual machine may report wrongly. On machines without
 * wide non-temporal stores this is memcpy. */
#include "device/cpu/cpu_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE_BYTES ((size_t)64)
/* Memory that processes share comes in small pages, at whose ends the hardware stops to prefetch.
 * Copying two pages at a time keeps enough cache lines in flight. Four at a time were three times
 * slower on an AMD EPYC of family 25 (docs/decisions/079). */
#define PAGES ((size_t)2)
#define PAGE_BYTES ((size_t)4096)
#define BLOCK_BYTES (PAGES * PAGE_BYTES)
/* Bytes of a page that are copied before the next page. */
#define RUN_BYTES (2 * LINE_BYTES)

#if defined(__x86_64__)
/* bytes is a multiple of BLOCK_BYTES, target of LINE_BYTES. Prefetching behind the end of the
 * source is harmless. */
__attribute__((target("avx512f"))) static void
copy_avx512(unsigned char *target, const unsigned char *source, size_t bytes)
{
    for (size_t block = 0; block < bytes; block += BLOCK_BYTES) {
        for (size_t run = 0; run < PAGE_BYTES; run += RUN_BYTES) {
            for (size_t page = 0; page < BLOCK_BYTES; page += PAGE_BYTES) {
                const unsigned char *from = source + block + page + run;
                unsigned char *to = target + block + page + run;
                for (size_t i = 0; i < RUN_BYTES; i += LINE_BYTES) {
                    _mm_prefetch((const char *)(from + BLOCK_BYTES + i), _MM_HINT_T0);
                    _mm512_stream_si512((__m512i *)(void *)(to + i), _mm512_loadu_si512(from + i));
                }
            }
        }
    }
    _mm_sfence();
}

__attribute__((target("avx"))) static void copy_avx(unsigned char *target,
                                                    const unsigned char *source, size_t bytes)
{
    for (size_t block = 0; block < bytes; block += BLOCK_BYTES) {
        for (size_t run = 0; run < PAGE_BYTES; run += RUN_BYTES) {
            for (size_t page = 0; page < BLOCK_BYTES; page += PAGE_BYTES) {
                const unsigned char *from = source + block + page + run;
                unsigned char *to = target + block + page + run;
                for (size_t i = 0; i < RUN_BYTES; i += sizeof(__m256i)) {
                    if (i % LINE_BYTES == 0) {
                        _mm_prefetch((const char *)(from + BLOCK_BYTES + i), _MM_HINT_T0);
                    }
                    _mm256_stream_si256(
                        (__m256i *)(void *)(to + i),
                        _mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
                }
            }
        }
    }
    _mm_sfence();
}
#endif

void zi_cpu_copy(void *target, const void *source, size_t bytes)
{
    unsigned char *to = target;
    const unsigned char *from = source;
#if defined(__x86_64__)
    if (bytes >= ZI_CPU_COPY_NON_TEMPORAL && __builtin_cpu_supports("avx")) {
        const size_t head = (LINE_BYTES - (uintptr_t)to % LINE_BYTES) % LINE_BYTES;
        const size_t body = (bytes - head) / BLOCK_BYTES * BLOCK_BYTES;
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
