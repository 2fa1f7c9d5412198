/* Owns the pieces of a queue: cuts operations into them, judges what comes back, tries again.
 * Invariants: a piece is free, at the backend, or waits to be tried again; an operation is complete
 * only when none of its pieces is out, so its memory is free. */
#include <errno.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/sizes.h"
#include "storage/queue_internal.h"

#define PAUSE_FIRST_NS UINT64_C(100000)

static void finish_if_complete(zi_io_op *op)
{
    if (op->in_flight == 0 && op->phase == ZI_IO_RUNNING) {
        if (op->native != 0) {
            op->phase = ZI_IO_FAILED;
        } else if (op->cut_bytes == op->bytes) {
            op->phase = ZI_IO_DONE;
        }
    }
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

/* The first fault of an operation is the one reported; the rest of it is not cut any more. */
static void fail_op(zi_io *queue, zi_io_op *op, int code, const zi_io_piece *piece)
{
    if (op->native != 0) {
        return;
    }
    op->native = code;
    op->failed_offset = piece != NULL ? piece->op_offset : op->offset;
    op->failed_bytes = piece != NULL ? piece->bytes : op->bytes;
    queue->stats.failed++;
    leave_waiting(queue, op);
}

static void free_piece(zi_io *queue, zi_io_piece *piece)
{
    zi_io_op *op = piece->op;
    queue->file_out[piece->file]--;
    op->in_flight--;
    piece->op = NULL;
    piece->next = queue->free;
    queue->free = piece;
    finish_if_complete(op);
}

static void put_piece(zi_io *queue, zi_io_piece *piece)
{
    queue->out++;
    queue->backend.ops->put(queue->backend.self, piece);
}

/* Nothing was moved. At once after a signal, else after a pause; not for ever. */
static void try_again(zi_io *queue, zi_io_piece *piece, int code)
{
    const uint64_t now = zi_clock_ns();
    if (piece->since_ns == 0) {
        piece->since_ns = now;
        piece->pause_ns = PAUSE_FIRST_NS;
    }
    if (now - piece->since_ns > queue->retry_ns) {
        fail_op(queue, piece->op, code, piece);
        free_piece(queue, piece);
        return;
    }
    queue->stats.retries++;
    if (code == EINTR) {
        put_piece(queue, piece);
        return;
    }
    piece->due_ns = now + piece->pause_ns;
    piece->pause_ns = zi_min_u64(piece->pause_ns * 2, ZI_IO_PAUSE_LAST_NS);
    piece->next = queue->again;
    queue->again = piece;
}

/* Some of it was moved. Direct I/O goes on at an aligned place only, so a torn block is moved
 * again. */
static void advance_piece(zi_io *queue, zi_io_piece *piece)
{
    const uint32_t moved = (uint32_t)piece->result;
    zi_assert_cmp(moved, <=, piece->bytes);
    const uint32_t kept =
        moved == piece->bytes ? moved : moved - moved % (uint32_t)ZI_STORAGE_ALIGN;
    queue->stats.bytes[piece->kind] += kept;
    piece->offset += kept;
    piece->op_offset += kept;
    piece->memory = (unsigned char *)piece->memory + kept;
    piece->bytes -= kept;
    if (piece->bytes == 0) {
        free_piece(queue, piece);
    } else if (kept == 0) {
        try_again(queue, piece, EIO);
    } else {
        piece->since_ns = 0;
        queue->stats.retries++;
        put_piece(queue, piece);
    }
}

void zi_io_judge(zi_io *queue, zi_io_piece *piece)
{
    const int result = zi_fault_hit(ZI_FAULT_IO) ? -EIO : piece->result;
    queue->out--;
    if (piece->op->native != 0) {
        free_piece(queue, piece);
    } else if (result == -EINTR || result == -EAGAIN) {
        try_again(queue, piece, -result);
    } else if (result <= 0) {
        /* The file had all its bytes, so an end before them is not ours. */
        const int end = piece->kind == ZI_IO_READ ? ENODATA : EIO;
        fail_op(queue, piece->op, result < 0 ? -result : end, piece);
        free_piece(queue, piece);
    } else {
        advance_piece(queue, piece);
    }
}

/* How much memory from `op`'s next byte on lies in one slice, and in which. */
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

/* True when all of op is cut, false when pieces or its file's turn ran out. */
static bool cut_op(zi_io *queue, zi_io_op *op)
{
    while (op->cut_bytes < op->bytes) {
        const uint64_t offset = op->offset + op->cut_bytes;
        const zi_stripe_place place = zi_stripe_find(queue->map, offset);
        if (queue->free == NULL || queue->file_out[place.file] == queue->file_depth) {
            return false;
        }
        int32_t slice = -1;
        uint64_t bytes = zi_min_u64(queue->piece_bytes, op->bytes - op->cut_bytes);
        bytes = zi_min_u64(bytes, zi_min_u64(place.bytes, slice_left(queue, op, &slice)));
        zi_io_piece *piece = queue->free;
        queue->free = piece->next;
        *piece = (zi_io_piece){.kind = op->kind,
                               .file = place.file,
                               .fd = zi_store_fd(queue->store, place.file),
                               .slice = slice,
                               .offset = place.offset,
                               .memory = (unsigned char *)op->memory + op->cut_bytes,
                               .bytes = (uint32_t)bytes,
                               .op = op,
                               .op_offset = offset};
        queue->file_out[place.file]++;
        op->in_flight++;
        op->cut_bytes += bytes;
        queue->stats.pieces[op->kind]++;
        put_piece(queue, piece);
    }
    return true;
}

static void put_due(zi_io *queue)
{
    const uint64_t now = queue->again != NULL ? zi_clock_ns() : 0;
    zi_io_piece **link = &queue->again;
    while (*link != NULL) {
        zi_io_piece *piece = *link;
        if (piece->due_ns <= now) {
            *link = piece->next;
            put_piece(queue, piece);
        } else {
            link = &piece->next;
        }
    }
}

void zi_io_pump(zi_io *queue)
{
    put_due(queue);
    zi_io_op **link = &queue->waiting;
    while (*link != NULL && queue->free != NULL) {
        zi_io_op *op = *link;
        if (!cut_op(queue, op)) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        if (*link == NULL) {
            queue->waiting_end = link;
        }
    }
    queue->backend.ops->flush(queue->backend.self);
}

uint64_t zi_io_next_due_ns(const zi_io *queue)
{
    uint64_t next = UINT64_MAX;
    for (const zi_io_piece *piece = queue->again; piece != NULL; piece = piece->next) {
        next = zi_min_u64(next, piece->due_ns);
    }
    return next;
}

void zi_io_break(zi_io *queue, int code)
{
    queue->broken = code;
    queue->again = NULL;
    queue->out = 0;
    while (queue->waiting != NULL) {
        zi_io_op *op = queue->waiting;
        fail_op(queue, op, code, NULL);
        finish_if_complete(op);
    }
    for (uint32_t i = 0; i < queue->depth; i++) {
        if (queue->pieces[i].op != NULL) {
            fail_op(queue, queue->pieces[i].op, code, &queue->pieces[i]);
            free_piece(queue, &queue->pieces[i]);
        }
    }
}

void zi_io_drain(zi_io *queue)
{
    while (queue->waiting != NULL) {
        zi_io_op *op = queue->waiting;
        fail_op(queue, op, ECANCELED, NULL);
        finish_if_complete(op);
    }
    while (queue->again != NULL) {
        zi_io_piece *piece = queue->again;
        queue->again = piece->next;
        fail_op(queue, piece->op, ECANCELED, piece);
        free_piece(queue, piece);
    }
}
