/* Owns the count of memory requests of this program. The linker sends the allocator's names here
 * (--wrap in meson.build), the library's calls included, since it is linked statically. Invariant:
 * every request is counted once and passed on unchanged. */
#include "bench_alloc.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t element_bytes);
void *__wrap_calloc(size_t count, size_t element_bytes);
void *__real_realloc(void *pointer, size_t bytes);
void *__wrap_realloc(void *pointer, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
/* What mmap is called where file offsets are asked to have 64 bits. */
void *__real_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset);

static atomic_uint_fast64_t requests;

static void count_one(void)
{
    atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
}

void *__wrap_malloc(size_t bytes)
{
    count_one();
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t element_bytes)
{
    count_one();
    return __real_calloc(count, element_bytes);
}

void *__wrap_realloc(void *pointer, size_t bytes)
{
    count_one();
    return __real_realloc(pointer, bytes);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes)
{
    count_one();
    return __real_posix_memalign(out, alignment, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    count_one();
    return __real_aligned_alloc(alignment, bytes);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    count_one();
    return __real_mmap(address, bytes, protection, flags, file, offset);
}

void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    count_one();
    return __real_mmap64(address, bytes, protection, flags, file, offset);
}

uint64_t bench_allocations(void)
{
    return atomic_load_explicit(&requests, memory_order_relaxed);
}
