/* What is offloaded between steps. (park.c) */
#ifndef ZI_ENGINE_PARK_H
#define ZI_ENGINE_PARK_H

#include "engine/engine_internal.h"

/* Copy the directories, for zero_engine_offload. */
zero_status zi_engine_keep_directories(zero_engine *engine, const zero_engine_options *options);
void zi_engine_close_park(zero_engine *engine);

#endif
