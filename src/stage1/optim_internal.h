/* State shared by the parts of the optimizer shard: where the bytes of chunks are (optim_places.c),
 * the norms of tensors (layer_rates.c), the update of a unit's chunks (update.c), updates before a
 * step is decided (speculative.c), what a step enqueues (optim_step.c), and the making of all that
 * (optim.c). */
#ifndef ZI_STAGE1_OPTIM_INTERNAL_H
#define ZI_STAGE1_OPTIM_INTERNAL_H

#include <stdatomic.h>

#include "comm/wire_gather.h"
#include "core/error.h"
#include "stage1/optim.h"
#include "stage1/share.h"
#include "stage1/staging.h"
#include "stage1/state_staging.h"

struct zi_optim {
    zi_optim_desc desc;
    const zi_layout *layout;
    zi_update_job *jobs; /* by chunk */
    zi_stream *host;     /* of the host's kernels and fills on extents */
    /* Only of layouts with bounce buffers. */
    zi_segment *segments; /* the jobs', in host memory: chunk p's from segment_first[p] on */
    size_t *segment_first;
    zi_staging *staging;
    zi_state_staging *state_staging; /* NULL: the GPU updates no state of the host's */
    zi_stream *cpu_stream;           /* the CPU's, where it shares a step with the GPU; else NULL */
    zi_share *share;                 /* likewise */
    uint64_t shared_steps;
    zi_layers_job layers;       /* but its phase; of layouts with layers */
    zi_collective layer_gather; /* likewise */
    /* ZI_WIRE_COLLECTIVES by flat or, where there is a staging buffer, by chunk; those of
     * neighbours are a batch, which for flat or chunk i begins at [gather_first[i]]. */
    zi_collective *param_gathers;
    uint32_t *gather_first;
    bool down;        /* the step under way goes from the last unit to the first */
    bool begun;       /* and its first unit is enqueued */
    bool speculative; /* and it was computed before it was decided */
    /* For steps that may be speculative. */
    zi_update_job *speculative_jobs;
    uint64_t speculations;    /* so far, the one of the step under way included */
    atomic_uint_fast64_t due; /* of these, so many have steps that are due */
    /* For tasks: the step under way commits its speculative updates; its prediction is known not to
     * hold; it is not clipped up to this norm; by unit, whether it has such an update; the first
     * extent that one has written. */
    int commits;
    bool refuted;
    double norm_limit;
    bool *speculated;
    uint32_t lowest_extent;
    uint64_t host_stalled[2]; /* as desc.stalled, of what the CPU updates for a GPU */
    atomic_uint_fast64_t update_ns;
    atomic_uint_fast64_t host_elements;
    atomic_uint_fast64_t kept;
    atomic_uint_fast64_t redone;
};

/* The argument of tasks. */
typedef struct optim_work {
    zi_optim *optim;
    uint32_t unit;
    uint32_t chunk; /* if they go one by one */
    bool down;
    bool first;       /* of the step */
    bool speculates;  /* the update is speculative */
    bool speculative; /* the step has a speculative update */
    bool merges;      /* what ranks have measured, of layers */
    uint64_t step;    /* shared ones are counted from 1 */
    const zi_step_decision *outcome;
    zi_step_decision *counted; /* gets the count of the CPU's updates */
    double max_norm;
    const zi_norm_sum *squares;
    uint64_t speculation;
} optim_work;

_Static_assert(sizeof(optim_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

static inline const zi_device_ops *optim_ops_of(const zi_optim *optim)
{
    return optim->desc.device->ops;
}

static inline void *optim_self_of(const zi_optim *optim)
{
    return optim->desc.device->self;
}

/* Of a flat's updated parameters. */
static inline zi_group *zi_optim_gather(const zi_optim *optim, uint32_t flat)
{
    return optim->desc.groups[optim->layout->flats[flat].sharding][ZI_HOP_UPDATED];
}

/* For a task of a step: the unit's speculative update is its update. */
static inline bool zi_optim_adopts(const optim_work *work, uint32_t unit)
{
    return work->speculative && work->optim->commits && work->optim->speculated[unit];
}

/* Put a task on the step stream. */
static inline zero_status zi_optim_enqueue(const zi_optim *optim, zi_task_fn fn,
                                           const optim_work *work)
{
    return optim_ops_of(optim)->task(optim_self_of(optim), optim->desc.step_stream, fn, work,
                                     sizeof *work);
}

/* The same, as an update of the unit in the timeline. */
static inline zero_status zi_optim_enqueue_update(const zi_optim *optim, zi_task_fn fn,
                                                  const optim_work *work)
{
    zi_mark *mark = NULL;
    ZI_TRY(zi_stream_begin(optim->desc.device, optim->desc.step_stream, ZI_SPAN_UPDATE,
                           optim->layout->unit_infos[work->unit].name, 0, &mark));
    ZI_TRY(zi_optim_enqueue(optim, fn, work));
    return zi_stream_end(optim->desc.device, optim->desc.step_stream, mark);
}

/* For a task: update one chunk, or those of the unit, one after another. (update.c) */
zero_status zi_optim_update_chunk(const optim_work *work, uint32_t p);
zero_status zi_optim_update_chunks(const optim_work *work);
/* For a task: the CPU updates a chunk for a GPU. next: the chunk that it comes to then, whose
 * arrays begin to come, or ZI_NO_INDEX. (update.c) */
zero_status zi_optim_update_staged(const optim_work *work, uint32_t p, uint32_t next);
/* For a task of a step that commits its speculative updates: those are the unit's parameters from
 * now on. (speculative.c) */
zero_status zi_optim_adopt_unit(const optim_work *work);
/* The same for a chunk that is gathered after its update. */
zero_status zi_optim_adopt_chunk(const optim_work *work);

/* A chunk of one optimizer shard in the parameter shard, and its place in the staging buffer; of
 * this rank's own. */
zi_shards_move zi_optim_staged(const zi_optim *optim, uint32_t p, uint32_t shard);
zi_shards_move zi_optim_staged_own(const zi_optim *optim, uint32_t p);
/* The gather of a flat's updated parameters, or of a chunk's in the staging buffer. */
zi_wire_gather zi_optim_flat_gather(const zi_optim *optim, uint32_t flat);
zi_wire_gather zi_optim_chunk_gather(const zi_optim *optim, uint32_t p);
/* Elements of the flat's shard in PARAM or GRAD before this rank's optimizer shard. */
uint64_t zi_optim_shard_first(const zi_optim *optim, zero_role role, uint32_t flat);

/* A chunk's state in one role: `extent` holds what is on disk. */
void *zi_optim_chunk_state(const zi_optim *optim, const zi_chunk *chunk, zero_role role,
                           unsigned char *extent);
/* This rank's optimizer shard of the flat in its parameter shard, where that is not on disk. */
unsigned char *zi_optim_own_params(const zi_optim *optim, uint32_t flat);
/* Let a job of chunk p work on an extent; NULL: what it has in arenas, or in the staging buffer
 * that is chunk p's turn. */
void zi_optim_rebind_job(const zi_optim *optim, uint32_t p, zi_update_job *job,
                         unsigned char *extent);
/* True if the CPU updates the chunk of an engine on a GPU, and the GPU never does. */
bool zi_optim_is_staged(const zi_optim *optim, uint32_t p);

/* A chunk's states in host memory. (optim_step.c) */
void zi_optim_host_states(const zi_optim *optim, uint32_t p, void *host[ZI_STATES]);

/* The sums that jobs of layer-wise optimizers add to, and the norms that they go by
 * (layer_rates.c). */
zi_layer_sums *zi_optim_layer_sums(const zi_optim *optim);
zi_layer_norms *zi_optim_layer_norms(const zi_optim *optim);
void zi_optim_make_layers(zi_optim *optim);
zero_status zi_optim_connect_layers(zi_optim *optim);

/* Make the jobs of speculative updates, and let them work on memory that was taken anew.
 * (speculative.c) */
zero_status zi_optim_make_speculation(zi_optim *optim);
void zi_optim_rebind_speculation(zi_optim *optim);

#endif
