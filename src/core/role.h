/* The roles that a rank has shards of, by their numbers, which are neighbours: PARAM, GRAD and,
 * from MASTER on, the optimizers' states. Nothing else knows how many states there are: a new one
 * is the next number in zero/role.h, ZI_SHARD_ROLES and a name (layout/names.c). */
#ifndef ZI_CORE_ROLE_H
#define ZI_CORE_ROLE_H

#include <stdbool.h>

#include "zero/role.h"

#define ZI_SHARD_ROLES (ZERO_ROLE_SCALE2 + 1)
/* A state is known by its role, and by its index from 0 on: the master's. */
#define ZI_STATES (ZI_SHARD_ROLES - ZERO_ROLE_MASTER)
/* Those with a value for each element: all but scales. */
#define ZI_ELEMENT_STATES (ZERO_ROLE_SCALE1 - ZERO_ROLE_MASTER)
enum {
    ZI_STATE_MASTER = ZERO_ROLE_MASTER - ZERO_ROLE_MASTER,
    ZI_STATE_MOMENT1 = ZERO_ROLE_MOMENT1 - ZERO_ROLE_MASTER,
    ZI_STATE_MOMENT2 = ZERO_ROLE_MOMENT2 - ZERO_ROLE_MASTER,
    ZI_STATE_SCALE1 = ZERO_ROLE_SCALE1 - ZERO_ROLE_MASTER,
    ZI_STATE_SCALE2 = ZERO_ROLE_SCALE2 - ZERO_ROLE_MASTER
};
/* Shards whose tier is chosen: scales lie where their moments do. */
#define ZI_TIER_ROLES ZERO_ROLE_SCALE1
/* The number of roles in a checkpoint: all but GRAD, which a step uses up. */
#define ZI_SAVED_ROLES (ZI_STATES + 1)

static inline zero_role zi_state_role(uint32_t state)
{
    return (zero_role)(ZERO_ROLE_MASTER + state);
}

/* The index of a role that is a state. */
static inline uint32_t zi_role_state(zero_role role)
{
    return (uint32_t)role - ZERO_ROLE_MASTER;
}

static inline bool zi_role_is_state(zero_role role)
{
    return (uint32_t)role >= ZERO_ROLE_MASTER && (uint32_t)role < ZI_SHARD_ROLES;
}

/* True if it is a state of which only the optimizer that made it can make anything: all but the
 * master, which is the parameter. */
static inline bool zi_role_is_moment(zero_role role)
{
    return zi_role_is_state(role) && role != ZERO_ROLE_MASTER;
}

/* The scales of a moment's codes, and the codes of a role of scales. */
static inline zero_role zi_role_scales(zero_role moment)
{
    return (zero_role)(moment - ZERO_ROLE_MOMENT1 + ZERO_ROLE_SCALE1);
}

static inline bool zi_role_is_scales(zero_role role)
{
    return role == ZERO_ROLE_SCALE1 || role == ZERO_ROLE_SCALE2;
}

static inline zero_role zi_role_of_scales(zero_role scales)
{
    return (zero_role)(scales - ZERO_ROLE_SCALE1 + ZERO_ROLE_MOMENT1);
}

/* By index: PARAM, then the states. */
static inline zero_role zi_saved_role(uint32_t index)
{
    return index == 0 ? ZERO_ROLE_PARAM : zi_state_role(index - 1);
}

#endif
