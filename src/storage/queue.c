/* Owns the calls of a queue. It has no thread of its own: the caller's thread submits segments and
 * reaps completions while it starts, polls and waits. Invariant: nothing is allocated after create.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "storage/queue_internal.h"

#define REAPED_MAX 64
/* A wait wakes when this part of what is in flight is complete: the rest keeps the device busy. */
#define WAKE_DIVISOR 4
#define STALL_NS UINT64_C(30000000000)

/* Unless it is shared, a queue belongs to the first thread that uses it. */
static void queue_enter(zi_io *queue)
{
    if (queue->shared) {
        return;
    }
    if (!queue->owned) {
        queue->owned = true;
        queue->owner = pthread_self();
    }
    zi_assert(pthread_equal(queue->owner, pthread_self()));
}

static void log_stall(const zi_io *queue)
{
    for (uint32_t i = 0; i < queue->depth; i++) {
        const zi_io_segment *segment = &queue->segments[i];
        if (segment->op != NULL) {
            zi_log(ZERO_LOG_WARN,
                   "storage: %u accesses have had no answer for %" PRIu64
                   " s, one of them at %" PRIu64 " in the directory %s",
                   queue->in_flight, STALL_NS / UINT64_C(1000000000), segment->op_offset,
                   zi_store_directory_of(queue->store, segment->file)->path);
            return;
        }
    }
}

/* Reap completions and submit more. Blocks for `want` completions, or until a retry is due. */
static void progress(zi_io *queue, uint32_t want)
{
    const uint64_t due = zi_io_next_due_ns(queue);
    const uint64_t now = due != UINT64_MAX ? zi_clock_ns() : 0;
    const uint64_t until_due = due > now ? due - now : 0;
    if (want > 0 && queue->in_flight == 0) {
        const struct timespec pause = {.tv_nsec = (long)zi_min_u64(until_due, ZI_IO_PAUSE_LAST_NS)};
        (void)nanosleep(&pause, NULL);
        zi_io_pump(queue);
        return;
    }
    zi_io_segment *done[REAPED_MAX];
    const uint64_t timeout_ns = want > 0 ? zi_min_u64(until_due, STALL_NS) : 0;
    const uint64_t start = timeout_ns == STALL_NS ? zi_clock_ns() : 0;
    const int count =
        queue->backend.ops->reap(queue->backend.self, done, REAPED_MAX, want, timeout_ns);
    if (count < 0) {
        zi_io_break(queue, -count);
        return;
    }
    if (count == 0 && timeout_ns == STALL_NS && zi_clock_ns() - start >= STALL_NS) {
        log_stall(queue);
    }
    for (int i = 0; i < count; i++) {
        zi_io_complete(queue, done[i]);
    }
    zi_io_pump(queue);
}

/* Once a backend is broken the kernel keeps all that it has, of every directory. */
static zero_status refuse_broken(const zi_io *queue)
{
    ZI_FAIL_NATIVE(ZERO_ERR_IO, queue->broken,
                   "files can no longer be read or written: %s (errno %d); start the job again, "
                   "from a checkpoint; in the directory %s%s",
                   strerror(queue->broken), queue->broken,
                   zi_store_directory_of(queue->store, 0)->path,
                   queue->map->file_count > 1 ? " and the others" : "");
}

static zero_status check_op(const zi_io *queue, const zi_io_op *op)
{
    if (op->phase == ZI_IO_RUNNING) {
        ZI_FAIL(ZERO_ERR_STATE,
                "the transfer of %" PRIu64 " bytes at %" PRIu64 " runs already; wait for it first",
                op->bytes, op->offset);
    }
    if (op->kind != ZI_IO_READ && op->kind != ZI_IO_WRITE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%d is neither reading nor writing", (int)op->kind);
    }
    const uint64_t address = (uint64_t)(uintptr_t)op->memory;
    if ((address | op->offset | op->bytes) % ZI_STORAGE_ALIGN != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%" PRIu64 " bytes at %" PRIu64
                " from memory at %p: all must be multiples of %" PRIu64,
                op->bytes, op->offset, op->memory, ZI_STORAGE_ALIGN);
    }
    const uint64_t store_bytes = queue->map->bytes;
    if (op->offset > store_bytes || op->bytes > store_bytes - op->offset) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%" PRIu64 " bytes at %" PRIu64 " do not lie in a store of %" PRIu64, op->bytes,
                op->offset, store_bytes);
    }
    if (op->bytes > 0 && op->memory == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%" PRIu64 " bytes without memory", op->bytes);
    }
    return queue->broken != 0 ? refuse_broken(queue) : ZERO_OK;
}

static int32_t find_region(const zi_io *queue, const zi_io_op *op)
{
    const uint64_t start = (uint64_t)(uintptr_t)op->memory;
    for (uint32_t i = 0; i < queue->region_count; i++) {
        const queue_region *region = &queue->regions[i];
        if (start >= region->start && start + op->bytes <= region->end) {
            return (int32_t)i;
        }
    }
    return -1;
}

zero_status zi_io_start(zi_io *queue, zi_io_op *op)
{
    queue_enter(queue);
    ZI_TRY(check_op(queue, op));
    op->next = NULL;
    op->in_flight = 0;
    op->cut_bytes = 0;
    op->native = 0;
    op->region = find_region(queue, op);
    op->phase = op->bytes > 0 ? ZI_IO_RUNNING : ZI_IO_DONE;
    queue->stats.ops[op->kind]++;
    if (op->bytes > 0) {
        zi_io_note_begin(queue, op);
        *queue->waiting_end = op;
        queue->waiting_end = &op->next;
        zi_io_pump(queue);
    }
    return ZERO_OK;
}

static zero_status outcome(const zi_io *queue, const zi_io_op *op)
{
    if (op->phase != ZI_IO_FAILED) {
        return ZERO_OK;
    }
    if (op->native == queue->broken) {
        return refuse_broken(queue);
    }
    const zi_stripe_place place = zi_stripe_find(queue->map, op->failed_offset);
    const char *path = zi_store_directory_of(queue->store, place.file)->path;
    if (op->native == ENODATA && op->kind == ZI_IO_READ) {
        ZI_FAIL_NATIVE(ZERO_ERR_CORRUPT, ENODATA,
                       "%" PRIu64 " bytes at %" PRIu64 " of the file are gone, it was cut short; "
                       "go on from a checkpoint; in the directory %s",
                       op->failed_bytes, place.offset, path);
    }
    ZI_FAIL_NATIVE(ZERO_ERR_IO, op->native,
                   "%s %" PRIu64 " bytes at %" PRIu64 " of the file failed: %s (errno %d); check "
                   "the disk, and go on from a checkpoint; in the directory %s",
                   op->kind == ZI_IO_READ ? "reading" : "writing", op->failed_bytes, place.offset,
                   strerror(op->native), op->native, path);
}

zero_status zi_io_wait(zi_io *queue, zi_io_op *op)
{
    if (op->phase == ZI_IO_RUNNING) {
        queue_enter(queue);
        const uint64_t start = zi_clock_ns();
        zi_mark *wait = zi_io_note_wait(queue, op);
        while (op->phase == ZI_IO_RUNNING) {
            /* op is not complete before op->in_flight segments are, so this never waits too long.
             */
            const uint64_t want = zi_min_u64(op->in_flight, queue->in_flight / WAKE_DIVISOR);
            progress(queue, (uint32_t)zi_max_u64(want, 1));
        }
        zi_timeline_end(queue->timeline, wait);
        queue->stats.waited_ns += zi_clock_ns() - start;
    }
    return outcome(queue, op);
}

void zi_io_poll(zi_io *queue)
{
    queue_enter(queue);
    if (queue->broken == 0) {
        progress(queue, 0);
    }
}

const zi_io_report *zi_io_report_of(const zi_io *queue)
{
    return &queue->report;
}

const zi_io_stats *zi_io_stats_of(const zi_io *queue)
{
    return &queue->stats;
}

void zi_io_destroy(zi_io *queue)
{
    if (queue == NULL) {
        return;
    }
    zi_io_drain(queue);
    while (queue->in_flight > 0) {
        progress(queue, 1);
        zi_io_drain(queue);
    }
    if (queue->backend.ops != NULL) {
        queue->backend.ops->destroy(queue->backend.self);
    }
    zi_free(queue->regions);
    zi_free(queue->segments);
    zi_free(queue);
}
