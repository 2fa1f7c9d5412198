/* Access to a rank's shards between steps. (shard.c) */
#ifndef ZI_ENGINE_SHARD_H
#define ZI_ENGINE_SHARD_H

#include "engine/engine_internal.h"

/* Block until a stream of the engine has run all that was enqueued on it. */
zero_status zi_engine_await_stream(zero_engine *engine, zi_stream *stream);
/* The part of a tensor in a rank's shard of its flat, in one role. */
typedef struct engine_shard {
    zero_dtype dtype;
    zi_codec codec; /* of that type */
    zero_tier tier;
    uint32_t flat;
    zero_role role;
    uint64_t at;           /* elements from the shard's start to the tensor's first here */
    uint64_t tensor_first; /* its index in the tensor */
    uint64_t count;        /* 0: this rank has none of the tensor in this role */
} engine_shard;

/* The elements of a tensor in one shard of its flat. */
typedef struct engine_range {
    uint64_t at;    /* elements from the shard's start to the tensor's first here */
    uint64_t first; /* its index in the tensor */
    uint64_t count; /* 0: none */
} engine_range;

/* Over how many ranks a role is split outside steps: of GRAD, what was reduced. */
uint32_t zi_engine_degree(const zi_layout *layout, uint32_t tensor, zero_role role);
/* How the tensor's unit is split. */
const zero_sharding *zi_engine_sharding(const zi_layout *layout, uint32_t tensor);
/* Elements of a tensor in shard `index` of its flat, of `degree` shards. */
engine_range zi_engine_range(const zi_layout *layout, uint32_t tensor, uint32_t degree,
                             uint32_t index);
/* This rank's slice of the tensor; each slice has one owner. */
engine_range zi_engine_slice(const zero_engine *engine, uint32_t tensor);
engine_shard zi_engine_shard(const zero_engine *engine, uint32_t tensor, zero_role role);
/* The address where the host may write element `first` of the shard's part of the tensor and those
 * behind it. NULL: there is none, they are on disk or in memory of a device. Nothing else uses the
 * shard. */
void *zi_engine_shard_in_place(const zero_engine *engine, const engine_shard *shard,
                               uint64_t first);
/* Elements [first, first + count) of the shard's part of the tensor := values of `dtype`, which is
 * host memory that the device reaches, rounded to nearest even. Nothing to do where they are in
 * place. Blocks. Nothing else uses the shard. Roles of small states take only what they keep:
 * state_values.h. */
zero_status zi_engine_shard_fill(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, void *values, zero_dtype dtype);
/* Values, in host memory and of the role's own type, := these elements. Blocks. */
zero_status zi_engine_shard_read(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                 uint64_t count, void *values);
/* In a task of the step stream: values, in host memory that the device reaches and of the role's
 * own type, := these elements once the stream is drained. `first` is at a granule of the tensor. */
zero_status zi_engine_shard_stage(zero_engine *engine, const engine_shard *shard, uint64_t first,
                                  uint64_t count, void *values);
/* Elements of a role on disk in one extent: of the role's own, or of the state. */
typedef struct engine_extent {
    uint32_t index;
    uint64_t at;    /* bytes of the extent before them */
    uint64_t count; /* of the shard, up to where the extent or its chunk ends */
} engine_extent;

/* The place in an extent of element `first` of the shard's part of the tensor. */
engine_extent zi_engine_shard_extent(const zero_engine *engine, const engine_shard *shard,
                                     uint64_t first);
/* Writes of roles on disk ask these sources from here on, as zi_window_set_source: `state` for what
 * is in extents of the state, `param` for PARAM. NULL: none. Nothing uses the shards. Blocks; where
 * a stream has failed, that is returned and the sources are set. */
zero_status zi_engine_shard_set_sources(zero_engine *engine, const zi_io_source *state,
                                        const zi_io_source *param);
/* Of what a checkpoint and the store share, at least: a file system keeps a record of each range.
 */
#define SHARED_BYTES_MIN ((uint64_t)256 << 10)

/* Bytes of a store's file. */
typedef struct engine_stored {
    int file; /* the store's open one; -1: there is none */
    uint64_t at;
    uint64_t bytes;
} engine_stored;

/* The place on disk of element `first` of the shard's part of the tensor, with what follows it
 * there without a gap. Like zi_engine_shard_stage, after zi_engine_flush_shards. */
engine_stored zi_engine_shard_stored(const zero_engine *engine, const engine_shard *shard,
                                     uint64_t first);
/* Wait until no step uses a role's shards; before a write of PARAM also invalidate gathered units.
 * */
zero_status zi_engine_begin_transfer(zero_engine *engine, zero_role role, bool writes);
/* Write what was filled to disk. Blocks. */
zero_status zi_engine_flush_shards(zero_engine *engine);

#endif
