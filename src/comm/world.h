/* The public world over a backend's comm. */
#ifndef ZI_COMM_WORLD_H
#define ZI_COMM_WORLD_H

#include "comm/comm.h"
#include "core/private_api.h"

#define ZI_DEADLINE_DEFAULT_MS 600000
/* As zero_plan_create. */
#define ZI_WORLD_RANKS_MAX 65536

/* Make a world over `comm`, with its device and coordination group. Takes ownership of comm, also
 * on failure, when it aborts the comm first so that the other ranks do not wait. Collective over
 * the world. */
ZI_PRIVATE_API zero_status zi_world_create(zi_comm *comm, zero_world **world);

/* Set *world to NULL. INVALID_ARGUMENT where `world` itself is NULL. */
zero_status zi_world_clear(zero_world **world);

#endif
