/* States that are kept in fewer bits than their values have: masters that are remainders of their
 * parameters, and moments in codes with scales. Outside steps their values go in and out as fp32.
 * (state_values.c) */
#ifndef ZI_ENGINE_STATE_VALUES_H
#define ZI_ENGINE_STATE_VALUES_H

#include "engine/shard.h"

/* Elements [first, first + count) of the shard's part of the tensor := what the role keeps of
 * values of `dtype`: as zi_engine_shard_fill where they are written as they are or cast. Else each
 * role is made from the values alone, so PARAM and MASTER, or a moment and its scales, are filled
 * from the same; of codes and scales `first` is at a block, and `count` whole blocks or up to the
 * tensor's end, and scales are made of values that are not BF16, which scales themselves are. */
zero_status zi_values_fill(zero_engine *engine, const engine_shard *shard, uint64_t first,
                           uint64_t count, void *values, zero_dtype dtype);

/* True if the values of a master or moment are not what the role keeps. */
bool zi_values_are_joined(const engine_shard *shard);
/* Values := fp32 of these elements of that role. Blocks, as zi_engine_shard_read does. */
zero_status zi_values_read(zero_engine *engine, uint32_t tensor, zero_role role, uint64_t first,
                           uint64_t count, float *values);

#endif
