/* Owns the buffers of a window. Invariants: an extent is in at most one buffer. A buffer's memory
 * is touched only while nothing is in flight for it. An extent gets the buffer whose own extent is
 * farthest from the walk, so where one thread uses the window, its walks alone decide what is read
 * and written. `lock` guards everything but the counts. */
#include "offload/window.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

_Static_assert(ZERO_ROLE_COUNT_MAX <= ZI_IO_USES, "a window's use is its role");

/* The name of damaged bytes in a message. */
#define NAME_BYTES 120

typedef struct window_buffer {
    zi_io_op op;
    unsigned char *memory;
    uint32_t extent;     /* ZI_NO_INDEX: none */
    bool busy;           /* op was started and not waited for */
    bool fetched;        /* for an acquire that has not come yet */
    uint32_t acquired;   /* by so many threads; more than one: all only read */
    bool dirty;          /* it holds what the store does not, and nothing is in flight for it */
    uint64_t *unchecked; /* checksums to compare what is read with, once; NULL: none */
} window_buffer;

/* The place of an extent in the store. */
typedef struct window_place {
    bool written;       /* the store holds it */
    bool beside;        /* it is in its second place, and the first is for speculative steps */
    bool speculative;   /* the store holds what a speculative step wrote */
    uint64_t sum_first; /* of the window's checksums, those of its first place */
} window_place;

struct zi_window {
    pthread_mutex_t lock;
    zi_window_desc desc;  /* its memory is that of the last resume */
    uint64_t beside_sums; /* of desc.sums, the first of second places */
    zi_io *queue;         /* NULL: suspended */
    zi_io_report report;  /* of the queue, or the one before it was suspended */
    window_place *places; /* by extent */
    bool speculating;
    const zi_io_source *source; /* of writes; NULL: none */
    window_buffer *buffers;
    window_buffer *unwritten; /* released dirty last, and not yet being written; NULL: none */
    uint32_t current;         /* the walk's position: the extent acquired last */
    uint32_t last;            /* its end */
    bool named;               /* no walk: `next` come after `current` */
    uint32_t next[ZI_WINDOW_AHEAD];
    uint32_t next_count;
    atomic_uint_fast64_t read_bytes;
    atomic_uint_fast64_t write_bytes;
    atomic_uint_fast64_t hits;
    atomic_uint_fast64_t wait_ns[ZI_IO_KINDS];
    atomic_uint_fast64_t check_ns;
};

/* Memory that is used in place is too much to be registered for one use. */
static zero_status open_queue(zi_window *window)
{
    const zero_role role = window->desc.role;
    const zi_io_region region = {window->desc.memory,
                                 window->desc.buffer_count * window->desc.buffer_bytes};
    const zi_io_options options = {.store = window->desc.store,
                                   .regions = &region,
                                   .region_count = window->desc.in_place ? 0 : 1,
                                   .file_depth = window->desc.io_depth,
                                   .shared = window->desc.shared,
                                   .timeline = window->desc.timeline,
                                   .what = role == ZERO_ROLE_IO_WINDOW ? "optimizer state"
                                                                       : zero_role_name(role),
                                   .use = (uint32_t)role,
                                   .backend = window->desc.backend};
    window->desc.backend = NULL; /* the queue's from here on */
    ZI_TRY(zi_io_create(&options, &window->queue));
    window->report = *zi_io_report_of(window->queue);
    return ZERO_OK;
}

/* No extent is in any. */
static void empty_buffers(zi_window *window)
{
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        window->buffers[i] = (window_buffer){
            .memory = window->desc.memory + i * window->desc.buffer_bytes, .extent = ZI_NO_INDEX};
    }
}

/* Find where each extent's checksums begin; those of second places are behind all others. */
static void place_sums(zi_window *window)
{
    uint64_t first = 0;
    for (uint32_t i = 0; i < window->desc.extent_count; i++) {
        window->places[i].sum_first = first;
        first += zi_checksum_count(window->desc.extents[i].bytes);
    }
    window->beside_sums = first;
}

static zero_status window_build(zi_window *window)
{
    ZI_TRY(open_queue(window));
    ZI_TRY(zi_calloc(window->desc.extent_count, sizeof *window->places, (void **)&window->places));
    ZI_TRY(
        zi_calloc(window->desc.buffer_count, sizeof *window->buffers, (void **)&window->buffers));
    empty_buffers(window);
    place_sums(window);
    return ZERO_OK;
}

zero_status zi_window_create(const zi_window_desc *desc, zi_window **out)
{
    *out = NULL;
    zi_window *window = NULL;
    zi_assert(desc->buffer_count >= 3 || desc->buffer_count >= desc->extent_count);
    ZI_TRY(zi_calloc(1, sizeof *window, (void **)&window));
    window->desc = *desc;
    (void)pthread_mutex_init(&window->lock, NULL);
    const zero_status status = window_build(window);
    if (status != ZERO_OK) {
        zi_window_destroy(window);
        return status;
    }
    *out = window;
    return ZERO_OK;
}

void zi_window_destroy(zi_window *window)
{
    if (window != NULL) {
        zi_io_destroy(window->queue);
        (void)pthread_mutex_destroy(&window->lock);
        zi_free(window->buffers);
        zi_free(window->places);
        zi_free(window);
    }
}

static void window_count(atomic_uint_fast64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static window_buffer *window_buffer_of(zi_window *window, uint32_t extent)
{
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        if (window->buffers[i].extent == extent) {
            return &window->buffers[i];
        }
    }
    return NULL;
}

/* Extents from where the walk stands to `extent`; negative: the walk does not come to it. */
static int64_t ahead(const zi_window *window, uint32_t extent)
{
    for (uint32_t i = 0; window->named && i < window->next_count; i++) {
        if (window->next[i] == extent) {
            return i + 1;
        }
    }
    if (window->named) {
        return extent == window->current ? 0 : -1;
    }
    const int64_t way = (int64_t)extent - window->current;
    const int64_t end = (int64_t)window->last - window->current;
    const int64_t forward = end < 0 ? -way : way;
    return forward <= (end < 0 ? -end : end) ? forward : -1;
}

/* True if the walk comes to the extent before it has used every buffer once. Where there may be
 * another thread, one buffer is left to it: it would else take what was prefetched. */
static bool is_wanted(const zi_window *window, uint32_t extent)
{
    const int64_t steps = ahead(window, extent);
    return steps >= 0 && steps < (int64_t)window->desc.buffer_count - window->desc.shared;
}

/* How little a buffer is needed, if it is free at all. An empty buffer is needed least; then it
 * counts how far its extent is from the walk. What was prefetched, and most of all what the walk
 * comes to, is given up only where nothing else is left. */
static uint64_t spareness(const zi_window *window, const window_buffer *buffer)
{
    if (buffer->extent == ZI_NO_INDEX) {
        return UINT64_MAX;
    }
    if (is_wanted(window, buffer->extent)) {
        return (uint64_t)ahead(window, buffer->extent);
    }
    const int64_t way = (int64_t)buffer->extent - window->current;
    const uint64_t far = (uint64_t)(way < 0 ? -way : way);
    return far + (buffer->fetched ? UINT64_C(1) << 32 : UINT64_C(1) << 33);
}

/* The buffer to give to another extent. */
static window_buffer *spare(zi_window *window)
{
    window_buffer *best = NULL;
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        window_buffer *buffer = &window->buffers[i];
        if (buffer->acquired == 0 && buffer != window->unwritten &&
            (best == NULL || spareness(window, buffer) > spareness(window, best))) {
            best = buffer;
        }
    }
    zi_assert(best != NULL);
    return best;
}

/* The bytes of the buffer's last transfer. */
static zi_checksum_span window_bytes_of(const window_buffer *buffer)
{
    return (zi_checksum_span){buffer->memory, buffer->op.offset, buffer->op.bytes};
}

/* The place in the store that zi_layout_name_bytes counts from: the begin of the buffer's extent,
 * or of the arena that all extents are of. */
static uint64_t origin(const zi_window *window, const window_buffer *buffer)
{
    return zi_role_is_state(window->desc.role) ? window->desc.extents[0].at : buffer->op.offset;
}

/* Say whose bytes of the buffer's last transfer these are. */
static void name(const zi_window *window, const window_buffer *buffer, uint64_t at, uint64_t bytes,
                 char text[NAME_BYTES])
{
    if (window->desc.layout != NULL && buffer->extent != ZI_NO_INDEX) {
        zi_layout_name_bytes(window->desc.layout, window->desc.role, buffer->extent,
                             at - origin(window, buffer), bytes, text, NAME_BYTES);
    } else {
        (void)snprintf(text, NAME_BYTES, "extent %" PRIu32, buffer->extent);
    }
}

/* The buffer's transfer failed: add to the message whose bytes it was to move. */
static zero_status window_failed(const zi_window *window, const window_buffer *buffer)
{
    const zero_error *error = zero_last_error();
    char what[NAME_BYTES];
    name(window, buffer, buffer->op.failed_offset, buffer->op.failed_bytes, what);
    ZI_FAIL_NATIVE(error->status, error->native, "%s: %s", what, error->message);
}

/* Compare what was read into the buffer with its checksums, once. */
static zero_status window_check(zi_window *window, window_buffer *buffer)
{
    const zi_checksum_span bytes = window_bytes_of(buffer);
    zi_checksum_span bad;
    if (buffer->unchecked == NULL) {
        return ZERO_OK;
    }
    const uint64_t start_ns = zi_clock_ns();
    const bool differs = zi_checksum_differs(window->desc.pool, &bytes, buffer->unchecked, &bad);
    window_count(&window->check_ns, zi_clock_ns() - start_ns);
    buffer->unchecked = NULL;
    if (!differs) {
        return ZERO_OK;
    }
    char what[NAME_BYTES];
    name(window, buffer, bad.at, bad.bytes, what);
    return zi_store_damaged(window->desc.store, bad.at, bad.bytes, what);
}

/* The checksums of a place of the buffer's extent; NULL: the window has none. */
static uint64_t *window_sums_of(const zi_window *window, const window_buffer *buffer, bool beside)
{
    const uint64_t first =
        window->places[buffer->extent].sum_first + (beside ? window->beside_sums : 0);
    return window->desc.sums != NULL ? window->desc.sums + first : NULL;
}

/* Block until nothing is in flight for the buffer. */
static zero_status await_buffer(zi_window *window, window_buffer *buffer)
{
    if (!buffer->busy) {
        return ZERO_OK;
    }
    const uint64_t start_ns = buffer->op.phase == ZI_IO_RUNNING ? zi_clock_ns() : 0;
    const zero_status status = zi_io_wait(window->queue, &buffer->op);
    if (start_ns != 0) {
        window_count(&window->wait_ns[buffer->op.kind], zi_clock_ns() - start_ns);
    }
    buffer->busy = false;
    return status == ZERO_OK ? ZERO_OK : window_failed(window, buffer);
}

/* Begin to move the buffer's extent. speculative: to or from the place for speculative steps. */
static zero_status window_start(zi_window *window, window_buffer *buffer, zi_io_kind kind,
                                bool speculative)
{
    const zi_extent *extent = &window->desc.extents[buffer->extent];
    const bool beside = window->places[buffer->extent].beside != speculative;
    buffer->op = (zi_io_op){.kind = kind,
                            .memory = buffer->memory,
                            .offset = extent->at + (beside ? window->desc.speculative_at : 0),
                            .bytes = extent->bytes,
                            .source = kind == ZI_IO_WRITE ? window->source : NULL,
                            .extent = buffer->extent};
    uint64_t *sums = window_sums_of(window, buffer, beside);
    buffer->unchecked = kind == ZI_IO_READ ? sums : NULL;
    ZI_TRY(zi_io_start(window->queue, &buffer->op));
    buffer->busy = true;
    if (sums != NULL && kind == ZI_IO_WRITE) { /* the disk takes it meanwhile: both only read */
        const zi_checksum_span bytes = window_bytes_of(buffer);
        const uint64_t start_ns = zi_clock_ns();
        zi_checksum_make(window->desc.pool, &bytes, sums);
        window_count(&window->check_ns, zi_clock_ns() - start_ns);
    }
    window_count(kind == ZI_IO_READ ? &window->read_bytes : &window->write_bytes, extent->bytes);
    return ZERO_OK;
}

/* Give the buffer, for which nothing is in flight, to an extent. */
static void window_assign(zi_window *window, window_buffer *buffer, uint32_t extent)
{
    buffer->extent = extent;
    buffer->unchecked = NULL;
    if (window->desc.in_place) {
        buffer->memory =
            window->desc.memory + (window->desc.extents[extent].at - window->desc.extents[0].at);
    }
}

/* Give the buffer to an extent, and read it. */
static zero_status window_fetch(zi_window *window, window_buffer *buffer, uint32_t extent)
{
    window_assign(window, buffer, extent);
    buffer->fetched = true;
    const window_place *place = &window->places[extent];
    if (!place->written && !place->speculative) {
        const zi_storage *storage = zi_store_storage(window->desc.store);
        if (storage == NULL || !storage->moves_nothing) {
            memset(buffer->memory, 0, window->desc.extents[extent].bytes);
        }
        return ZERO_OK;
    }
    return window_start(window, buffer, ZI_IO_READ, place->speculative);
}

/* The extent that comes `steps` after the one the walk stands at; ZI_NO_INDEX: none. */
static uint32_t coming(const zi_window *window, uint32_t steps)
{
    if (window->named && steps != 0) {
        return steps <= window->next_count ? window->next[steps - 1] : ZI_NO_INDEX;
    }
    if (window->last < window->current) {
        return steps <= window->current ? window->current - steps : ZI_NO_INDEX;
    }
    return window->current + steps;
}

/* Fetch the extents that the walk comes to next, as far as buffers are free without waiting. */
static zero_status window_look_ahead(zi_window *window)
{
    zi_io_poll(window->queue);
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        const uint32_t extent = coming(window, i);
        if (extent >= window->desc.extent_count || !is_wanted(window, extent)) {
            break;
        }
        if (window_buffer_of(window, extent) != NULL) {
            continue;
        }
        window_buffer *buffer = spare(window);
        const bool wanted = buffer->extent != ZI_NO_INDEX && is_wanted(window, buffer->extent);
        if (wanted || (buffer->busy && buffer->op.phase == ZI_IO_RUNNING)) {
            break;
        }
        ZI_TRY(await_buffer(window, buffer));
        ZI_TRY(window_fetch(window, buffer, extent));
    }
    return ZERO_OK;
}

/* Begin to write the extent that was released dirty last. */
static zero_status write_behind(zi_window *window)
{
    window_buffer *buffer = window->unwritten;
    window->unwritten = NULL;
    if (buffer == NULL) {
        return ZERO_OK;
    }
    buffer->dirty = false;
    window_place *place = &window->places[buffer->extent];
    place->speculative = window->speculating;
    place->written = place->written || !window->speculating;
    return window_start(window, buffer, ZI_IO_WRITE, window->speculating);
}

static zero_status window_walk(zi_window *window, uint32_t first, uint32_t last)
{
    zi_assert(first < window->desc.extent_count && last < window->desc.extent_count);
    if (window->unwritten == NULL || window->unwritten->extent != first) { /* else twice */
        ZI_TRY(write_behind(window));
    }
    window->named = false;
    window->current = first;
    window->last = last;
    return window_look_ahead(window);
}

static void expect(zi_window *window, const zi_window_range *next, uint32_t count)
{
    window->named = true;
    window->next_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t extent = next[i].first;
        while (window->next_count < ZI_WINDOW_AHEAD) {
            window->next[window->next_count++] = extent;
            if (extent == next[i].last) {
                break;
            }
            extent = next[i].last < extent ? extent - 1 : extent + 1;
        }
    }
}

/* Wait for the extent that is acquired, and compare it with its checksums. */
static zero_status receive(zi_window *window, window_buffer *buffer)
{
    /* Before the wait, so that the reads that follow are under way meanwhile. */
    ZI_TRY(window_look_ahead(window));
    ZI_TRY(await_buffer(window, buffer));
    ZI_TRY(window_look_ahead(window)); /* the disk goes on while this is compared */
    return window_check(window, buffer);
}

static zero_status find_buffer(zi_window *window, uint32_t extent, bool reads, window_buffer **out)
{
    window_buffer *buffer = window_buffer_of(window, extent);
    const bool here = buffer != NULL;
    buffer = here ? buffer : spare(window);
    *out = buffer;
    if (!here || !reads) {
        ZI_TRY(await_buffer(window, buffer));
    }
    if (!reads) {
        zi_io_poll(window->queue);
        window_assign(window, buffer, extent);
        return ZERO_OK;
    }
    return here ? ZERO_OK : window_fetch(window, buffer, extent);
}

static zero_status window_acquire(zi_window *window, uint32_t extent, zi_window_access access,
                                  unsigned char **memory)
{
    const bool reads = access == ZI_WINDOW_READS;
    window_buffer *buffer = window->unwritten;
    zi_assert_cmp(extent, <, window->desc.extent_count);
    if (buffer != NULL && buffer->extent == extent) {
        window->unwritten = NULL; /* it goes on being written to */
        buffer->acquired++;
        *memory = buffer->memory;
        return reads ? window_look_ahead(window) : ZERO_OK;
    }
    ZI_TRY(write_behind(window));
    window->current = extent;
    ZI_TRY(find_buffer(window, extent, reads, &buffer));
    zi_assert(reads || buffer->acquired == 0);
    buffer->acquired++;
    window_count(&window->hits, reads && !buffer->fetched ? 1 : 0);
    buffer->fetched = false;
    const zero_status status = reads ? receive(window, buffer) : ZERO_OK;
    if (status != ZERO_OK) { /* its contents are handed out to nobody */
        buffer->acquired--;
        buffer->extent = ZI_NO_INDEX;
        return status;
    }
    *memory = buffer->memory;
    return reads ? window_look_ahead(window) : ZERO_OK;
}

static zero_status window_release(zi_window *window, uint32_t extent, bool dirty)
{
    window_buffer *buffer = window_buffer_of(window, extent);
    zi_assert(buffer != NULL && buffer->acquired != 0);
    buffer->acquired--;
    buffer->dirty = buffer->dirty || dirty;
    if (!buffer->dirty || buffer->acquired != 0) {
        return ZERO_OK;
    }
    ZI_TRY(write_behind(window)); /* of another thread's */
    window->unwritten = buffer;
    return ZERO_OK;
}

static zero_status window_flush(zi_window *window)
{
    ZI_TRY(write_behind(window));
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        if (window->buffers[i].op.kind == ZI_IO_WRITE) {
            ZI_TRY(await_buffer(window, &window->buffers[i]));
        }
    }
    return ZERO_OK;
}

static zero_status speculate(zi_window *window)
{
    zi_assert(window->desc.speculative_at != 0 && !window->speculating);
    ZI_TRY(write_behind(window));
    window->speculating = true;
    return ZERO_OK;
}

static zero_status window_commit(zi_window *window)
{
    zi_assert(window->speculating);
    ZI_TRY(write_behind(window));
    window->speculating = false;
    for (uint32_t i = 0; i < window->desc.extent_count; i++) {
        window_place *place = &window->places[i];
        place->written = place->written || place->speculative;
        place->beside = place->beside != place->speculative;
        place->speculative = false;
    }
    return ZERO_OK;
}

static void window_discard(zi_window *window)
{
    zi_assert(window->speculating);
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        window_buffer *buffer = &window->buffers[i];
        const bool speculative =
            buffer->extent != ZI_NO_INDEX && window->places[buffer->extent].speculative;
        if (speculative || buffer->dirty) {
            buffer->extent = ZI_NO_INDEX;
            buffer->dirty = false;
        }
    }
    for (uint32_t i = 0; i < window->desc.extent_count; i++) {
        window->places[i].speculative = false;
    }
    window->unwritten = NULL;
    window->speculating = false;
}

/* ---- the calls, each under the lock ---- */

static zero_status window_leave(zi_window *window, zero_status status)
{
    (void)pthread_mutex_unlock(&window->lock);
    return status;
}

static void window_enter(zi_window *window)
{
    (void)pthread_mutex_lock(&window->lock);
}

zero_status zi_window_walk(zi_window *window, uint32_t first, uint32_t last)
{
    window_enter(window);
    return window_leave(window, window_walk(window, first, last));
}

zero_status zi_window_acquire(zi_window *window, uint32_t extent, zi_window_access access,
                              unsigned char **memory)
{
    window_enter(window);
    return window_leave(window, window_acquire(window, extent, access, memory));
}

zero_status zi_window_acquire_before(zi_window *window, uint32_t extent, zi_window_access access,
                                     const zi_window_range *next, uint32_t count,
                                     unsigned char **memory)
{
    window_enter(window);
    expect(window, next, count);
    return window_leave(window, window_acquire(window, extent, access, memory));
}

zero_status zi_window_release(zi_window *window, uint32_t extent, bool dirty)
{
    window_enter(window);
    return window_leave(window, window_release(window, extent, dirty));
}

static void window_drain(zi_window *window)
{
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        window_buffer *buffer = &window->buffers[i];
        if (await_buffer(window, buffer) != ZERO_OK) {
            buffer->extent = ZI_NO_INDEX; /* it is to be read again */
        }
    }
}

void zi_window_set_source(zi_window *window, const zi_io_source *source)
{
    window_enter(window);
    window_drain(window);
    window->source = source;
    (void)window_leave(window, ZERO_OK);
}

zero_status zi_window_flush(zi_window *window)
{
    window_enter(window);
    return window_leave(window, window_flush(window));
}

bool zi_window_find(zi_window *window, uint32_t extent, uint64_t *at)
{
    window_enter(window);
    const window_place *place = &window->places[extent];
    const bool found = place->written && !place->speculative;
    *at = window->desc.extents[extent].at + (place->beside ? window->desc.speculative_at : 0);
    (void)window_leave(window, ZERO_OK);
    return found;
}

zero_status zi_window_speculate(zi_window *window)
{
    window_enter(window);
    return window_leave(window, speculate(window));
}

zero_status zi_window_commit(zi_window *window)
{
    window_enter(window);
    return window_leave(window, window_commit(window));
}

void zi_window_discard(zi_window *window)
{
    window_enter(window);
    window_discard(window);
    (void)window_leave(window, ZERO_OK);
}

void zi_window_drain(zi_window *window)
{
    window_enter(window);
    window_drain(window);
    (void)window_leave(window, ZERO_OK);
}

void zi_window_suspend(zi_window *window)
{
    zi_assert(window->unwritten == NULL);
    for (uint32_t i = 0; i < window->desc.buffer_count; i++) {
        zi_assert(!window->buffers[i].busy);
    }
    zi_io_destroy(window->queue);
    window->queue = NULL;
}

zero_status zi_window_resume(zi_window *window, unsigned char *memory)
{
    zi_assert(window->queue == NULL);
    window->desc.memory = memory;
    ZI_TRY(open_queue(window));
    empty_buffers(window);
    return ZERO_OK;
}

static uint64_t window_load(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

zi_window_counts zi_window_count(const zi_window *window)
{
    return (zi_window_counts){.read_bytes = window_load(&window->read_bytes),
                              .write_bytes = window_load(&window->write_bytes),
                              .hits = window_load(&window->hits),
                              .read_wait_ns = window_load(&window->wait_ns[ZI_IO_READ]),
                              .write_wait_ns = window_load(&window->wait_ns[ZI_IO_WRITE]),
                              .check_ns = window_load(&window->check_ns)};
}

const zi_io_report *zi_window_report(const zi_window *window)
{
    return &window->report;
}
