/* Owns the unit states: what a caller's acquires and releases, the sweeps over units and the steps
 * do to them, and so which gathers are enqueued, in which order.
 * Invariant: a unit that is not ABSENT and has a class holds exactly one slot of it. */
#include "stage3/params.h"

#include <inttypes.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "stage3/param_internal.h"

/* Passes of each schedule. */
static const zero_pass passes_of[ZI_SCHEDULES][3] = {{ZERO_PASS_FORWARD, ZERO_PASS_BACKWARD},
                                                     {ZERO_PASS_EVAL}};

static zero_status params_build(zi_params *params)
{
    const zi_layout *layout = params->layout;
    ZI_TRY(zi_calloc(layout->unit_count, sizeof *params->units, (void **)&params->units));
    ZI_TRY(zi_calloc((size_t)ZI_WIRE_COLLECTIVES * layout->flat_count, sizeof *params->collectives,
                     (void **)&params->collectives));
    ZI_TRY(zi_params_make_slots(params));
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        param_unit *unit = &params->units[u];
        ZI_TRY(param_ops_of(params)->event_create(param_self_of(params), &unit->gathered));
        ZI_TRY(param_ops_of(params)->event_create(param_self_of(params), &unit->released));
        ZI_TRY(param_ops_of(params)->event_create(param_self_of(params), &unit->updated));
        if (layout->tuning.poison_released) {
            ZI_TRY(param_ops_of(params)->event_create(param_self_of(params), &unit->shown));
        }
    }
    ZI_TRY(param_ops_of(params)->event_create(param_self_of(params), &params->gathers_done));
    ZI_TRY(zi_schedule_create(layout, passes_of[0], &params->schedules[0]));
    return zi_schedule_create(layout, passes_of[1], &params->schedules[1]);
}

zero_status zi_params_create(const zi_params_desc *desc, zi_params **out)
{
    *out = NULL;
    zi_params *params = NULL;
    ZI_TRY(zi_calloc(1, sizeof *params, (void **)&params));
    params->desc = *desc;
    params->layout = desc->layout;
    params->arena = zi_shards_arena(desc->shards);
    params->slotted = zi_params_in_slots(desc->layout);
    params->look_ahead = desc->layout->tuning.no_prefetch ? 0 : desc->layout->tuning.look_ahead;
    const zero_status status = params_build(params);
    if (status != ZERO_OK) {
        zi_params_destroy(params);
        return status;
    }
    *out = params;
    return ZERO_OK;
}

void zi_params_destroy(zi_params *params)
{
    if (params == NULL) {
        return;
    }
    for (uint32_t u = 0; params->units != NULL && u < params->layout->unit_count; u++) {
        zi_params_end_view(params, u);
        param_ops_of(params)->event_destroy(param_self_of(params), params->units[u].gathered);
        param_ops_of(params)->event_destroy(param_self_of(params), params->units[u].released);
        param_ops_of(params)->event_destroy(param_self_of(params), params->units[u].updated);
        param_ops_of(params)->event_destroy(param_self_of(params), params->units[u].shown);
    }
    param_ops_of(params)->event_destroy(param_self_of(params), params->gathers_done);
    for (int i = 0; i < ZI_SCHEDULES; i++) {
        zi_schedule_destroy(&params->schedules[i]);
    }
    zi_free(params->units);
    zi_free(params->collectives);
    zi_free(params->slot_units);
    zi_free(params);
}

/* A slot for the unit and its gather. *taken as in zi_params_take_slot. */
static zero_status params_gather(zi_params *params, uint32_t unit, bool may_drop, bool *taken)
{
    *taken = true;
    if (!params->slotted || params->layout->units[unit].param_class == ZI_NO_INDEX) {
        return ZERO_OK;
    }
    ZI_TRY(zi_params_take_slot(params, unit, may_drop, taken));
    return *taken ? zi_params_gather(params, unit) : ZERO_OK;
}

/* Take part in the unit's gather if it is not here. *taken as there. */
static zero_status params_fetch(zi_params *params, uint32_t unit, bool may_drop, bool *taken)
{
    const zi_unit_step step = zi_unit_on(params->units[unit].state, ZI_ON_FETCH);
    *taken = true;
    if (step.action == ZI_DO_GATHER) {
        ZI_TRY(params_gather(params, unit, may_drop, taken));
    }
    if (*taken) {
        params->units[unit].state = step.next;
        params->units[unit].touched = ++params->clock;
    }
    return ZERO_OK;
}

static zero_status params_look_ahead(zi_params *params, const zi_schedule *schedule)
{
    params->sweep = schedule;
    for (uint32_t i = 0; i < params->look_ahead; i++) {
        const uint32_t next = schedule->position + i;
        bool taken = true;
        if (next < schedule->count) {
            ZI_TRY(params_fetch(params, schedule->entries[next].unit, false, &taken));
        }
        if (!taken) {
            break; /* gathers stay in the schedule's order: nothing overtakes this one */
        }
    }
    return ZERO_OK;
}

/* True if backward comes to the unit by its own name at the entry before the position, and at no
 * later one. */
static bool ends_backward(const zi_schedule *schedule)
{
    const zi_schedule_entry *entry = &schedule->entries[schedule->position - 1];
    return entry->pass == ZERO_PASS_BACKWARD && entry->via == entry->unit &&
           zi_schedule_find(schedule, *entry) == ZI_NO_INDEX;
}

/* Backward goes on from the unit at the entry before the position. If this rank has acquired its
 * parameters there but not its gradient, the gradient is left out, before any gather that follows:
 * ranks that gave it have put its reduction on a stream when they released the unit. */
static zero_status params_settle(const zi_params *params, const zi_schedule *schedule)
{
    if (params->desc.left_out == NULL || schedule->position == 0 || !ends_backward(schedule)) {
        return ZERO_OK;
    }
    const uint32_t unit = schedule->entries[schedule->position - 1].unit;
    return params->units[unit].use_count == 0
               ? params->desc.left_out(params->desc.left_out_user, unit)
               : ZERO_OK;
}

/* Walk over the schedule up to, not including, `end`, taking part in every gather on the way. */
static zero_status params_walk(zi_params *params, zi_schedule *schedule, uint32_t end)
{
    params->sweep = schedule;
    while (schedule->position < end) {
        const uint32_t unit = schedule->entries[schedule->position].unit;
        bool taken = false;
        ZI_TRY(params_fetch(params, unit, true, &taken));
        if (!taken) {
            return zi_params_no_slot(params, unit);
        }
        schedule->position++;
        const bool left_out = params->desc.left_out != NULL && ends_backward(schedule);
        if (left_out) {
            ZI_TRY(params_look_ahead(params, schedule));
        }
        /* Left out here, but perhaps used and released elsewhere: all ranks must choose the same
         * victims. */
        params->units[unit].state = zi_unit_on(params->units[unit].state, ZI_ON_PASS).next;
        if (left_out) {
            ZI_TRY(params->desc.left_out(params->desc.left_out_user, unit));
        }
    }
    return ZERO_OK;
}

/* Bring the schedule to just behind the entry of this acquire. *foreseen false: it has none, and
 * the unit is here, so that no other rank need know. */
static zero_status params_follow(zi_params *params, zi_schedule_entry wanted, bool *foreseen)
{
    const bool eval = wanted.pass == ZERO_PASS_EVAL;
    zi_schedule *schedule = &params->schedules[eval];
    uint32_t found = zi_schedule_find(schedule, wanted);
    if (found == ZI_NO_INDEX && eval) {
        /* A new sweep: finish the last one first, as ranks that went further did. */
        ZI_TRY(params_walk(params, schedule, schedule->count));
        schedule->position = 0;
        found = zi_schedule_find(schedule, wanted);
    }
    *foreseen = found != ZI_NO_INDEX;
    if (!*foreseen) {
        params->desc.stats->gathers_unforeseen++;
        if (params->units[wanted.unit].state != ZI_UNIT_ABSENT ||
            !zi_schedule_insert(schedule, wanted)) {
            return ZERO_OK;
        }
        *foreseen = true;
        found = schedule->position;
    }
    ZI_TRY(params_settle(params, schedule));
    ZI_TRY(params_walk(params, schedule, found));
    schedule->entries[found].used = 1;
    schedule->position = found + 1;
    return ZERO_OK;
}

static zero_status acquire_first(zi_params *params, zi_schedule_entry wanted)
{
    param_unit *target = &params->units[wanted.unit];
    bool foreseen = false;
    ZI_TRY(params_follow(params, wanted, &foreseen));
    if (zi_unit_on(target->state, ZI_ON_ACQUIRE).action == ZI_DO_GATHER_AWAIT) {
        bool taken = false;
        ZI_TRY(params_gather(params, wanted.unit, true, &taken));
        if (!taken) {
            return zi_params_no_slot(params, wanted.unit);
        }
    } else {
        params->desc.stats->gathers_hit++;
    }
    if (foreseen) {
        target->touched = ++params->clock; /* all ranks do so, or none */
    }
    return ZERO_OK;
}

zero_status zi_params_acquire(zi_params *params, uint32_t unit, uint32_t via, zero_pass pass,
                              zi_stream *stream)
{
    param_unit *target = &params->units[unit];
    if (target->use_count == 0 && params->slotted) {
        ZI_TRY(acquire_first(params,
                             (zi_schedule_entry){.unit = unit, .via = via, .pass = (uint8_t)pass}));
    }
    target->state = zi_unit_on(target->state, ZI_ON_ACQUIRE).next;
    target->use_count++;
    target->own_count += unit == via;
    if (params->slotted && target->use_count == 1) {
        ZI_TRY(params_look_ahead(params, &params->schedules[pass == ZERO_PASS_EVAL]));
    }
    ZI_TRY(param_ops_of(params)->stream_wait(param_self_of(params), stream,
                                             params->slotted ? target->gathered : target->updated,
                                             &params->desc.stats->acquire_wait_ns));
    return target->shown != NULL ? zi_params_show(params, unit, stream) : ZERO_OK;
}

zero_status zi_params_release(zi_params *params, uint32_t unit, uint32_t via, zi_stream *stream)
{
    param_unit *target = &params->units[unit];
    const zi_unit_event event = target->use_count > 1 ? ZI_ON_RELEASE : ZI_ON_RELEASE_LAST;
    const zi_unit_step step = zi_unit_on(target->state, event);
    const bool own = unit == via;
    if (step.action == ZI_DO_REFUSE || (own && target->own_count == 0)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.60s\" is %s, not acquired%s; release it once per acquire",
                unit, params->layout->unit_infos[unit].name, zi_unit_state_name(target->state),
                target->use_count != 0 ? " by its own name" : "");
    }
    target->state = step.next;
    target->use_count--;
    target->own_count -= own;
    if (!params->slotted && target->shown == NULL) {
        return ZERO_OK;
    }
    if (target->released_before) { /* perhaps on another of the caller's streams */
        ZI_TRY(param_ops_of(params)->stream_wait(param_self_of(params), stream, target->released,
                                                 NULL));
    }
    target->released_before = target->use_count != 0;
    if (target->shown != NULL && target->use_count == 0) {
        ZI_TRY(zi_params_hide(params, unit, stream));
    }
    return param_ops_of(params)->event_record(param_self_of(params), target->released, stream);
}

/* A flat where callers read it; NULL: its unit is not in use. */
static unsigned char *shown_flat(const zi_params *params, uint32_t f)
{
    const zi_flat *flat = &params->layout->flats[f];
    const param_unit *unit = &params->units[flat->unit];
    if (unit->state != ZI_UNIT_IN_USE) {
        return NULL;
    }
    return unit->shown != NULL ? zi_params_view(params, flat->unit) + flat->slot_at
                               : zi_params_flat(params, f);
}

void *zi_params_data(const zi_params *params, uint32_t tensor)
{
    const zi_tensor_place *place = &params->layout->tensors[tensor];
    const zi_flat *flat = &params->layout->flats[place->flat];
    unsigned char *base = shown_flat(params, place->flat);
    return base != NULL ? base + zi_codec_offset(flat->slot[ZERO_ROLE_PARAM], place->offset) : NULL;
}

zi_param_planes zi_params_planes(const zi_params *params, uint32_t tensor)
{
    const zi_tensor_place *place = &params->layout->tensors[tensor];
    const zi_flat *flat = &params->layout->flats[place->flat];
    const zero_dtype dtype = flat->slot[ZERO_ROLE_PARAM].dtype;
    const unsigned char *codes = shown_flat(params, place->flat);
    if (codes == NULL) {
        return (zi_param_planes){0};
    }
    return (zi_param_planes){.codes = codes + place->offset,
                             .scales =
                                 codes + flat->count + zi_block_scales_bytes(dtype, place->offset)};
}

bool zi_params_in_use(const zi_params *params, uint32_t unit)
{
    return params->units[unit].state == ZI_UNIT_IN_USE;
}

uint32_t zi_params_own_count(const zi_params *params, uint32_t unit)
{
    return params->units[unit].own_count;
}

uint32_t zi_params_slot(const zi_params *params, uint32_t unit)
{
    const param_unit *it = &params->units[unit];
    return it->shown != NULL ? it->turn : it->slot;
}

void zi_params_enter(zi_params *params, uint32_t unit, zero_pass pass)
{
    params->units[unit].pass = pass;
}

zero_pass zi_params_pass(const zi_params *params, uint32_t unit)
{
    return zi_params_in_use(params, unit) ? params->units[unit].pass : ZERO_PASS_NONE;
}

uint32_t zi_params_first_in_use(const zi_params *params)
{
    for (uint32_t u = 0; u < params->layout->unit_count; u++) {
        if (params->units[u].state == ZI_UNIT_IN_USE) {
            return u;
        }
    }
    return ZI_NO_INDEX;
}

/* Walk to the end of a sweep that has begun, and stand at the start again. */
static zero_status params_finish(zi_params *params, zi_schedule *schedule)
{
    if (params->slotted && schedule->position != 0) {
        ZI_TRY(params_walk(params, schedule, schedule->count));
    }
    schedule->position = 0;
    return ZERO_OK;
}

zero_status zi_params_micro_begin(zi_params *params)
{
    ZI_TRY(params_finish(params, &params->schedules[1]));
    return params->slotted ? params_look_ahead(params, &params->schedules[0]) : ZERO_OK;
}

zero_status zi_params_pass_end(zi_params *params)
{
    zi_schedule *train = &params->schedules[0];
    if (!params->slotted) {
        return ZERO_OK;
    }
    ZI_TRY(params_settle(params, train));
    /* Also when this rank used nothing at all: the others may have. */
    return params_walk(params, train, train->count);
}

zero_status zi_params_micro_end(zi_params *params, bool last)
{
    zi_schedule *train = &params->schedules[0];
    ZI_TRY(zi_params_pass_end(params));
    train->position = 0;
    return params->slotted && !last ? params_look_ahead(params, train) : ZERO_OK;
}

/* End sweeps, forget all slots, and mark where the gathers end. */
static zero_status retire(zi_params *params)
{
    ZI_TRY(params_finish(params, &params->schedules[1]));
    for (uint32_t u = 0; u < params->layout->unit_count; u++) {
        ZI_TRY(zi_params_leave(params, u, ZI_ON_INVALIDATE));
    }
    return param_ops_of(params)->event_record(param_self_of(params), params->gathers_done,
                                              params->desc.gather_stream);
}

zero_status zi_params_forget(zi_params *params)
{
    return retire(params);
}

zero_status zi_params_refill_begin(zi_params *params)
{
    ZI_TRY(retire(params));
    return param_ops_of(params)->event_wait(param_self_of(params), params->gathers_done, NULL);
}

zero_status zi_params_step_begin(zi_params *params, zi_stream *stream)
{
    ZI_TRY(retire(params));
    return param_ops_of(params)->stream_wait(param_self_of(params), stream, params->gathers_done,
                                             NULL);
}

zero_status zi_params_updated(zi_params *params, uint32_t unit, zi_stream *stream)
{
    return param_ops_of(params)->event_record(param_self_of(params), params->units[unit].updated,
                                              stream);
}

zero_status zi_params_step_end(zi_params *params)
{
    return params->slotted ? params_look_ahead(params, &params->schedules[0]) : ZERO_OK;
}

zi_schedule *zi_params_schedule(zi_params *params, int which)
{
    return &params->schedules[which];
}

void zi_params_reset_schedule(zi_params *params, int which)
{
    zi_schedule_reset(&params->schedules[which], params->layout, passes_of[which]);
}
