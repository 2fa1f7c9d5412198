/* The groups of ranks. (groups.c) */
#ifndef ZI_ENGINE_GROUPS_H
#define ZI_ENGINE_GROUPS_H

#include "engine/engine_internal.h"

/* Make the groups; collective. Connect them for all their collectives; collective, after the stages
 * are made and before they are used. */
zero_status zi_engine_make_groups(zero_engine *engine);

/* True if issuing a batch of one of the groups waits on the host for other ranks. */
bool zi_engine_submit_waits(const zero_engine *engine);
zero_status zi_engine_connect_groups(zero_engine *engine);
/* The first failure of any of them so far. */
zero_status zi_engine_check_groups(const zero_engine *engine);
/* Groups of an engine, and the i-th in the order of their creation; NULL: there is none. */
#define ENGINE_GROUPS (ZI_HOPS * ZI_SHARDINGS_MAX + 2)
zi_group *zi_engine_group_at(const zero_engine *engine, uint32_t i);
void zi_engine_destroy_groups(zero_engine *engine);

#endif
