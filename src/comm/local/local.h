/* Ranks that are threads of one process. They share a hub: the blocks of their groups, the
 * rendezvous of allocations, and the first failure. */
#ifndef ZI_COMM_LOCAL_LOCAL_H
#define ZI_COMM_LOCAL_LOCAL_H

#include <stdbool.h>

#include "comm/comm.h"

typedef struct zi_local_hub zi_local_hub;

/* Ownership: one reference, which release drops; every comm holds another. */
zero_status zi_local_hub_create(uint32_t rank_count, uint32_t deadline_ms, zi_local_hub **out);
void zi_local_hub_release(zi_local_hub *hub);

/* Fail all groups of the hub, and whatever is created on it later, with COMM and `error`'s message.
 * The first call counts, or the first whose error is not COMM or POISONED. Any thread. */
void zi_local_hub_abort(zi_local_hub *hub, uint32_t rank, const zero_error *error);

/* Rank `rank` makes no more calls: those that wait for it, now or later, get COMM. */
void zi_local_hub_leave(zi_local_hub *hub, uint32_t rank);

/* True if the hub was aborted: *error is then the first abort's, with the rank named in front. */
bool zi_local_hub_error(zi_local_hub *hub, zero_error *error);

/* Rank `rank`'s comm. Local call. */
zero_status zi_local_comm_create(zi_local_hub *hub, uint32_t rank, zi_comm **out);

#endif
