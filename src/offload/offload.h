/* The offload store: this rank's shards of PARAM or GRAD that are not where the device computes. On
 * disk they are extents behind a window; for an engine on a GPU they may be in host memory, which
 * needs no window, since copies and kernels reach it.
 *
 * A shard here is ordered like one that is in place: by the events of its stage, between the
 * streams that use it. On disk two streams may use one store at once, for other extents or to read.
 *
 * What is damaged on disk is given to nobody: the stream fails with CORRUPT. */
#ifndef ZI_OFFLOAD_OFFLOAD_H
#define ZI_OFFLOAD_OFFLOAD_H

#include "device/device.h"
#include "layout/layout.h"
#include "offload/window.h"

typedef struct zi_offload zi_offload;

typedef struct zi_offload_desc {
    const zi_layout *layout; /* expanded; borrowed, as all here */
    zero_role role;
    const zi_device *device;
    unsigned char *arena;         /* the role's, on the host; NULL: on disk */
    unsigned char *window_memory; /* on disk: the layout's window_slots of extent_bytes_max */
    const zi_store *store;        /* likewise */
    uint64_t *sums;               /* likewise, as the window's, with the pool; NULL: none */
    zi_pool *pool;
    /* NULL: the best this machine has. Else the window's own from then on. */
    const struct zi_io_backend *backend;
    /* Called on a stream's thread when a load or a store has failed, before the stream has: other
     * ranks wait for what comes after it there, and this one's host may not look for long. */
    void (*failed)(void *user, const zero_error *error);
    void *user;
} zi_offload_desc;

/* Errors: those of zi_window_create. */
zero_status zi_offload_create(const zi_offload_desc *desc, zi_offload **out);
/* Accepts NULL. Waits for what is in flight; the streams that use it are idle or gone. */
void zi_offload_destroy(zi_offload *offload);

/* Elements [first, first + count) of a flat's shard, to or from memory of the device. */
typedef struct zi_offload_move {
    uint32_t flat;
    uint64_t first;
    uint64_t count;
    void *memory;
    uint32_t next_count;
    uint32_t next[ZI_WINDOW_AHEAD]; /* to load: flats that most likely are loaded after this one */
} zi_offload_move;

/* Enqueue. An extent that is stored in part only is read first. Errors, in that stream: IO,
 * CORRUPT.
 */
zero_status zi_offload_load(zi_offload *offload, zi_stream *stream, const zi_offload_move *move);
zero_status zi_offload_store(zi_offload *offload, zi_stream *stream, const zi_offload_move *move);

/* The rest is for what is on disk; elsewhere the flush does nothing. */

/* Enqueue: what was released or stored so far is on disk when what is enqueued next runs. */
zero_status zi_offload_flush(zi_offload *offload, zi_stream *stream);
/* An element of a flat's shard, and where the elements end that are wanted with it. */
typedef struct zi_offload_element {
    uint32_t flat;
    uint64_t index;
    uint64_t end;
} zi_offload_element;

/* Within a task: acquire the extent that holds an element; *memory is host memory of `place`, until
 * the release. Those that hold the elements up to the end, then the whole shards of the flats named
 * as next, are prefetched if it is read. Errors: IO, CORRUPT. */
zero_status zi_offload_acquire(zi_offload *offload, zi_offload_element element,
                               zi_window_access access, const uint32_t *next, uint32_t next_count,
                               zi_extent_place *place, unsigned char **memory);
/* The same, prefetching the extents of these runs. */
zero_status zi_offload_acquire_before(zi_offload *offload, zi_offload_element element,
                                      zi_window_access access, const zi_window_run *next,
                                      uint32_t next_count, zi_extent_place *place,
                                      unsigned char **memory);
/* The extent that holds an element, to name it as next. */
zi_window_run zi_offload_run(const zi_offload *offload, zi_offload_element element);
/* dirty: it was written to. */
zero_status zi_offload_release(zi_offload *offload, const zi_extent_place *place, bool dirty);

/* Any thread. NULL: not on disk. For counts, its report, where extents are, and sources. */
zi_window *zi_offload_window(const zi_offload *offload);

#endif
