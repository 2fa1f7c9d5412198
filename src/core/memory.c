/* Owns every request to the system's allocator. Invariant: a failed request leaves *out NULL and an
 * error that names the size. */
#include "core/memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/check.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/numa.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* of Linux 5.14, which musl's headers lack */
#endif

static atomic_uint_fast64_t calls;

zero_status zi_calloc(size_t count, size_t element_bytes, void **out)
{
    *out = NULL;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    void *pointer =
        zi_fault_hit(ZI_FAULT_ALLOC) ? NULL : calloc(count != 0 ? count : 1, element_bytes);
    if (pointer == NULL) {
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, ENOMEM,
                       "the host has no %zu x %zu bytes left for bookkeeping", count,
                       element_bytes);
    }
    *out = pointer;
    return ZERO_OK;
}

void zi_free(void *pointer)
{
    free(pointer);
}

zero_status zi_pages_alloc(size_t bytes, void **out)
{
    return zi_pages_alloc_on(bytes, -1, out);
}

zero_status zi_pages_alloc_on(size_t bytes, int node, void **out)
{
    *out = NULL;
    zi_assert_cmp(bytes % ZI_PAGE_BYTES, ==, 0);
    if (bytes == 0) {
        return ZERO_OK;
    }
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
    void *pointer = MAP_FAILED;
    if (!zi_fault_hit(ZI_FAULT_ALLOC)) {
        pointer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (pointer == MAP_FAILED) {
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, ENOMEM,
                       "the host has no %zu bytes left for an arena; shard over more ranks", bytes);
    }
    (void)madvise(pointer, bytes, MADV_HUGEPAGE); /* an optimisation */
    (void)zi_numa_bind(pointer, bytes, node);
    const int code = zi_pages_populate(pointer, bytes);
    if (code != 0) {
        (void)munmap(pointer, bytes);
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, code,
                       "the host has no %zu bytes left for an arena: %s; shard over more ranks",
                       bytes, strerror(code));
    }
    *out = pointer;
    return ZERO_OK;
}

int zi_pages_populate(void *pointer, size_t bytes)
{
    int code = 0;
    do {
        code = madvise(pointer, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (code == EINTR || code == EAGAIN);
    return code == EINVAL ? 0 : code; /* a kernel that does not know it faults on first use */
}

void zi_pages_free(void *pointer, size_t bytes)
{
    if (pointer != NULL) {
        (void)munmap(pointer, bytes);
    }
}

zero_status zi_pages_discard(void *pointer, size_t bytes)
{
    /* Only this frees shared pages; private ones it does not know. */
    int code = madvise(pointer, bytes, MADV_REMOVE) == 0 ? 0 : errno;
    if (code == EINVAL) {
        code = madvise(pointer, bytes, MADV_DONTNEED) == 0 ? 0 : errno;
    }
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_DEVICE, code,
                       "the system does not take %zu bytes of memory back: %s", bytes,
                       strerror(code));
    }
    return ZERO_OK;
}

zero_status zi_pages_restore(void *pointer, size_t bytes)
{
    const int code = zi_fault_hit(ZI_FAULT_ALLOC) ? ENOMEM : zi_pages_populate(pointer, bytes);
    if (code != 0) {
        (void)zi_pages_discard(pointer, bytes);
        ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, code,
                       "the host has no %zu bytes left to take an arena again: %s", bytes,
                       strerror(code));
    }
    return ZERO_OK;
}

uint64_t zi_memory_calls(void)
{
    return atomic_load_explicit(&calls, memory_order_relaxed);
}
