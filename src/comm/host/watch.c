/* Owns a host's failure, and the check that its ranks live. Whoever waits checks the processes,
 * some of them at a time and at most once in 100 ms. So it costs nothing where nobody waits, and
 * takes no thread and no file. Invariants: a failure that is there stays, or one nearer to the
 * cause takes its place; a rank marks itself as left before its process ends. */
#include <stdio.h>

#include "comm/host/process.h"
#include "comm/host/shared_state.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"
#include "core/memory.h"
#include "core/sizes.h"

#define POLL_NS UINT64_C(100000000)
/* Processes checked at a time: at least so many, and enough to check all in 0.8 s. */
#define POLLED_MIN 16
#define POLLS_ROUND 8
/* How long a process may be stopped before it counts as silent: with a round, within 2 s. */
#define STOPPED_NS UINT64_C(1200000000)

zero_status zi_shared_check(const zi_shared *shared)
{
    const zi_shared_header *header = shared->header;
    if (atomic_load_explicit(&header->state, memory_order_acquire) != ZI_SHARED_FAILED) {
        return ZERO_OK;
    }
    zi_failure failure;
    (void)zi_failure_get(&header->failure, &failure);
    const zero_error error = zi_failure_error(&failure, ZI_FAILURE_NO_RANK);
    return zi_error_adopt(&error);
}

int zi_shared_failed(const zi_shared *shared)
{
    return atomic_load(&shared->header->state) == ZI_SHARED_FAILED;
}

void zi_shared_set_failure(zi_shared_header *header, const zi_failure *failure)
{
    if (zi_failure_set(&header->failure, failure)) {
        atomic_store_explicit(&header->state, ZI_SHARED_FAILED, memory_order_release);
    }
}

zero_status zi_shared_fail(zi_shared *shared)
{
    const zero_error *error = zero_last_error();
    zi_failure failure = zi_failure_of_abort(shared->space.world_rank, error);
    failure.others = failure.status;
    zi_shared_set_failure(shared->header, &failure);
    return error->status;
}

static void fail_blocks(zi_shared *shared, const zi_failure *failure)
{
    (void)pthread_mutex_lock(&shared->mutex);
    for (const zi_shared_block *row = shared->blocks; row != NULL; row = row->next) {
        void *block = row->base;
        zi_peer_block_fail(block, failure);
    }
    (void)pthread_mutex_unlock(&shared->mutex);
}

void zi_shared_abort(zi_shared *shared, const zi_failure *failure)
{
    zi_shared_set_failure(shared->header, failure);
    fail_blocks(shared, failure);
}

/* Note whether a living process is stopped: one that is for long is silent. */
static void note_stop(zi_shared *shared, uint32_t index, bool stopped)
{
    char host[ZI_HOST_NAME_BYTES];
    const uint64_t now_ns = zi_clock_ns();
    _Atomic uint64_t *since = &shared->stopped_ns[index];
    const uint64_t since_ns = atomic_load(since);
    if (shared->stops == NULL || (!stopped && since_ns == 0)) {
        return;
    }
    if (!stopped || since_ns == 0) {
        atomic_store(since, stopped ? now_ns : 0);
    }
    if (!stopped || (since_ns != 0 && now_ns - since_ns >= STOPPED_NS)) {
        zi_host_name(host);
        zi_silence_set(shared->stops, shared->world_ranks[index], stopped ? since_ns : 0, host,
                       "stopped by a signal");
    }
}

static bool is_dead(zi_shared *shared, uint32_t index)
{
    const zi_shared_rank *rank = &shared->header->ranks[index];
    const uint64_t pid = atomic_load(&rank->pid);
    const uint64_t start = atomic_load(&rank->start);
    bool stopped = false;
    if (index == shared->index || pid == 0 || start == 0) {
        return false;
    }
    if (zi_process_look(pid, &stopped) == start) {
        note_stop(shared, index, stopped);
        return false;
    }
    return atomic_load(&rank->presence) != ZI_SHARED_LEFT;
}

/* Fail everything in the name of the dead rank. */
static void notify_dead(zi_shared *shared, uint32_t index, const char *what)
{
    char host[ZI_HOST_NAME_BYTES];
    char how[140];
    const uint64_t pid = atomic_load(&shared->header->ranks[index].pid);
    (void)snprintf(how, sizeof how, " while rank %u waited in %.100s", shared->space.world_rank,
                   what);
    zi_host_name(host);
    (void)zi_silence_died(pid, host, how);
    const zi_failure failure = zi_failure_of_abort(shared->world_ranks[index], zero_last_error());
    zi_shared_abort(shared, &failure);
}

/* True for one thread in each POLL_NS. */
static bool claim_poll(zi_shared *shared)
{
    const uint64_t now_ns = zi_clock_ns();
    uint64_t last_ns = atomic_load_explicit(&shared->polled_ns, memory_order_relaxed);
    return now_ns - last_ns >= POLL_NS &&
           atomic_compare_exchange_strong(&shared->polled_ns, &last_ns, now_ns);
}

zero_status zi_shared_poll(zi_shared *shared, const char *what)
{
    if (!zi_shared_failed(shared) && claim_poll(shared)) {
        const uint32_t round = (shared->size + POLLS_ROUND - 1) / POLLS_ROUND;
        const uint32_t count =
            (uint32_t)zi_min_u64(shared->size, round > POLLED_MIN ? round : POLLED_MIN);
        const uint32_t first = atomic_fetch_add(&shared->next_poll, count);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t index = (first + i) % shared->size;
            if (is_dead(shared, index)) {
                notify_dead(shared, index, what);
                break;
            }
        }
    }
    return zi_shared_check(shared);
}

/* A failure of a rank that is in none of this rank's groups reaches them here. */
static void watch_poll(void *owner, const char *what)
{
    zi_shared *shared = owner;
    zi_failure failure;
    if (zi_shared_poll(shared, what) != ZERO_OK &&
        zi_failure_get(&shared->header->failure, &failure)) {
        fail_blocks(shared, &failure);
    }
}

zi_call_note *zi_shared_call(const zi_shared *shared)
{
    return &shared->header->ranks[shared->index].call;
}

static const zi_call_note *watch_call_of(const void *owner, uint32_t world_rank)
{
    const zi_shared *shared = owner;
    uint32_t index = 0;
    while (index + 1 < shared->size && shared->world_ranks[index] != world_rank) {
        index++;
    }
    return &shared->header->ranks[index].call;
}

void zi_shared_watch(zi_shared *shared)
{
    atomic_init(&shared->polled_ns, zi_clock_ns());
    shared->space.poll = watch_poll;
    shared->space.poll_owner = shared;
    shared->space.call_of = watch_call_of;
    shared->space.call_owner = shared;
}

void zi_shared_begin_leave(zi_shared *shared)
{
    zi_shared_rank *rank = &shared->header->ranks[shared->index];
    if (atomic_load(&rank->presence) == ZI_SHARED_HERE) {
        atomic_store(&rank->leaver, atomic_fetch_add(&shared->header->leavers, 1) + 1);
        atomic_store(&rank->presence, ZI_SHARED_LEAVING);
    }
}

bool zi_shared_has_left(const zi_shared *shared, uint32_t index)
{
    return atomic_load(&shared->header->ranks[index].presence) != ZI_SHARED_HERE;
}

uint32_t zi_shared_leaver(const zi_shared *shared, const uint32_t *members, uint32_t size)
{
    uint32_t first = shared->size;
    uint32_t order = UINT32_MAX;
    /* Every rank that waits asks this again and again. */
    if (atomic_load(&shared->header->leavers) == 0) {
        return first;
    }
    for (uint32_t index = 0; index < shared->size; index++) {
        bool member = members == NULL;
        for (uint32_t i = 0; i < size && !member; i++) {
            member = members[i] == shared->world_ranks[index];
        }
        if (member && zi_shared_has_left(shared, index) &&
            atomic_load(&shared->header->ranks[index].leaver) < order) {
            order = atomic_load(&shared->header->ranks[index].leaver);
            first = index;
        }
    }
    return first;
}

zero_status zi_shared_fail_left(const zi_shared *shared, uint32_t index, const char *what)
{
    ZI_FAIL(ZERO_ERR_COMM,
            "rank %u has left the world while rank %u waits in %s; all ranks must make the same "
            "calls",
            shared->world_ranks[index], shared->space.world_rank, what);
}
