/* The base of a world, for the world's own making: what nccl_group.h does not need to know. */
#ifndef ZI_COMM_NCCL_NCCL_BASE_H
#define ZI_COMM_NCCL_NCCL_BASE_H

#include "comm/nccl/nccl_state.h"

/* Make comm->parent from the id that NCCL_COMM_ID in the environment gives to all ranks. Errors:
 * as zi_nccl_base_get, but what fails on one rank alone is a TIMEOUT on the others. */
zero_status zi_nccl_base_connect(zi_comm *comm);

/* Make comm->parent by splitting the caller's communicator, whose ranks are those of comm. Errors:
 * as zi_nccl_base_connect. After TIMEOUT a split of `parent` may be under way for ever.
 * (nccl_borrow.c) */
zero_status zi_nccl_base_borrow(zi_comm *comm, ncclComm_t parent);

/* A base without a communicator, watched already, so that nothing is left that can fail on one rank
 * alone once the ranks have met. */
zero_status zi_nccl_base_open(zi_comm *comm, uint32_t deadline_ms, zi_nccl_group **out);

/* Put the base into service when `status`, of connecting it, is OK, else close it. Returns
 * `status`. Accepts NULL with a failure. */
zero_status zi_nccl_base_keep(zi_comm *comm, zi_nccl_group *base, zero_status status);

#endif
