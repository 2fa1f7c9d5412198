/* Owns what of a step is done before it is decided. Invariant: until a step is decided, nothing
 * that it replaces has changed; what it then commits has the bits that it would have come to. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "stage1/optim_internal.h"

/* The flat's speculative copy of its parameters. */
static unsigned char *speculate_own(const zi_optim *optim, uint32_t flat)
{
    return optim->desc.workspace + optim->layout->flats[flat].speculative_at;
}

void zi_optim_rebind_speculation(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    for (uint32_t p = 0; p < layout->chunk_count && optim->speculative_jobs != NULL; p++) {
        const zi_chunk *chunk = &layout->chunks[p];
        zi_update_job *job = &optim->speculative_jobs[p];
        *job = optim->jobs[p];
        job->param =
            speculate_own(optim, chunk->flat) +
            zi_codec_offset(layout->flats[chunk->flat].kept[ZERO_ROLE_PARAM], chunk->first);
        job->decision = optim->desc.predicted;
        job->stalled = optim->desc.stalled + 1;
    }
}

zero_status zi_optim_make_speculation(zi_optim *optim)
{
    ZI_TRY(zi_calloc(optim->layout->chunk_count, sizeof *optim->speculative_jobs,
                     (void **)&optim->speculative_jobs));
    ZI_TRY(zi_calloc(optim->layout->unit_count, sizeof *optim->speculated,
                     (void **)&optim->speculated));
    zi_optim_rebind_speculation(optim);
    return ZERO_OK;
}

static zero_status speculative_begin(void *argument)
{
    const optim_work *work = argument;
    zi_window *window = work->optim->desc.window;
    work->optim->refuted = false;
    memset(work->optim->speculated, 0,
           work->optim->layout->unit_count * sizeof *work->optim->speculated);
    work->optim->lowest_extent = work->optim->layout->state.extent_count;
    /* A little more: it is compared with a product of numbers that were rounded. */
    work->optim->norm_limit = work->max_norm > 0 ? work->max_norm * (1 + 1e-6) : DBL_MAX;
    ZI_TRY(zi_window_speculate(window));
    return zi_window_walk(window, work->optim->layout->state.extent_count - 1, 0);
}

zero_status zi_optim_begin_speculation(zi_optim *optim, double max_norm)
{
    const optim_work work = {.optim = optim, .max_norm = max_norm};
    optim->down = false;
    optim->begun = false;
    optim->speculative = true;
    optim->speculations++;
    return zi_optim_enqueue(optim, speculative_begin, &work);
}

/* A copy between a flat's speculative copy and its parameters: `adopts` or, before the speculative
 * update, the other way.
 */
static zero_status copy_speculative(const zi_optim *optim, uint32_t flat, bool adopts)
{
    zi_stream *stream = optim->desc.step_stream;
    const zi_shards_move move = {
        .flat = flat,
        .first = zi_optim_shard_first(optim, ZERO_ROLE_PARAM, flat),
        .count = zi_optimizer_shard_count(optim->layout, &optim->layout->flats[flat]),
        .memory = speculate_own(optim, flat)};
    const zi_shards *params = &optim->desc.shards[ZERO_ROLE_PARAM];
    return adopts ? zi_shards_store(params, stream, &move) : zi_shards_load(params, stream, &move);
}

/* A parameter that an update only writes begins with nothing in its speculative copy. */
static zero_status copy_unit(const zi_optim *optim, uint32_t unit, bool adopts)
{
    const uint32_t first = optim->layout->units[unit].flat_first;
    const uint32_t count = zi_unit_trained_count(optim->layout, unit);
    for (uint32_t f = first; f < first + count; f++) {
        if (adopts || zi_flat_reads_param(&optim->layout->flats[f])) {
            ZI_TRY(copy_speculative(optim, f, adopts));
        }
    }
    return ZERO_OK;
}

/* True if the step will be clipped or skipped: the norm of all gradients is no less than that of
 * those so far, whose NaN and inf stay too. */
static bool is_refuted(const zi_optim *optim, const zi_norm_sum *squares)
{
    const double norm = sqrt(zi_norm_value(squares)) * (double)optim->desc.predicted->grad_scale;
    return !(norm <= optim->norm_limit);
}

/* As a step does of which nothing is there. */
static zero_status walk_up(const zi_optim *optim)
{
    return zi_window_walk(optim->desc.window, 0, optim->layout->state.extent_count - 1);
}

static void note_speculated(zi_optim *optim, uint32_t unit)
{
    uint32_t first = 0;
    const uint32_t count = zi_unit_chunks(optim->layout, unit, &first);
    optim->speculated[unit] = true;
    for (uint32_t p = first; p < first + count; p++) {
        /* ZI_NO_INDEX is above all others. */
        const uint32_t extent = optim->layout->chunks[p].extent;
        optim->lowest_extent = extent < optim->lowest_extent ? extent : optim->lowest_extent;
    }
}

static zero_status speculate_unit(void *argument)
{
    const optim_work *work = argument;
    zi_optim *optim = work->optim;
    if (optim->refuted ||
        atomic_load_explicit(&optim->due, memory_order_relaxed) >= work->speculation) {
        return ZERO_OK;
    }
    ZI_TRY(copy_unit(optim, work->unit, false));
    /* The prediction is here then. */
    ZI_TRY(optim_ops_of(optim)->drain(optim_self_of(optim), optim->desc.step_stream));
    optim->refuted = is_refuted(optim, work->squares);
    if (!optim->refuted) {
        note_speculated(optim, work->unit);
        return zi_optim_update_chunks(work);
    }
    zi_window_discard(optim->desc.window);
    return walk_up(optim);
}

zero_status zi_optim_speculate_unit(zi_optim *optim, uint32_t unit, const zi_norm_sum *squares)
{
    const optim_work work = {.optim = optim,
                             .unit = unit,
                             .down = true,
                             .speculates = true,
                             .squares = squares,
                             .speculation = optim->speculations,
                             .outcome = optim->desc.predicted};
    return zi_optim_enqueue_update(optim, speculate_unit, &work);
}

/* True if both let an update do the same. */
static bool is_same_update(const zi_step_decision *a, const zi_step_decision *b)
{
    return a->skip == b->skip && a->update == b->update && a->group_count == b->group_count &&
           memcmp(&a->grad_scale, &b->grad_scale, sizeof a->grad_scale) == 0 &&
           memcmp(a->groups, b->groups, sizeof a->groups) == 0;
}

/* The count of a speculative update becomes that of the step's, or is dropped. Host memory: a GPU's
 * speculative updates are the CPU's. */
static void take_speculative_count(zi_optim *optim)
{
    uint64_t *stalled = optim->staging != NULL ? optim->host_stalled : optim->desc.stalled;
    stalled[0] += optim->commits ? stalled[1] : 0;
    stalled[1] = 0;
}

static zero_status validate(void *argument)
{
    const optim_work *work = argument;
    zi_optim *optim = work->optim;
    zi_window *window = optim->desc.window;
    ZI_TRY(optim_ops_of(optim)->drain(optim_self_of(optim),
                                      optim->desc.step_stream)); /* the outcome is here */
    optim->commits = !optim->refuted && is_same_update(work->outcome, optim->desc.predicted);
    take_speculative_count(optim);
    if (optim->commits) {
        atomic_fetch_add_explicit(&optim->kept, 1, memory_order_relaxed);
        ZI_TRY(zi_window_commit(window));
        return optim->lowest_extent > 0 ? zi_window_walk(window, 0, optim->lowest_extent - 1)
                                        : ZERO_OK;
    }
    atomic_fetch_add_explicit(&optim->redone, work->outcome->skip ? 0 : 1, memory_order_relaxed);
    if (optim->refuted) {
        return ZERO_OK;
    }
    zi_window_discard(window);
    return work->outcome->skip ? ZERO_OK : walk_up(optim);
}

void zi_optim_end_speculation(zi_optim *optim)
{
    atomic_store_explicit(&optim->due, optim->speculations, memory_order_relaxed);
}

zero_status zi_optim_validate(zi_optim *optim, const zi_step_decision *outcome)
{
    const optim_work work = {.optim = optim, .outcome = outcome};
    return zi_optim_enqueue(optim, validate, &work);
}

static zero_status speculative_discard(void *argument)
{
    const optim_work *work = argument;
    zi_window *window = work->optim->desc.window;
    work->optim->commits = 0;
    take_speculative_count(work->optim);
    if (!work->optim->refuted) {
        zi_window_discard(window);
    }
    return zi_window_flush(
        window); /* all that was on its way there has arrived, or its failure shows */
}

zero_status zi_optim_discard(zi_optim *optim)
{
    const optim_work work = {.optim = optim};
    optim->speculative = false;
    return zi_optim_enqueue(optim, speculative_discard, &work);
}

zero_status zi_optim_adopt_unit(const optim_work *work)
{
    return copy_unit(work->optim, work->unit, true);
}

zero_status zi_optim_adopt_chunk(const optim_work *work)
{
    const zi_optim *optim = work->optim;
    const zi_chunk *chunk = &optim->layout->chunks[work->chunk];
    const zi_codec codec = optim->layout->flats[chunk->flat].kept[ZERO_ROLE_PARAM];
    return optim_ops_of(optim)->copy(optim_self_of(optim), optim->desc.step_stream,
                                     zi_optim_staged_own(optim, work->chunk).memory,
                                     speculate_own(optim, chunk->flat) +
                                         zi_codec_offset(codec, chunk->first),
                                     zi_codec_bytes(codec, chunk->count));
}

uint64_t zi_optim_kept(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->kept, memory_order_relaxed);
}

uint64_t zi_optim_redone(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->redone, memory_order_relaxed);
}
