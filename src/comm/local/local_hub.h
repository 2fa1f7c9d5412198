/* The part of the hub that a rank's comm uses. */
#ifndef ZI_COMM_LOCAL_LOCAL_HUB_H
#define ZI_COMM_LOCAL_LOCAL_HUB_H

#include "comm/local/local.h"
#include "comm/peer/peer.h"

/* A group's block, shared by its members. */
typedef struct zi_local_block zi_local_block;

void zi_local_hub_retain(zi_local_hub *hub);
uint32_t zi_local_hub_ranks(const zi_local_hub *hub);
uint32_t zi_local_hub_deadline_ms(const zi_local_hub *hub);

/* The block of the next group with these members that `rank` has not joined yet; the first to come
 * makes it. COMM when the member that came first had no memory, or the hub was aborted. */
zero_status zi_local_block_join(zi_local_hub *hub, uint32_t rank, const uint32_t *members,
                                uint32_t size, zi_local_block **out);
zi_peer_block *zi_local_block_shared(zi_local_block *block);

/* Give a joined block back; the last member's call frees it. */
void zi_local_block_leave(zi_local_block *block);

/* Meet with all ranks and agree: ZERO_OK if all say ZERO_OK and the same `bytes`. mine: this rank's
 * status, its error being the thread's last; it is returned if it is a failure. */
zero_status zi_local_hub_agree(zi_local_hub *hub, uint32_t rank, size_t bytes, zero_status mine);

#endif
