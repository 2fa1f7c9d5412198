/* A rank's shards in one role, wherever they lie: in memory that the device computes in, in host
 * memory that a GPU copies from, or on disk in extents behind a window. Who wants elements names a
 * flat and which of its shard's elements, and asks here; nobody else turns elements of a shard into
 * an address, an extent or a place in the store.
 *
 * A shard is ordered by the events of its stage, between the streams that use it, whichever tier it
 * is on. On disk two streams may use one role at once, for other extents or to read.
 *
 * What is damaged on disk is given to nobody: the stream fails with CORRUPT. */
#ifndef ZI_OFFLOAD_SHARDS_H
#define ZI_OFFLOAD_SHARDS_H

#include "device/device.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "offload/window.h"

typedef struct zi_shards_desc {
    const zi_layout *layout; /* expanded; borrowed, as all here */
    zero_role role;
    const zi_device *device;
    const zi_kernels *kernels;      /* the device's */
    const zi_kernels *host_kernels; /* the CPU's, for extents; may be `kernels` */
    unsigned char *arena;           /* the role's; NULL: on disk, or nothing */
    zi_window *window;              /* of its extents, which states share; NULL: not on disk */
    /* Called on a stream's thread when a move from or to disk has failed, before the stream has:
     * other ranks wait for what comes after it there, and this one's host may not look for long. */
    void (*failed)(void *user, const zero_error *error);
    void *user;
} zi_shards_desc;

/* Members are this file's and shards.c's. */
typedef struct zi_shards {
    zi_shards_desc desc;
} zi_shards;

void zi_shards_make(zi_shards *shards, const zi_shards_desc *desc);

/* True if the device computes with them where they are: nothing of them has to be moved first. */
static inline bool zi_shards_here(const zi_shards *shards)
{
    return !zi_role_offloaded(shards->desc.layout, shards->desc.role);
}

/* On disk they have no address, and whoever wants them acquires extents or moves them. */
static inline bool zi_shards_on_disk(const zi_shards *shards)
{
    return shards->desc.window != NULL;
}

/* The address of an element of a flat's shard; those behind it follow. NULL on disk. */
static inline unsigned char *zi_shards_at(const zi_shards *shards, uint32_t flat, uint64_t element)
{
    const zi_flat *place = &shards->desc.layout->flats[flat];
    const zero_role role = shards->desc.role;
    return shards->desc.arena != NULL
               ? shards->desc.arena + place->at[role] + zi_codec_bytes(place->kept[role], element)
               : NULL;
}

/* The address that zi_shards_at counts from, for calls that cannot spare it: a flat's shard begins
 * at its at[role]. */
static inline unsigned char *zi_shards_arena(const zi_shards *shards)
{
    return shards->desc.arena;
}

/* Elements [first, first + count) of a flat's shard, to or from memory of the device. */
typedef struct zi_shards_move {
    uint32_t flat;
    uint64_t first;
    uint64_t count;
    void *memory; /* as the role keeps them */
    uint32_t next_count;
    uint32_t next[ZI_WINDOW_AHEAD]; /* to load: flats that most likely are loaded after this one; of
                                       PARAM and GRAD */
} zi_shards_move;

/* Enqueue a copy, from any tier. An extent that is stored in part only is read first. Errors, in
 * that stream: IO, CORRUPT. */
zero_status zi_shards_load(const zi_shards *shards, zi_stream *stream, const zi_shards_move *move);
zero_status zi_shards_store(const zi_shards *shards, zi_stream *stream, const zi_shards_move *move);

/* Elements [first, first + count) of a flat's shard, to or from values in host memory. */
typedef struct zi_shards_values {
    uint32_t flat;
    uint64_t first;
    uint64_t count;
    void *values;
    zero_dtype dtype; /* of the values, which are rounded to nearest even */
    bool writes;
} zi_shards_values;

/* Enqueue; the values stay until it has run. They are memory that the device reaches where types
 * differ. Errors, in that stream: IO, CORRUPT. */
zero_status zi_shards_convert(const zi_shards *shards, zi_stream *stream,
                              const zi_shards_values *values);

/* Enqueue: what was stored or released so far is on disk, if that is where it belongs, when what is
 * enqueued next runs. */
zero_status zi_shards_flush(const zi_shards *shards, zi_stream *stream);

/* ---- on disk, within a task ---- */

/* An element of a flat's shard, and where the elements end that are wanted with it. */
typedef struct zi_shards_element {
    uint32_t flat;
    uint64_t index;
    uint64_t end;
} zi_shards_element;

/* Acquire the extent that holds an element; *memory is where place->first lies in host memory,
 * until the release. Those that hold the elements up to the end, then the whole shards of the flats
 * named as next, are prefetched if it is read. Errors: IO, CORRUPT. */
zero_status zi_shards_acquire(const zi_shards *shards, zi_shards_element element,
                              zi_window_access access, const uint32_t *next, uint32_t next_count,
                              zi_extent_place *place, unsigned char **memory);
/* The same, prefetching the extents of these ranges. */
zero_status zi_shards_acquire_before(const zi_shards *shards, zi_shards_element element,
                                     zi_window_access access, const zi_window_range *next,
                                     uint32_t next_count, zi_extent_place *place,
                                     unsigned char **memory);
/* The extent that holds an element, to name it as next. */
zi_window_range zi_shards_range(const zi_shards *shards, zi_shards_element element);
/* dirty: it was written to. */
zero_status zi_shards_release(const zi_shards *shards, const zi_extent_place *place, bool dirty);

#endif
