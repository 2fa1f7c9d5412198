/* Owns what ranks of a host do once they have joined: the exchange of a few values, and windows.
 * Invariants: all ranks of the host enter the same exchanges in the same order; a window has the
 * same index on all of them. */
#include "comm/host/shared.h"

#include <stdio.h>
#include <string.h>

#include "comm/host/shared_state.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/failure.h"
#include "core/memory.h"
#include "core/sizes.h"

#define YIELDS 64
/* A waiting rank sleeps so long between two looks for each RANKS_ASLEEP ranks of the host, so that
 * hundreds that wait leave the CPUs to the one they wait for. */
#define SLEEP_NS 200000
#define RANKS_ASLEEP 16

_Static_assert(ZI_PEER_WINDOWS_MAX == 64, "free windows are bits of one word");

zi_shared_wait zi_shared_wait_begin(uint32_t deadline_ms, uint32_t ranks)
{
    return (zi_shared_wait){
        .until_ns = zi_deadline_in_ms(deadline_ms),
        .sleep_ns = SLEEP_NS * (1 + ranks / RANKS_ASLEEP),
    };
}

bool zi_shared_wait_more(zi_shared_wait *wait)
{
    zi_deadline_pause(wait->rounds++, YIELDS, wait->sleep_ns);
    return zi_clock_ns() < wait->until_ns;
}

const char *zi_shared_late_text(const zi_shared *shared, zi_shared_late_fn is_late, uint32_t last,
                                char *text, size_t text_bytes)
{
    size_t used = 0;
    uint32_t more = 0;
    (void)snprintf(text, text_bytes, "%u", shared->world_ranks[last]);
    for (uint32_t i = 0; i < shared->size; i++) {
        if (!is_late(shared, i)) {
            continue;
        }
        if (used + 32 > text_bytes) {
            more++;
            continue;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%u", used != 0 ? ", " : "",
                                 shared->world_ranks[i]);
    }
    if (more != 0) {
        (void)snprintf(text + used, text_bytes - used, " and %u more", more);
    }
    return text;
}

/* The values of a rank in the last exchange. */
static const uint64_t *values_of(const zi_shared *shared, uint32_t index)
{
    return shared->header->ranks[index].values[shared->exchanges % 2];
}

static bool exchange_late(const zi_shared *shared, uint32_t index)
{
    return atomic_load(&shared->header->ranks[index].exchanges) < shared->exchanges;
}

/* Post `mine` and return when all ranks have posted theirs; values_of then reads them. what: for
 * errors. */
static zero_status shared_exchange(zi_shared *shared, const uint64_t mine[ZI_SHARED_VALUES],
                                   const char *what)
{
    zi_shared_header *header = shared->header;
    const uint64_t number = ++shared->exchanges;
    zi_shared_rank *own = &header->ranks[shared->index];
    memcpy(own->values[number % 2], mine, sizeof own->values[0]);
    atomic_store_explicit(&own->exchanges, number, memory_order_release);
    zi_shared_wait wait = zi_shared_wait_begin(shared->deadline_ms, shared->size);
    for (uint32_t i = 0; i < shared->size; i++) {
        while (atomic_load_explicit(&header->ranks[i].exchanges, memory_order_acquire) < number) {
            ZI_TRY(zi_shared_poll(shared, what));
            if (zi_shared_has_left(shared, i) && exchange_late(shared, i)) {
                const uint32_t first = zi_shared_leaver(shared, NULL, 0);
                (void)zi_shared_fail_left(shared, exchange_late(shared, first) ? first : i, what);
                return zi_shared_fail(shared);
            }
            if (zi_shared_wait_more(&wait)) {
                continue;
            }
            char text[96];
            char silent[ZI_SILENCE_TEXT_BYTES];
            (void)zi_error_set(
                ZERO_ERR_TIMEOUT, 0, __FILE__, __LINE__, "%s: rank %s did not come within %u ms%s",
                what, zi_shared_late_text(shared, exchange_late, i, text, sizeof text),
                shared->deadline_ms, zi_silence_text(shared->space.silence, silent, sizeof silent));
            return zi_shared_fail(shared);
        }
    }
    return ZERO_OK;
}

/* Compare the sizes that the ranks ask for, and find a window that is free on all of them. */
static zero_status agree_window(const zi_shared *shared, size_t bytes, uint32_t *window)
{
    uint64_t free_bits = UINT64_MAX;
    for (uint32_t i = 0; i < shared->size; i++) {
        const uint64_t *values = values_of(shared, i);
        if (values[0] != bytes) {
            ZI_FAIL(ZERO_ERR_MISMATCH,
                    "memory_alloc: rank %u asked for %llu bytes, rank %u for %zu; all ranks of a "
                    "world allocate alike",
                    shared->world_ranks[i], (unsigned long long)values[0],
                    shared->world_ranks[shared->index], bytes);
        }
        free_bits &= values[1];
    }
    if (free_bits == 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED, "all %d windows of this world are in use; destroy an engine",
                ZI_PEER_WINDOWS_MAX);
    }
    *window = (uint32_t)__builtin_ctzll(free_bits);
    return ZERO_OK;
}

static uint64_t free_windows(const zi_shared *shared)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < ZI_PEER_WINDOWS_MAX; i++) {
        bits |= shared->space.windows[i].bytes == 0 ? UINT64_C(1) << i : 0;
    }
    return bits;
}

/* Exchange how mapping went; all ranks fail when one does. A rank writes the next word in the
 * second exchange after this one, when all have read this one. */
static zero_status agree_mapped(zi_shared *shared, zero_status mine)
{
    const zi_shared_rank *ranks = shared->header->ranks;
    const uint64_t values[ZI_SHARED_VALUES] = {0};
    const zero_error own = *zero_last_error();
    shared->header->ranks[shared->index].told = zi_failure_tell(mine);
    const zero_status exchanged = shared_exchange(shared, values, "memory_alloc");
    if (mine != ZERO_OK) {
        return zi_error_adopt(&own);
    }
    ZI_TRY(exchanged);
    const uint32_t failed = zi_failure_first_cause(&ranks->told, sizeof *ranks, shared->size);
    return failed < shared->size
               ? zi_failure_hear(&ranks[failed].told, "", shared->world_ranks[failed])
               : ZERO_OK;
}

zero_status zi_shared_window_alloc(zi_shared *shared, size_t bytes, void **out)
{
    *out = NULL;
    zi_assert_cmp(bytes % ZI_PAGE_BYTES, ==, 0);
    uint64_t total = 0;
    if (!zi_mul_u64(bytes, shared->size, &total) || total > (UINT64_C(1) << 46)) {
        ZI_FAIL(ZERO_ERR_OUT_OF_MEMORY, "%zu bytes on each of %u ranks are more than a host has",
                bytes, shared->size);
    }
    ZI_TRY(zi_shared_check(shared));
    uint64_t values[ZI_SHARED_VALUES] = {bytes, free_windows(shared)};
    if (shared->index == 0) {
        values[2] = atomic_fetch_add(&shared->header->end, total);
    }
    ZI_TRY(shared_exchange(shared, values, "memory_alloc"));
    uint32_t window = 0;
    ZI_TRY(agree_window(shared, bytes, &window));
    if (bytes == 0) {
        return ZERO_OK;
    }
    const uint64_t offset = values_of(shared, 0)[2];
    unsigned char *base = NULL;
    const zero_status status =
        agree_mapped(shared, zi_shared_map_window(shared, offset, bytes, &base));
    if (status != ZERO_OK) {
        if (base != NULL) {
            zi_shared_unmap_window(shared, offset, bytes, base);
        }
        return status;
    }
    if (shared->space.one_address_space) {
        *out = base;
        return ZERO_OK;
    }
    shared->space.windows[window] = (zi_peer_window){.bytes = bytes, .base = base};
    shared->space.window_count = (uint32_t)zi_max_u64(shared->space.window_count, window + 1);
    shared->window_offsets[window] = offset;
    *out = base + shared->index * bytes;
    return ZERO_OK;
}

void zi_shared_window_free(zi_shared *shared, void *pointer, size_t bytes)
{
    if (pointer == NULL) {
        return;
    }
    if (shared->space.one_address_space) {
        zi_shared_unmap_window(shared, 0, bytes, pointer);
        return;
    }
    unsigned char *base = (unsigned char *)pointer - shared->index * bytes;
    uint32_t index = 0;
    while (index < shared->space.window_count && shared->space.windows[index].base != base) {
        index++;
    }
    zi_assert_cmp(index, <, shared->space.window_count);
    zi_assert_cmp(shared->space.windows[index].bytes, ==, bytes);
    zi_shared_unmap_window(shared, shared->window_offsets[index], bytes, base);
    shared->space.windows[index] = (zi_peer_window){.bytes = 0};
}
