/* Collectives over memory that every member can read: threads of one process, or processes of one
 * host that map each other's windows. An all-gather is a read of the peers' shards, a reduction a
 * fold of their buffers in ascending world rank; no byte is copied twice.
 *
 * A batch runs in three steps: publish (descriptors and send addresses into the group's block, then
 * arrive), read (check the descriptors, copy or fold peers' memory), leave (arrive again, so that
 * send buffers may be reused). ALL_REDUCE has one more arrival between folding its own part and
 * copying the others'.
 *
 * A batch runs as a task of its stream. Where the device runs what it is given later, meeting puts
 * the members' streams in order too: threads follow one another's fences, processes drain their
 * stream first.
 *
 * The block and everything in it lives in memory shared by the members; waiting is a short spin,
 * where members outnumber the cores a few yields too, then a futex, until the deadline. Whoever
 * fails writes its error into the block first, and the others return COMM with that text. */
#ifndef ZI_COMM_PEER_PEER_H
#define ZI_COMM_PEER_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"

#define ZI_PEER_WINDOWS_MAX 64

/* A window: memory that ranks allocated together, mapped here in one piece: one part a rank. */
typedef struct zi_peer_window {
    size_t bytes;        /* of each rank's part; 0: free */
    unsigned char *base; /* of the first part */
} zi_peer_window;

/* What this rank can read of the others. One per comm; windows are appended, never moved, while no
 * batch is under way. */
typedef struct zi_peer_space {
    bool one_address_space; /* ranks are threads: any pointer of theirs is good here */
    uint32_t world_rank;
    uint32_t part;         /* this rank's in every window */
    uint32_t rank_count;   /* parts of a window; 0 where one_address_space */
    const uint32_t *ranks; /* world rank of each part, ascending; borrowed */
    uint32_t window_count;
    zi_peer_window windows[ZI_PEER_WINDOWS_MAX];
    /* Called about every 100 ms that this rank waits in `what`; fails all blocks where a rank is
     * dead. NULL: ranks are threads, and none dies alone. Any thread. */
    void (*look)(void *owner, const char *what);
    void *look_owner;
} zi_peer_space;

/* State shared by the members of one group. */
typedef struct zi_peer_block zi_peer_block;

/* Bytes of a block, a multiple of ZI_PAGE_BYTES. stage_bytes: room per member for send buffers that
 * lie in no window; such a batch goes through it piece by piece. 0 where one_address_space. */
size_t zi_peer_block_bytes(uint32_t size, size_t stage_bytes);

/* Make zeroed memory a block. Once, by one member, before any other uses it. */
void zi_peer_block_init(zi_peer_block *block, uint32_t size, size_t stage_bytes);

/* Mark the block aborted and wake everybody. Any thread or process, any time, more than once. */
void zi_peer_block_abort(zi_peer_block *block, uint32_t world_rank, const zero_error *error);

/* Called by destroy with the block, so that its owner may give the memory back. */
typedef void (*zi_peer_block_free)(void *owner, zi_peer_block *block);

typedef struct zi_peer_group_desc {
    const zi_kernels *kernels;
    zi_peer_block *block; /* borrowed until destroy, then passed to block_free */
    const zi_peer_space *space;
    const uint32_t *members; /* world rank of each member; copied */
    uint32_t size;
    uint32_t deadline_ms;
    const bool *crowded; /* the comm's; read whenever the group waits */
    const char *name;
    zi_peer_block_free block_free; /* may be NULL */
    void *owner;
} zi_peer_group_desc;

/* A group over a block. Local: needs no other member. This rank's place is where members[i] ==
 * space->world_rank. */
zero_status zi_peer_group_create(const zi_peer_group_desc *desc, zi_group **out);

/* A group of this rank alone, which needs no block. Local. */
zero_status zi_peer_group_create_alone(const zi_comm *comm, const zi_peer_space *space,
                                       const zi_kernels *kernels, const char *name, zi_group **out);

#endif
