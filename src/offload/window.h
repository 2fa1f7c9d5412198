/* The I/O window: the few extents of a store that are in memory, while work that needs them one
 * after another prefetches, acquires and releases them, and writes go on behind it. It knows
 * extents and nothing of what they hold.
 *
 *   slots of 4, walking up:   written     acquired    prefetched
 *                             [ 6 ]       [ 7 ]       [ 8 ] [ 9 ]
 *
 * What comes next is told as a walk over neighbouring extents, up or down, or as a list. What a
 * walk leaves in the slots is not read by the next one, so a walk that goes back the other way
 * begins with hits. An extent that was never written is zeros and is not read.
 *
 * An extent may have a second place in the store. A speculative step writes there, and reads what
 * it has written; then it is committed, and the places change roles, or discarded, as if it had
 * never been.
 *
 * A window may have checksums of what it has written. What is read is compared with them before
 * anybody is given it, and bytes that differ are CORRUPT, naming whose they are and where.
 *
 * Threads: calls may come from several threads where the description says so, else from one at a
 * time that stays the same. A call that waits for the disk makes the others wait, and waits for
 * nothing else; two threads that hold one extent each leave a slot for either. */
#ifndef ZI_OFFLOAD_WINDOW_H
#define ZI_OFFLOAD_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#include "core/thread.h"
#include "layout/layout.h"
#include "storage/storage.h"

typedef struct zi_window zi_window;

/* Extents that may be named ahead, at most; how many are read ahead is up to the slots. */
#define ZI_WINDOW_AHEAD 7

/* Neighbouring extents, in this order; `last` may be below `first`. */
typedef struct zi_window_run {
    uint32_t first;
    uint32_t last;
} zi_window_run;

typedef enum zi_window_access {
    ZI_WINDOW_READS = 0,   /* what the extent holds is wanted */
    ZI_WINDOW_REPLACES = 1 /* all of it is to be overwritten: it is not read, nor is any ahead */
} zi_window_access;

typedef struct zi_window_desc {
    const zi_extent *ranges; /* borrowed; records in the store, whole pages */
    uint32_t range_count;
    uint32_t slot_count;   /* at least 3, or as many as there are ranges */
    uint64_t slot_bytes;   /* of the largest record */
    unsigned char *memory; /* slot_count * slot_bytes of whole pages; borrowed */
    uint32_t io_depth;     /* the queue's, for each directory; 0: its default */
    bool shared;           /* two threads call; a slot more, as one is left to the other of them */
    uint64_t speculative_at; /* bytes in the store from a record to its speculative copy; 0: there
                                are none */
    const zi_store *store;   /* borrowed */
    /* zi_extent_sum_count of the ranges, twice as many with second places; borrowed. NULL: what is
     * read is believed. */
    uint64_t *sums;
    zi_pool *pool; /* of the threads that make and compare them; NULL: the owner alone */
    /* As zi_layout_name_bytes, to name what is damaged. layout NULL: by its number. */
    const zi_layout *layout;
    zero_role role;
    /* NULL: the best this machine has. Else the queue's own from then on. */
    const struct zi_io_backend *backend;
} zi_window_desc;

/* Since create. */
typedef struct zi_window_counts {
    uint64_t read_bytes;
    uint64_t write_bytes;
    uint64_t hits; /* records that were in memory when their turn came, without a read for it */
    /* That calls blocked: for a record to be read, and for one to be written, to have its slot. */
    uint64_t read_wait_ns;
    uint64_t write_wait_ns;
    uint64_t check_ns; /* that calls made and compared checksums */
} zi_window_counts;

/* Errors: those of zi_io_create. The backend is taken also when create fails. */
zero_status zi_window_create(const zi_window_desc *desc, zi_window **out);
/* Accepts NULL. Nothing is acquired. Any thread once nothing is in flight; else, of a window that
 * is not shared, its thread. */
void zi_window_destroy(zi_window *window);

/* Prefetch: the extents from `first` to `last`, in this order, are acquired next. Does not block.
 */
zero_status zi_window_walk(zi_window *window, uint32_t first, uint32_t last);

/* Acquire an extent that nobody has acquired; blocks until it has been read. *memory is the
 * caller's until the release. At most two extents are acquired at a time, by two threads. Errors:
 * IO, of the slot's last use too; CORRUPT. */
zero_status zi_window_acquire(zi_window *window, uint32_t range, zi_window_access access,
                              unsigned char **memory);
/* The same; instead of a walk, these extents most likely come next, each another. What goes beyond
 * ZI_WINDOW_AHEAD of them is ignored. */
zero_status zi_window_acquire_before(zi_window *window, uint32_t range, zi_window_access access,
                                     const zi_window_run *next, uint32_t count,
                                     unsigned char **memory);
/* dirty: it has been written to, and goes to the store once another extent is acquired, or at the
 * flush: so one that is acquired again and again is written once. Errors: IO. */
zero_status zi_window_release(zi_window *window, uint32_t range, bool dirty);

/* Block until all that was released dirty is in the store. Errors: IO. */
zero_status zi_window_flush(zi_window *window);

/* Begin a speculative step: what is written from here on goes to the extents' second places, and
 * is read from there. Only where there are second places. */
zero_status zi_window_speculate(zi_window *window);
/* Commit it: the second places that were written are the extents from here on. */
zero_status zi_window_commit(zi_window *window);
/* Discard it, as if it had never begun. Its slots are free once what is in flight for them has
 * ended; that it failed shows then. */
void zi_window_discard(zi_window *window);

/* Block until nothing is in flight, whatever came of it; also after a failure. */
void zi_window_drain(zi_window *window);

/* Give the memory and the queue up, but not the store nor the counts. After zi_window_flush and
 * zi_window_drain; any thread. */
void zi_window_suspend(zi_window *window);
/* Go on with other memory, of the same size; any thread. What was in the window's memory is read
 * again. Errors: those of zi_io_create; the window is then still suspended. */
zero_status zi_window_resume(zi_window *window, unsigned char *memory);

/* Any thread. */
zi_window_counts zi_window_count(const zi_window *window);

/* How files are reached; the queue's. While suspended, as it was before. */
const zi_io_report *zi_window_report(const zi_window *window);

#endif
