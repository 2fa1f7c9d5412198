/* Owns the count of memory requests of this program. The linker sends the allocator's names here
 * (--wrap in meson.build), the library's calls included, since it is linked statically. Invariant:
 * every request is counted once and passed on unchanged. */
#include "bench.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

static atomic_uint_fast64_t requests;

#define COUNTED(result, name, parameters, arguments)                   \
    result __real_##name parameters;                                   \
    result __wrap_##name parameters;                                   \
    result __wrap_##name parameters                                    \
    {                                                                  \
        atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed); \
        return __real_##name arguments;                                \
    }

COUNTED(void *, malloc, (size_t bytes), (bytes))
COUNTED(void *, calloc, (size_t count, size_t bytes), (count, bytes))
COUNTED(void *, realloc, (void *pointer, size_t bytes), (pointer, bytes))
COUNTED(int, posix_memalign, (void **out, size_t alignment, size_t bytes), (out, alignment, bytes))
COUNTED(void *, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
COUNTED(void *, mmap, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
        (at, bytes, protection, flags, file, offset))
/* The name of mmap where file offsets are asked to have 64 bits. */
COUNTED(void *, mmap64, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
        (at, bytes, protection, flags, file, offset))

uint64_t bench_allocations(void)
{
    return atomic_load_explicit(&requests, memory_order_relaxed);
}
