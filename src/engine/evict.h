/* Eviction of roles between steps. (evict.c) */
#ifndef ZI_ENGINE_EVICT_H
#define ZI_ENGINE_EVICT_H

#include "engine/engine_internal.h"

/* Copy the directories, for the store and zero_engine_evict. */
zero_status zi_engine_keep_directories(zero_engine *engine, const zero_engine_options *options);
void zi_engine_close_evicted(zero_engine *engine);

#endif
