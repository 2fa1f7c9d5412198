/* The I/O window: the few extents of a store that are in memory, while work that needs them one
 * after another prefetches, acquires and releases them, and writes go on behind it. It knows
 * extents and nothing of what they hold.
 *
 *   buffers of 4, walking up:   written     acquired    prefetched
 *                               [ 6 ]       [ 7 ]       [ 8 ] [ 9 ]
 *
 * A caller names what comes next as a walk over neighbouring extents, up or down, or as a list. An
 * extent that is in a buffer is not read again, so a walk that goes back the other way begins with
 * hits. An extent that was never written is zeros and is not read.
 *
 * An extent may have a second place in the store. A speculative step writes there, and reads what
 * it has written. A commit makes the second place the extent's own; a discard forgets it.
 *
 * A window may have checksums of what it has written. It compares what it reads with them before it
 * hands an extent out. Bytes that differ are CORRUPT, and the message says whose they are and
 * where.
 *
 * Threads: calls may come from several threads where the description says so, else from one at a
 * time that stays the same. A call that waits for the disk makes the others wait, and waits for
 * nothing else; two threads that hold one extent each leave a buffer for either. */
#ifndef ZI_OFFLOAD_WINDOW_H
#define ZI_OFFLOAD_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "core/thread.h"
#include "core/timeline.h"
#include "layout/layout.h"
#include "storage/storage.h"

typedef struct zi_window zi_window;

/* Extents that a caller may name as the next ones, at most. How many are prefetched is up to the
 * buffers. */
#define ZI_WINDOW_AHEAD 7

/* Neighbouring extents, in this order; `last` may be below `first`. */
typedef struct zi_window_range {
    uint32_t first;
    uint32_t last;
} zi_window_range;

typedef enum zi_window_access {
    ZI_WINDOW_READS = 0,   /* the caller wants what the extent holds */
    ZI_WINDOW_REPLACES = 1 /* the caller overwrites all of it: nothing is read or prefetched */
} zi_window_access;

typedef struct zi_window_desc {
    const zi_extent *extents; /* borrowed; in the store, whole pages */
    uint32_t extent_count;
    uint32_t buffer_count; /* at least 3, or as many as there are extents */
    uint64_t buffer_bytes; /* of the largest extent */
    unsigned char *memory; /* buffer_count * buffer_bytes of whole pages; borrowed */
    /* The extents lie end to end in the store, and `memory` holds them all, end to end too. So each
     * is read and written where it is, and buffers only limit how many are in flight. */
    bool in_place;
    uint32_t io_depth;       /* the queue's, for each directory; 0: its default */
    bool shared;             /* two threads call; prefetch leaves a buffer to the other one */
    uint64_t speculative_at; /* bytes in the store from an extent to its second place; 0: there are
                                none */
    const zi_store *store;   /* borrowed */
    /* zi_extent_sum_count of the extents, twice as many with second places; borrowed. NULL: what is
     * read is not compared with anything. */
    uint64_t *sums;
    zi_pool *pool; /* of the threads that make and compare them; NULL: the owner alone */
    /* To name damaged bytes, as zi_layout_name_bytes. layout NULL: the extent's number. role PARAM,
     * GRAD or IO_WINDOW: the extents are the layout's. Another role: they are its arena, cut up. */
    const zi_layout *layout;
    zero_role role;
    zi_timeline *timeline; /* of transfers; NULL: none */
    /* NULL: the best this machine has. Else the queue's own from then on. */
    const struct zi_io_backend *backend;
} zi_window_desc;

/* Since create. */
typedef struct zi_window_counts {
    uint64_t read_bytes;
    uint64_t write_bytes;
    uint64_t hits; /* extents that were in memory when their turn came, without a read for it */
    /* How long calls blocked: until an extent was read, and until a buffer's write had ended. */
    uint64_t read_wait_ns;
    uint64_t write_wait_ns;
    uint64_t check_ns; /* that calls made and compared checksums */
} zi_window_counts;

/* Errors: those of zi_io_create. The window owns the backend also when create fails. */
zero_status zi_window_create(const zi_window_desc *desc, zi_window **out);
/* Accepts NULL. What is in flight ends first; what was not written yet is lost. Any thread once
 * nothing is in flight; else, of a window that is not shared, its thread. */
void zi_window_destroy(zi_window *window);

/* Prefetch: the extents from `first` to `last`, in this order, are acquired next. Does not block.
 */
zero_status zi_window_walk(zi_window *window, uint32_t first, uint32_t last);

/* Acquire an extent; blocks until it has been read. *memory is the caller's until the release. Two
 * threads may acquire an extent at once if both only read it; at most two extents are acquired at a
 * time, by two threads. Errors: IO, of the buffer's last use too; CORRUPT. */
zero_status zi_window_acquire(zi_window *window, uint32_t extent, zi_window_access access,
                              unsigned char **memory);
/* The same; instead of a walk, these extents most likely come next, each another. What goes beyond
 * ZI_WINDOW_AHEAD of them is ignored. */
zero_status zi_window_acquire_before(zi_window *window, uint32_t extent, zi_window_access access,
                                     const zi_window_range *next, uint32_t count,
                                     unsigned char **memory);
/* dirty: the caller has written to it. It goes to the store once another extent is acquired, or at
 * the flush, so an extent that is acquired again and again is written once. Errors: IO. */
zero_status zi_window_release(zi_window *window, uint32_t extent, bool dirty);

/* Writes ask a source from here on: what it has is shared, not written. NULL: none. It stays until
 * the next call, which blocks until nothing is in flight, also after a failure. */
void zi_window_set_source(zi_window *window, const zi_io_source *source);

/* Block until all that was released dirty is in the store. Errors: IO. */
zero_status zi_window_flush(zi_window *window);

/* Find where the store holds an extent of which nothing is dirty: *at, bytes in the store. false:
 * nowhere, it was never written or a speculative step has written it. */
bool zi_window_find(zi_window *window, uint32_t extent, uint64_t *at);

/* Begin a speculative step: writes go to the extents' second places from here on, and reads follow
 * them. Only where there are second places. */
zero_status zi_window_speculate(zi_window *window);
/* Commit it: the second places that were written are the extents from here on. */
zero_status zi_window_commit(zi_window *window);
/* Discard it, as if it had never begun. Its buffers are free once their transfers have ended, and a
 * failure of those shows then. */
void zi_window_discard(zi_window *window);

/* Block until nothing is in flight, whatever came of it; also after a failure. */
void zi_window_drain(zi_window *window);

/* Give up the memory and the queue, but neither the store nor the counts. After zi_window_flush and
 * zi_window_drain; any thread. Does nothing where it is suspended already. */
void zi_window_suspend(zi_window *window);
/* Go on with other memory, of the same size; any thread. What was in the window's memory is read
 * again. Errors: those of zi_io_create; the window is then still suspended. */
zero_status zi_window_resume(zi_window *window, unsigned char *memory);

/* Any thread. */
zi_window_counts zi_window_count(const zi_window *window);

/* How files are reached; the queue's. While suspended, as it was before. */
const zi_io_report *zi_window_report(const zi_window *window);

#endif
