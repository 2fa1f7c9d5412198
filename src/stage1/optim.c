/* Owns the update jobs, one for each piece. Invariant: segments of a piece are this rank's part of
 * the flat's tensors that lies in it, in order, without padding. */
#include "stage1/optim.h"

#include <stdatomic.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/sharding.h"
#include "stage1/share.h"
#include "stage1/staging.h"

_Static_assert(sizeof(zi_segment) <= ZI_SEGMENT_BYTES, "layout reserves too little for segments");

struct zi_optim {
    zi_optim_desc desc;
    const zi_layout *layout;
    zi_optim_flat *flats;
    zi_update_job *jobs; /* by piece */
    zi_stream *host;     /* of the host's kernels on records */
    /* Where the layout has rooms. */
    zi_segment *segments; /* the jobs', in host memory: piece p's from segment_first[p] on */
    size_t *segment_first;
    zi_staging *staging;
    zi_stream *cpu_stream; /* the CPU's, where it shares a step with the GPU; else NULL */
    zi_share *share;       /* likewise */
    uint64_t shared_steps;
    zi_collective *publishes; /* by flat */
    bool down;                /* the step under way goes from the last unit to the first */
    bool begun;               /* and its first unit is enqueued */
    atomic_uint_fast64_t update_ns;
    atomic_uint_fast64_t host_elements;
};

/* What tasks are given. */
typedef struct optim_work {
    zi_optim *optim;
    uint32_t unit;
    bool down;
    bool first;    /* of the step */
    uint64_t step; /* shared ones are counted from 1 */
    const zi_step_decision *outcome;
    zi_optim_move move;
} optim_work;

_Static_assert(sizeof(optim_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

void zi_optim_part(const zi_optim *optim, uint32_t flat, uint64_t *first, uint64_t *count)
{
    const zero_sharding *s = &optim->layout->sharding;
    *count = zi_shard_count(optim->layout, &optim->layout->flats[flat], s->optimizer);
    *first = *count * zi_shard_index(s, optim->desc.rank, s->optimizer);
}

void *zi_optim_state(const zi_optim *optim, uint32_t flat, zero_role role)
{
    const zi_layout *layout = optim->layout;
    const zi_flat *place = &layout->flats[flat];
    const uint32_t state = (uint32_t)role - ZERO_ROLE_MASTER;
    if (place->piece_count == 0 || zi_state_bytes(layout, place, role) == 0 ||
        zi_role_tier(layout, role) == ZERO_TIER_DISK) {
        return NULL;
    }
    return optim->desc.state[state] + layout->pieces[place->piece_first].at[state];
}

/* This rank's part of the flat inside its parameter shard. */
static unsigned char *param_part(const zi_optim *optim, uint32_t flat)
{
    const zero_sharding *s = &optim->layout->sharding;
    const zi_flat *place = &optim->layout->flats[flat];
    const uint32_t part =
        zi_shard_index(s, optim->desc.rank, s->optimizer) % (s->optimizer / s->param);
    return optim->flats[flat].param + part * zi_shard_count(optim->layout, place, s->optimizer) *
                                          zero_dtype_bytes(place->dtype);
}

/* A piece's state in one role: `record` holds what is on disk. */
static void *piece_state(const zi_optim *optim, const zi_piece *piece, zero_role role,
                         unsigned char *record)
{
    const zi_layout *layout = optim->layout;
    const uint32_t state = (uint32_t)role - ZERO_ROLE_MASTER;
    unsigned char *base =
        zi_role_tier(layout, role) == ZERO_TIER_DISK ? record : optim->desc.state[state];
    if (base == NULL || zi_state_bytes(layout, &layout->flats[piece->flat], role) == 0) {
        return NULL;
    }
    return base + piece->at[state];
}

/* Where the gradients of a piece are. */
static const void *piece_grad(const zi_optim *optim, const zi_piece *piece)
{
    const unsigned char *grad = optim->flats[piece->flat].grad;
    return grad + piece->first * zero_dtype_bytes(optim->layout->options.accum_dtype);
}

/* Let a job work on a record; NULL: what it has in arenas. */
static void point_job(const zi_optim *optim, uint32_t p, unsigned char *record)
{
    const zi_piece *piece = &optim->layout->pieces[p];
    zi_update_job *job = &optim->jobs[p];
    job->master = piece_state(optim, piece, ZERO_ROLE_MASTER, record);
    job->moment1 = piece_state(optim, piece, ZERO_ROLE_MOMENT1, record);
    job->moment2 = piece_state(optim, piece, ZERO_ROLE_MOMENT2, record);
}

static void make_job(zi_optim *optim, uint32_t p)
{
    const zi_layout *layout = optim->layout;
    const zi_piece *piece = &layout->pieces[p];
    const zero_dtype dtype = layout->flats[piece->flat].dtype;
    const zero_engine_options *options = &layout->options;
    const bool own = options->optimizer == ZERO_OPTIMIZER_CALLBACK;
    optim->jobs[p] = (zi_update_job){
        .grad = piece_grad(optim, piece),
        .param = param_part(optim, piece->flat) + piece->first * zero_dtype_bytes(dtype),
        .grad_dtype = options->accum_dtype,
        .param_dtype = dtype,
        .moment_dtype = options->moment_dtype,
        .seed = options->seed,
        .decision = optim->desc.decision,
        .update = own ? options->update : NULL,
        .update_user = options->update_user,
        .update_states = options->update_states,
    };
    point_job(optim, p, NULL);
}

static void make_publish(zi_optim *optim, uint32_t flat)
{
    const zi_layout *layout = optim->layout;
    const zi_flat *place = &layout->flats[flat];
    optim->publishes[flat] = (zi_collective){
        .kind = ZI_ALL_GATHER,
        .send_dtype = place->dtype,
        .recv_dtype = place->dtype,
        .tag = place->unit,
        .count = zi_shard_count(layout, place, layout->sharding.optimizer),
        .send = param_part(optim, flat),
        .recv = optim->flats[flat].param,
    };
}

/* The run of a tensor that lies in a piece of its flat, if any. */
static bool make_segment(const zi_optim *optim, uint32_t tensor, const zi_piece *piece,
                         zi_segment *segment)
{
    const zi_tensor_info *info = &optim->layout->tensor_infos[tensor];
    const zi_tensor_place *place = &optim->layout->tensors[tensor];
    uint64_t first = 0;
    uint64_t whole = 0;
    zi_optim_part(optim, place->flat, &first, &whole);
    first += piece->first;
    const uint64_t begin = zi_max_u64(first, place->offset);
    const uint64_t end = zi_min_u64(first + piece->count, place->offset + info->count);
    if (begin >= end) {
        return false;
    }
    *segment = (zi_segment){.offset = begin - first,
                            .count = end - begin,
                            .tensor_first = begin - place->offset,
                            .tensor = tensor,
                            .group = info->group,
                            .flags = info->flags};
    return true;
}

/* Count a tensor's segments, or where there is room for them write each behind its job's others. */
static void add_segments(zi_optim *optim, uint32_t tensor, zi_segment *segments)
{
    const zi_layout *layout = optim->layout;
    const zi_flat *place = &layout->flats[layout->tensors[tensor].flat];
    zi_segment segment;
    for (uint32_t p = place->piece_first; p < place->piece_first + place->piece_count; p++) {
        if (!make_segment(optim, tensor, &layout->pieces[p], &segment)) {
            continue;
        }
        zi_update_job *job = &optim->jobs[p];
        if (segments != NULL) {
            segments[(size_t)(job->segments - segments) + job->segment_count] = segment;
            job->count = segment.offset + segment.count;
        }
        job->segment_count++;
    }
}

/* Two sweeps over the tensors: count each piece's segments, then write them where they belong, all
 * pieces' end to end. */
static void list_segments(zi_optim *optim, zi_segment *segments)
{
    const zi_layout *layout = optim->layout;
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        add_segments(optim, t, NULL);
    }
    zi_segment *next = segments;
    for (uint32_t p = 0; p < layout->piece_count; p++) {
        optim->jobs[p].segments = next;
        next += optim->jobs[p].segment_count;
        optim->jobs[p].segment_count = 0;
    }
    zi_assert_cmp(next - segments, <=, (int64_t)layout->segment_count);
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        add_segments(optim, t, segments);
    }
}

/* Whether the CPU updates the piece of an engine on a GPU, and the GPU never does. */
static bool is_staged(const zi_optim *optim, uint32_t p)
{
    return optim->staging != NULL && (optim->layout->pieces[p].range != ZI_NO_INDEX ||
                                      optim->layout->options.updater == ZERO_UPDATER_CPU);
}

/* The jobs' segments are read on the device, so that is where they go; the CPU keeps its own. */
static zero_status make_segments(zi_optim *optim)
{
    const zi_device *device = optim->desc.device;
    const uint32_t pieces = optim->layout->piece_count;
    zi_stream *host = NULL;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &host));
    ZI_TRY(zi_calloc(pieces, sizeof *optim->segment_first, (void **)&optim->segment_first));
    ZI_TRY(zi_calloc(optim->layout->segment_count, sizeof *optim->segments,
                     (void **)&optim->segments));
    list_segments(optim, optim->segments);
    size_t count = 0;
    for (uint32_t p = 0; p < pieces; p++) {
        zi_update_job *job = &optim->jobs[p];
        job->segments = (const zi_segment *)(const void *)optim->desc.segments + count;
        optim->segment_first[p] = count;
        count += job->segment_count;
    }
    ZI_TRY(device->ops->copy(device->self, host, optim->desc.segments, optim->segments,
                             count * sizeof *optim->segments));
    if (optim->staging == NULL) {
        zi_free(optim->segments);
        optim->segments = NULL;
    }
    return ZERO_OK;
}

/* What shares a step between the GPU and the CPU. */
static zero_status make_share(zi_optim *optim)
{
    const zi_device *device = optim->desc.device;
    if (optim->layout->options.updater != ZERO_UPDATER_BOTH) {
        return ZERO_OK;
    }
    ZI_TRY(zi_share_create(optim->layout->unit_count, &optim->share));
    return device->ops->stream_create(device->self, "zero cpu", &optim->cpu_stream);
}

static zero_status make_staging(zi_optim *optim)
{
    const zi_layout *layout = optim->layout;
    const zi_device *host = optim->desc.host_kernels->device;
    if (layout->room_bytes == 0 && optim->desc.ring == NULL) {
        return ZERO_OK;
    }
    ZI_TRY(host->ops->stream_wrap(host->self, zero_stream_host(), &optim->host));
    if (layout->room_bytes == 0) {
        return ZERO_OK;
    }
    ZI_TRY(make_share(optim));
    zi_staging_desc desc = {.device = optim->desc.device,
                            .stream =
                                optim->share != NULL ? optim->cpu_stream : optim->desc.step_stream,
                            .kernels = optim->desc.host_kernels,
                            .rooms = optim->desc.rooms,
                            .room_bytes = layout->room_bytes};
    for (int state = 0; state < ZI_STATES; state++) {
        const zero_role role = (zero_role)(ZERO_ROLE_MASTER + state);
        desc.on_device[state] = zi_role_tier(layout, role) == ZERO_TIER_DEVICE;
    }
    return zi_staging_create(&desc, &optim->staging);
}

static zero_status build(zi_optim *optim, const zi_optim_flat *flats)
{
    const zi_layout *layout = optim->layout;
    ZI_TRY(zi_calloc(layout->flat_count, sizeof *optim->flats, (void **)&optim->flats));
    ZI_TRY(zi_calloc(layout->piece_count, sizeof *optim->jobs, (void **)&optim->jobs));
    ZI_TRY(zi_calloc(layout->flat_count, sizeof *optim->publishes, (void **)&optim->publishes));
    if (layout->flat_count != 0) {
        memcpy(optim->flats, flats, layout->flat_count * sizeof *flats);
    }
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        if (layout->flats[f].trained) {
            make_publish(optim, f);
        }
    }
    for (uint32_t p = 0; p < layout->piece_count; p++) {
        make_job(optim, p);
    }
    ZI_TRY(make_staging(optim));
    return make_segments(optim);
}

zero_status zi_optim_create(const zi_optim_desc *desc, zi_optim **out)
{
    *out = NULL;
    zi_optim *optim = NULL;
    ZI_TRY(zi_calloc(1, sizeof *optim, (void **)&optim));
    optim->desc = *desc;
    optim->layout = desc->layout;
    const zero_status status = build(optim, desc->flats);
    if (status != ZERO_OK) {
        zi_optim_destroy(optim);
        return status;
    }
    *out = optim;
    return ZERO_OK;
}

void zi_optim_destroy(zi_optim *optim)
{
    if (optim != NULL) {
        zi_free(optim->flats);
        zi_free(optim->jobs);
        if (optim->cpu_stream != NULL) {
            zi_share_close(optim->share, UINT64_MAX);
            optim->desc.device->ops->stream_destroy(optim->desc.device->self, optim->cpu_stream);
        }
        zi_share_destroy(optim->share);
        zi_staging_destroy(optim->staging);
        zi_free(optim->segments);
        zi_free(optim->segment_first);
        zi_free(optim->publishes);
        zi_free(optim);
    }
}

static zero_status enqueue(const zi_optim *optim, zi_task_fn fn, const optim_work *work)
{
    const zi_device *device = optim->desc.device;
    return device->ops->task(device->self, optim->desc.step_stream, fn, work, sizeof *work);
}

static zero_status aim(void *argument)
{
    const optim_work *work = argument;
    const uint32_t end = work->optim->layout->range_count - 1;
    return zi_ring_aim(work->optim->desc.ring, work->down ? end : 0, work->down ? 0 : end);
}

zero_status zi_optim_look_ahead(zi_optim *optim, bool down)
{
    const optim_work work = {.optim = optim, .down = down};
    optim->down = down;
    optim->begun = false;
    return optim->desc.ring != NULL ? enqueue(optim, aim, &work) : ZERO_OK;
}

static uint64_t clock_of(bool timed)
{
    return timed ? zi_clock_ns() : 0;
}

static void count(atomic_uint_fast64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

/* The CPU updates a piece for a GPU. next: the piece that it comes to then, or ZI_NO_INDEX. */
static zero_status update_staged(zi_optim *optim, uint32_t p, uint32_t next,
                                 const zi_step_decision *outcome)
{
    const bool goes_on = next < optim->layout->piece_count && optim->jobs[next].segment_count != 0;
    const zi_staged_piece piece = {.job = &optim->jobs[p],
                                   .segments = optim->segments + optim->segment_first[p],
                                   .decision = outcome};
    const uint64_t start_ns = clock_of(true);
    ZI_TRY(zi_staging_update(optim->staging, &piece, goes_on ? &optim->jobs[next] : NULL));
    count(&optim->update_ns, clock_of(true) - start_ns);
    count(&optim->host_elements, piece.job->count);
    return ZERO_OK;
}

static zero_status update_piece(const optim_work *work, uint32_t p)
{
    zi_optim *optim = work->optim;
    const zi_kernels *kernels = optim->desc.kernels;
    const uint32_t range = optim->layout->pieces[p].range;
    zi_update_job *job = &optim->jobs[p];
    if (job->segment_count == 0) {
        return ZERO_OK;
    }
    if (range != ZI_NO_INDEX) {
        unsigned char *record = NULL;
        ZI_TRY(zi_ring_at(optim->desc.ring, range, true, &record));
        point_job(optim, p, record);
    }
    if (is_staged(optim, p)) {
        const uint32_t next = work->down ? p - 1 : p + 1; /* none below the first either */
        const bool follows = next < optim->layout->piece_count && is_staged(optim, next);
        return update_staged(optim, p, follows ? next : ZI_NO_INDEX, work->outcome);
    }
    /* A GPU's kernels are only handed over. */
    const bool timed = optim->desc.device->ops->host_memory;
    const uint64_t start_ns = clock_of(timed);
    ZI_TRY(kernels->ops->update(kernels->self, optim->desc.step_stream, job));
    count(&optim->update_ns, clock_of(timed) - start_ns);
    return ZERO_OK;
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

/* Whether the step's outcome has to be known before its updates are handed over. */
static bool is_asked(const zi_optim *optim)
{
    return optim->desc.ring != NULL || optim->staging != NULL;
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

static zero_status update_unit(void *argument)
{
    const optim_work *work = argument;
    zi_optim *optim = work->optim;
    const zi_device *device = optim->desc.device;
    uint32_t first = 0;
    bool left = false;
    const uint32_t pieces = unit_pieces(optim->layout, work->unit, &first);
    if (is_asked(optim) && work->first) {
        ZI_TRY(device->ops->drain(device->self, optim->desc.step_stream)); /* it is here */
    }
    if (is_asked(optim) && work->outcome->skip) {
        return ZERO_OK;
    }
    ZI_TRY(leave_to_cpu(work, &left));
    for (uint32_t i = 0; i < pieces && !left; i++) {
        ZI_TRY(update_piece(work, first + (work->down ? pieces - 1 - i : i)));
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
            ZI_TRY(update_staged(optim, p, p + 1 < end ? p + 1 : ZI_NO_INDEX, work->outcome));
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

/* A unit's trained flats come first: layout puts the frozen ones behind. */
static uint32_t trained_count(const zi_optim *optim, const zi_unit_place *place)
{
    uint32_t trained = 0;
    while (trained < place->flat_count &&
           optim->layout->flats[place->flat_first + trained].trained) {
        trained++;
    }
    return trained;
}

zero_status zi_optim_connect(zi_optim *optim)
{
    for (uint32_t u = 0; u < optim->layout->unit_count; u++) {
        const zi_unit_place *place = &optim->layout->units[u];
        ZI_TRY(zi_group_connect(optim->desc.publish, optim->desc.step_stream,
                                &optim->publishes[place->flat_first], trained_count(optim, place)));
    }
    return ZERO_OK;
}

zero_status zi_optim_step_unit(zi_optim *optim, uint32_t unit, const zi_step_decision *outcome)
{
    const zi_unit_place *place = &optim->layout->units[unit];
    const uint32_t trained = trained_count(optim, place);
    if (trained == 0) {
        return ZERO_OK;
    }
    optim->shared_steps += !optim->begun;
    const optim_work work = {.optim = optim,
                             .unit = unit,
                             .down = optim->down,
                             .first = !optim->begun,
                             .step = optim->shared_steps,
                             .outcome = outcome};
    ZI_TRY(work.first ? begin_step(optim, &work) : ZERO_OK);
    ZI_TRY(enqueue(optim, update_unit, &work));
    if (optim->desc.publish->size == 1) {
        return ZERO_OK;
    }
    const zi_collective *batch = &optim->publishes[place->flat_first];
    optim->desc.stats->publishes++;
    for (uint32_t i = 0; i < trained; i++) {
        optim->desc.stats->gather_bytes +=
            batch[i].count * optim->desc.publish->size * zero_dtype_bytes(batch[i].send_dtype);
    }
    return zi_group_submit(optim->desc.publish, optim->desc.step_stream, batch, trained);
}

static zero_status rest(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    if (optim->share != NULL) {
        zi_share_close(optim->share, work->step);
    }
    return optim->desc.ring != NULL ? zi_ring_rest(optim->desc.ring) : ZERO_OK;
}

zero_status zi_optim_rest(zi_optim *optim)
{
    const optim_work work = {.optim = optim, .step = optim->shared_steps};
    return is_asked(optim) ? enqueue(optim, rest, &work) : ZERO_OK;
}

static zero_status quiet(void *argument)
{
    const optim_work *work = argument;
    const zi_optim *optim = work->optim;
    if (optim->share != NULL) {
        zi_share_close(optim->share, UINT64_MAX);
    }
    if (optim->desc.ring != NULL) {
        zi_ring_quiet(optim->desc.ring);
    }
    return ZERO_OK;
}

zero_status zi_optim_quiet(zi_optim *optim)
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
    const uint64_t bytes =
        zi_state_bytes(optim->layout, &optim->layout->flats[piece->flat], move->role);
    const zero_dtype dtype =
        move->role == ZERO_ROLE_MASTER ? ZERO_DTYPE_F32 : optim->layout->options.moment_dtype;
    unsigned char *record = NULL;
    ZI_TRY(zi_ring_at(optim->desc.ring, piece->range, move->writes, &record));
    unsigned char *state = piece_state(optim, piece, move->role, record);
    state += (begin - piece->first) * bytes;
    unsigned char *values = move->values;
    values += (begin - move->first) * zero_dtype_bytes(move->dtype);
    return move->writes ? kernels->ops->cast(kernels->self, optim->host, state, dtype, values,
                                             move->dtype, end - begin)
                        : kernels->ops->cast(kernels->self, optim->host, values, dtype, state,
                                             dtype, end - begin);
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
    ZI_TRY(zi_ring_aim(work->optim->desc.ring, layout->pieces[first].range,
                       layout->pieces[last].range));
    for (uint32_t p = first; p <= last; p++) {
        ZI_TRY(move_piece(work->optim, move, &layout->pieces[p]));
    }
    return ZERO_OK;
}

zero_status zi_optim_enqueue_move(zi_optim *optim, const zi_optim_move *move)
{
    const optim_work work = {.optim = optim, .move = *move};
    return move->count != 0 ? enqueue(optim, run_move, &work) : ZERO_OK;
}

void zi_optim_point(zi_optim *optim, unsigned char *const state[ZI_STATES],
                    const zi_optim_flat *flats, unsigned char *rooms)
{
    if (optim->staging != NULL) {
        zi_staging_point(optim->staging, rooms);
    }
    memcpy(optim->desc.state, state, sizeof optim->desc.state);
    if (optim->layout->flat_count != 0) {
        memcpy(optim->flats, flats, optim->layout->flat_count * sizeof *flats);
    }
    for (uint32_t p = 0; p < optim->layout->piece_count; p++) {
        optim->jobs[p].grad = piece_grad(optim, &optim->layout->pieces[p]);
        point_job(optim, p, NULL);
    }
}

uint64_t zi_optim_update_ns(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->update_ns, memory_order_relaxed);
}

uint64_t zi_optim_host_elements(const zi_optim *optim)
{
    return atomic_load_explicit(&optim->host_elements, memory_order_relaxed);
}
