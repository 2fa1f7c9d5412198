/* How often this program asked for memory. */
#ifndef TOOLS_BENCH_ALLOC_H
#define TOOLS_BENCH_ALLOC_H

#include <stdint.h>

/* Calls of malloc, calloc, realloc, posix_memalign, aligned_alloc and mmap from the program and the
 * library so far; those that system libraries make inside themselves are not seen. */
uint64_t bench_allocations(void);

#endif
