/* The base of a world whose ranks have nothing in common but NCCL, for the world's own making.
 * Worlds of other backends get theirs by zi_nccl_base_get (nccl_group.h). */
#ifndef ZI_COMM_NCCL_NCCL_BASE_H
#define ZI_COMM_NCCL_NCCL_BASE_H

#include "comm/nccl/nccl_state.h"

/* Where this rank stands among the ranks of its world. */
typedef struct zi_nccl_place {
    uint32_t rank;
    uint32_t size;
    ncclComm_t borrowed; /* the caller's communicator, of these ranks; NULL: NCCL_COMM_ID says where
                            they connect */
} zi_nccl_place;

/* The place of this rank in the caller's communicator, once that is connected.
 * - Errors: INVALID_ARGUMENT where it is of another GPU than the current one; TIMEOUT; COMM. */
zero_status zi_nccl_borrowed_place(ncclComm_t comm, uint32_t deadline_ms, zi_nccl_place *place);

/* Make comm->parent.
 * - borrowed: a communicator of the ranks of comm, which is split; NULL: the ranks connect by the
 *   id that NCCL_COMM_ID in the environment gives to all of them.
 * - Collective over the world.
 * - Errors: as zi_nccl_base_get, but what fails on one rank alone is a TIMEOUT on the others. After
 *   TIMEOUT a split of `borrowed` may be under way for ever. */
zero_status zi_nccl_base_make(zi_comm *comm, ncclComm_t borrowed);

#endif
