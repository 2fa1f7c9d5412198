/* Collectives over memory that every member can read: threads of one process, or processes of one
 * host that map each other's windows. An all-gather reads the peers' shards, a reduction folds
 * their buffers in ascending world rank; no byte is copied twice.
 *
 * A batch runs in three steps. Post: a member writes its terms and the addresses of its buffers
 * into the group's block and arrives at a barrier. Read: it compares the terms and copies or folds
 * its peers' memory. Leave: it arrives at a second barrier, after which send buffers may be reused.
 * An ALL_REDUCE has one more barrier, between folding the own part and copying the others'.
 *
 * A batch runs as a task of its stream. Where the device runs work later than it is issued, a
 * barrier also orders the members' streams: threads follow one another's fences, processes drain
 * their stream first.
 *
 * The block lies in memory that the members share. A wait spins for a short time, then yields a few
 * times where members outnumber the cores, then sleeps on a futex until the deadline. A member that
 * fails writes its error into the block first, and the others return COMM with that text. */
#ifndef ZI_COMM_PEER_PEER_H
#define ZI_COMM_PEER_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/failure.h"
#include "core/futex.h"

#define ZI_PEER_WINDOWS_MAX 64

/* A window: memory that ranks allocated together, mapped here in one piece: one part a rank. */
typedef struct zi_peer_window {
    size_t bytes;        /* of each rank's part; 0: free */
    unsigned char *base; /* of the first part */
} zi_peer_window;

/* The memory of other ranks that this rank can read. One per comm; windows are appended, never
 * moved, while no batch is under way. */
typedef struct zi_peer_space {
    bool one_address_space; /* ranks are threads: any pointer of theirs is good here */
    uint32_t world_rank;
    uint32_t part;         /* this rank's in every window */
    uint32_t rank_count;   /* parts of a window; 0 where one_address_space */
    const uint32_t *ranks; /* world rank of each part, ascending; borrowed */
    uint32_t window_count;
    zi_peer_window windows[ZI_PEER_WINDOWS_MAX];
    /* Called about every 100 ms while this rank waits in `what`, to check that the processes of the
     * other ranks live; fails all blocks where one is dead. NULL: ranks are threads, and none dies
     * alone. Any thread. */
    void (*poll)(void *owner, const char *what);
    void *poll_owner;
    zi_silence *silence; /* who is silent, for errors; NULL where ranks are threads */
    /* The note of a rank's calls, for errors; NULL: unknown here. Any thread. */
    const zi_call_note *(*call_of)(const void *owner, uint32_t world_rank);
    const void *call_owner;
} zi_peer_space;

/* State shared by the members of one group. */
typedef struct zi_peer_block zi_peer_block;

/* Bytes of a block, a multiple of ZI_PAGE_BYTES.
 * - stage_bytes: of each member's staging memory, through which send buffers that lie in no window
 *   go chunk by chunk; 0 where one_address_space. */
size_t zi_peer_block_bytes(uint32_t size, size_t stage_bytes);

/* Make zeroed memory a block. Once, by one member, before any other uses it. */
void zi_peer_block_init(zi_peer_block *block, uint32_t size, size_t stage_bytes,
                        zi_futex_scope scope);

/* A member uses the block no more. True for the last of them: its memory can be freed. */
bool zi_peer_block_done(zi_peer_block *block);

/* Fail the group and wake all members: they return this failure, unless there was one before. Any
 * thread or process, any time, more than once. */
void zi_peer_block_fail(zi_peer_block *block, const zi_failure *failure);

/* Called by destroy with the block, so that its owner can free the memory. */
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
