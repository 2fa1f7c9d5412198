/* The memory of roles. (arenas.c) */
#ifndef ZI_ENGINE_ARENAS_H
#define ZI_ENGINE_ARENAS_H

#include "engine/engine_internal.h"

/* Take the memory of all roles that have some, and give it back. Own: local. Shared: what peers
 * read, collective; when it fails it fails on all ranks. */
zero_status zi_engine_take_own_arenas(zero_engine *engine);
zero_status zi_engine_take_shared_arenas(zero_engine *engine);
void zi_engine_free_arenas(zero_engine *engine);
/* Take a role's memory, zeroed, where its tier says; again, after it was given up. The first time
 * collective over the world for memory that peers read, later on local. */
zero_status zi_engine_take_arena(zero_engine *engine, zero_role role);
/* Give a role's memory back to the system. Nothing uses it; on failure it is held still. */
zero_status zi_engine_give_arena(zero_engine *engine, zero_role role);
/* Where the optimizer finds each flat; the caller frees the list. */
zero_status zi_engine_list_flats(const zero_engine *engine, zi_optim_flat **flats);
/* Let the stages work on the arenas as they are now: some were taken again. The streams that use
 * them are idle. */
zero_status zi_engine_rebind(zero_engine *engine);

#endif
