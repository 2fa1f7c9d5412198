/* The memory that the members of a group share: who has arrived, what each has posted, why the
 * group failed. Everything is an offset or a value, so that processes may map it anywhere.
 *
 *   header | words of each member | table of each member | stage of each member (page aligned)
 *
 * A member writes its own words and table before it arrives and reads the others' after;
 * `generation` orders the two. Bit 0 of `generation` is set once the group has failed. Sleepers
 * sleep on that very word, so setting the bit wakes them too. */
#ifndef ZI_COMM_PEER_PEER_BLOCK_H
#define ZI_COMM_PEER_PEER_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "comm/peer/peer.h"
#include "core/failure.h"

/* Values of zi_peer_address.window that are no window. */
#define ZI_PEER_NOWHERE UINT32_MAX          /* NULL: zeros */
#define ZI_PEER_POINTER (UINT32_MAX - 1)    /* `at` is an address in the common address space */
#define ZI_PEER_UNREADABLE (UINT32_MAX - 2) /* peers cannot read it: to be staged */

/* The place of a member's buffer. */
typedef struct zi_peer_address {
    uint64_t at;
    uint32_t window;
    uint32_t unused;
} zi_peer_address;

/* A posted collective. The terms must be equal on all members, the places need not be. */
typedef struct zi_peer_entry {
    zi_collective_terms terms;
    zi_peer_address send;
    zi_peer_address recv; /* ALL_REDUCE only: the others copy finished parts out of it */
} zi_peer_entry;

/* One member's cache lines. */
typedef struct zi_peer_member {
    _Alignas(64) atomic_uint arrived; /* the generation it has arrived for: names who is missing */
    uint32_t batch_count;
    uint64_t batch_hash;              /* of the terms of the batch */
    zi_fence *fences[2];              /* one address space only; NULL: the device needs none */
    _Alignas(64) atomic_uint reading; /* 1 while it may read peers' memory; a futex */
} zi_peer_member;

struct zi_peer_block {
    zi_futex_scope scope; /* of its futexes */
    uint32_t size;
    uint64_t stage_bytes;
    atomic_uint users;      /* members that may still use the block */
    uint32_t fence_users;   /* members whose group may still follow fences; under fence_lock */
    atomic_uint fence_lock; /* 1: held */
    _Alignas(64) atomic_uint generation; /* += 2 when all have arrived; bit 0: failed; a futex */
    atomic_uint sleepers;
    _Alignas(64) atomic_uint arrived_count;
    _Alignas(64) zi_failure_cell failure; /* why the group failed: what all members return */
    _Alignas(64) zi_peer_member member[]; /* size of them, then the tables */
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

/* Called about every 100 ms of a wait; it may fail the block. */
typedef void (*zi_peer_poll_fn)(const void *user);

/* How a member waits before it sleeps: it reads the block `spins` times, then yields its CPU, which
 * the awaited member may need, `yields` times. */
typedef struct zi_peer_patience {
    uint32_t spins;
    uint32_t yields;
    uint32_t sleeps; /* so many next waits do not yield, since a yield took long */
} zi_peer_patience;

/* Wait until every member has arrived as often as this one. poll: may be NULL. */
zi_peer_arrival zi_peer_block_arrive(zi_peer_block *block, uint32_t rank,
                                     zi_peer_patience *patience, uint32_t deadline_ms,
                                     zi_peer_poll_fn poll, const void *user);

/* Fill `ranks`, of block->size entries, with the members that have not arrived at the barrier that
 * `rank` has; returns their number. */
uint32_t zi_peer_block_missing(zi_peer_block *block, uint32_t rank, uint32_t *ranks);

bool zi_peer_block_failed(zi_peer_block *block);

/* Set the block's error as the calling thread's own. The block must have failed. */
zero_status zi_peer_block_error(zi_peer_block *block);

/* Bracket the reading of peers' memory. begin: false if the group has failed; then no memory of
 * peers may be read. */
bool zi_peer_block_read_begin(zi_peer_block *block, uint32_t rank);
void zi_peer_block_read_end(zi_peer_block *block, uint32_t rank);

/* Ranks that are threads: store a member's two fences in the block, where the others find them. */
void zi_peer_block_open_fences(zi_peer_block *block, uint32_t rank, zi_fence *const fences[2]);

/* The member follows no fence any more, though others may follow its own: the last member to call
 * destroys all of them. */
void zi_peer_block_close_fences(zi_peer_block *block, const zi_device *device);

/* Wait until no member reads any more. The block must have failed, and this rank not be reading.
 * For ranks that are threads: buffers of a failed batch may be freed afterwards. */
void zi_peer_block_quiesce(zi_peer_block *block);

#endif
