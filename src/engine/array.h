/* The caller's arrays: values in and out. (array.c) */
#ifndef ZI_ENGINE_ARRAY_H
#define ZI_ENGINE_ARRAY_H

#include "engine/engine_internal.h"

/* Take the `initial` arrays of the model's tensors. */
zero_status zi_engine_take_initial(zero_engine *engine);
/* Elements that go through a staging buffer at a time, and its bytes. */
#define ENGINE_STAGED_COUNT ((uint64_t)65536)
#define ENGINE_STAGED_BYTES (ENGINE_STAGED_COUNT * sizeof(float))

/* Host memory that the device reaches, for values on their way into shards: fp32 elements, or of a
 * smaller type. */
zero_status zi_engine_open_staging(zero_engine *engine, float **staging);
void zi_engine_close_staging(zero_engine *engine, float *staging); /* accepts NULL */

#endif
