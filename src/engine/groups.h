/* The groups of ranks. (groups.c) */
#ifndef ZI_ENGINE_GROUPS_H
#define ZI_ENGINE_GROUPS_H

#include "engine/engine_internal.h"

/* Make the groups; collective. Connect them for all that will be put on them; collective, after the
 * stages are made and before they do anything. */
zero_status zi_engine_make_groups(zero_engine *engine);
zero_status zi_engine_connect_groups(zero_engine *engine);
/* What any of them has failed with so far. */
zero_status zi_engine_check_groups(const zero_engine *engine);
void zi_engine_destroy_groups(zero_engine *engine);

#endif
