/* The caller's arrays: values in and out. (array.c) */
#ifndef ZI_ENGINE_ARRAY_H
#define ZI_ENGINE_ARRAY_H

#include "engine/engine_internal.h"

/* Ranks compare their `initial` arrays; MISMATCH names the first tensor that differs. Nothing is to
 * be compared where rank 0's are broadcast. Collective over the world. */
zero_status zi_engine_compare_initial(zero_engine *engine);
/* Fill this rank's shards from the `initial` arrays of the model's tensors. Collective over
 * the world. */
zero_status zi_engine_take_initial(zero_engine *engine);
/* Free what a fill has allocated, if anything. */
void zi_engine_close_fill(zero_engine *engine);

#endif
