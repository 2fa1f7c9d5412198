/* The interface of an I/O backend. The queue splits operations into segments, limits how many are
 * in flight, checks every result and retries. The backend only runs segments and passes on what the
 * kernel returned. */
#ifndef ZI_STORAGE_IO_BACKEND_H
#define ZI_STORAGE_IO_BACKEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "storage/storage.h"

/* One access to one file. The queue owns it and its array; while it is in flight the backend does.
 */
typedef struct zi_io_segment {
    zi_io_kind kind;
    uint32_t file;
    int fd;
    int32_t slice;   /* of zi_io_setup that the memory lies in; -1: none */
    uint64_t offset; /* in the file */
    void *memory;
    uint32_t bytes;
    int32_t result; /* set by reap: bytes moved, or -errno */
    /* For the queue alone. */
    struct zi_io_segment *next;
    zi_io_op *op;
    uint64_t op_offset;         /* in the store */
    uint64_t since_ns;          /* first attempt without progress; 0: none */
    uint64_t due_ns;            /* when it may be retried */
    uint64_t pause_ns;          /* before the next retry */
    struct zi_io_segment *link; /* for the backend alone */
} zi_io_segment;

/* Called by the thread that owns the queue, but for destroy; where the queue is shared, by one
 * thread at a time. */
typedef struct zi_io_backend_ops {
    size_t struct_bytes;
    const char *name;
    /* Take a segment, which may stay queued until flush. Never more than setup->depth at once. */
    void (*put)(void *self, zi_io_segment *segment);
    /* Submit all segments that were put. Does not block on I/O. */
    void (*flush)(void *self);
    /* Return segments that are complete, with their results, in any order: their number, or -errno
     * when the backend is broken and will never complete what it has.
     * - done: out; at most done_max of them.
     * - want: block until so many are complete; a signal or the timeout ends the wait earlier.
     * - timeout_ns: 0 does not block. */
    int (*reap)(void *self, zi_io_segment **done, uint32_t done_max, uint32_t want,
                uint64_t timeout_ns);
    /* Only with nothing in flight, or when broken. Any thread. */
    void (*destroy)(void *self);
} zi_io_backend_ops;

typedef struct zi_io_backend {
    const zi_io_backend_ops *ops;
    void *self;
} zi_io_backend;

/* The inputs of a backend's creation. */
typedef struct zi_io_setup {
    const zi_store *store;
    uint32_t file_count;
    uint32_t depth;             /* segments at once */
    bool shared;                /* several threads call, one at a time */
    const struct iovec *slices; /* memory to register; must stay valid in create only */
    uint32_t slice_count;
} zi_io_setup;

/* Fill *backend, and `flags` and `registered_bytes` of the report.
 * - Errors: UNSUPPORTED, with the reason, where this machine or build does not have it; any other
 *   error ends the fallback. */
zero_status zi_uring_create(const zi_io_setup *setup, zi_io_backend_kind kind,
                            zi_io_backend *backend, zi_io_report *report);
zero_status zi_posix_create(const zi_io_setup *setup, zi_io_backend_kind kind,
                            zi_io_backend *backend, zi_io_report *report);

#endif
