/* What host memory goes over where ranks share nothing but NCCL: frames of a fixed size, one from
 * each member to all, through pinned memory and a GPU. Everything about a frame that matters is in
 * it, so that whichever frame comes next may be a rank's last. */
#ifndef ZI_COMM_NCCL_NCCL_LINK_H
#define ZI_COMM_NCCL_NCCL_LINK_H

#include "comm/nccl/nccl_state.h"

#define ZI_NCCL_FRAME_BYTES 1024
#define ZI_NCCL_ROOM_BYTES 960

/* What one rank says. The first six are the same on all ranks, or they make different calls. */
typedef struct zi_nccl_frame {
    uint32_t batch_count;
    uint32_t index; /* of the collective in its batch */
    uint64_t piece; /* of the collective */
    zi_collective_terms terms;
    uint32_t status; /* not ZERO_OK: the rank has given up, and `room` is its last words */
    uint32_t unused[7];
    unsigned char room[ZI_NCCL_ROOM_BYTES];
} zi_nccl_frame;

_Static_assert(sizeof(zi_nccl_frame) == ZI_NCCL_FRAME_BYTES, "frames lie end to end");
_Static_assert(offsetof(zi_nccl_frame, status) == 32, "what is compared as bytes has no padding");

/* Bytes of a frame that all ranks must agree on. */
#define ZI_NCCL_FRAME_TERMS_BYTES offsetof(zi_nccl_frame, status)

typedef struct zi_nccl_link zi_nccl_link;

/* A link of desc->members. Collective over the world; as zi_nccl_group_create, which it calls. */
zero_status zi_nccl_link_create(const zi_nccl_group_desc *desc, zi_nccl_link **out);

/* Accepts NULL. A link that has spoken waits a second for the others to have heard. */
void zi_nccl_link_destroy(zi_nccl_link *link);

/* This rank's frame, to be filled; not while an exchange is under way. */
zi_nccl_frame *zi_nccl_link_own(zi_nccl_link *link);

/* What member `rank` said in the last exchange. */
const zi_nccl_frame *zi_nccl_link_frame(const zi_nccl_link *link, uint32_t rank);

/* Send this rank's frame to all and take theirs. Collective over the members, blocking. TIMEOUT
 * when one does not come within the deadline; after any failure so does the world. Any thread, one
 * at a time. */
zero_status zi_nccl_link_exchange(zi_nccl_link *link);

/* Let this rank's next frame say that it has given up, and be its last; nothing when an exchange is
 * under way on another thread or this one. Any thread; waits a tenth of a second at most. */
void zi_nccl_link_speak(zi_nccl_link *link, const zero_error *error);

#endif
