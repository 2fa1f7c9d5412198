/* The roles that a rank has shards of, by their numbers: PARAM, GRAD and the optimizer's states. */
#ifndef ZI_CORE_ROLE_H
#define ZI_CORE_ROLE_H

#include "zero/role.h"

#define ZI_SHARD_ROLES 5

#endif
