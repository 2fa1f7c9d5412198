/* Checksums of what is written to a disk, so that damage is noticed when it is read: XXH3 of 64
 * bits, which is for faults of machines and not against an adversary.
 *
 * There is one for each block: ZI_CHECKSUM_BYTES at a multiple of them on the disk, of which an
 * extent may have a part at either end. So a block lies in one file of a store, and what is damaged
 * is known to a block. */
#ifndef ZI_CORE_CHECKSUM_H
#define ZI_CORE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/sizes.h"
#include "core/thread.h"

#define ZI_CHECKSUM_BYTES ((uint64_t)64 << 10)

/* Bytes that are or were in memory, and where they are on the disk. */
typedef struct zi_checksum_span {
    const unsigned char *memory;
    uint64_t at;
    uint64_t bytes;
} zi_checksum_span;

/* Checksums of an extent of so many bytes, wherever it is on the disk: at most. */
static inline uint64_t zi_checksum_count(uint64_t bytes)
{
    return bytes != 0 ? zi_div_up(bytes, ZI_CHECKSUM_BYTES) + 1 : 0;
}

/* sums: zi_checksum_count of them. The pool's threads share the blocks; NULL: this one alone. */
void zi_checksum_make(zi_pool *pool, const zi_checksum_span *extent, uint64_t *sums);

/* True if any block is not what its checksum was made of; *damaged is then the first such. */
bool zi_checksum_differs(zi_pool *pool, const zi_checksum_span *extent, const uint64_t *sums,
                         zi_checksum_span *damaged);

/* One block by one set of instructions; all give the same checksum. */
typedef uint64_t (*zi_checksum_fn)(const void *block, size_t bytes);
#define ZI_CHECKSUM_WAYS_MAX 3
/* Those that this machine has, slowest first. Returns how many. */
uint32_t zi_checksum_ways(zi_checksum_fn ways[ZI_CHECKSUM_WAYS_MAX]);

#endif
