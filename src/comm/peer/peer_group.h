/* A peer group, for the files of this folder: peer.c runs a batch, peer_barrier.c waits within it,
 * peer_move.c moves its data. */
#ifndef ZI_COMM_PEER_PEER_GROUP_H
#define ZI_COMM_PEER_PEER_GROUP_H

#include "comm/peer/peer_block.h"

typedef struct zi_peer_group {
    zi_group base;
    zi_peer_block *block; /* NULL: a group of one may do without */
    const zi_peer_space *space;
    uint32_t deadline_ms;
    const bool *crowded;
    zi_peer_patience patience;
    zi_peer_block_free block_free;
    void *owner;
    zero_error first_error; /* status ZERO_OK while the group is alive */
    zi_fence *fences[2];    /* for barriers of even and odd number; NULL: the device needs none */
    bool fenced;            /* they are in the block too, whose last user destroys them */
    uint32_t barriers;
    bool stage_mapped;
    /* One entry a member, behind `sources` in the group's own memory. */
    uint32_t *members;     /* world rank of each member */
    uint32_t *order;       /* group ranks in ascending world rank */
    uint32_t *parts;       /* each member's in a window; unused where one_address_space */
    uint32_t *missing;     /* scratch: the members that are late */
    const void *sources[]; /* arrays that are being folded */
} zi_peer_group;

/* A batch as its task runs it. */
typedef struct zi_peer_batch {
    zi_peer_group *group;
    zi_stream *stream; /* whose task this is */
    const zi_collective *collectives;
    uint32_t count;
    uint64_t number; /* in the group's recorder */
} zi_peer_batch;

/* The place at which the other members find `bytes` bytes at `pointer`. */
zi_peer_address zi_peer_locate(const zi_peer_space *space, const void *pointer, uint64_t bytes);

/* Bytes of a collective's buffers on one rank; recv: of an ALL_REDUCE. */
uint64_t zi_peer_send_bytes(const zi_collective *collective, uint32_t size);
uint64_t zi_peer_recv_bytes(const zi_collective *collective);

/* Move and fold the data of a batch whose terms all members have posted and compared. */
zero_status zi_peer_move(const zi_peer_batch *batch);

/* The same for a group of one. */
zero_status zi_peer_move_alone(const zi_peer_batch *batch);

/* Wait until all members have arrived; work put on the stream afterwards runs after what they have
 * put on theirs. doing: a verb for the error. */
zero_status zi_peer_barrier(const zi_peer_batch *batch, const char *doing);

#endif
