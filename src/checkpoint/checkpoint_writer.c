/* Owns the ring of blocks, and the threads that add them to the sums and write them. These are two
 * jobs, each with threads of its own: a thread that has written a block begins the next at once, so
 * the disk never waits for sums. Invariant: a block leaves once both jobs are done with it and all
 * before it have left. */
#include "checkpoint/checkpoint_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/manifest.h"
#include "core/check.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"

typedef enum writer_job { JOB_SUM, JOB_WRITE, JOBS } writer_job;

/* One core sums faster than most disks write, and more than one takes memory's bandwidth from the
 * disk. A fast disk needs several writes under way. */
#define SUM_THREADS 1
#define WRITE_THREADS 8
/* Blocks under way at most, beside those that fill the ring; those of small tensors are short. */
#define BLOCKS 1024
#define SECOND_NS UINT64_C(1000000000)

/* A block under way. of.bytes 0: the file is sealed. */
typedef struct queued_block {
    zi_checkpoint_block of;
    bool in_ring;
    uint64_t first; /* in the ring, with the lead */
    uint32_t jobs;  /* that are not done with it */
} queued_block;

typedef struct output {
    int direct;       /* -1: not open, or the file system has no direct access */
    int buffered;     /* -1: not open */
    uint64_t pending; /* the seal, and blocks that are not written yet; of the sums, not added */
} output;

struct zi_checkpoint_writer {
    zi_checkpoint_writer_desc desc;
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    pthread_t threads[SUM_THREADS + WRITE_THREADS];
    uint32_t thread_count;
    pthread_mutex_t mutex;     /* guards all below but the stager's own */
    pthread_cond_t came[JOBS]; /* a block, or the end: for threads of the job */
    pthread_cond_t left;       /* a block left, or the writer was stopped: for the stager */
    pthread_cond_t over;       /* is_over */
    queued_block *queue;
    uint64_t queue_count;
    uint64_t head;         /* the oldest block under way */
    uint64_t next[JOBS];   /* for threads of the job to take */
    uint64_t tail;         /* one behind the newest */
    uint64_t ring_end;     /* of the newest block in the ring; the stager's own */
    queued_block reserved; /* the stager's own, as the next */
    uint64_t align;        /* zi_checkpoint_writer_align; 0: not asked yet */
    bool share_refused;    /* by the file system; the stager's own */
    output *outputs;       /* by file */
    bool said;             /* that the page cache serves; atomic */
    bool made_files;       /* and they are not on the disk yet; a thread's first task */
    bool syncing;          /* that thread is at it */
    bool finished;
    bool dropping; /* failed or stopped */
    zero_error error;
    zi_checkpoint_writer_counts counts;
    pthread_mutex_t opening; /* guards the opening of files */
};

/* ---- files ---- */

static const char *checkpoint_writer_name_of(const zi_checkpoint_writer *writer,
                                             const zi_checkpoint_block *b)
{
    const zi_checkpoint_map *map = writer->desc.map;
    return b->file < map->file_count ? map->files[b->file].name : ZI_SUMS_NAME;
}

static zero_status checkpoint_writer_failed(const zi_checkpoint_writer *writer,
                                            const zi_checkpoint_block *b, const char *doing)
{
    const int code = errno;
    ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "%s: %s %" PRIu64 " bytes at offset %" PRIu64 " of %s/%s",
                   strerror(code), doing, b->bytes, b->at, writer->folder,
                   checkpoint_writer_name_of(writer, b));
}

/* The files of a checkpoint are on one file system, so it is said once. code: an errno. */
static void say_cached(zi_checkpoint_writer *writer, int code)
{
    if (!__atomic_exchange_n(&writer->said, true, __ATOMIC_RELAXED)) {
        zi_log(ZERO_LOG_WARN,
               "checkpoint: written through the page cache, without O_DIRECT (%s): %s",
               strerror(code), writer->folder);
    }
}

/* Open the block's file, if it is not. */
static zero_status open_output(zi_checkpoint_writer *writer, const zi_checkpoint_block *b)
{
    output *out = &writer->outputs[b->file];
    int refused = 0;
    char path[ZI_CHECKPOINT_PATH_BYTES];
    zero_status status =
        zi_checkpoint_path(path, writer->folder, checkpoint_writer_name_of(writer, b));
    (void)pthread_mutex_lock(&writer->opening);
    if (status == ZERO_OK && out->buffered < 0) {
        const int flags = O_WRONLY | O_CLOEXEC | O_NOFOLLOW;
        out->buffered = open(path, flags);
        status =
            out->buffered < 0 ? checkpoint_writer_failed(writer, b, "opening, to write") : ZERO_OK;
        /* Refused where the file system has no direct access: the page cache serves then. */
        out->direct = status == ZERO_OK ? open(path, flags | O_DIRECT) : -1;
        refused = status == ZERO_OK && out->direct < 0 ? errno : 0;
    }
    (void)pthread_mutex_unlock(&writer->opening);
    if (refused != 0) {
        say_cached(writer, refused);
    }
    return status;
}

static void close_output(output *out)
{
    if (out->direct >= 0) {
        (void)close(out->direct);
    }
    if (out->buffered >= 0) {
        (void)close(out->buffered);
    }
    out->direct = -1;
    out->buffered = -1;
}

/* Write bytes [begin, end) of the file, which lie in the block. */
static zero_status write_range(zi_checkpoint_writer *writer, const zi_checkpoint_block *b,
                               int descriptor, uint64_t begin, uint64_t end)
{
    int into = descriptor;
    while (begin < end) {
        const ssize_t wrote =
            pwrite(into, b->data + (begin - b->at), (size_t)(end - begin), (off_t)begin);
        if (wrote > 0) {
            begin += (uint64_t)wrote;
            continue;
        }
        if (wrote < 0 && errno == EINVAL && into != writer->outputs[b->file].buffered) {
            say_cached(writer, errno);
            into = writer->outputs[b->file].buffered; /* direct access wants another alignment */
            continue;
        }
        errno = wrote == 0 ? EIO : errno;
        if (errno != EINTR) {
            return checkpoint_writer_failed(writer, b, "writing");
        }
    }
    return ZERO_OK;
}

/* Bytes of a file. */
typedef struct file_range {
    uint64_t first;
    uint64_t end;
} file_range;

/* The block's whole pages; where it has none, an empty range in it. */
static file_range pages_of(const zi_checkpoint_block *b)
{
    const uint64_t end = b->at + b->bytes;
    const uint64_t first = zi_min_u64(zi_align_up(b->at, ZI_CHECKPOINT_ALIGN), end);
    return (file_range){first, zi_max_u64(end / ZI_CHECKPOINT_ALIGN * ZI_CHECKPOINT_ALIGN, first)};
}

static zero_status write_block(zi_checkpoint_writer *writer, const zi_checkpoint_block *b)
{
    ZI_TRY(open_output(writer, b));
    zi_fault_sleep(ZI_FAULT_IO);
    if (zi_fault_hit(ZI_FAULT_IO)) {
        errno = EIO;
        return checkpoint_writer_failed(writer, b, "writing");
    }
    const output *out = &writer->outputs[b->file];
    const file_range pages = pages_of(b);
    const int direct = out->direct >= 0 ? out->direct : out->buffered;
    ZI_TRY(write_range(writer, b, out->buffered, b->at, pages.first));
    ZI_TRY(b->shared ? ZERO_OK : write_range(writer, b, direct, pages.first, pages.end));
    return write_range(writer, b, out->buffered, pages.end, b->at + b->bytes);
}

static zero_status write_sums(zi_checkpoint_writer *writer)
{
    zi_checkpoint_sum_range range = {0};
    while (zi_checkpoint_sums_next(writer->desc.sums, &range)) {
        const zi_checkpoint_block b = {.file = writer->desc.map->file_count,
                                       .at = range.first * sizeof *range.values,
                                       .bytes = range.count * sizeof *range.values,
                                       .data = (const unsigned char *)range.values};
        ZI_TRY(open_output(writer, &b));
        ZI_TRY(write_range(writer, &b, writer->outputs[b.file].buffered, b.at, b.at + b.bytes));
    }
    return ZERO_OK;
}

/* Put a file on the disk of which all has come. */
static zero_status sync_output(zi_checkpoint_writer *writer, const zi_checkpoint_block *b)
{
    output *out = &writer->outputs[b->file];
    if (b->file == writer->desc.map->file_count) {
        ZI_TRY(write_sums(writer));
    }
    if (out->buffered < 0) {
        return ZERO_OK; /* nothing of it is this rank's */
    }
    const zero_status status =
        fdatasync(out->buffered) == 0 ? ZERO_OK : checkpoint_writer_failed(writer, b, "syncing");
    close_output(out);
    return status;
}

/* ---- threads ---- */

/* With the mutex. */
static bool checkpoint_writer_is_over(const zi_checkpoint_writer *writer)
{
    return writer->finished && writer->head == writer->tail && !writer->made_files &&
           !writer->syncing;
}

/* With the mutex. */
static void checkpoint_writer_note(zi_checkpoint_writer *writer, const zero_error *error)
{
    if (!writer->dropping && error != NULL) {
        writer->error = *error;
    }
    writer->dropping = true;
    (void)pthread_cond_signal(&writer->left);
}

/* With the mutex: wake whoever can go on now. */
static void checkpoint_writer_tell(zi_checkpoint_writer *writer)
{
    (void)pthread_cond_signal(&writer->left);
    if (checkpoint_writer_is_over(writer)) {
        (void)pthread_cond_broadcast(&writer->over);
    }
}

/* With the mutex, which is given up meanwhile. */
static void do_unlocked(zi_checkpoint_writer *writer, const zi_checkpoint_block *b,
                        zero_status (*does)(zi_checkpoint_writer *, const zi_checkpoint_block *))
{
    if (writer->dropping) {
        return;
    }
    (void)pthread_mutex_unlock(&writer->mutex);
    const zero_status status = does(writer, b);
    (void)pthread_mutex_lock(&writer->mutex);
    if (status != ZERO_OK) {
        checkpoint_writer_note(writer, zero_last_error());
    }
}

static zero_status add_block(zi_checkpoint_writer *writer, const zi_checkpoint_block *b)
{
    writer->desc.add(writer->desc.user, b);
    return ZERO_OK;
}

/* With the mutex, which is given up meanwhile: a block of the file has been written, or added where
 * the file is that of the sums, or all of its blocks have come. */
static void end_part(zi_checkpoint_writer *writer, const zi_checkpoint_block *b)
{
    if (--writer->outputs[b->file].pending == 0) {
        do_unlocked(writer, b, sync_output);
    }
}

/* With the mutex, which is given up meanwhile. A seal has no bytes: it only says that all blocks of
 * its file have come. */
static void do_job(zi_checkpoint_writer *writer, writer_job job, const zi_checkpoint_block *b)
{
    const zi_checkpoint_block sums = {.file = writer->desc.map->file_count};
    const bool sealed = b->bytes == 0;
    if (!sealed) {
        do_unlocked(writer, b, job == JOB_SUM ? add_block : write_block);
    }
    if (job == JOB_WRITE) {
        writer->counts.written_bytes += writer->dropping ? 0 : b->bytes;
        end_part(writer, b);
    } else if (!sealed) {
        end_part(writer, &sums);
    }
}

/* With the mutex, which is given up meanwhile: put headers and sizes of all files on the disk,
 * while others write. What ranks write is put there when they seal a file. */
static void sync_files(zi_checkpoint_writer *writer)
{
    writer->made_files = false;
    writer->syncing = true;
    (void)pthread_mutex_unlock(&writer->mutex);
    const zero_status status = zi_checkpoint_files_sync(writer->folder, writer->desc.made);
    (void)pthread_mutex_lock(&writer->mutex);
    writer->syncing = false;
    if (status != ZERO_OK) {
        checkpoint_writer_note(writer, zero_last_error());
    }
    checkpoint_writer_tell(writer);
}

/* With the mutex, which is given up meanwhile. */
static void work(zi_checkpoint_writer *writer, writer_job job)
{
    while (true) {
        while (writer->next[job] == writer->tail && !writer->finished) {
            (void)pthread_cond_wait(&writer->came[job], &writer->mutex);
        }
        if (writer->next[job] == writer->tail) {
            return;
        }
        queued_block *s = &writer->queue[writer->next[job]++ % writer->queue_count];
        do_job(writer, job, &s->of);
        s->jobs--;
        while (writer->head < writer->tail &&
               writer->queue[writer->head % writer->queue_count].jobs == 0) {
            writer->head++;
        }
        checkpoint_writer_tell(writer);
    }
}

static void *sum_blocks(void *argument)
{
    zi_checkpoint_writer *writer = argument;
    (void)pthread_mutex_lock(&writer->mutex);
    work(writer, JOB_SUM);
    (void)pthread_mutex_unlock(&writer->mutex);
    return NULL;
}

static void *write_blocks(void *argument)
{
    zi_checkpoint_writer *writer = argument;
    (void)pthread_mutex_lock(&writer->mutex);
    if (writer->made_files) {
        sync_files(writer);
    }
    work(writer, JOB_WRITE);
    (void)pthread_mutex_unlock(&writer->mutex);
    return NULL;
}

static zero_status checkpoint_writer_start(zi_checkpoint_writer *writer)
{
    const uint32_t files = writer->desc.map->file_count + 1;
    writer->queue_count = BLOCKS + writer->desc.ring_bytes / writer->desc.block_bytes;
    ZI_TRY(zi_calloc((size_t)writer->queue_count, sizeof *writer->queue, (void **)&writer->queue));
    ZI_TRY(zi_calloc(files, sizeof *writer->outputs, (void **)&writer->outputs));
    for (uint32_t file = 0; file < files; file++) {
        writer->outputs[file] = (output){.direct = -1, .buffered = -1, .pending = 1};
    }
    while (writer->thread_count < SUM_THREADS + WRITE_THREADS) {
        ZI_TRY(zi_thread_start(&writer->threads[writer->thread_count],
                               writer->thread_count < SUM_THREADS ? sum_blocks : write_blocks,
                               writer));
        writer->thread_count++;
    }
    return ZERO_OK;
}

/* The bytes that a block takes in the ring, with the page ahead of it. */
static uint64_t bytes_in_ring(uint64_t block_bytes)
{
    return block_bytes + ZI_CHECKPOINT_ALIGN;
}

uint64_t zi_checkpoint_writer_ring_bytes(uint64_t block_bytes, uint64_t blocks)
{
    return blocks * bytes_in_ring(block_bytes);
}

zero_status zi_checkpoint_writer_create(const zi_checkpoint_writer_desc *desc,
                                        zi_checkpoint_writer **out)
{
    zi_checkpoint_writer *writer = NULL;
    *out = NULL;
    zi_assert_cmp(desc->block_bytes % ZI_CHECKPOINT_ALIGN, ==, 0);
    zi_assert_cmp(desc->ring_bytes, >=, zi_checkpoint_writer_ring_bytes(desc->block_bytes, 2));
    ZI_TRY(zi_calloc(1, sizeof *writer, (void **)&writer));
    (void)pthread_mutex_init(&writer->mutex, NULL);
    (void)pthread_mutex_init(&writer->opening, NULL);
    for (int job = 0; job < JOBS; job++) {
        (void)pthread_cond_init(&writer->came[job], NULL);
    }
    (void)pthread_cond_init(&writer->left, NULL);
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&writer->over, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    writer->desc = *desc;
    writer->made_files = desc->made != NULL;
    (void)snprintf(writer->folder, sizeof writer->folder, "%s", desc->folder);
    const zero_status status = checkpoint_writer_start(writer);
    if (status != ZERO_OK) {
        zi_checkpoint_writer_destroy(writer);
        return status;
    }
    *out = writer;
    return ZERO_OK;
}

void zi_checkpoint_writer_destroy(zi_checkpoint_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    zi_checkpoint_writer_stop(writer, NULL);
    zi_checkpoint_writer_finish(writer);
    for (uint32_t i = 0; i < writer->thread_count; i++) {
        (void)pthread_join(writer->threads[i], NULL);
    }
    for (uint32_t file = 0; writer->outputs != NULL && file <= writer->desc.map->file_count;
         file++) {
        close_output(&writer->outputs[file]);
    }
    (void)pthread_cond_destroy(&writer->over);
    (void)pthread_cond_destroy(&writer->left);
    for (int job = 0; job < JOBS; job++) {
        (void)pthread_cond_destroy(&writer->came[job]);
    }
    (void)pthread_mutex_destroy(&writer->opening);
    (void)pthread_mutex_destroy(&writer->mutex);
    zi_free(writer->outputs);
    zi_free(writer->queue);
    zi_free(writer);
}

/* ---- the ring ---- */

/* With the mutex: the oldest block that has memory of the ring; NULL: none has. */
static const queued_block *oldest(const zi_checkpoint_writer *writer)
{
    for (uint64_t i = writer->head; i < writer->tail; i++) {
        if (writer->queue[i % writer->queue_count].in_ring) {
            return &writer->queue[i % writer->queue_count];
        }
    }
    return NULL;
}

/* With the mutex: where a block fits; UINT64_MAX: nowhere yet. */
static uint64_t find_room(const zi_checkpoint_writer *writer)
{
    const queued_block *last = oldest(writer);
    const uint64_t bytes = bytes_in_ring(writer->desc.block_bytes);
    const uint64_t end = writer->ring_end;
    if (last == NULL) {
        return 0;
    }
    if (end <= last->first) {
        return last->first - end >= bytes ? end : UINT64_MAX;
    }
    if (writer->desc.ring_bytes - end >= bytes) {
        return end;
    }
    return last->first >= bytes ? 0 : UINT64_MAX;
}

unsigned char *zi_checkpoint_writer_reserve(zi_checkpoint_writer *writer, uint64_t at)
{
    uint64_t found = UINT64_MAX;
    (void)pthread_mutex_lock(&writer->mutex);
    while (!writer->dropping && (found = find_room(writer)) == UINT64_MAX) {
        (void)pthread_cond_wait(&writer->left, &writer->mutex);
    }
    const bool dropping = writer->dropping;
    (void)pthread_mutex_unlock(&writer->mutex);
    if (dropping) {
        return NULL;
    }
    unsigned char *data =
        writer->desc.ring + found + ZI_CHECKPOINT_ALIGN + at % ZI_CHECKPOINT_ALIGN;
    writer->reserved =
        (queued_block){.of = {.at = at, .data = data}, .in_ring = true, .first = found};
    return data;
}

uint64_t zi_checkpoint_writer_align(zi_checkpoint_writer *writer)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    if (writer->align == 0) {
        const char *name =
            writer->desc.map->file_count != 0 ? writer->desc.map->files[0].name : ZI_SUMS_NAME;
        writer->align = zi_checkpoint_path(path, writer->folder, name) == ZERO_OK
                            ? zi_checkpoint_direct_align(path)
                            : ZI_CHECKPOINT_ALIGN;
    }
    return writer->align;
}

void zi_checkpoint_writer_share(zi_checkpoint_writer *writer, zi_checkpoint_block *block,
                                int source, uint64_t at)
{
    const file_range pages = pages_of(block);
    if (writer->share_refused || pages.first == pages.end ||
        open_output(writer, block) != ZERO_OK) { /* writing will fail and say so */
        return;
    }
    block->shared = zi_checkpoint_clone(source, at + (pages.first - block->at),
                                        writer->outputs[block->file].buffered, pages.first,
                                        pages.end - pages.first);
    if (!block->shared) {
        zi_log(ZERO_LOG_WARN, "checkpoint: state on disk is copied, not shared (%s): %s",
               strerror(errno), writer->folder);
        writer->share_refused = true;
    }
}

/* Hand a block to the threads. */
static void checkpoint_writer_put(zi_checkpoint_writer *writer, const queued_block *s)
{
    (void)pthread_mutex_lock(&writer->mutex);
    while (!writer->dropping && writer->tail - writer->head == writer->queue_count) {
        (void)pthread_cond_wait(&writer->left, &writer->mutex);
    }
    if (writer->dropping) {
        (void)pthread_mutex_unlock(&writer->mutex);
        return;
    }
    queued_block *taken = &writer->queue[writer->tail++ % writer->queue_count];
    *taken = *s;
    taken->jobs = JOBS;
    if (s->of.bytes != 0) {
        writer->outputs[s->of.file].pending++;
        writer->outputs[writer->desc.map->file_count].pending++;
        writer->counts.staged_bytes += s->of.bytes;
        const file_range pages = pages_of(&s->of);
        writer->counts.shared_bytes += s->of.shared ? pages.end - pages.first : 0;
    }
    for (int job = 0; job < JOBS; job++) {
        (void)pthread_cond_signal(&writer->came[job]);
    }
    (void)pthread_mutex_unlock(&writer->mutex);
}

void zi_checkpoint_writer_submit(zi_checkpoint_writer *writer, const zi_checkpoint_block *block)
{
    queued_block s = {.of = *block};
    if (block->data == writer->reserved.of.data) {
        const uint64_t used = (uint64_t)(block->data - writer->desc.ring) + block->bytes;
        zi_assert_cmp(used - writer->reserved.first, <=, bytes_in_ring(writer->desc.block_bytes));
        writer->ring_end = zi_align_up(used, ZI_CHECKPOINT_ALIGN);
        s.in_ring = true;
        s.first = writer->reserved.first;
    }
    checkpoint_writer_put(writer, &s);
}

void zi_checkpoint_writer_seal(zi_checkpoint_writer *writer, uint32_t file)
{
    checkpoint_writer_put(writer, &(queued_block){.of = {.file = file}});
}

void zi_checkpoint_writer_finish(zi_checkpoint_writer *writer)
{
    (void)pthread_mutex_lock(&writer->mutex);
    writer->finished = true;
    for (int job = 0; job < JOBS; job++) {
        (void)pthread_cond_broadcast(&writer->came[job]);
    }
    checkpoint_writer_tell(writer);
    (void)pthread_mutex_unlock(&writer->mutex);
}

void zi_checkpoint_writer_stop(zi_checkpoint_writer *writer, const zero_error *error)
{
    (void)pthread_mutex_lock(&writer->mutex);
    checkpoint_writer_note(writer, error);
    (void)pthread_mutex_unlock(&writer->mutex);
}

bool zi_checkpoint_writer_wants(zi_checkpoint_writer *writer)
{
    (void)pthread_mutex_lock(&writer->mutex);
    const bool wants = !writer->dropping;
    (void)pthread_mutex_unlock(&writer->mutex);
    return wants;
}

bool zi_checkpoint_writer_wait(zi_checkpoint_writer *writer, uint64_t ns)
{
    struct timespec end;
    int code = 0;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)((ns + (uint64_t)end.tv_nsec) / SECOND_NS);
    end.tv_nsec = (long)((ns + (uint64_t)end.tv_nsec) % SECOND_NS);
    (void)pthread_mutex_lock(&writer->mutex);
    while (!checkpoint_writer_is_over(writer) && code == 0) {
        code = pthread_cond_timedwait(&writer->over, &writer->mutex, &end);
    }
    const bool over = checkpoint_writer_is_over(writer);
    (void)pthread_mutex_unlock(&writer->mutex);
    return over;
}

zero_status zi_checkpoint_writer_result(zi_checkpoint_writer *writer)
{
    (void)pthread_mutex_lock(&writer->mutex);
    const zero_error error = writer->error;
    (void)pthread_mutex_unlock(&writer->mutex);
    return error.status == ZERO_OK ? ZERO_OK : zi_error_adopt(&error);
}

zi_checkpoint_writer_counts zi_checkpoint_writer_count(zi_checkpoint_writer *writer)
{
    (void)pthread_mutex_lock(&writer->mutex);
    zi_checkpoint_writer_counts counts = writer->counts;
    counts.over = checkpoint_writer_is_over(writer);
    counts.result = writer->error.status;
    (void)pthread_mutex_unlock(&writer->mutex);
    return counts;
}
