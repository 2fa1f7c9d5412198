/* The caller's arrays: values in and out. (array.c) */
#ifndef ZI_ENGINE_ARRAY_H
#define ZI_ENGINE_ARRAY_H

#include "engine/engine_internal.h"

/* Fill this rank's shards from the `initial` arrays of the model's tensors. */
zero_status zi_engine_take_initial(zero_engine *engine);

#endif
