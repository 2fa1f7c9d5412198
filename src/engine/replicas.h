/* Comparisons between ranks of the values that a run begins with. (replicas.c) */
#ifndef ZI_ENGINE_REPLICAS_H
#define ZI_ENGINE_REPLICAS_H

#include "engine/engine_internal.h"

/* A hash of a tensor's values as a rank was given them: of a sample of at most SAMPLE_COUNT
 * elements, in ranges of SAMPLE_RANGE that are spread over the tensor. */
#define SAMPLE_COUNT ((uint64_t)4096)
#define SAMPLE_RANGE ((uint64_t)256)

/* Sample `index` of a tensor of so many elements, or {.count = 0} behind the last one. */
typedef struct engine_sample {
    uint64_t first;
    uint64_t count;
} engine_sample;
engine_sample zi_engine_sample_at(uint64_t count, uint64_t index);
/* The hash after `count` more values, all of which are fp32. */
uint64_t zi_engine_hash_values(uint64_t hash, const float *values, uint64_t count);

/* Ranks compare hashes of what they are about to take. hashes: by tensor. `refusal` names the first
 * tensor that differs. Collective over the world. */
zero_status zi_engine_compare_given(zero_engine *engine, const uint64_t *hashes,
                                    zero_status refusal);
/* Once in an engine's life, before its first micro-step, capture or save: ranks compare what each
 * was given by local calls, and replicas of a shard their bytes. MISMATCH names the first tensor
 * that differs. Collective over the world. */
zero_status zi_engine_compare_replicas(zero_engine *engine);

#endif
