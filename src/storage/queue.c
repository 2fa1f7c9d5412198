/* Owns a queue: cuts operations into pieces, keeps a bounded number of them at the backend, and
 * judges what comes back. Invariants: a piece is free, at the backend, or waits to be tried again;
 * an operation is reported only when none of its pieces is out, so its memory is free; nothing is
 * allocated after create. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "storage/ladder.h"

#define PIECE_BYTES_MAX ((uint64_t)1 << 30)
#define REAPED_MAX 64
/* A wait wakes for this part of what is in flight: the rest keeps the device busy meanwhile. */
#define WAKE_DIVISOR 4
#define STALL_NS UINT64_C(30000000000)
#define PAUSE_FIRST_NS UINT64_C(100000)
#define PAUSE_LAST_NS UINT64_C(10000000)

typedef struct queue_region {
    uint64_t start; /* address */
    uint64_t end;
    uint32_t first_slice;
} queue_region;

struct zi_io {
    const zi_store *store;
    const zi_stripe_map *map;
    zi_io_backend backend;
    zi_io_report report;
    zi_io_stats stats;
    uint64_t piece_bytes;
    uint64_t retry_ns;
    uint32_t file_depth;
    bool owned;
    pthread_t owner; /* where owned */
    int broken;      /* errno of the backend; 0: it works */
    queue_region *regions;
    uint32_t region_count;
    uint32_t depth;
    zi_io_piece *pieces;                         /* depth of them */
    zi_io_piece *free;                           /* a list */
    zi_io_piece *again;                          /* a list: to be tried again when due */
    uint32_t out;                                /* at the backend */
    uint32_t file_out[ZI_STORE_DIRECTORIES_MAX]; /* not free, by file */
    zi_io_op *waiting;                           /* a list: operations with something left to cut */
    zi_io_op **waiting_end;
};

/* The queue is one thread's: the first that uses it. */
static void enter(zi_io *queue)
{
    if (!queue->owned) {
        queue->owned = true;
        queue->owner = pthread_self();
    }
    zi_assert(pthread_equal(queue->owner, pthread_self()));
}

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
    op->failed_file = piece != NULL ? piece->file : UINT32_MAX;
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
    piece->pause_ns = zi_min_u64(piece->pause_ns * 2, PAUSE_LAST_NS);
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

static void judge_piece(zi_io *queue, zi_io_piece *piece)
{
    const int result = zi_fault_hit(ZI_FAULT_IO) ? -EIO : piece->result;
    queue->out--;
    if (piece->op->native != 0) {
        free_piece(queue, piece);
    } else if (result == -EINTR || result == -EAGAIN) {
        try_again(queue, piece, -result);
    } else if (result <= 0) {
        /* The file has all its bytes, so an end before them is a fault of the device. */
        fail_op(queue, piece->op, result < 0 ? -result : EIO, piece);
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

/* Hand over what may go: earlier operations first, a later one past those whose disk is busy. */
static void pump(zi_io *queue)
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

/* The backend keeps what it has, so every operation fails and none can be started. */
static void break_queue(zi_io *queue, int code)
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

static uint64_t next_due_ns(const zi_io *queue)
{
    uint64_t next = UINT64_MAX;
    for (const zi_io_piece *piece = queue->again; piece != NULL; piece = piece->next) {
        next = zi_min_u64(next, piece->due_ns);
    }
    return next;
}

static void log_stall(const zi_io *queue)
{
    for (uint32_t i = 0; i < queue->depth; i++) {
        const zi_io_piece *piece = &queue->pieces[i];
        if (piece->op != NULL) {
            zi_log(ZERO_LOG_WARN,
                   "storage: %u accesses have had no answer for %" PRIu64
                   " s, one of them at %" PRIu64 " in the directory %s",
                   queue->out, STALL_NS / UINT64_C(1000000000), piece->op_offset,
                   zi_store_directory_of(queue->store, piece->file)->path);
            return;
        }
    }
}

/* Take what is complete and hand over more; block for `want` completions or until a piece is due.
 */
static void turn(zi_io *queue, uint32_t want)
{
    const uint64_t due = next_due_ns(queue);
    const uint64_t now = due != UINT64_MAX ? zi_clock_ns() : 0;
    const uint64_t until_due = due > now ? due - now : 0;
    if (want > 0 && queue->out == 0) {
        const struct timespec pause = {.tv_nsec = (long)zi_min_u64(until_due, PAUSE_LAST_NS)};
        (void)nanosleep(&pause, NULL);
        pump(queue);
        return;
    }
    zi_io_piece *done[REAPED_MAX];
    const uint64_t timeout_ns = want > 0 ? zi_min_u64(until_due, STALL_NS) : 0;
    const uint64_t start = timeout_ns == STALL_NS ? zi_clock_ns() : 0;
    const int count =
        queue->backend.ops->reap(queue->backend.self, done, REAPED_MAX, want, timeout_ns);
    if (count < 0) {
        break_queue(queue, -count);
        return;
    }
    if (count == 0 && timeout_ns == STALL_NS && zi_clock_ns() - start >= STALL_NS) {
        log_stall(queue);
    }
    for (int i = 0; i < count; i++) {
        judge_piece(queue, done[i]);
    }
    pump(queue);
}

static zero_status check_op(const zi_io *queue, const zi_io_op *op)
{
    if (op->phase == ZI_IO_RUNNING) {
        ZI_FAIL(ZERO_STATE,
                "the transfer of %" PRIu64 " bytes at %" PRIu64 " runs already; wait for it first",
                op->bytes, op->offset);
    }
    if (op->kind != ZI_IO_READ && op->kind != ZI_IO_WRITE) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%d is neither reading nor writing", (int)op->kind);
    }
    const uint64_t address = (uint64_t)(uintptr_t)op->memory;
    if ((address | op->offset | op->bytes) % ZI_STORAGE_ALIGN != 0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "%" PRIu64 " bytes at %" PRIu64
                " from memory at %p: all must be multiples of %" PRIu64,
                op->bytes, op->offset, op->memory, ZI_STORAGE_ALIGN);
    }
    const uint64_t store_bytes = queue->map->bytes;
    if (op->offset > store_bytes || op->bytes > store_bytes - op->offset) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "%" PRIu64 " bytes at %" PRIu64 " do not lie in a store of %" PRIu64, op->bytes,
                op->offset, store_bytes);
    }
    if (op->bytes > 0 && op->memory == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%" PRIu64 " bytes without memory", op->bytes);
    }
    if (queue->broken != 0) {
        ZI_FAIL_NATIVE(ZERO_IO, queue->broken,
                       "the queue is unusable since an earlier failure: %s; make a new one",
                       strerror(queue->broken));
    }
    return ZERO_OK;
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
    enter(queue);
    ZI_TRY(check_op(queue, op));
    op->next = NULL;
    op->in_flight = 0;
    op->cut_bytes = 0;
    op->native = 0;
    op->region = find_region(queue, op);
    op->phase = op->bytes > 0 ? ZI_IO_RUNNING : ZI_IO_DONE;
    queue->stats.ops[op->kind]++;
    if (op->bytes > 0) {
        *queue->waiting_end = op;
        queue->waiting_end = &op->next;
        pump(queue);
    }
    return ZERO_OK;
}

static zero_status outcome(const zi_io *queue, const zi_io_op *op)
{
    if (op->phase != ZI_IO_FAILED) {
        return ZERO_OK;
    }
    const bool somewhere = op->failed_file != UINT32_MAX;
    ZI_FAIL_NATIVE(ZERO_IO, op->native,
                   "%s %" PRIu64 " bytes at %" PRIu64 " of the store failed: %s (errno %d); %s%s",
                   op->kind == ZI_IO_READ ? "reading" : "writing", op->failed_bytes,
                   op->failed_offset, strerror(op->native), op->native,
                   somewhere ? "check the disk of " : "the queue is unusable",
                   somewhere ? zi_store_directory_of(queue->store, op->failed_file)->path : "");
}

zero_status zi_io_wait(zi_io *queue, zi_io_op *op)
{
    if (op->phase == ZI_IO_RUNNING) {
        enter(queue);
        const uint64_t start = zi_clock_ns();
        while (op->phase == ZI_IO_RUNNING) {
            /* op cannot be complete before so many pieces are: never too long a wait. */
            const uint64_t want = zi_min_u64(op->in_flight, queue->out / WAKE_DIVISOR);
            turn(queue, (uint32_t)zi_max_u64(want, 1));
        }
        queue->stats.waited_ns += zi_clock_ns() - start;
    }
    return outcome(queue, op);
}

void zi_io_poll(zi_io *queue)
{
    enter(queue);
    if (queue->broken == 0) {
        turn(queue, 0);
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

static zero_status check_options(const zi_io_options *options)
{
    if (options->piece_bytes % ZI_STORAGE_ALIGN != 0 || options->piece_bytes > PIECE_BYTES_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "pieces of %" PRIu64 " bytes; give a multiple of %" PRIu64 " up to %" PRIu64,
                options->piece_bytes, ZI_STORAGE_ALIGN, PIECE_BYTES_MAX);
    }
    if (options->file_depth > ZI_IO_DEPTH_MAX || options->depth > ZI_IO_DEPTH_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "%u and %u pieces in flight for a file and in all; at most %d", options->file_depth,
                options->depth, ZI_IO_DEPTH_MAX);
    }
    for (uint32_t i = 0; i < options->region_count; i++) {
        const zi_io_region *region = &options->regions[i];
        if (region->memory == NULL || region->bytes == 0 ||
            ((uintptr_t)region->memory | region->bytes) % ZI_STORAGE_ALIGN != 0) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT,
                    "region %u is %" PRIu64 " bytes at %p; give multiples of %" PRIu64, i,
                    region->bytes, region->memory, ZI_STORAGE_ALIGN);
        }
    }
    if (options->rung > ZI_IO_RUNG_POSIX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "there is no rung %d; give one up to %d", (int)options->rung,
                ZI_IO_RUNG_POSIX);
    }
    return ZERO_OK;
}

static void settle_depths(zi_io *queue, const zi_io_options *options)
{
    queue->file_depth = options->file_depth != 0 ? options->file_depth : ZI_IO_DEPTH;
    const uint64_t all = (uint64_t)queue->file_depth * queue->map->file_count;
    queue->depth =
        options->depth != 0 ? options->depth : (uint32_t)zi_min_u64(all, ZI_IO_DEPTH_MAX);
    queue->piece_bytes = options->piece_bytes != 0 ? options->piece_bytes : ZI_IO_PIECE_BYTES;
    queue->retry_ns = options->retry_ns != 0 ? options->retry_ns : ZI_IO_RETRY_NS;
    queue->report.depth = queue->depth;
    queue->report.direct = true;
    for (uint32_t i = 0; i < queue->map->file_count; i++) {
        const zi_store_directory *info = zi_store_directory_of(queue->store, i);
        queue->report.direct = queue->report.direct && info->direct;
    }
}

static zero_status make_pieces(zi_io *queue)
{
    ZI_TRY(zi_calloc(queue->depth, sizeof *queue->pieces, (void **)&queue->pieces));
    for (uint32_t i = 0; i < queue->depth; i++) {
        queue->pieces[i].next = queue->free;
        queue->free = &queue->pieces[i];
    }
    return ZERO_OK;
}

/* The regions' addresses, and how many slices they make. */
static zero_status keep_regions(zi_io *queue, const zi_io_options *options, uint32_t *slice_count)
{
    uint64_t slices = 0;
    ZI_TRY(zi_calloc(options->region_count, sizeof *queue->regions, (void **)&queue->regions));
    queue->region_count = options->region_count;
    for (uint32_t i = 0; i < options->region_count; i++) {
        const uint64_t start = (uint64_t)(uintptr_t)options->regions[i].memory;
        const uint64_t bytes = options->regions[i].bytes;
        queue->regions[i] = (queue_region){start, start + bytes, (uint32_t)slices};
        queue->report.region_bytes += bytes;
        slices += zi_div_up(bytes, ZI_IO_SLICE_BYTES);
    }
    if (slices > INT32_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%" PRIu64 " bytes of regions are too many",
                queue->report.region_bytes);
    }
    *slice_count = (uint32_t)slices;
    return ZERO_OK;
}

static void cut_slices(const zi_io_options *options, struct iovec *slices)
{
    for (uint32_t i = 0; i < options->region_count; i++) {
        const zi_io_region *region = &options->regions[i];
        for (uint64_t at = 0; at < region->bytes; at += ZI_IO_SLICE_BYTES) {
            slices->iov_base = (unsigned char *)region->memory + at;
            slices->iov_len = zi_min_u64(ZI_IO_SLICE_BYTES, region->bytes - at);
            slices++;
        }
    }
}

static zero_status make_backend(zi_io *queue, const zi_io_options *options)
{
    uint32_t slice_count = 0;
    ZI_TRY(keep_regions(queue, options, &slice_count));
    if (options->backend != NULL) {
        queue->report.rung = ZI_IO_RUNG_GIVEN;
        return ZERO_OK;
    }
    struct iovec *slices = NULL;
    ZI_TRY(zi_calloc(slice_count, sizeof *slices, (void **)&slices));
    cut_slices(options, slices);
    const zi_io_setup setup = {.store = options->store,
                               .file_count = queue->map->file_count,
                               .depth = queue->depth,
                               .slices = slices,
                               .slice_count = slice_count};
    const zero_status status = zi_io_climb(&setup, options->rung, &queue->backend, &queue->report);
    zi_free(slices);
    return status;
}

zero_status zi_io_create(const zi_io_options *options, zi_io **out)
{
    *out = NULL;
    zi_assert(options->store != NULL);
    zi_io *queue = NULL;
    zero_status status = zi_calloc(1, sizeof *queue, (void **)&queue);
    if (status != ZERO_OK) {
        if (options->backend != NULL) {
            options->backend->ops->destroy(options->backend->self);
        }
        return status;
    }
    if (options->backend != NULL) {
        queue->backend = *options->backend;
    }
    queue->store = options->store;
    queue->map = zi_store_map(options->store);
    queue->waiting_end = &queue->waiting;
    status = check_options(options);
    if (status == ZERO_OK) {
        settle_depths(queue, options);
        status = make_pieces(queue);
    }
    if (status == ZERO_OK) {
        status = make_backend(queue, options);
    }
    if (status != ZERO_OK) {
        zi_io_destroy(queue);
        return status;
    }
    *out = queue;
    return ZERO_OK;
}

/* What is not at the backend is given up; the rest comes back in its time. */
static void drain(zi_io *queue)
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

void zi_io_destroy(zi_io *queue)
{
    if (queue == NULL) {
        return;
    }
    drain(queue);
    while (queue->out > 0) {
        turn(queue, 1);
        drain(queue);
    }
    if (queue->backend.ops != NULL) {
        queue->backend.ops->destroy(queue->backend.self);
    }
    zi_free(queue->regions);
    zi_free(queue->pieces);
    zi_free(queue);
}
