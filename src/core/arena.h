/* An arena hands out aligned pieces of one block in program order. The plan makes the same calls
 * without memory to learn the size, so plan and use agree by construction. */
#ifndef ZI_CORE_ARENA_H
#define ZI_CORE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "core/check.h"
#include "core/sizes.h"

/* Every piece starts on a cache-line pair; what vector loads, NCCL and O_DIRECT I/O windows like.
 */
#define ZI_ARENA_ALIGN ((uint64_t)256)

typedef struct zi_arena {
    unsigned char *base; /* NULL: measuring only */
    uint64_t used_bytes;
    uint64_t capacity_bytes;
} zi_arena;

/* A piece of `bytes`; NULL while measuring, or when bytes is 0. */
static inline void *zi_arena_take(zi_arena *arena, uint64_t bytes)
{
    const uint64_t start = arena->used_bytes;
    arena->used_bytes += zi_align_up(bytes, ZI_ARENA_ALIGN);
    if (arena->base == NULL || bytes == 0) {
        return NULL;
    }
    zi_assert_cmp(arena->used_bytes, <=, arena->capacity_bytes);
    return arena->base + start;
}

#endif
