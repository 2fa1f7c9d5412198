/* The base of a world on the caller's communicator, for the world's own making. Other worlds get
 * theirs by zi_nccl_base_get (nccl_group.h). */
#ifndef ZI_COMM_NCCL_NCCL_BASE_H
#define ZI_COMM_NCCL_NCCL_BASE_H

#include "comm/nccl/nccl_state.h"

/* This rank's place in the caller's communicator, and how many it has, once that is connected.
 * - Errors: INVALID_ARGUMENT where it is of another GPU than the current one; TIMEOUT; COMM. */
zero_status zi_nccl_borrowed_rank(ncclComm_t comm, uint32_t deadline_ms, int *rank, int *size);

/* Make comm->parent, a split of `borrowed`, which is a communicator of the ranks of comm.
 * - Collective over the world.
 * - Errors: as zi_nccl_base_get, but what fails on one rank alone is a TIMEOUT on the others. After
 *   TIMEOUT a split of `borrowed` may be under way for ever. */
zero_status zi_nccl_base_make(zi_comm *comm, ncclComm_t borrowed);

/* Give all ranks rank 0's bytes, through the GPU: the one thing that they learn over NCCL alone.
 * - record: of rank 0; out on the others.
 * - bytes: a multiple of 4.
 * - Collective over the world.
 * - Errors: as zi_nccl_base_make, after which the base has failed. */
zero_status zi_nccl_base_share(zi_nccl_group *base, void *record, size_t bytes);

#endif
