/* Owns what tasks of a step do: update pieces, on whatever has their state, and move state on disk.
 * Invariant: a piece is touched by one task at a time, the one whose unit it is. */
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/sizes.h"
#include "stage1/optim_internal.h"

zero_status zi_optim_enqueue(const zi_optim *optim, zi_task_fn fn, const optim_work *work)
{
    const zi_device *device = optim->desc.device;
    return device->ops->task(device->self, optim->desc.step_stream, fn, work, sizeof *work);
}

static zero_status aim(void *argument)
{
    const optim_work *work = argument;
    const uint32_t end = work->optim->layout->range_count - 1;
    return zi_window_walk(work->optim->desc.window, work->down ? end : 0, work->down ? 0 : end);
}

zero_status zi_optim_look_ahead(zi_optim *optim, bool down)
{
    const optim_work work = {.optim = optim, .down = down};
    optim->down = down;
    optim->begun = false;
    optim->speculative = false;
    return optim->desc.window != NULL ? zi_optim_enqueue(optim, aim, &work) : ZERO_OK;
}

static uint64_t clock_of(bool timed)
{
    return timed ? zi_clock_ns() : 0;
}

static void count(atomic_uint_fast64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static zi_update_job *jobs_of(const optim_work *work)
{
    return work->speculates ? work->optim->speculative_jobs : work->optim->jobs;
}

/* The CPU updates a piece for a GPU. next: the piece that it comes to then, or ZI_NO_INDEX. */
static zero_status update_staged(const optim_work *work, uint32_t p, uint32_t next)
{
    zi_optim *optim = work->optim;
    const zi_update_job *jobs = jobs_of(work);
    const bool goes_on = next < optim->layout->piece_count && jobs[next].segment_count != 0;
    const zi_staged_piece piece = {.job = &jobs[p],
                                   .segments = optim->segments + optim->segment_first[p],
                                   .decision = work->outcome};
    const uint64_t start_ns = clock_of(true);
    ZI_TRY(zi_staging_update(optim->staging, &piece, goes_on ? &jobs[next] : NULL));
    count(&optim->update_ns, clock_of(true) - start_ns);
    count(&optim->host_elements, piece.job->count);
    return ZERO_OK;
}

/* The piece that the update comes to after this one; ZI_NO_INDEX: none that is known to be ready.
 * Speculative updates come a unit at a time. */
static uint32_t piece_after(const optim_work *work, uint32_t p)
{
    const zi_layout *layout = work->optim->layout;
    const uint32_t next = work->down ? p - 1 : p + 1; /* none below the first either */
    const bool comes = next < layout->piece_count &&
                       (!work->speculates || layout->flats[layout->pieces[next].flat].unit ==
                                                 layout->flats[layout->pieces[p].flat].unit);
    return comes ? next : ZI_NO_INDEX;
}

/* What an update has acquired of its piece besides the state. */
typedef struct held_piece {
    zi_extent_place grad;
    zi_extent_place param;
    bool has_grad;
    bool has_param;
} held_piece;

/* Acquire the piece's extent of a role; those that updates read after it are prefetched. A
 * speculative update prefetches none: what it reads was written a moment ago, and another stream
 * uses the window. */
static zero_status acquire_extent(const optim_work *work, uint32_t p, zero_role role,
                                  zi_extent_place *place, unsigned char **memory)
{
    const zi_optim *optim = work->optim;
    const zi_layout *layout = optim->layout;
    const bool param = role == ZERO_ROLE_PARAM;
    zi_offload *offload = param ? optim->desc.params : optim->desc.grads;
    zi_window_run next[ZI_WINDOW_AHEAD];
    zi_offload_element element = {0};
    bool reads = true;
    uint32_t count = 0;
    uint32_t after = ZI_NO_INDEX;
    for (uint32_t q = p; q != ZI_NO_INDEX && count < ZI_WINDOW_AHEAD; q = after) {
        after = work->speculates ? ZI_NO_INDEX : piece_after(work, q);
        const zi_piece *piece = &layout->pieces[q];
        const uint64_t first = zi_optim_shard_first(optim, role, piece->flat);
        const zi_offload_element own = {.flat = piece->flat, .index = first + piece->first};
        const bool read = !param || !layout->flats[piece->flat].has_master;
        if (q == p) {
            element = own;
            reads = read;
        } else if (read && optim->jobs[q].segment_count != 0) {
            next[count++] = zi_offload_run(offload, own);
        }
    }
    return zi_offload_acquire_before(offload, element, reads ? ZI_WINDOW_READS : ZI_WINDOW_REPLACES,
                                     next, count, place, memory);
}

/* Acquire what the piece's job works on. What lies between tensors is zeros. */
static zero_status acquire_piece(const optim_work *work, uint32_t p, held_piece *held)
{
    zi_optim *optim = work->optim;
    const zi_piece *piece = &optim->layout->pieces[p];
    const zi_flat *flat = &optim->layout->flats[piece->flat];
    zi_update_job *job = &jobs_of(work)[p];
    unsigned char *memory = NULL;
    *held = (held_piece){.has_grad = zi_optim_on_disk(optim->desc.grads),
                         .has_param = zi_optim_on_disk(optim->desc.params) && !work->speculates &&
                                      optim->desc.param_staging == NULL};
    if (piece->range != ZI_NO_INDEX) {
        ZI_TRY(zi_window_acquire(optim->desc.window, piece->range, ZI_WINDOW_READS, &memory));
        zi_optim_rebind_job(optim, p, job, memory);
    }
    if (held->has_grad) {
        ZI_TRY(acquire_extent(work, p, ZERO_ROLE_GRAD, &held->grad, &memory));
        job->grad = memory;
    }
    if (held->has_param) {
        ZI_TRY(acquire_extent(work, p, ZERO_ROLE_PARAM, &held->param, &memory));
        job->param = memory;
        if (flat->has_master) {
            memset(memory, 0, zi_codec_bytes(flat->kept[ZERO_ROLE_PARAM], piece->count));
        }
    }
    return ZERO_OK;
}

static zero_status release_piece(const optim_work *work, uint32_t p, const held_piece *held)
{
    const zi_optim *optim = work->optim;
    const zi_device *device = optim->desc.device;
    const uint32_t range = optim->layout->pieces[p].range;
    if ((held->has_grad || held->has_param) && !device->ops->host_memory) {
        ZI_TRY(device->ops->drain(device->self, optim->desc.step_stream)); /* a GPU's kernel */
    }
    if (held->has_param) {
        ZI_TRY(zi_offload_release(optim->desc.params, &held->param, true));
    }
    if (held->has_grad) {
        ZI_TRY(zi_offload_release(optim->desc.grads, &held->grad, false));
    }
    return range != ZI_NO_INDEX ? zi_window_release(optim->desc.window, range, true) : ZERO_OK;
}

/* The piece whose arrays begin to come to the CPU meanwhile. They are not in the staging buffer
 * yet, where parameters go through that. */
static uint32_t staged_after(const optim_work *work, uint32_t p)
{
    const uint32_t next = piece_after(work, p);
    const bool comes = next != ZI_NO_INDEX && work->optim->desc.param_staging == NULL &&
                       zi_optim_is_staged(work->optim, next);
    return comes ? next : ZI_NO_INDEX;
}

static zero_status update_piece(const optim_work *work, uint32_t p)
{
    zi_optim *optim = work->optim;
    const zi_kernels *kernels = optim->desc.kernels;
    const zi_update_job *job = &jobs_of(work)[p];
    held_piece held;
    if (job->segment_count == 0) {
        return ZERO_OK;
    }
    ZI_TRY(acquire_piece(work, p, &held));
    if (zi_optim_is_staged(optim, p)) {
        ZI_TRY(update_staged(work, p, staged_after(work, p)));
    } else {
        /* A GPU's kernels are only handed over. */
        const bool timed = optim->desc.device->ops->host_memory;
        const uint64_t start_ns = clock_of(timed);
        ZI_TRY(kernels->ops->update(kernels->self, optim->desc.step_stream, job));
        count(&optim->update_ns, clock_of(timed) - start_ns);
    }
    return release_piece(work, p, &held);
}

/* Pieces of a unit: those of its flats, which lie together. */
static uint32_t unit_pieces(const zi_layout *layout, uint32_t unit, uint32_t *first)
{
    const zi_unit_place *place = &layout->units[unit];
    uint32_t count = 0;
    *first = place->flat_count != 0 ? layout->flats[place->flat_first].piece_first : 0;
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        count += layout->flats[f].piece_count;
    }
    return count;
}

zero_status zi_optim_update_pieces(const optim_work *work)
{
    uint32_t first = 0;
    const uint32_t pieces = unit_pieces(work->optim->layout, work->unit, &first);
    for (uint32_t i = 0; i < pieces; i++) {
        ZI_TRY(update_piece(work, first + (work->down ? pieces - 1 - i : i)));
    }
    return ZERO_OK;
}

/* Whether the step's outcome has to be known before its updates are handed over. */
static bool is_asked(const zi_optim *optim)
{
    return optim->desc.window != NULL || optim->staging != NULL ||
           zi_optim_on_disk(optim->desc.params) || zi_optim_on_disk(optim->desc.grads);
}

/* In a shared step: whether the CPU has the unit, and then wait until it is done with it. The GPU
 * takes a unit when it is done with those before. */
static zero_status leave_to_cpu(const optim_work *work, bool *left)
{
    zi_optim *optim = work->optim;
    const zi_device *device = optim->desc.device;
    *left = false;
    if (optim->share == NULL) {
        return ZERO_OK;
    }
    if (work->first) {
        zi_share_open(optim->share, work->step);
    } else {
        ZI_TRY(device->ops->drain(device->self, optim->desc.step_stream));
    }
    *left = !zi_share_claim(optim->share, work->unit);
    return *left ? zi_share_await(optim->share, work->unit) : ZERO_OK;
}

/* For a step's tasks: whether it changes nothing. What was decided is here when the first asks. */
static zero_status is_skipped(const optim_work *work, bool *skipped)
{
    const zi_device *device = work->optim->desc.device;
    *skipped = false;
    if (!is_asked(work->optim)) {
        return ZERO_OK;
    }
    if (work->first) {
        ZI_TRY(device->ops->drain(device->self, work->optim->desc.step_stream));
    }
    *skipped = work->outcome->skip != 0;
    return ZERO_OK;
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
    if (work->speculative && work->optim->commits) {
        return zi_optim_adopt_unit(work);
    }
    ZI_TRY(leave_to_cpu(work, &left));
    return left ? ZERO_OK : zi_optim_update_pieces(work);
}

/* Update a piece in the staging buffer. Where a GPU alone knows whether the step changes anything,
 * the buffer has to hold the parameters before, as they are stored all the same. */
static zero_status update_staged_piece(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    const zi_offload_move own = zi_optim_staged_own(optim, work->piece);
    bool skipped = false;
    ZI_TRY(is_skipped(work, &skipped));
    if (skipped) {
        return ZERO_OK;
    }
    if (work->speculative && optim->commits) {
        return zi_optim_adopt_piece(work);
    }
    if (!optim->layout->flats[own.flat].has_master || !is_asked(optim)) {
        ZI_TRY(zi_offload_load(optim->desc.params, optim->desc.step_stream, &own));
    }
    return update_piece(work, work->piece);
}

static zero_status store_staged_piece(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    if (is_asked(optim) && work->outcome->skip) {
        return ZERO_OK;
    }
    for (uint32_t part = 0; part < optim->desc.param_gather->size; part++) {
        const zi_offload_move move = zi_optim_staged(optim, work->piece, part);
        ZI_TRY(zi_offload_store(optim->desc.params, optim->desc.step_stream, &move));
    }
    return ZERO_OK;
}

/* The CPU's part of a unit of a shared step; its parameters are there when this returns. */
static zero_status take_unit(const optim_work *work, uint32_t unit)
{
    zi_optim *optim = work->optim;
    const zi_device *device = optim->desc.device;
    uint32_t first = 0;
    const uint32_t end = unit_pieces(optim->layout, unit, &first) + first;
    for (uint32_t p = first; p < end; p++) {
        if (optim->jobs[p].segment_count != 0) {
            ZI_TRY(update_staged(work, p, p + 1 < end ? p + 1 : ZI_NO_INDEX));
        }
    }
    return device->ops->drain(device->self, optim->cpu_stream);
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
    const zi_device *device = optim->desc.device;
    optim->begun = true;
    return optim->share != NULL
               ? device->ops->task(device->self, optim->cpu_stream, take_units, work, sizeof *work)
               : ZERO_OK;
}

zero_status zi_optim_connect(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    const bool staged = optim->desc.param_staging != NULL;
    for (uint32_t p = 0; p < layout->piece_count && staged; p++) {
        ZI_TRY(zi_group_connect(optim->desc.param_gather, optim->desc.step_stream,
                                &optim->param_gathers[p], 1));
    }
    for (uint32_t u = 0; u < layout->unit_count && !staged; u++) {
        ZI_TRY(zi_group_connect(optim->desc.param_gather, optim->desc.step_stream,
                                &optim->param_gathers[layout->units[u].flat_first],
                                zi_unit_trained_count(layout, u)));
    }
    return ZERO_OK;
}

static zero_status gather_params(zi_optim *optim, const zi_collective *batch, uint32_t batch_count)
{
    for (uint32_t i = 0; i < batch_count; i++) {
        optim->desc.stats->gather_bytes += zi_codec_bytes(
            (zi_codec){batch[i].send_dtype}, batch[i].count * optim->desc.param_gather->size);
    }
    return zi_group_submit(optim->desc.param_gather, optim->desc.step_stream, batch, batch_count);
}

/* A unit whose parameters are offloaded and published: piece by piece. */
static zero_status step_pieces(const optim_work *unit)
{
    zi_optim *optim = unit->optim;
    optim_work work = *unit;
    uint32_t first = 0;
    const uint32_t pieces = unit_pieces(optim->layout, unit->unit, &first);
    for (uint32_t i = 0; i < pieces; i++) {
        work.piece = first + (work.down ? pieces - 1 - i : i);
        ZI_TRY(zi_optim_enqueue(optim, update_staged_piece, &work));
        ZI_TRY(gather_params(optim, &optim->param_gathers[work.piece], 1));
        ZI_TRY(zi_optim_enqueue(optim, store_staged_piece, &work));
        work.first = false;
    }
    return ZERO_OK;
}

zero_status zi_optim_step_unit(zi_optim *optim, uint32_t unit, const zi_step_decision *outcome)
{
    const uint32_t trained = zi_unit_trained_count(optim->layout, unit);
    if (trained == 0) {
        return ZERO_OK;
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
    optim->desc.stats->param_gathers += optim->desc.param_gather->size > 1;
    if (optim->desc.param_staging != NULL) {
        return step_pieces(&work);
    }
    ZI_TRY(zi_optim_enqueue(optim, update_unit, &work));
    return optim->desc.param_gather->size > 1
               ? gather_params(optim, &optim->param_gathers[optim->layout->units[unit].flat_first],
                               trained)
               : ZERO_OK;
}

static zero_status rest(void *argument)
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
    return is_asked(optim) ? zi_optim_enqueue(optim, rest, &work) : ZERO_OK;
}

static zero_status quiet(void *argument)
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
    const zi_device *device = optim->desc.device;
    const optim_work work = {.optim = optim};
    return is_asked(optim) ? device->ops->task_always(device->self, optim->desc.step_stream, quiet,
                                                      &work, sizeof work)
                           : ZERO_OK;
}

/* The part of a move that lies in one piece. */
static zero_status move_piece(zi_optim *optim, const zi_optim_move *move, const zi_piece *piece)
{
    const zi_kernels *kernels = optim->desc.host_kernels;
    const uint64_t begin = zi_max_u64(move->first, piece->first);
    const uint64_t end = zi_min_u64(move->first + move->count, piece->first + piece->count);
    const zero_dtype dtype = optim->layout->flats[piece->flat].kept[move->role].dtype;
    unsigned char *record = NULL;
    ZI_TRY(zi_window_acquire(optim->desc.window, piece->range, ZI_WINDOW_READS, &record));
    unsigned char *state = zi_optim_piece_state(optim, piece, move->role, record);
    state += (begin - piece->first) * zero_dtype_bytes(dtype);
    unsigned char *values = move->values;
    values += (begin - move->first) * zero_dtype_bytes(move->dtype);
    ZI_TRY(move->writes ? kernels->ops->cast(kernels->self, optim->host, state, dtype, values,
                                             move->dtype, end - begin)
                        : kernels->ops->cast(kernels->self, optim->host, values, dtype, state,
                                             dtype, end - begin));
    return zi_window_release(optim->desc.window, piece->range, move->writes);
}

static zero_status run_move(void *argument)
{
    const optim_work *work = argument;
    const zi_optim_move *move = &work->move;
    const zi_layout *layout = work->optim->layout;
    const zi_flat *place = &layout->flats[move->flat];
    uint32_t first = place->piece_first;
    while (layout->pieces[first].first + layout->pieces[first].count <= move->first) {
        first++;
    }
    uint32_t last = first;
    while (layout->pieces[last].first + layout->pieces[last].count < move->first + move->count) {
        last++;
    }
    ZI_TRY(zi_window_walk(work->optim->desc.window, layout->pieces[first].range,
                          layout->pieces[last].range));
    for (uint32_t p = first; p <= last; p++) {
        ZI_TRY(move_piece(work->optim, move, &layout->pieces[p]));
    }
    return ZERO_OK;
}

zero_status zi_optim_enqueue_move(zi_optim *optim, const zi_optim_move *move)
{
    const optim_work work = {.optim = optim, .move = *move};
    return move->count != 0 ? zi_optim_enqueue(optim, run_move, &work) : ZERO_OK;
}

uint64_t zi_optim_update_ns(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->update_ns, memory_order_relaxed);
}

uint64_t zi_optim_host_elements(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->host_elements, memory_order_relaxed);
}
