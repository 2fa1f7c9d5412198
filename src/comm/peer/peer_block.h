/* The memory that the members of a group share: who has arrived, what each has published, why the
 * group failed. Everything is an offset or a value, so that processes may map it anywhere.
 *
 *   header | slot of each member | table of each member | stage of each member (page aligned)
 *
 * A member writes its own slot and table before it arrives and reads the others' after;
 * `generation` orders the two. Bit 0 of `generation` is set once the group has failed, which also
 * wakes sleepers: they sleep on that very word. */
#ifndef ZI_COMM_PEER_PEER_BLOCK_H
#define ZI_COMM_PEER_PEER_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "comm/peer/peer.h"

/* Values of zi_peer_place.window that are no window. */
#define ZI_PEER_NOWHERE UINT32_MAX          /* NULL: zeros */
#define ZI_PEER_POINTER (UINT32_MAX - 1)    /* `at` is an address in the common address space */
#define ZI_PEER_UNREADABLE (UINT32_MAX - 2) /* peers cannot read it: to be staged */

/* Where a member's buffer is. */
typedef struct zi_peer_place {
    uint64_t at;
    uint32_t window;
    uint32_t unused;
} zi_peer_place;

/* A published collective. The terms must be equal on all members, the places need not. */
typedef struct zi_peer_entry {
    zi_collective_terms terms;
    zi_peer_place send;
    zi_peer_place recv; /* ALL_REDUCE only: the others copy finished parts out of it */
} zi_peer_entry;

/* One member's cache lines. */
typedef struct zi_peer_slot {
    _Alignas(64) atomic_uint arrived; /* the generation it has arrived for: names who is missing */
    uint32_t batch_count;
    uint64_t batch_hash;              /* of the terms of the batch */
    zi_fence *fences[2];              /* one address space only; NULL: the device needs none */
    _Alignas(64) atomic_uint reading; /* 1 while it may read peers' memory; a futex */
} zi_peer_slot;

struct zi_peer_block {
    uint32_t size;
    uint64_t stage_bytes;
    uint32_t fence_users;   /* members whose group may still follow fences; under fence_lock */
    atomic_uint fence_lock; /* 1: taken */
    _Alignas(64) atomic_uint generation; /* += 2 when all have arrived; bit 0: failed; a futex */
    atomic_uint sleepers;
    _Alignas(64) atomic_uint arrived_count;
    /* Why the group failed. 0: it has not; 1: being written; 2: complete. Written once. */
    _Alignas(64) atomic_uint error_state;
    int32_t error_status; /* what the others return */
    int32_t error_native;
    char error_message[256];
    _Alignas(64) zi_peer_slot slots[]; /* size of them, then the tables */
};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "the block is shared by processes");

typedef enum zi_peer_arrival {
    ZI_PEER_ARRIVED, /* so have all the others */
    ZI_PEER_FAILED,  /* the block carries an error */
    ZI_PEER_LATE     /* somebody has not come within the deadline */
} zi_peer_arrival;

/* Member `rank`'s table of ZI_BATCH_MAX entries. */
zi_peer_entry *zi_peer_block_table(zi_peer_block *block, uint32_t rank);

/* Member `rank`'s stage. */
unsigned char *zi_peer_block_stage(zi_peer_block *block, uint32_t rank);

/* What is done about every 100 ms of a wait; it may fail the block. */
typedef void (*zi_peer_look_fn)(const void *user);

/* How often a member looks at the block before it sleeps: at once, then after giving its CPU to
 * whoever waits for it. */
typedef struct zi_peer_patience {
    uint32_t spins;
    uint32_t yields;
    uint32_t sleeps; /* so many waits to come do not yield: others kept the CPU for long */
} zi_peer_patience;

/* Wait until every member has arrived as often as this one. look: may be NULL. */
zi_peer_arrival zi_peer_block_arrive(zi_peer_block *block, uint32_t rank,
                                     zi_peer_patience *patience, uint32_t deadline_ms,
                                     zi_peer_look_fn look, const void *user);

/* Fill `ranks` (room for block->size) with the members that have not arrived where `rank` waits in
 * vain; returns their number. */
uint32_t zi_peer_block_missing(zi_peer_block *block, uint32_t rank, uint32_t *ranks);

bool zi_peer_block_failed(zi_peer_block *block);

/* Let the group fail with this very error for everybody, unless it has failed already. */
void zi_peer_block_fail(zi_peer_block *block, zero_status status, int32_t native,
                        const char *message);

/* Take the block's error as the calling thread's own. The block must have failed. */
zero_status zi_peer_block_error(zi_peer_block *block);

/* Bracket the reading of peers' memory. begin: false if the group has failed; then nothing may be
 * read. */
bool zi_peer_block_read_begin(zi_peer_block *block, uint32_t rank);
void zi_peer_block_read_end(zi_peer_block *block, uint32_t rank);

/* Ranks that are threads: put a member's two fences where the others find them. */
void zi_peer_block_open_fences(zi_peer_block *block, uint32_t rank, zi_fence *const fences[2]);

/* The member follows no fence any more, though others may follow its own: the last one to say so
 * gives all of them back. */
void zi_peer_block_close_fences(zi_peer_block *block, const zi_device *device);

/* Wait until no member reads any more. The block must have failed, and this rank not be reading.
 * For ranks that are threads: buffers of a failed batch may then be freed. */
void zi_peer_block_quiesce(zi_peer_block *block);

#endif
