/* The interface of an I/O backend. The queue cuts operations into segments, limits how many are in
 * flight, checks every result and retries. The backend only runs segments and passes on what the
 * kernel returned. */
#ifndef ZI_STORAGE_IO_BACKEND_H
#define ZI_STORAGE_IO_BACKEND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "storage/storage.h"

/* One access. The queue owns it and its array; in flight it is the backend's. */
typedef struct zi_io_segment {
    zi_io_kind kind;
    uint32_t file;
    int fd;
    int32_t slice;   /* of zi_io_setup that the memory lies in; -1: none */
    uint64_t offset; /* in the file */
    void *memory;
    uint32_t bytes;
    int32_t result; /* set by reap: bytes moved, or -errno */
    /* The queue's. */
    struct zi_io_segment *next;
    zi_io_op *op;
    uint64_t op_offset;         /* in the store */
    uint64_t since_ns;          /* first attempt without progress; 0: none */
    uint64_t due_ns;            /* not to be tried again before */
    uint64_t pause_ns;          /* before the next attempt */
    struct zi_io_segment *link; /* the backend's */
} zi_io_segment;

/* Called by the queue's owner only, but for destroy; of a shared one by one thread at a time. */
typedef struct zi_io_backend_ops {
    size_t struct_bytes;
    const char *name;
    /* Take a segment; it may stay put until flush. Never more than setup->depth at once. */
    void (*put)(void *self, zi_io_segment *segment);
    /* Set all that was put going. Does not block on I/O. */
    void (*flush)(void *self);
    /* Up to `room` segments that are complete, results set, in any order. Blocks until `want` are,
     * at most timeout_ns (0: not at all) and not after a signal; fewer may come. -errno: the
     * backend is broken and will never give back what it has. */
    int (*reap)(void *self, zi_io_segment **done, uint32_t room, uint32_t want,
                uint64_t timeout_ns);
    /* With nothing in flight, or when broken. Any thread. */
    void (*destroy)(void *self);
} zi_io_backend_ops;

typedef struct zi_io_backend {
    const zi_io_backend_ops *ops;
    void *self;
} zi_io_backend;

/* What a backend is made for. */
typedef struct zi_io_setup {
    const zi_store *store;
    uint32_t file_count;
    uint32_t depth;             /* segments at once */
    bool shared;                /* calls come from several threads, one at a time */
    const struct iovec *slices; /* memory to register; must stay valid in create only */
    uint32_t slice_count;
} zi_io_setup;

/* Fill *backend, and `flags` and `registered_bytes` of the report. UNSUPPORTED where this machine
 * or build does not have it, with the reason; other errors are the caller's. */
zero_status zi_uring_create(const zi_io_setup *setup, zi_io_backend_kind kind,
                            zi_io_backend *backend, zi_io_report *report);
zero_status zi_posix_create(const zi_io_setup *setup, zi_io_backend_kind kind,
                            zi_io_backend *backend, zi_io_report *report);

#endif
