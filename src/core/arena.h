/* Things in an arena, one block of memory for each role, begin aligned. */
#ifndef ZI_CORE_ARENA_H
#define ZI_CORE_ARENA_H

#include <stdint.h>

/* A pair of cache lines: what vector loads, NCCL and I/O like. */
#define ZI_ARENA_ALIGN ((uint64_t)256)

#endif
