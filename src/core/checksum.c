/* Owns the cutting of extents into blocks, and the choice of instructions. Invariant: the checksums
 * are the same on every machine and for every number of threads. */
#include "core/checksum.h"

#include <stdatomic.h>

/* Fewer bytes than these take less time than waking the pool's threads. */
#define SPREAD_BYTES_MIN ((uint64_t)1 << 20)

uint64_t zi_checksum_block_generic(const void *block, size_t bytes);
#if defined(__x86_64__)
uint64_t zi_checksum_block_avx2(const void *block, size_t bytes);
uint64_t zi_checksum_block_avx512(const void *block, size_t bytes);
#endif

uint32_t zi_checksum_ways(zi_checksum_fn ways[ZI_CHECKSUM_WAYS_MAX])
{
    uint32_t count = 0;
    ways[count++] = zi_checksum_block_generic;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        ways[count++] = zi_checksum_block_avx2;
    }
    if (__builtin_cpu_supports("avx512f")) {
        ways[count++] = zi_checksum_block_avx512;
    }
#endif
    return count;
}

/* The work that the threads share. */
typedef struct checksum_work {
    const zi_checksum_span *extent;
    zi_checksum_fn block;
    uint64_t *made;           /* NULL: compare */
    const uint64_t *expected; /* or these */
    atomic_uint_fast64_t first_damaged;
} checksum_work;

static uint64_t first_block(const zi_checksum_span *extent)
{
    return extent->at / ZI_CHECKSUM_BYTES;
}

static uint64_t block_count(const zi_checksum_span *extent)
{
    return zi_div_up(extent->at + extent->bytes, ZI_CHECKSUM_BYTES) - first_block(extent);
}

/* The bytes of the extent in its block `index`. */
static zi_checksum_span checksum_block_of(const zi_checksum_span *extent, uint64_t index)
{
    const uint64_t start = (first_block(extent) + index) * ZI_CHECKSUM_BYTES;
    const uint64_t at = zi_max_u64(start, extent->at);
    const uint64_t end = zi_min_u64(start + ZI_CHECKSUM_BYTES, extent->at + extent->bytes);
    return (zi_checksum_span){extent->memory + (at - extent->at), at, end - at};
}

static void note_damage(checksum_work *work, uint64_t index)
{
    uint_fast64_t first = atomic_load(&work->first_damaged);
    while (index < first && !atomic_compare_exchange_weak(&work->first_damaged, &first, index)) {
    }
}

static void checksum_share(void *argument, uint32_t share, uint32_t shares)
{
    checksum_work *work = argument;
    const uint64_t count = block_count(work->extent);
    const uint64_t end = count * (share + 1) / shares;
    for (uint64_t i = count * share / shares; i < end; i++) {
        const zi_checksum_span block = checksum_block_of(work->extent, i);
        const uint64_t sum = work->block(block.memory, (size_t)block.bytes);
        if (work->made != NULL) {
            work->made[i] = sum;
        } else if (work->expected[i] != sum) {
            note_damage(work, i);
        }
    }
}

static void checksum_run(zi_pool *pool, checksum_work *work)
{
    zi_checksum_fn ways[ZI_CHECKSUM_WAYS_MAX];
    work->block = ways[zi_checksum_ways(ways) - 1];
    zi_pool_run(work->extent->bytes < SPREAD_BYTES_MIN ? NULL : pool, checksum_share, work);
}

void zi_checksum_make(zi_pool *pool, const zi_checksum_span *extent, uint64_t *sums)
{
    checksum_work work = {.extent = extent, .made = sums};
    if (extent->bytes != 0) {
        checksum_run(pool, &work);
    }
}

bool zi_checksum_differs(zi_pool *pool, const zi_checksum_span *extent, const uint64_t *sums,
                         zi_checksum_span *damaged)
{
    checksum_work work = {.extent = extent, .expected = sums, .first_damaged = UINT64_MAX};
    if (extent->bytes != 0) {
        checksum_run(pool, &work);
    }
    const uint64_t first = atomic_load(&work.first_damaged);
    if (first == UINT64_MAX) {
        return false;
    }
    *damaged = checksum_block_of(extent, first);
    return true;
}
