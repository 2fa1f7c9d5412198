/* Owns what a step enqueues: updates, the gathers of updated parameters, the CPU's part of a shared
 * step, and moves of state on disk. */
#include "core/error.h"
#include "core/sizes.h"
#include "stage1/optim_internal.h"

static zero_status optim_step_walk(void *argument)
{
    const optim_work *work = argument;
    const uint32_t end = work->optim->layout->state.extent_count - 1;
    return zi_window_walk(work->optim->desc.window, work->down ? end : 0, work->down ? 0 : end);
}

zero_status zi_optim_look_ahead(zi_optim *optim, bool down)
{
    const optim_work work = {.optim = optim, .down = down};
    optim->down = down;
    optim->begun = false;
    optim->speculative = false;
    return optim->desc.window != NULL ? zi_optim_enqueue(optim, optim_step_walk, &work) : ZERO_OK;
}

/* True if the step's outcome has to be known before its updates are handed over. */
static bool is_asked(const zi_optim *optim)
{
    return optim->desc.window != NULL || optim->staging != NULL ||
           zi_shards_on_disk(&optim->desc.shards[ZERO_ROLE_PARAM]) ||
           zi_shards_on_disk(&optim->desc.shards[ZERO_ROLE_GRAD]);
}

/* In a shared step: whether the CPU has the unit, and then wait until it is done with it. The GPU
 * takes a unit when it is done with those before. */
static zero_status leave_to_cpu(const optim_work *work, bool *left)
{
    zi_optim *optim = work->optim;
    *left = false;
    if (optim->share == NULL) {
        return ZERO_OK;
    }
    if (work->first) {
        zi_share_open(optim->share, work->step);
    } else {
        ZI_TRY(optim_ops_of(optim)->drain(optim_self_of(optim), optim->desc.step_stream));
    }
    *left = !zi_share_claim(optim->share, work->unit);
    return *left ? zi_share_await(optim->share, work->unit) : ZERO_OK;
}

/* The outcome that it is added to has to be here; the first update waits for that too. */
static zero_status take_host_count(void *argument)
{
    const optim_work *work = argument;
    ZI_TRY(optim_ops_of(work->optim)
               ->drain(optim_self_of(work->optim), work->optim->desc.step_stream));
    work->counted->stalled += work->optim->host_stalled[0];
    work->optim->host_stalled[0] = 0;
    return ZERO_OK;
}

zero_status zi_optim_add_stalled(zi_optim *optim, zi_step_decision *outcome)
{
    const optim_work work = {.optim = optim, .counted = outcome};
    return optim->staging != NULL ? zi_optim_enqueue(optim, take_host_count, &work) : ZERO_OK;
}

/* For a step's tasks: whether it changes nothing. What was decided is here when the first asks. */
static zero_status is_skipped(const optim_work *work, bool *skipped)
{
    *skipped = false;
    if (!is_asked(work->optim)) {
        return ZERO_OK;
    }
    if (work->first) {
        ZI_TRY(optim_ops_of(work->optim)
                   ->drain(optim_self_of(work->optim), work->optim->desc.step_stream));
    }
    *skipped = work->outcome->skip != 0;
    return ZERO_OK;
}

void zi_optim_host_states(const zi_optim *optim, uint32_t p, void *host[ZI_STATES])
{
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        host[state] =
            zi_optim_chunk_state(optim, &optim->layout->chunks[p], zi_state_role(state), NULL);
    }
}

/* Enqueue what updates work->chunk, with its state in a staging buffer where it has to be in one.
 */
static zero_status enqueue_chunk(zi_optim *optim, zi_task_fn fn, const optim_work *work)
{
    void *host[ZI_STATES];
    if (optim->state_staging == NULL || optim->jobs[work->chunk].segment_count == 0) {
        return zi_optim_enqueue_update(optim, fn, work);
    }
    zi_optim_host_states(optim, work->chunk, host);
    ZI_TRY(zi_state_staging_fetch(optim->state_staging, work->chunk, host));
    ZI_TRY(zi_optim_enqueue_update(optim, fn, work));
    return zi_state_staging_store(optim->state_staging, work->chunk, host);
}

static zero_status update_unit(void *argument)
{
    const optim_work *work = argument;
    bool skipped = false;
    bool left = false;
    ZI_TRY(is_skipped(work, &skipped));
    if (skipped) {
        return ZERO_OK;
    }
    if (zi_optim_adopts(work, work->unit)) {
        return zi_optim_adopt_unit(work);
    }
    ZI_TRY(leave_to_cpu(work, &left));
    return left ? ZERO_OK : zi_optim_update_chunks(work);
}

static zero_status update_chunk(void *argument)
{
    const optim_work *work = argument;
    bool skipped = false;
    ZI_TRY(is_skipped(work, &skipped));
    return skipped ? ZERO_OK : zi_optim_update_chunk(work, work->chunk);
}

/* True if a skipped step of an offloaded flat goes on to the gather: parameters that were set since
 * the last one are rounded by this one, as they are where they are not offloaded. */
static bool is_always_gathered(const zi_optim *optim, uint32_t flat)
{
    return zi_flat_updated_wired(optim->layout, &optim->layout->flats[flat]);
}

/* Put into a chunk's staging buffer what its update begins with: its parameters, or zeros, which
 * are then between tensors. */
static zero_status fill_staged(const zi_optim *optim, const zi_shards_move *own, bool loads)
{
    const zi_codec codec = optim->layout->flats[own->flat].kept[ZERO_ROLE_PARAM];
    zi_stream *stream = optim->desc.step_stream;
    return loads ? zi_shards_load(&optim->desc.shards[ZERO_ROLE_PARAM], stream, own)
                 : optim_ops_of(optim)->fill(optim_self_of(optim), stream, own->memory, 0,
                                             zi_codec_bytes(codec, own->count));
}

/* Update a chunk in the staging buffer of parameters. Where a GPU alone knows whether the step
 * changes anything, the buffer has to hold the parameters before, as they are stored all the same.
 */
static zero_status update_staged_chunk(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    const zi_shards_move own = zi_optim_staged_own(optim, work->chunk);
    bool skipped = false;
    ZI_TRY(is_skipped(work, &skipped));
    if (skipped && !is_always_gathered(optim, own.flat)) {
        return ZERO_OK;
    }
    if (!skipped && zi_optim_adopts(work, work->unit)) {
        return zi_optim_adopt_chunk(work);
    }
    const bool reads = zi_flat_reads_param(&optim->layout->flats[own.flat]);
    ZI_TRY(fill_staged(optim, &own, skipped || reads || !is_asked(optim)));
    return skipped ? ZERO_OK : zi_optim_update_chunk(work, work->chunk);
}

static zero_status store_staged_chunk(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    const uint32_t flat = optim->layout->chunks[work->chunk].flat;
    if (is_asked(optim) && work->outcome->skip && !is_always_gathered(optim, flat)) {
        return ZERO_OK;
    }
    for (uint32_t shard = 0; shard < zi_optim_gather(optim, flat)->size; shard++) {
        const zi_shards_move move = zi_optim_staged(optim, work->chunk, shard);
        ZI_TRY(
            zi_shards_store(&optim->desc.shards[ZERO_ROLE_PARAM], optim->desc.step_stream, &move));
    }
    return ZERO_OK;
}

/* The CPU's part of a unit of a shared step; its parameters are there when this returns. */
static zero_status take_unit(const optim_work *work, uint32_t unit)
{
    zi_optim *optim = work->optim;
    uint32_t first = 0;
    const uint32_t end = zi_unit_chunks(optim->layout, unit, &first) + first;
    zi_mark *mark = NULL;
    ZI_TRY(zi_stream_begin(optim->desc.device, optim->cpu_stream, ZI_SPAN_UPDATE,
                           optim->layout->unit_infos[unit].name, 0, &mark));
    for (uint32_t p = first; p < end; p++) {
        if (optim->jobs[p].segment_count != 0) {
            ZI_TRY(zi_optim_update_staged(work, p, p + 1 < end ? p + 1 : ZI_NO_INDEX));
        }
    }
    ZI_TRY(zi_stream_end(optim->desc.device, optim->cpu_stream, mark));
    return optim_ops_of(optim)->drain(optim_self_of(optim), optim->cpu_stream);
}

/* The CPU's part of a shared step. */
static zero_status take_units(void *argument)
{
    const optim_work *work = argument;
    uint32_t unit = 0;
    while (zi_share_take(work->optim->share, work->step, &unit)) {
        const zero_status status = take_unit(work, unit);
        zi_share_done(work->optim->share, status);
        ZI_TRY(status);
    }
    return ZERO_OK;
}

/* A step's first unit comes. */
static zero_status begin_step(zi_optim *optim, const optim_work *work)
{
    optim->begun = true;
    if (optim->state_staging != NULL) {
        ZI_TRY(zi_state_staging_begin(optim->state_staging));
    }
    return optim->share != NULL ? optim_ops_of(optim)->task(optim_self_of(optim), optim->cpu_stream,
                                                            take_units, work, sizeof *work)
                                : ZERO_OK;
}

/* Encode this rank's parts of so many flats or chunks, or after the gather decode those of all. */
static zero_status convert_gathers(const zi_optim *optim, uint32_t first, uint32_t count,
                                   bool arrived)
{
    const zi_layout *layout = optim->layout;
    const bool staged = optim->desc.param_staging != NULL;
    for (uint32_t i = first; i < first + count; i++) {
        const uint32_t flat = staged ? layout->chunks[i].flat : i;
        if (zi_flat_updated_wired(layout, &layout->flats[flat])) {
            const zi_wire_gather gather =
                staged ? zi_optim_chunk_gather(optim, i) : zi_optim_flat_gather(optim, i);
            ZI_TRY(arrived ? zi_wire_decode(&gather, optim->desc.kernels, optim->desc.step_stream)
                           : zi_wire_encode(&gather, optim->desc.kernels, optim->desc.step_stream));
        }
    }
    return ZERO_OK;
}

/* Gather so many flats or chunks of a unit. */
static zero_status gather_params(zi_optim *optim, uint32_t unit, uint32_t first, uint32_t count)
{
    zi_group *group = optim->desc.groups[optim->layout->units[unit].sharding][ZI_HOP_UPDATED];
    const zi_collective *batch = &optim->param_gathers[optim->gather_first[first]];
    const uint32_t batch_count = optim->gather_first[first + count] - optim->gather_first[first];
    for (uint32_t i = 0; i < batch_count; i++) {
        optim->desc.stats->gather_bytes +=
            zi_codec_bytes((zi_codec){.dtype = batch[i].send_dtype}, batch[i].count * group->size);
    }
    ZI_TRY(convert_gathers(optim, first, count, false));
    ZI_TRY(zi_group_submit(group, optim->desc.step_stream, batch, batch_count));
    return convert_gathers(optim, first, count, true);
}

/* A unit whose parameters are offloaded and gathered after their update: chunk by chunk. */
static zero_status step_chunks(const optim_work *unit)
{
    zi_optim *optim = unit->optim;
    optim_work work = *unit;
    uint32_t first = 0;
    const uint32_t chunks = zi_unit_chunks(optim->layout, unit->unit, &first);
    for (uint32_t i = 0; i < chunks; i++) {
        work.chunk = first + (work.down ? chunks - 1 - i : i);
        ZI_TRY(enqueue_chunk(optim, update_staged_chunk, &work));
        ZI_TRY(gather_params(optim, unit->unit, work.chunk, 1));
        ZI_TRY(zi_optim_enqueue(optim, store_staged_chunk, &work));
        work.first = false;
    }
    return ZERO_OK;
}

/* A unit's update: in one task, or chunk by chunk where they take turns in staging buffers. */
static zero_status enqueue_unit(const optim_work *unit)
{
    zi_optim *optim = unit->optim;
    optim_work work = *unit;
    uint32_t first = 0;
    const uint32_t chunks = zi_unit_chunks(optim->layout, unit->unit, &first);
    if (optim->state_staging == NULL) {
        return zi_optim_enqueue_update(optim, update_unit, unit);
    }
    for (uint32_t i = 0; i < chunks; i++) {
        work.chunk = first + (work.down ? chunks - 1 - i : i);
        ZI_TRY(enqueue_chunk(optim, update_chunk, &work));
        work.first = false;
    }
    return ZERO_OK;
}

zero_status zi_optim_step_unit(zi_optim *optim, uint32_t unit, const zi_step_decision *outcome)
{
    uint32_t first = 0;
    if (zi_unit_chunks(optim->layout, unit, &first) == 0) {
        return ZERO_OK; /* frozen or empty: it has no task that could be the step's first */
    }
    optim->shared_steps += !optim->begun;
    const optim_work work = {.optim = optim,
                             .unit = unit,
                             .down = optim->down,
                             .first = !optim->begun,
                             .speculative = optim->speculative,
                             .step = optim->shared_steps,
                             .outcome = outcome};
    ZI_TRY(work.first ? begin_step(optim, &work) : ZERO_OK);
    const zi_group *group = optim->desc.groups[optim->layout->units[unit].sharding][ZI_HOP_UPDATED];
    optim->desc.stats->param_gathers += group->size > 1;
    if (optim->desc.param_staging != NULL) {
        return step_chunks(&work);
    }
    ZI_TRY(enqueue_unit(&work));
    return group->size > 1 ? gather_params(optim, unit, optim->layout->units[unit].flat_first,
                                           zi_unit_trained_count(optim->layout, unit))
                           : ZERO_OK;
}

zero_status zi_optim_join(zi_optim *optim)
{
    return optim->state_staging != NULL && optim->begun ? zi_state_staging_end(optim->state_staging)
                                                        : ZERO_OK;
}

static zero_status optim_step_flush(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    if (optim->share != NULL) {
        zi_share_close(optim->share, work->step);
    }
    return optim->desc.window != NULL ? zi_window_flush(optim->desc.window) : ZERO_OK;
}

zero_status zi_optim_flush(zi_optim *optim)
{
    const optim_work work = {.optim = optim, .step = optim->shared_steps};
    return is_asked(optim) ? zi_optim_enqueue(optim, optim_step_flush, &work) : ZERO_OK;
}

static zero_status optim_step_drain(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    if (optim->share != NULL) {
        zi_share_close(optim->share, UINT64_MAX);
    }
    if (optim->desc.window != NULL) {
        zi_window_drain(optim->desc.window);
    }
    return ZERO_OK;
}

zero_status zi_optim_drain(zi_optim *optim)
{
    const optim_work work = {.optim = optim};
    return is_asked(optim)
               ? optim_ops_of(optim)->task_always(optim_self_of(optim), optim->desc.step_stream,
                                                  optim_step_drain, &work, sizeof work)
               : ZERO_OK;
}
