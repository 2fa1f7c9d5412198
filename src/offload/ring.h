/* The ring: the few records of a store that are in memory, while a walk over all of them reads
 * ahead, works on one, and writes behind. It knows records and no optimizer.
 *
 *   slots of 4, walking up:   written     worked on    read ahead
 *                             [ 6 ]       [ 7 ]        [ 8 ] [ 9 ]
 *
 * A walk is aimed at the records from one to another, up or down, and goes from one to the next.
 * What a walk leaves in the slots the next one does not read, so a walk that goes back the other
 * way begins with hits. Where records do not come in a walk's order, the next few are named
 * instead. A record that was never written is zeros and is not read.
 *
 * A ring may have room in its store for a draft of each record, beside it. While it drafts, what is
 * written goes there, and what was drafted is read from there; then all drafts are kept, and are
 * the records, or are dropped, as if they had never been made.
 *
 * A ring may have checksums of what it has written. What is read is then compared with them before
 * anybody is given it, and bytes that differ are CORRUPT, naming whose they are and where.
 *
 * All calls but create, destroy, count and report come from one thread, the owner of the queue
 * beneath. */
#ifndef ZI_OFFLOAD_RING_H
#define ZI_OFFLOAD_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/thread.h"
#include "layout/layout.h"
#include "storage/storage.h"

typedef struct zi_ring zi_ring;

/* Records that may be named ahead, at most; how many are read ahead is up to the slots. */
#define ZI_RING_AHEAD 7

typedef struct zi_ring_desc {
    const zi_range *ranges; /* borrowed; records in the store, whole pages */
    uint32_t range_count;
    uint32_t slot_count;   /* at least 3, or as many as there are ranges */
    uint64_t slot_bytes;   /* of the largest record */
    unsigned char *memory; /* slot_count * slot_bytes of whole pages; borrowed */
    uint32_t io_depth;     /* the queue's, for each directory; 0: its default */
    uint64_t draft_at;     /* bytes in the store from a record to its draft; 0: there are none */
    const zi_store *store; /* borrowed */
    /* zi_range_sum_count of the ranges, twice as many with drafts; borrowed. NULL: what is read is
     * believed. */
    uint64_t *sums;
    zi_pool *pool; /* of the threads that make and compare them; NULL: the owner alone */
    /* As zi_layout_name_bytes, to name what is damaged. layout NULL: by its number. */
    const zi_layout *layout;
    zero_role role;
    /* NULL: the best this machine has. Else the queue's own from then on. */
    const struct zi_io_backend *backend;
} zi_ring_desc;

/* Since create. */
typedef struct zi_ring_counts {
    uint64_t read_bytes;
    uint64_t write_bytes;
    uint64_t hits; /* records that were in memory when their turn came, without a read for it */
    /* That calls blocked: for a record to be read, and for one to be written, to have its slot. */
    uint64_t read_wait_ns;
    uint64_t write_wait_ns;
    uint64_t check_ns; /* that calls made and compared checksums */
} zi_ring_counts;

/* Errors: those of zi_io_create. The backend is taken also when create fails. */
zero_status zi_ring_create(const zi_ring_desc *desc, zi_ring **out);
/* Accepts NULL. Nothing is in flight: after zi_ring_quiet, or never used. Any thread. */
void zi_ring_destroy(zi_ring *ring);

/* A walk over the records from `first` to `last`, in this order, comes next: give back the one at
 * hand, unless it goes on with that, and read ahead. Does not block. */
zero_status zi_ring_aim(zi_ring *ring, uint32_t first, uint32_t last);

/* Instead of a walk, until the next is aimed: after the record that zi_ring_at is called with next
 * come these, each another. At most ZI_RING_AHEAD. */
void zi_ring_expect(zi_ring *ring, const uint32_t *next, uint32_t count);

/* Go to a record, giving back the one at hand; blocks until it has been read. *memory is good until
 * the next call. writes: it is to be written once it is given back. Errors: IO; CORRUPT. */
zero_status zi_ring_at(zi_ring *ring, uint32_t range, bool writes, unsigned char **memory);

/* Go to a record that is to be overwritten whole: what it holds is not read, nor is anything ahead.
 * It is written once it is given back. *memory as above. Errors: IO, of its slot's last use. */
zero_status zi_ring_replace(zi_ring *ring, uint32_t range, unsigned char **memory);

/* Give back the record at hand and block until all writes are done. Errors: IO. */
zero_status zi_ring_rest(zi_ring *ring);

/* From here on write drafts; the record at hand is given back before. Only where there is room for
 * them, and none are held. */
zero_status zi_ring_draft(zi_ring *ring);
/* Give back the record at hand; the drafts are the records from here on, and those without one stay
 * what they are. No more are written. */
zero_status zi_ring_keep(zi_ring *ring);
/* Forget all drafts, the one at hand too, and write no more. Their slots are free once what is in
 * flight for them has ended; that it failed shows then. */
void zi_ring_drop(zi_ring *ring);

/* Block until nothing is in flight, whatever came of it; also after a failure. */
void zi_ring_quiet(zi_ring *ring);

/* Give the memory and the queue up, but not the store nor the counts. After zi_ring_rest and
 * zi_ring_quiet; any thread. */
void zi_ring_suspend(zi_ring *ring);
/* Go on with other memory, of the same size; any thread. The records that were in the ring's memory
 * are read again. Errors: those of zi_io_create; the ring is then still suspended. */
zero_status zi_ring_resume(zi_ring *ring, unsigned char *memory);

/* Any thread. */
zi_ring_counts zi_ring_count(const zi_ring *ring);

/* How files are reached; the queue's. While suspended, as it was before. */
const zi_io_report *zi_ring_report(const zi_ring *ring);

#endif
