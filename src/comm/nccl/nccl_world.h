/* The backend "nccl": worlds whose ranks have nothing in common but NCCL. */
#ifndef ZI_COMM_NCCL_NCCL_WORLD_H
#define ZI_COMM_NCCL_NCCL_WORLD_H

#include <nccl.h>

#include "comm/comm.h"

typedef struct zi_nccl_place {
    uint32_t rank;
    uint32_t size;
    ncclComm_t borrowed; /* the caller's, of these ranks; NULL: NCCL_COMM_ID says where they meet */
} zi_nccl_place;

/* What a caller's communicator says of itself, once it is connected. INVALID_ARGUMENT where it is
 * of another GPU than the current one; TIMEOUT; COMM. (nccl_borrow.c) */
zero_status zi_nccl_borrowed_place(ncclComm_t comm, uint32_t deadline_ms, zi_nccl_place *place);

/* A comm on the thread's current GPU, with its base. Collective over the ranks. What fails on one
 * rank alone is a TIMEOUT on the others. */
zero_status zi_nccl_comm_create(const zi_nccl_place *place, uint32_t deadline_ms, zi_comm **out);

#endif
