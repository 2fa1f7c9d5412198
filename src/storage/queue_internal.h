/* State shared by the parts of a queue: its making (queue_create.c), its segments from the cut to
 * the last attempt (queue_segments.c), and the calls that take turns at both (queue.c). */
#ifndef ZI_STORAGE_QUEUE_INTERNAL_H
#define ZI_STORAGE_QUEUE_INTERNAL_H

#include <pthread.h>

#include "storage/io_backend.h"

/* A segment that moved nothing waits this long at most until it is tried again. */
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
    pthread_t owner; /* where owned */
    bool shared;     /* by threads that take turns */
    int broken;      /* errno of the backend; 0: it works */
    queue_region *regions;
    uint32_t region_count;
    uint32_t depth;
    zi_io_segment *segments;                     /* depth of them */
    zi_io_segment *free;                         /* a list */
    zi_io_segment *again;                        /* a list: to be tried again when due */
    uint32_t out;                                /* at the backend */
    uint32_t file_out[ZI_STORE_DIRECTORIES_MAX]; /* not free, by file */
    zi_io_op *waiting;                           /* a list: operations with something left to cut */
    zi_io_op **waiting_end;
};

/* Hand over what may go: segments that are due once more, then operations, a later one past those
 * whose disk is busy. (queue_segments.c) */
void zi_io_pump(zi_io *queue);
/* What came of a segment that the backend gave back. */
void zi_io_complete(zi_io *queue, zi_io_segment *segment);
/* When the next segment is to be tried again; UINT64_MAX: none is. */
uint64_t zi_io_next_due_ns(const zi_io *queue);
/* The backend keeps what it has, so every operation fails and none can be started. */
void zi_io_break(zi_io *queue, int code);
/* What is not at the backend is given up; the rest comes back in its time. */
void zi_io_drain(zi_io *queue);

#endif
