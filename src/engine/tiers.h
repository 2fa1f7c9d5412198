/* What of an engine's roles is not on the device. (tiers.c) */
#ifndef ZI_ENGINE_TIERS_H
#define ZI_ENGINE_TIERS_H

#include "engine/engine_internal.h"

/* Settle by what a store of so many bytes is striped: measures the directories where it was equally
 * so far and that is worth it. */
zero_status zi_engine_choose_striping(const zero_engine *engine, const char *const *directories,
                                      uint32_t directory_count, uint64_t bytes,
                                      engine_striping *striping);
/* Reserve roles on disk, and make what offloaded roles pass through; nothing where there are none.
 * */
zero_status zi_engine_open_store(zero_engine *engine, const zero_engine_options *caller_options);
/* A stream that a role's store may be used on while the engine rests. */
zi_stream *zi_engine_offload_stream(const zero_engine *engine, zero_role role);
/* The engine's streams are gone. */
void zi_engine_close_store(zero_engine *engine);
/* Whether the next step goes from the last unit to the first: see zi_optim_look_ahead. */
bool zi_engine_steps_down(const zero_engine *engine);

#endif
