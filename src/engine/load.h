/* A load under way: load_match.c finds the engine's tensors in the checkpoint, load.c reads them.
 */
#ifndef ZI_ENGINE_LOAD_H
#define ZI_ENGINE_LOAD_H

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_joined.h"
#include "checkpoint/checkpoint_reader.h"
#include "engine/engine_internal.h"
#include "engine/overflow.h"
#include "engine/shard.h"
#include "zero/checkpoint.h"

typedef struct engine_load {
    zero_engine *engine;
    zero_load_options options;
    zi_source *source;  /* of the elements; NULL: it is not open */
    uint32_t *found;    /* by the engine's tensor: the first of its boxes in the source's map;
                           ZI_NO_INDEX: it stays as it is */
    uint64_t *expected; /* bits by the map's tensor: some part of the model has one of this name; of
                           several boxes the first one's is set */
    zero_step_state own;   /* the engine's, before the load */
    zero_step_state state; /* that the engine goes on with */
    bool resumes; /* a trained tensor was found, or there is none: the run's counts and loss scale
                     are the saved one's */
    bool none;    /* there is no checkpoint, and options.if_any */
    struct load_feed *feed;
    struct load_share *share; /* NULL: nothing is shared */
    engine_overflow overflow; /* values beyond the range of the engine's types */
    zero_load_report report;
} engine_load;

/* As zero_load, from a source of elements.
 * - source: NULL: the files that the options name. Else options->path and name are not read, all
 *   ranks give one of the same elements, and it is closed, whatever is returned. */
zero_status zi_engine_load(zero_engine *engine, zi_source *source, const zero_load_options *options,
                           zero_load_report *report);

/* A role of one of the engine's tensors, to be read. */
typedef struct load_source {
    zero_role role;
    const zi_codec *kept; /* the tensor's, by role */
    zi_box wanted;        /* all of it that this rank's engine has */
} load_source;

/* The source of the role: the same role where kinds are equal, as it lies; else the most exact copy
 * of the parameter, or the moment, in fp32 where either is of few bits. The saved dtype is
 * NONE where there is none. (load_joined.c) */
zi_joined_from zi_load_from(const zi_checkpoint_tensor *saved, const load_source *source);
/* The elements that this rank's engine wants of a tensor, of whose boxes `head` is the first.
 * source: out, kept by the caller; NULL: nothing is read. (load_joined.c) */
zi_joined zi_load_joined(const engine_load *load, uint32_t tensor, uint32_t head, zero_role role,
                         load_source *source);
/* The engine's own type of a tensor in a role that is to be loaded; NONE: it has none.
 * (load_match.c) */
zero_dtype zi_load_dtype(const engine_load *load, uint32_t tensor, zero_role role);
/* Memory for that. Errors: OUT_OF_MEMORY. (load_match.c) */
zero_status zi_load_match_open(engine_load *load);
/* Compare the tensors with the checkpoint's: fill load->found, load->group_part and the lists of
 * the report. All ranks have opened one checkpoint. Collective over options.model_parallel, where
 * there is one: what no part has is unexpected. Errors: INVALID_ARGUMENT with the lists unless the
 * load is partial, for parts of the saved model that one group cannot go on with, and for another
 * seed of stochastic rounding than the saved run's; COMM, TIMEOUT. (load_match.c) */
zero_status zi_load_match(engine_load *load);

/* Elements of one of the engine's tensors that were read. */
typedef struct load_range {
    uint32_t tensor;
    zero_role role;
    uint64_t first;
    uint64_t count;
    zi_codec codec; /* of the values */
    void *values;   /* host memory that the device reaches */
} load_range;

/* Begin to read ahead all that this rank holds, by threads of its own and through at most 57 MiB of
 * host memory. No other calls on the source until it is closed. Errors: OUT_OF_MEMORY; DEVICE.
 * (load_feed.c) */
zero_status zi_load_open_feed(engine_load *load);
/* The next range; its values stay until the call after. NULL: there are no more. Errors: those of
 * zi_source_read. (load_feed.c) */
zero_status zi_load_next(engine_load *load, const load_range **range);
void zi_load_close_feed(engine_load *load); /* also where there is none */
/* Elements of a tensor, from a multiple of it on, that are read in all roles before the next ones
 * are, so that extents of state on disk are written once. Those of one role are one read. */
#define LOAD_STRIDE (ZI_SOURCE_READ_BYTES_MAX / sizeof(float))

/* Find what of the state on disk may share blocks with the checkpoint: after zi_load_match. Errors:
 * OUT_OF_MEMORY. (load_share.c) */
zero_status zi_load_open_share(engine_load *load);
/* Writes of the store share what was filled. Errors: those of the streams. (load_share.c) */
zero_status zi_load_begin_share(engine_load *load);
/* So many elements of a range were filled in, and all ranges before it: they may be shared.
 * (load_share.c) */
void zi_load_filled(engine_load *load, const load_range *range, uint64_t count);
/* After zi_engine_flush_shards, also where it failed, or there is none. (load_share.c) */
void zi_load_close_share(engine_load *load);

#endif
