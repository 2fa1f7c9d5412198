/* The memory of roles. (arenas.c) */
#ifndef ZI_ENGINE_ARENAS_H
#define ZI_ENGINE_ARENAS_H

#include "engine/engine_internal.h"

/* Allocate and free the memory of all roles that have some. Own: local. Shared: memory that peers
 * read, collective; a failure is one on all ranks. */
zero_status zi_engine_take_own_arenas(zero_engine *engine);
zero_status zi_engine_take_shared_arenas(zero_engine *engine);
void zi_engine_free_arenas(zero_engine *engine);
/* Allocate a role's zeroed memory on its tier, also again after it was freed. For memory that peers
 * read the first call is collective over the world, later ones are local. */
zero_status zi_engine_take_arena(zero_engine *engine, zero_role role);
/* Free a role's memory, which nothing uses. On failure it is still held. */
zero_status zi_engine_give_arena(zero_engine *engine, zero_role role);
/* Let the stages use the arenas where they are now, after some were allocated again. The streams
 * that use them are idle. */
void zi_engine_rebind(zero_engine *engine);

#endif
