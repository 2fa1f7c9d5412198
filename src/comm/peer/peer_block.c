/* Owns the shared block of a group: arrival, failure, and the flags that say who still reads.
 * Invariants: arrivals are counted once per member and generation; the error is written once,
 * before bit 0 of `generation` is set; after that bit is set no member starts to read peers'
 * memory. */
#include "comm/peer/peer_block.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/memory.h"
#include "core/sizes.h"

#define FAILED_BIT 1u
#define NS_PER_MS UINT64_C(1000000)
/* Between two checks of whether the others live. */
#define POLL_NS (100 * NS_PER_MS)
/* After a yield that took longer than this, the next SLEEPS waits do not yield. */
#define YIELD_NS (NS_PER_MS / 5)
#define SLEEPS 1000

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static uint64_t tables_offset(uint32_t size)
{
    return sizeof(zi_peer_block) + (uint64_t)size * sizeof(zi_peer_member);
}

static uint64_t stages_offset(uint32_t size)
{
    const uint64_t tables = (uint64_t)size * ZI_BATCH_MAX * sizeof(zi_peer_entry);
    return zi_align_up(tables_offset(size) + tables, ZI_PAGE_BYTES);
}

size_t zi_peer_block_bytes(uint32_t size, size_t stage_bytes)
{
    zi_assert_cmp(size, >=, 1);
    uint64_t stages = 0;
    zi_assert(zi_mul_u64(size, stage_bytes, &stages));
    return zi_align_up(stages_offset(size) + stages, ZI_PAGE_BYTES);
}

void zi_peer_block_init(zi_peer_block *block, uint32_t size, size_t stage_bytes,
                        zi_futex_scope scope)
{
    block->scope = scope;
    block->size = size;
    block->stage_bytes = stage_bytes;
    atomic_init(&block->users, size);
    block->fence_users = 0;
    atomic_init(&block->fence_lock, 0);
    atomic_init(&block->generation, 0);
    atomic_init(&block->sleepers, 0);
    atomic_init(&block->arrived_count, 0);
    memset(&block->failure, 0, sizeof block->failure);
    for (uint32_t i = 0; i < size; i++) {
        atomic_init(&block->member[i].arrived, 0);
        atomic_init(&block->member[i].reading, 0);
    }
    atomic_thread_fence(memory_order_release);
}

bool zi_peer_block_done(zi_peer_block *block)
{
    return atomic_fetch_sub(&block->users, 1) == 1;
}

static void lock_fences(zi_peer_block *block)
{
    while (atomic_exchange_explicit(&block->fence_lock, 1, memory_order_acquire) != 0) {
        (void)sched_yield();
    }
}

static void unlock_fences(zi_peer_block *block)
{
    atomic_store_explicit(&block->fence_lock, 0, memory_order_release);
}

void zi_peer_block_open_fences(zi_peer_block *block, uint32_t rank, zi_fence *const fences[2])
{
    lock_fences(block);
    block->fence_users++;
    memcpy(block->member[rank].fences, fences, sizeof block->member[rank].fences);
    unlock_fences(block);
}

void zi_peer_block_close_fences(zi_peer_block *block, const zi_device *device)
{
    lock_fences(block);
    const bool last = --block->fence_users == 0;
    for (uint32_t i = 0; i < block->size && last; i++) {
        for (int k = 0; k < 2; k++) {
            device->ops->fence_destroy(device->self, block->member[i].fences[k]);
            block->member[i].fences[k] = NULL;
        }
    }
    unlock_fences(block);
}

zi_peer_entry *zi_peer_block_table(zi_peer_block *block, uint32_t rank)
{
    zi_assert_cmp(rank, <, block->size);
    void *tables = (unsigned char *)block + tables_offset(block->size);
    return (zi_peer_entry *)tables + (size_t)rank * ZI_BATCH_MAX;
}

unsigned char *zi_peer_block_stage(zi_peer_block *block, uint32_t rank)
{
    zi_assert_cmp(rank, <, block->size);
    return (unsigned char *)block + stages_offset(block->size) + rank * block->stage_bytes;
}

/* True if the wait that began at generation `start` is over. */
static bool peer_block_is_over(unsigned word, unsigned start, zi_peer_arrival *arrival)
{
    /* A completed arrival counts even when the group failed right after it. */
    if ((word & ~FAILED_BIT) != start) {
        *arrival = ZI_PEER_ARRIVED;
        return true;
    }
    *arrival = ZI_PEER_FAILED;
    return (word & FAILED_BIT) != 0;
}

/* All members have arrived; the last one is about to move `generation`. */
static bool peer_block_all_here(zi_peer_block *block, unsigned start)
{
    uint32_t here = 0;
    for (uint32_t i = 0; i < block->size; i++) {
        here += atomic_load(&block->member[i].arrived) == start + 2;
    }
    return here == block->size;
}

static zi_peer_arrival sleep_until_over(zi_peer_block *block, unsigned start, uint32_t deadline_ms,
                                        zi_peer_poll_fn poll, const void *user)
{
    uint64_t limit_ns = zi_clock_ns() + deadline_ms * NS_PER_MS;
    bool extended = false;
    zi_peer_arrival arrival = ZI_PEER_LATE;
    /* Counted before `generation` is read: whoever moves it then sees that it must wake us. */
    atomic_fetch_add(&block->sleepers, 1);
    for (;;) {
        const unsigned word = atomic_load(&block->generation);
        if (peer_block_is_over(word, start, &arrival)) {
            break;
        }
        const uint64_t now_ns = zi_clock_ns();
        if (now_ns >= limit_ns && (extended || !peer_block_all_here(block, start))) {
            arrival = ZI_PEER_LATE;
            break;
        }
        if (now_ns >= limit_ns) {
            extended = true;
            limit_ns = now_ns + deadline_ms * NS_PER_MS;
        }
        const uint64_t rest_ns = limit_ns - now_ns;
        zi_futex_wait(&block->generation, word,
                      poll != NULL && rest_ns > POLL_NS ? POLL_NS : rest_ns, block->scope);
        if (poll != NULL && zi_clock_ns() - now_ns >= POLL_NS) {
            poll(user);
        }
    }
    atomic_fetch_sub(&block->sleepers, 1);
    return arrival;
}

/* False: the caller sleeps. A thread that sleeps is woken at once; one that yields runs again only
 * when the others have used their time slices. Where that took long, the next waits do not yield.
 */
static bool yield_until_over(zi_peer_block *block, unsigned start, zi_peer_patience *patience,
                             zi_peer_arrival *arrival)
{
    if (patience->sleeps > 0) {
        patience->sleeps--;
        return false;
    }
    for (uint32_t i = 0; i < patience->yields && patience->sleeps == 0; i++) {
        const uint64_t before_ns = zi_clock_ns();
        (void)sched_yield();
        patience->sleeps = zi_clock_ns() - before_ns > YIELD_NS ? SLEEPS : 0;
        if (peer_block_is_over(atomic_load_explicit(&block->generation, memory_order_acquire),
                               start, arrival)) {
            return true;
        }
    }
    return false;
}

zi_peer_arrival zi_peer_block_arrive(zi_peer_block *block, uint32_t rank,
                                     zi_peer_patience *patience, uint32_t deadline_ms,
                                     zi_peer_poll_fn poll, const void *user)
{
    /* Cannot move before this member has arrived, so this is the generation all wait for. */
    const unsigned start = atomic_load(&block->generation) & ~FAILED_BIT;
    atomic_store_explicit(&block->member[rank].arrived, start + 2, memory_order_release);
    if (atomic_fetch_add(&block->arrived_count, 1) + 1 == block->size) {
        atomic_store_explicit(&block->arrived_count, 0, memory_order_relaxed);
        atomic_fetch_add(&block->generation, 2);
        if (atomic_load(&block->sleepers) != 0) {
            zi_futex_wake_all(&block->generation, block->scope);
        }
        return ZI_PEER_ARRIVED;
    }
    zi_peer_arrival arrival;
    for (uint32_t i = 0; i < patience->spins; i++) {
        if (peer_block_is_over(atomic_load_explicit(&block->generation, memory_order_acquire),
                               start, &arrival)) {
            return arrival;
        }
        pause_briefly();
    }
    return yield_until_over(block, start, patience, &arrival)
               ? arrival
               : sleep_until_over(block, start, deadline_ms, poll, user);
}

uint32_t zi_peer_block_missing(zi_peer_block *block, uint32_t rank, uint32_t *ranks)
{
    const unsigned mine = atomic_load(&block->member[rank].arrived);
    uint32_t count = 0;
    for (uint32_t i = 0; i < block->size; i++) {
        if (atomic_load(&block->member[i].arrived) != mine) {
            ranks[count++] = i;
        }
    }
    return count;
}

bool zi_peer_block_failed(zi_peer_block *block)
{
    return (atomic_load(&block->generation) & FAILED_BIT) != 0;
}

/* Wait for the member that writes the error; if its process dies meanwhile, go on without the text.
 */
static void await_error_text(zi_peer_block *block)
{
    const uint64_t limit_ns = zi_clock_ns() + 1000 * NS_PER_MS;
    while (!zi_failure_get(&block->failure, NULL) && zi_clock_ns() < limit_ns) {
        (void)sched_yield();
    }
}

void zi_peer_block_fail(zi_peer_block *block, const zi_failure *failure)
{
    if (!zi_failure_set(&block->failure, failure)) {
        await_error_text(block);
    }
    if ((atomic_fetch_or(&block->generation, FAILED_BIT) & FAILED_BIT) == 0) {
        zi_futex_wake_all(&block->generation, block->scope);
    }
}

zero_status zi_peer_block_error(zi_peer_block *block)
{
    zi_assert(zi_peer_block_failed(block));
    zi_failure failure;
    if (!zi_failure_get(&block->failure, &failure)) {
        ZI_FAIL(ZERO_ERR_COMM, "a rank ended while it was reporting a failure");
    }
    const zero_error error = zi_failure_error(&failure, ZI_FAILURE_NO_RANK);
    return zi_error_adopt(&error);
}

bool zi_peer_block_read_begin(zi_peer_block *block, uint32_t rank)
{
    /* Sequentially consistent, like the failing side's: either we see the bit, or it sees us. */
    atomic_store(&block->member[rank].reading, 1);
    if (zi_peer_block_failed(block)) {
        zi_peer_block_read_end(block, rank);
        return false;
    }
    return true;
}

void zi_peer_block_read_end(zi_peer_block *block, uint32_t rank)
{
    atomic_store(&block->member[rank].reading, 0);
    if (zi_peer_block_failed(block)) {
        zi_futex_wake_all(&block->member[rank].reading, block->scope);
    }
}

void zi_peer_block_quiesce(zi_peer_block *block)
{
    zi_assert(zi_peer_block_failed(block));
    for (uint32_t i = 0; i < block->size; i++) {
        while (atomic_load(&block->member[i].reading) != 0) {
            zi_futex_wait(&block->member[i].reading, 1, 0, block->scope);
        }
    }
}
