/* Roles that are not on the device. (tiers.c) */
#ifndef ZI_ENGINE_TIERS_H
#define ZI_ENGINE_TIERS_H

#include "engine/engine_internal.h"

/* Choose the stripe weights of a store of so many bytes. Measures the directories if they are equal
 * so far, there are several disks and the store is large enough. */
zero_status zi_engine_choose_striping(const zero_engine *engine, const char *const *directories,
                                      uint32_t directory_count, uint64_t bytes,
                                      engine_striping *striping);
/* Reserve what is on disk, and make its windows. */
zero_status zi_engine_open_store(zero_engine *engine, const zero_engine_options *caller_options);
/* Let the shards be where arenas are now. Nothing uses them. */
void zi_engine_bind_shards(zero_engine *engine);
/* The stream that may use a role's shards on disk between steps. */
zi_stream *zi_engine_role_stream(const zero_engine *engine, zero_role role);
/* After the engine's streams were destroyed. */
void zi_engine_close_store(zero_engine *engine);
/* True if the next step goes from the last unit to the first: see zi_optim_look_ahead. */
bool zi_engine_steps_down(const zero_engine *engine);

#endif
