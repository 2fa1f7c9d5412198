/* The shelf: the shards of a role that is far, as records, one for each unit or bucket, in host
 * memory or on disk.
 *
 * All that moves to and from a shelf is put on one stream, its own, in program order: so a record
 * that is loaded is the one stored last, and on disk one ring on one thread does for all. Whoever
 * computes on another stream is handed what was loaded, and hands back what is to be stored, by
 * events of its own.
 *
 * On disk the records that come next are named with each load, and the shelf's ring begins to read
 * them before it waits for the one at hand. What is damaged there is loaded by nobody: the stream
 * fails with CORRUPT. */
#ifndef ZI_OFFLOAD_SHELF_H
#define ZI_OFFLOAD_SHELF_H

#include "device/device.h"
#include "layout/layout.h"
#include "offload/ring.h"

typedef struct zi_shelf zi_shelf;

typedef struct zi_shelf_desc {
    const zi_shelf_place *place; /* borrowed, as all here */
    const zi_layout *layout;     /* with the role, to name what is damaged */
    zero_role role;
    const zi_device *device;
    zi_stream *stream;          /* the shelf's own */
    unsigned char *arena;       /* the role's, on the host; NULL: on disk */
    unsigned char *ring_memory; /* on disk: place->ring_slots of place->record_bytes_max */
    uint32_t io_depth;          /* likewise, as the options' */
    const zi_store *store;      /* likewise */
    uint64_t *sums; /* likewise, as the ring's, with the pool; NULL: nothing is compared */
    zi_pool *pool;
    /* NULL: the best this machine has. Else the ring's own from then on. */
    const struct zi_io_backend *backend;
} zi_shelf_desc;

/* Errors: those of zi_ring_create. */
zero_status zi_shelf_create(const zi_shelf_desc *desc, zi_shelf **out);
/* Accepts NULL. After zi_shelf_quiet has run, or never used. */
void zi_shelf_destroy(zi_shelf *shelf);

/* Bytes of one record, to or from memory of the device. */
typedef struct zi_shelf_move {
    uint32_t record;
    bool replaces; /* to store: what the record holds is of no use, so it is not read */
    uint64_t at;   /* from the record's start */
    uint64_t bytes;
    void *memory;
    const int *unless; /* NULL, or on disk: move nothing when this is not 0 by then */
    uint32_t next_count;
    uint32_t next[ZI_RING_AHEAD]; /* to load: records that most likely come after this one */
} zi_shelf_move;

/* Name the records above, or below, as those that come next. */
void zi_shelf_go_on(const zi_shelf *shelf, zi_shelf_move *move, bool down);

/* Enqueue a move on the shelf's stream. Errors, in that stream: IO. */
zero_status zi_shelf_load(zi_shelf *shelf, const zi_shelf_move *move);
zero_status zi_shelf_store(zi_shelf *shelf, const zi_shelf_move *move);
/* Enqueue: what was stored so far is on disk when what is enqueued next runs. */
zero_status zi_shelf_rest(zi_shelf *shelf);
/* Leave nothing in flight, whatever has failed; the stream's last task. */
zero_status zi_shelf_quiet(zi_shelf *shelf);

/* On the host: a record's memory, at rest when the shelf's stream is. NULL on disk. */
unsigned char *zi_shelf_memory(const zi_shelf *shelf, uint32_t record);
/* On disk, within a task of the shelf's stream: the record, as zi_ring_at. Errors: IO. */
zero_status zi_shelf_at(zi_shelf *shelf, uint32_t record, bool writes, unsigned char **memory);

/* On disk, else NULL; for its report. */
const zi_ring *zi_shelf_ring(const zi_shelf *shelf);

/* On disk, else zeros. Any thread. */
zi_ring_counts zi_shelf_count(const zi_shelf *shelf);

#endif
