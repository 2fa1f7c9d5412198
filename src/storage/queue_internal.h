/* A queue's state, for its files: queue_segments.c splits operations into segments and retries
 * them, queue.c has the calls, queue_create.c makes the queue. */
#ifndef ZI_STORAGE_QUEUE_INTERNAL_H
#define ZI_STORAGE_QUEUE_INTERNAL_H

#include <pthread.h>

#include "core/timeline.h"
#include "storage/io_backend.h"

/* A segment that moved nothing waits this long at most until it is retried. */
#define ZI_IO_PAUSE_LAST_NS UINT64_C(10000000)

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
    uint64_t segment_bytes;
    uint64_t retry_ns;
    uint32_t file_depth;
    bool owned;
    pthread_t owner; /* if owned */
    bool shared;     /* several threads call, one at a time */
    int broken;      /* errno of the backend; 0: it works */
    queue_region *regions;
    uint32_t region_count;
    uint32_t depth;
    zi_io_segment *segments;                          /* depth of them */
    zi_io_segment *free;                              /* a list */
    zi_io_segment *retries;                           /* a list: to be retried when due */
    uint32_t in_flight;                               /* segments that the backend has */
    uint32_t file_segments[ZI_STORE_DIRECTORIES_MAX]; /* not free, by file */
    zi_io_op *waiting; /* a list: operations that are not split to their end */
    zi_io_op **waiting_end;
    zi_timeline *timeline; /* NULL: none */
    const char *what;
    uint32_t use;
    uint32_t lanes; /* tracks of transfers that are under way, bits */
};

/* An operation begins, is over; the caller begins to wait. (queue_trace.c) */
void zi_io_note_begin(zi_io *queue, zi_io_op *op);
void zi_io_note_end(zi_io *queue, const zi_io_op *op);
zi_mark *zi_io_note_wait(zi_io *queue, const zi_io_op *op);

/* Submit what may be in flight: first segments whose retry is due, then those of operations. A
 * later operation overtakes those whose files have their depth in flight. (queue_segments.c) */
void zi_io_pump(zi_io *queue);
/* Handle a segment that the backend has completed: finish, continue or retry it. */
void zi_io_complete(zi_io *queue, zi_io_segment *segment);
/* When the next retry is due; UINT64_MAX: there is none. */
uint64_t zi_io_next_due_ns(const zi_io *queue);
/* The backend is broken: every operation fails, and none can be started. */
void zi_io_break(zi_io *queue, int code);
/* Cancel what is not in flight. */
void zi_io_drain(zi_io *queue);

#endif
