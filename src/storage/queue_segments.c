/* Owns the segments of a queue: splits operations into them, checks their results, retries them.
 * Invariants: a segment is free, in flight, or waits for its retry; an operation is complete only
 * when none of its segments is left, so its memory is the caller's again. */
#include <errno.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/sizes.h"
#include "storage/queue_internal.h"

#define PAUSE_FIRST_NS UINT64_C(100000)

static void finish_if_complete(zi_io *queue, zi_io_op *op)
{
    if (op->phase != ZI_IO_RUNNING || op->in_flight != 0 ||
        (op->native == 0 && op->cut_bytes != op->bytes)) {
        return;
    }
    op->phase = op->native != 0 ? ZI_IO_FAILED : ZI_IO_DONE;
    zi_io_note_end(queue, op);
}

static void leave_waiting(zi_io *queue, const zi_io_op *op)
{
    for (zi_io_op **link = &queue->waiting; *link != NULL; link = &(*link)->next) {
        if (*link == op) {
            *link = op->next;
            if (*link == NULL) {
                queue->waiting_end = link;
            }
            return;
        }
    }
}

/* The first fault of an operation is the one reported; what is left of it is not submitted. */
static void fail_op(zi_io *queue, zi_io_op *op, int code, const zi_io_segment *segment)
{
    if (op->native != 0) {
        return;
    }
    op->native = code;
    op->failed_offset = segment != NULL ? segment->op_offset : op->offset;
    op->failed_bytes = segment != NULL ? segment->bytes : op->bytes;
    queue->stats.failed++;
    leave_waiting(queue, op);
}

static void free_segment(zi_io *queue, zi_io_segment *segment)
{
    zi_io_op *op = segment->op;
    queue->file_segments[segment->file]--;
    op->in_flight--;
    segment->op = NULL;
    segment->next = queue->free;
    queue->free = segment;
    finish_if_complete(queue, op);
}

static void put_segment(zi_io *queue, zi_io_segment *segment)
{
    queue->in_flight++;
    queue->backend.ops->put(queue->backend.self, segment);
}

/* Nothing was moved. Retried at once after a signal, else after a pause, until retry_ns have
 * passed. */
static void retry(zi_io *queue, zi_io_segment *segment, int code)
{
    const uint64_t now = zi_clock_ns();
    if (segment->since_ns == 0) {
        segment->since_ns = now;
        segment->pause_ns = PAUSE_FIRST_NS;
    }
    if (now - segment->since_ns > queue->retry_ns) {
        fail_op(queue, segment->op, code, segment);
        free_segment(queue, segment);
        return;
    }
    queue->stats.retries++;
    if (code == EINTR) {
        put_segment(queue, segment);
        return;
    }
    segment->due_ns = now + segment->pause_ns;
    segment->pause_ns = zi_min_u64(segment->pause_ns * 2, ZI_IO_PAUSE_LAST_NS);
    segment->next = queue->retries;
    queue->retries = segment;
}

/* Some of it was moved. Direct I/O continues at an aligned offset only, so a torn block is moved
 * again. */
static void advance_segment(zi_io *queue, zi_io_segment *segment)
{
    const uint32_t moved = (uint32_t)segment->result;
    zi_assert_cmp(moved, <=, segment->bytes);
    const uint32_t kept =
        moved == segment->bytes ? moved : moved - moved % (uint32_t)ZI_STORAGE_ALIGN;
    queue->stats.bytes[segment->kind] += kept;
    segment->offset += kept;
    segment->op_offset += kept;
    segment->memory = (unsigned char *)segment->memory + kept;
    segment->bytes -= kept;
    if (segment->bytes == 0) {
        free_segment(queue, segment);
    } else if (kept == 0) {
        retry(queue, segment, EIO);
    } else {
        segment->since_ns = 0;
        queue->stats.retries++;
        put_segment(queue, segment);
    }
}

void zi_io_complete(zi_io *queue, zi_io_segment *segment)
{
    const int result = zi_fault_hit(ZI_FAULT_IO) ? -EIO : segment->result;
    queue->in_flight--;
    if (segment->op->native != 0) {
        free_segment(queue, segment);
    } else if (result == -EINTR || result == -EAGAIN) {
        retry(queue, segment, -result);
    } else if (result <= 0) {
        /* The file was made with all its bytes, so somebody else has cut it. */
        const int end = segment->kind == ZI_IO_READ ? ENODATA : EIO;
        fail_op(queue, segment->op, result < 0 ? -result : end, segment);
        free_segment(queue, segment);
    } else {
        advance_segment(queue, segment);
    }
}

/* How many bytes from the next one of `op` on lie in one registered slice, and in which. */
static uint64_t slice_left(const zi_io *queue, const zi_io_op *op, int32_t *slice)
{
    *slice = -1;
    if (op->region < 0) {
        return UINT64_MAX;
    }
    const queue_region *region = &queue->regions[op->region];
    const uint64_t into = (uint64_t)(uintptr_t)op->memory + op->cut_bytes - region->start;
    *slice = (int32_t)(region->first_slice + into / ZI_IO_SLICE_BYTES);
    return ZI_IO_SLICE_BYTES - into % ZI_IO_SLICE_BYTES;
}

/* How many of the next bytes of `op`, which lie together in one file, are to be written together:
 * at most `bytes`. 0: some need not be written, and are behind it now. */
static uint64_t queue_segments_share(zi_io *queue, zi_io_op *op, const zi_stripe_place *place,
                                     uint64_t bytes)
{
    const zi_io_piece piece = {.extent = op->extent,
                               .at = op->cut_bytes,
                               .bytes = zi_min_u64(place->bytes, op->bytes - op->cut_bytes),
                               .fd = zi_store_fd(queue->store, place->file),
                               .offset = place->offset};
    if (op->source == NULL || op->kind != ZI_IO_WRITE || piece.fd < 0) {
        return bytes;
    }
    const zi_io_shared next = op->source->share(op->source->user, &piece);
    zi_assert(next.bytes != 0 && next.bytes <= piece.bytes && next.bytes % ZI_STORAGE_ALIGN == 0);
    op->cut_bytes += next.shared ? next.bytes : 0;
    return next.shared ? 0 : zi_min_u64(bytes, next.bytes);
}

/* Submit op as segments. False when no segment is free or its file has its depth in flight. */
static bool split_op(zi_io *queue, zi_io_op *op)
{
    while (op->cut_bytes < op->bytes) {
        const uint64_t offset = op->offset + op->cut_bytes;
        const zi_stripe_place place = zi_stripe_find(queue->map, offset);
        if (queue->free == NULL || queue->file_segments[place.file] == queue->file_depth) {
            return false;
        }
        int32_t slice = -1;
        uint64_t bytes = zi_min_u64(queue->segment_bytes, op->bytes - op->cut_bytes);
        bytes = zi_min_u64(bytes, zi_min_u64(place.bytes, slice_left(queue, op, &slice)));
        bytes = queue_segments_share(queue, op, &place, bytes);
        if (bytes == 0) {
            continue;
        }
        zi_io_segment *segment = queue->free;
        queue->free = segment->next;
        *segment = (zi_io_segment){.kind = op->kind,
                                   .file = place.file,
                                   .fd = zi_store_fd(queue->store, place.file),
                                   .slice = slice,
                                   .offset = place.offset,
                                   .memory = (unsigned char *)op->memory + op->cut_bytes,
                                   .bytes = (uint32_t)bytes,
                                   .op = op,
                                   .op_offset = offset};
        queue->file_segments[place.file]++;
        op->in_flight++;
        op->cut_bytes += bytes;
        queue->stats.segments[op->kind]++;
        put_segment(queue, segment);
    }
    return true;
}

static void put_due_retries(zi_io *queue)
{
    const uint64_t now = queue->retries != NULL ? zi_clock_ns() : 0;
    zi_io_segment **link = &queue->retries;
    while (*link != NULL) {
        zi_io_segment *segment = *link;
        if (segment->due_ns <= now) {
            *link = segment->next;
            put_segment(queue, segment);
        } else {
            link = &segment->next;
        }
    }
}

void zi_io_pump(zi_io *queue)
{
    put_due_retries(queue);
    zi_io_op **link = &queue->waiting;
    while (*link != NULL && queue->free != NULL) {
        zi_io_op *op = *link;
        if (!split_op(queue, op)) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        if (*link == NULL) {
            queue->waiting_end = link;
        }
        finish_if_complete(queue, op); /* shared bytes have no segments */
    }
    queue->backend.ops->flush(queue->backend.self);
}

uint64_t zi_io_next_due_ns(const zi_io *queue)
{
    uint64_t next = UINT64_MAX;
    for (const zi_io_segment *segment = queue->retries; segment != NULL; segment = segment->next) {
        next = zi_min_u64(next, segment->due_ns);
    }
    return next;
}

void zi_io_break(zi_io *queue, int code)
{
    queue->broken = code;
    queue->retries = NULL;
    queue->in_flight = 0;
    while (queue->waiting != NULL) {
        zi_io_op *op = queue->waiting;
        fail_op(queue, op, code, NULL);
        finish_if_complete(queue, op);
    }
    for (uint32_t i = 0; i < queue->depth; i++) {
        if (queue->segments[i].op != NULL) {
            fail_op(queue, queue->segments[i].op, code, &queue->segments[i]);
            free_segment(queue, &queue->segments[i]);
        }
    }
}

void zi_io_drain(zi_io *queue)
{
    while (queue->waiting != NULL) {
        zi_io_op *op = queue->waiting;
        fail_op(queue, op, ECANCELED, NULL);
        finish_if_complete(queue, op);
    }
    while (queue->retries != NULL) {
        zi_io_segment *segment = queue->retries;
        queue->retries = segment->next;
        fail_op(queue, segment->op, ECANCELED, segment);
        free_segment(queue, segment);
    }
}
