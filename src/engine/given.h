/* Values that a rank was given by local calls since its engine was created. (given.c) */
#ifndef ZI_ENGINE_GIVEN_H
#define ZI_ENGINE_GIVEN_H

#include "engine/engine_internal.h"

/* A word of engine->given: a bit for each role that was written, and above these the sum of the
 * hashes of what it was written from. */
#define GIVEN_ROLE_BITS 8
#define GIVEN_ROLES ((UINT64_C(1) << GIVEN_ROLE_BITS) - 1)

/* Memory for the words. Errors: OUT_OF_MEMORY. */
zero_status zi_engine_open_given(zero_engine *engine);
void zi_engine_close_given(zero_engine *engine);
/* This rank's shards in these roles (bits) may not be as they were created any more. */
void zi_engine_touch(zero_engine *engine, uint32_t roles);
/* This rank was given a tensor in a role by a local call. hash: of the whole tensor's sample; 0: it
 * was given this rank's shard alone. */
void zi_engine_note_given(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t hash);

#endif
