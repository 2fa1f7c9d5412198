/* What host memory is exchanged over where ranks share nothing but NCCL: messages of a fixed size,
 * one from each member to all, through pinned memory and a GPU. A message describes itself, so that
 * in place of the next one a rank may send the notice that it aborts. */
#ifndef ZI_COMM_NCCL_NCCL_LINK_H
#define ZI_COMM_NCCL_NCCL_LINK_H

#include "comm/nccl/nccl_state.h"

#define ZI_NCCL_MESSAGE_BYTES 1024
#define ZI_NCCL_PAYLOAD_BYTES 960

/* What one rank sends in an exchange. All before `status` is the same on all ranks, or they make
 * different calls. */
typedef struct zi_nccl_message {
    uint32_t batch_count;
    uint32_t index; /* of the collective in its batch */
    uint64_t chunk; /* of the collective */
    zi_collective_terms terms;
    uint32_t status; /* not ZERO_OK: an abort notice, whose payload is the text of the error */
    uint32_t unused[7];
    unsigned char payload[ZI_NCCL_PAYLOAD_BYTES];
} zi_nccl_message;

_Static_assert(sizeof(zi_nccl_message) == ZI_NCCL_MESSAGE_BYTES, "messages lie end to end");
_Static_assert(offsetof(zi_nccl_message, status) == 32, "what is compared as bytes has no padding");

/* Bytes of a message that all ranks must agree on. */
#define ZI_NCCL_TERMS_BYTES offsetof(zi_nccl_message, status)

typedef struct zi_nccl_link zi_nccl_link;

/* A link of desc->members. Collective over the world; as zi_nccl_group_create, which it calls. */
zero_status zi_nccl_link_create(const zi_nccl_group_desc *desc, zi_nccl_link **out);

/* Accepts NULL. Where this rank has sent its abort notice, waits up to a second for the others to
 * have it. */
void zi_nccl_link_destroy(zi_nccl_link *link);

/* This rank's message, to be filled; not while an exchange is under way. */
zi_nccl_message *zi_nccl_link_own(zi_nccl_link *link);

/* The message of member `rank` in the last exchange. */
const zi_nccl_message *zi_nccl_link_message(const zi_nccl_link *link, uint32_t rank);

/* Send this rank's message to all members and receive theirs.
 * - Collective over the members; blocks.
 * - Errors: TIMEOUT when a member does not come within the deadline. After any failure the world
 *   has failed too.
 * - Threads: any, one at a time. */
zero_status zi_nccl_link_exchange(zi_nccl_link *link);

/* Send the abort notice of this rank in place of its next message; there are no exchanges after it.
 * Does nothing while an exchange is under way.
 * - error: what the rank aborts with.
 * - Threads: any; waits a tenth of a second at most. */
void zi_nccl_link_notify(zi_nccl_link *link, const zero_error *error);

#endif
