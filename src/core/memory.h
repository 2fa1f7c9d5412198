/* Host memory: the only calls to the system's allocator in the library.
 * Metadata (tables, handles) comes from zi_calloc; tensor memory from zi_pages_alloc. Both are
 * counted, so that a test can show that a step allocates nothing, and both can be made to fail
 * (core/fault.h). */
#ifndef ZI_CORE_MEMORY_H
#define ZI_CORE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "core/private_api.h"
#include "zero/status.h"

/* Size of the pages that arenas are rounded to. */
#define ZI_PAGE_BYTES ((size_t)4096)

/* Zeroed array of `count` elements; count 0 gives one element. *out stays NULL on failure
 * (OUT_OF_MEMORY). */
ZI_PRIVATE_API zero_status zi_calloc(size_t count, size_t element_bytes, void **out);

/* Accepts NULL. */
ZI_PRIVATE_API void zi_free(void *pointer);

/* Zeroed, page-aligned, faulted-in memory with transparent huge pages where granted. bytes is a
 * multiple of ZI_PAGE_BYTES; 0 gives NULL. */
zero_status zi_pages_alloc(size_t bytes, void **out);

/* The same, on a node of the host (core/numa.h). node < 0: on any. */
zero_status zi_pages_alloc_on(size_t bytes, int node, void **out);

/* Fault mapped pages in. Returns 0, or the system's error: pages are not to be had, so what touches
 * them would be killed. A kernel that cannot do it in advance is no error. */
int zi_pages_populate(void *pointer, size_t bytes);

/* Accepts NULL. bytes as allocated. */
void zi_pages_free(void *pointer, size_t bytes);

/* Give whole pages back to the system, of zi_pages_alloc or of memory shared with other processes.
 * The address stays; what is touched again is zeros. Errors: DEVICE when the system refuses. */
zero_status zi_pages_discard(void *pointer, size_t bytes);

/* Fault discarded pages in. OUT_OF_MEMORY when they are not to be had; then none is held. */
zero_status zi_pages_restore(void *pointer, size_t bytes);

/* Calls of zi_calloc and zi_pages_alloc in this process so far. */
uint64_t zi_memory_calls(void);

#endif
