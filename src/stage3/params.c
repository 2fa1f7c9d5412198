/* Owns the parameter slots and the unit states.
 * Invariant: a unit that is not ABSENT and has a class holds exactly one slot of it. */
#include "stage3/params.h"

#include <inttypes.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "stage3/unit_state.h"

typedef struct param_unit {
    zi_unit_state state;
    uint32_t use_count; /* acquires, by any name */
    uint32_t own_count; /* of these, by the unit's own name */
    uint32_t slot;      /* in its class; ZI_NO_INDEX: none */
    uint32_t turn;      /* the only slot that it may take; ZI_NO_INDEX: any */
    uint64_t touched;   /* when the schedule last came by; the smallest is evicted first */
    zi_event *gathered;
    zi_event *released;
    zi_event *updated;
} param_unit;

/* Passes of each schedule. */
static const zero_pass passes_of[ZI_SCHEDULES][3] = {{ZERO_PASS_FORWARD, ZERO_PASS_BACKWARD},
                                                     {ZERO_PASS_EVAL}};

struct zi_params {
    zi_params_desc desc;
    const zi_layout *layout;
    bool slotted; /* split or far: gathers or loads are real */
    uint32_t look_ahead;
    uint64_t clock; /* of `touched` */
    param_unit *units;
    zi_collective *collectives; /* by flat; a unit's are neighbours, so they are its batch */
    uint32_t *slot_units;       /* holder of each slot, all classes end to end */
    uint32_t *class_slots;      /* first of a class in slot_units */
    zi_event *gathers_done;     /* gather stream, before a step */
    const zi_schedule *sweep;   /* gathers follow it now */
    zi_schedule schedules[ZI_SCHEDULES];
};

static const zi_device_ops *ops_of(const zi_params *params)
{
    return params->desc.device->ops;
}

static void *self_of(const zi_params *params)
{
    return params->desc.device->self;
}

static zero_status allocate(zi_params *params)
{
    const zi_layout *layout = params->layout;
    uint32_t slot_count = 0;
    for (uint32_t i = 0; i < layout->param_class_count; i++) {
        slot_count += layout->param_classes[i].slot_count;
    }
    ZI_TRY(zi_calloc(layout->unit_count, sizeof *params->units, (void **)&params->units));
    ZI_TRY(
        zi_calloc(layout->flat_count, sizeof *params->collectives, (void **)&params->collectives));
    ZI_TRY(zi_calloc(slot_count, sizeof *params->slot_units, (void **)&params->slot_units));
    ZI_TRY(zi_calloc(layout->param_class_count, sizeof *params->class_slots,
                     (void **)&params->class_slots));
    uint32_t next = 0;
    for (uint32_t i = 0; i < layout->param_class_count; i++) {
        params->class_slots[i] = next;
        next += layout->param_classes[i].slot_count;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        params->slot_units[i] = ZI_NO_INDEX;
    }
    return ZERO_OK;
}

/* Over symmetric windows a unit must be gathered to the same place on all ranks. With free choice
 * that may fail: a rank that still holds a unit evicts another one than a rank that has left it
 * out. So there the units of a class take its slots in turn, whatever ranks hold. */
static void set_turns(zi_params *params)
{
    const zi_layout *layout = params->layout;
    const bool fixed = layout->options.nccl_memory == ZERO_NCCL_MEMORY_SYMMETRIC;
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        params->units[u].turn = ZI_NO_INDEX;
    }
    for (uint32_t c = 0; fixed && c < layout->param_class_count; c++) {
        uint32_t next = 0;
        for (uint32_t u = 0; u < layout->unit_count; u++) {
            if (layout->units[u].param_class == c) {
                params->units[u].turn = next++ % layout->param_classes[c].slot_count;
            }
        }
    }
}

static zero_status build(zi_params *params)
{
    ZI_TRY(allocate(params));
    set_turns(params);
    for (uint32_t u = 0; u < params->layout->unit_count; u++) {
        param_unit *unit = &params->units[u];
        unit->slot = ZI_NO_INDEX;
        ZI_TRY(ops_of(params)->event_create(self_of(params), &unit->gathered));
        ZI_TRY(ops_of(params)->event_create(self_of(params), &unit->released));
        ZI_TRY(ops_of(params)->event_create(self_of(params), &unit->updated));
    }
    ZI_TRY(ops_of(params)->event_create(self_of(params), &params->gathers_done));
    ZI_TRY(zi_schedule_create(params->layout, passes_of[0], &params->schedules[0]));
    return zi_schedule_create(params->layout, passes_of[1], &params->schedules[1]);
}

zero_status zi_params_create(const zi_params_desc *desc, zi_params **out)
{
    *out = NULL;
    zi_params *params = NULL;
    ZI_TRY(zi_calloc(1, sizeof *params, (void **)&params));
    params->desc = *desc;
    params->layout = desc->layout;
    params->slotted = zi_params_in_slots(desc->layout);
    params->look_ahead = desc->layout->options.no_prefetch ? 0 : desc->layout->options.look_ahead;
    const zero_status status = build(params);
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
        ops_of(params)->event_destroy(self_of(params), params->units[u].gathered);
        ops_of(params)->event_destroy(self_of(params), params->units[u].released);
        ops_of(params)->event_destroy(self_of(params), params->units[u].updated);
    }
    ops_of(params)->event_destroy(self_of(params), params->gathers_done);
    for (int i = 0; i < ZI_SCHEDULES; i++) {
        zi_schedule_destroy(&params->schedules[i]);
    }
    zi_free(params->units);
    zi_free(params->collectives);
    zi_free(params->slot_units);
    zi_free(params->class_slots);
    zi_free(params);
}

static unsigned char *slot_data(const zi_params *params, uint32_t unit)
{
    const zi_slot_class *class =
        &params->layout->param_classes[params->layout->units[unit].param_class];
    return params->desc.slots + class->slots_at + params->units[unit].slot * class->slot_bytes;
}

static unsigned char *flat_data(const zi_params *params, uint32_t flat)
{
    const zi_flat *place = &params->layout->flats[flat];
    return params->slotted ? slot_data(params, place->unit) + place->slot_at
                           : params->desc.shards + place->param_at;
}

/* Give the slot back: from here on the gather stream may overwrite it, once its readers are done.
 */
static zero_status free_slot(zi_params *params, uint32_t unit)
{
    param_unit *holder = &params->units[unit];
    if (!params->slotted || holder->slot == ZI_NO_INDEX) {
        return ZERO_OK;
    }
    const zi_unit_place *place = &params->layout->units[unit];
    zi_stream *stream = params->desc.gather_stream;
    ZI_TRY(ops_of(params)->stream_wait(self_of(params), stream, holder->released, NULL));
    if (params->layout->options.poison_released) {
        ZI_TRY(ops_of(params)->fill(self_of(params), stream, slot_data(params, unit), 0xFF,
                                    place->slot_bytes));
    }
    params->slot_units[params->class_slots[place->param_class] + holder->slot] = ZI_NO_INDEX;
    holder->slot = ZI_NO_INDEX;
    return ZERO_OK;
}

static zero_status leave(zi_params *params, uint32_t unit, zi_unit_event event)
{
    const zi_unit_step step = zi_unit_on(params->units[unit].state, event);
    zi_assert(step.action != ZI_DO_REFUSE);
    if (step.action == ZI_DO_FREE) {
        ZI_TRY(free_slot(params, unit));
    }
    params->units[unit].state = step.next;
    return ZERO_OK;
}

/* The slot's holder that may be evicted first: released ones before those nobody has used yet, and
 * of these the one the schedule came by longest ago. Returns a slot of the unit's class that it may
 * take (empty ones first), or ZI_NO_INDEX. */
static uint32_t choose_slot(const zi_params *params, uint32_t taker, bool may_drop)
{
    const uint32_t class = params->layout->units[taker].param_class;
    const uint32_t turn = params->units[taker].turn;
    const uint32_t *holders = params->slot_units + params->class_slots[class];
    uint32_t best = ZI_NO_INDEX;
    for (uint32_t s = 0; s < params->layout->param_classes[class].slot_count; s++) {
        if (turn != ZI_NO_INDEX && turn != s) {
            continue;
        }
        if (holders[s] == ZI_NO_INDEX) {
            return s;
        }
        const param_unit *unit = &params->units[holders[s]];
        if (unit->state == ZI_UNIT_IN_USE || (unit->state == ZI_UNIT_GATHERING && !may_drop)) {
            continue;
        }
        const param_unit *rival = best == ZI_NO_INDEX ? NULL : &params->units[holders[best]];
        const bool better = rival == NULL ||
                            (unit->state == ZI_UNIT_READY && rival->state != ZI_UNIT_READY) ||
                            (unit->state == rival->state && unit->touched < rival->touched);
        best = better ? s : best;
    }
    return best;
}

static zero_status no_slot(const zi_params *params, uint32_t unit)
{
    const uint32_t class = params->layout->units[unit].param_class;
    const uint32_t *holders = params->slot_units + params->class_slots[class];
    const uint32_t count = params->layout->param_classes[class].slot_count;
    const uint32_t turn = params->units[unit].turn;
    if (turn != ZI_NO_INDEX) {
        ZI_FAIL(ZERO_STATE,
                "unit %" PRIu32 " \"%.40s\" finds its slot held by unit %" PRIu32
                " \"%.40s\": over symmetric windows units of a size take %" PRIu32
                " slots in turn; release that one first, or change param_slots",
                unit, params->layout->unit_infos[unit].name, holders[turn],
                params->layout->unit_infos[holders[turn]].name, count);
    }
    ZI_FAIL(ZERO_STATE,
            "unit %" PRIu32 " \"%.40s\" finds all %" PRIu32 " slots of its size held (unit %" PRIu32
            " \"%.40s\" among them); release one first, or set param_slots to %" PRIu32 " or more",
            unit, params->layout->unit_infos[unit].name, count, holders[0],
            params->layout->unit_infos[holders[0]].name, count + 1);
}

/* This rank's own part of a flat in its slot. */
static unsigned char *own_part(const zi_params *params, uint32_t flat)
{
    const zi_flat *place = &params->layout->flats[flat];
    return flat_data(params, flat) +
           params->desc.gather->rank *
               zi_shard_count(params->layout, place, params->layout->sharding.param) *
               zero_dtype_bytes(place->dtype);
}

/* Name the units that this sweep will gather after this one: those that are not here. */
static void name_next(const zi_params *params, zi_shelf_move *move)
{
    const zi_schedule *sweep = params->sweep;
    uint32_t at = sweep->position != 0 ? sweep->position - 1 : 0;
    while (at < sweep->count && sweep->entries[at].unit != move->record) {
        at++;
    }
    for (uint32_t i = at + 1; i < sweep->count && move->next_count < ZI_RING_AHEAD; i++) {
        const uint32_t unit = sweep->entries[i].unit;
        bool wanted = unit != move->record && params->layout->units[unit].slot_bytes != 0 &&
                      params->units[unit].state == ZI_UNIT_ABSENT;
        for (uint32_t k = 0; k < move->next_count; k++) {
            wanted = wanted && move->next[k] != unit;
        }
        if (wanted) {
            move->next[move->next_count++] = unit;
        }
    }
}

/* Bring this rank's shard of the unit into its slot, where peers read it. */
static zero_status load(zi_params *params, uint32_t unit)
{
    const zi_unit_place *place = &params->layout->units[unit];
    zi_shelf_move move = {.record = unit};
    if (params->desc.shelf == NULL) {
        return ZERO_OK;
    }
    name_next(params, &move);
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        move.at = params->layout->flats[f].param_at;
        move.bytes =
            params->collectives[f].count * zero_dtype_bytes(params->layout->flats[f].dtype);
        move.memory = own_part(params, f);
        ZI_TRY(zi_shelf_load(params->desc.shelf, &move));
    }
    return ZERO_OK;
}

/* The unit's gather into its slot. */
static void make_batch(zi_params *params, uint32_t unit)
{
    const zi_unit_place *place = &params->layout->units[unit];
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &params->layout->flats[f];
        params->collectives[f] = (zi_collective){
            .kind = ZI_ALL_GATHER,
            .send_dtype = flat->dtype,
            .recv_dtype = flat->dtype,
            .tag = unit,
            .count = zi_shard_count(params->layout, flat, params->layout->sharding.param),
            .send = params->desc.shelf != NULL ? own_part(params, f)
                                               : params->desc.shards + flat->param_at,
            .recv = flat_data(params, f)};
    }
}

static zero_status enqueue_gather(zi_params *params, uint32_t unit)
{
    const zi_unit_place *place = &params->layout->units[unit];
    param_unit *target = &params->units[unit];
    zi_stream *stream = params->desc.gather_stream;
    /* An unused gather of the same unit may still be on its way and read the batch. */
    ZI_TRY(ops_of(params)->issue_wait(self_of(params), target->gathered, NULL));
    make_batch(params, unit);
    ZI_TRY(ops_of(params)->stream_wait(self_of(params), stream, target->updated, NULL));
    ZI_TRY(load(params, unit));
    if (params->desc.gather->size > 1) {
        ZI_TRY(zi_group_submit(params->desc.gather, stream, &params->collectives[place->flat_first],
                               place->flat_count));
        params->desc.stats->gather_bytes += place->slot_bytes;
    }
    params->desc.stats->gathers++;
    return ops_of(params)->event_record(self_of(params), target->gathered, stream);
}

zero_status zi_params_connect(zi_params *params)
{
    for (uint32_t u = 0; u < params->layout->unit_count; u++) {
        const zi_unit_place *place = &params->layout->units[u];
        param_unit *unit = &params->units[u];
        if (!params->slotted || place->param_class == ZI_NO_INDEX) {
            continue;
        }
        unit->slot = unit->turn != ZI_NO_INDEX ? unit->turn : 0; /* all are empty */
        make_batch(params, u);
        const zero_status status =
            zi_group_connect(params->desc.gather, params->desc.gather_stream,
                             &params->collectives[place->flat_first], place->flat_count);
        unit->slot = ZI_NO_INDEX;
        ZI_TRY(status);
    }
    return ZERO_OK;
}

/* A slot for the unit and its gather. *taken false: there is no slot without dropping another's
 * unused gather. */
static zero_status gather(zi_params *params, uint32_t unit, bool may_drop, bool *taken)
{
    const uint32_t class = params->layout->units[unit].param_class;
    *taken = true;
    if (!params->slotted || class == ZI_NO_INDEX) {
        return ZERO_OK;
    }
    const uint32_t slot = choose_slot(params, unit, may_drop);
    if (slot == ZI_NO_INDEX) {
        *taken = false;
        return ZERO_OK;
    }
    uint32_t *holder = &params->slot_units[params->class_slots[class] + slot];
    if (*holder != ZI_NO_INDEX) {
        ZI_TRY(leave(params, *holder, ZI_ON_EVICT));
    }
    *holder = unit;
    params->units[unit].slot = slot;
    return enqueue_gather(params, unit);
}

/* Take part in the unit's gather if it is not here. *taken as in gather(). */
static zero_status fetch(zi_params *params, uint32_t unit, bool may_drop, bool *taken)
{
    const zi_unit_step step = zi_unit_on(params->units[unit].state, ZI_ON_FETCH);
    *taken = true;
    if (step.action == ZI_DO_GATHER) {
        ZI_TRY(gather(params, unit, may_drop, taken));
    }
    if (*taken) {
        params->units[unit].state = step.next;
        params->units[unit].touched = ++params->clock;
    }
    return ZERO_OK;
}

/* Walk over the schedule up to, not including, `end`, taking part in every gather on the way. */
static zero_status walk(zi_params *params, zi_schedule *schedule, uint32_t end)
{
    params->sweep = schedule;
    while (schedule->position < end) {
        const uint32_t unit = schedule->entries[schedule->position].unit;
        bool taken = false;
        ZI_TRY(fetch(params, unit, true, &taken));
        if (!taken) {
            return no_slot(params, unit);
        }
        /* Left out here, but perhaps used and released elsewhere: all ranks must choose the same
         * victims. */
        params->units[unit].state = zi_unit_on(params->units[unit].state, ZI_ON_PASS).next;
        schedule->position++;
    }
    return ZERO_OK;
}

static zero_status look_ahead(zi_params *params, const zi_schedule *schedule)
{
    params->sweep = schedule;
    for (uint32_t i = 0; i < params->look_ahead; i++) {
        const uint32_t next = schedule->position + i;
        bool taken = true;
        if (next < schedule->count) {
            ZI_TRY(fetch(params, schedule->entries[next].unit, false, &taken));
        }
        if (!taken) {
            break; /* gathers stay in the schedule's order: nothing overtakes this one */
        }
    }
    return ZERO_OK;
}

/* Bring the schedule to just behind the entry of this acquire. *foreseen false: it has none, and
 * the unit is here, so that no other rank need know. */
static zero_status follow(zi_params *params, zi_schedule_entry wanted, bool *foreseen)
{
    const bool eval = wanted.pass == ZERO_PASS_EVAL;
    zi_schedule *schedule = &params->schedules[eval];
    uint32_t found = zi_schedule_find(schedule, wanted);
    if (found == ZI_NO_INDEX && eval) {
        /* A new sweep: finish the last one first, as ranks that went further did. */
        ZI_TRY(walk(params, schedule, schedule->count));
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
    ZI_TRY(walk(params, schedule, found));
    schedule->entries[found].used = 1;
    schedule->position = found + 1;
    return ZERO_OK;
}

static zero_status acquire_first(zi_params *params, zi_schedule_entry wanted)
{
    param_unit *target = &params->units[wanted.unit];
    bool foreseen = false;
    ZI_TRY(follow(params, wanted, &foreseen));
    if (zi_unit_on(target->state, ZI_ON_ACQUIRE).action == ZI_DO_GATHER_AWAIT) {
        bool taken = false;
        ZI_TRY(gather(params, wanted.unit, true, &taken));
        if (!taken) {
            return no_slot(params, wanted.unit);
        }
    } else {
        params->desc.stats->gathers_hit++;
    }
    if (foreseen) {
        target->touched = ++params->clock; /* where all ranks do, or none */
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
        ZI_TRY(look_ahead(params, &params->schedules[pass == ZERO_PASS_EVAL]));
    }
    return ops_of(params)->stream_wait(self_of(params), stream,
                                       params->slotted ? target->gathered : target->updated,
                                       &params->desc.stats->acquire_wait_ns);
}

zero_status zi_params_release(zi_params *params, uint32_t unit, uint32_t via, zi_stream *stream)
{
    param_unit *target = &params->units[unit];
    const zi_unit_event event = target->use_count > 1 ? ZI_ON_RELEASE : ZI_ON_RELEASE_LAST;
    const zi_unit_step step = zi_unit_on(target->state, event);
    const bool own = unit == via;
    if (step.action == ZI_DO_REFUSE || (own && target->own_count == 0)) {
        ZI_FAIL(ZERO_STATE,
                "unit %" PRIu32 " \"%.60s\" is %s, not acquired%s; release it once per acquire",
                unit, params->layout->unit_infos[unit].name, zi_unit_state_name(target->state),
                target->use_count != 0 ? " by its own name" : "");
    }
    target->state = step.next;
    target->use_count--;
    target->own_count -= own;
    if (!params->slotted || target->use_count != 0) {
        return ZERO_OK;
    }
    return ops_of(params)->event_record(self_of(params), target->released, stream);
}

void *zi_params_data(const zi_params *params, uint32_t tensor)
{
    const zi_tensor_place *place = &params->layout->tensors[tensor];
    const zi_flat *flat = &params->layout->flats[place->flat];
    if (params->units[flat->unit].state != ZI_UNIT_IN_USE) {
        return NULL;
    }
    return flat_data(params, place->flat) + place->offset * zero_dtype_bytes(flat->dtype);
}

bool zi_params_in_use(const zi_params *params, uint32_t unit)
{
    return params->units[unit].state == ZI_UNIT_IN_USE;
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
static zero_status finish(zi_params *params, zi_schedule *schedule)
{
    if (params->slotted && schedule->position != 0) {
        ZI_TRY(walk(params, schedule, schedule->count));
    }
    schedule->position = 0;
    return ZERO_OK;
}

zero_status zi_params_micro_begin(zi_params *params)
{
    ZI_TRY(finish(params, &params->schedules[1]));
    return params->slotted ? look_ahead(params, &params->schedules[0]) : ZERO_OK;
}

zero_status zi_params_micro_end(zi_params *params, bool last)
{
    zi_schedule *train = &params->schedules[0];
    if (params->slotted) {
        /* Also when this rank used nothing at all: the others may have. */
        ZI_TRY(walk(params, train, train->count));
    }
    train->position = 0;
    return params->slotted && !last ? look_ahead(params, train) : ZERO_OK;
}

/* End sweeps, forget all slots, and mark where the gathers end. */
static zero_status retire(zi_params *params)
{
    ZI_TRY(finish(params, &params->schedules[1]));
    for (uint32_t u = 0; u < params->layout->unit_count; u++) {
        ZI_TRY(leave(params, u, ZI_ON_INVALIDATE));
    }
    return ops_of(params)->event_record(self_of(params), params->gathers_done,
                                        params->desc.gather_stream);
}

zero_status zi_params_forget(zi_params *params)
{
    return retire(params);
}

zero_status zi_params_refill_begin(zi_params *params)
{
    ZI_TRY(retire(params));
    return ops_of(params)->event_wait(self_of(params), params->gathers_done, NULL);
}

zero_status zi_params_step_begin(zi_params *params, zi_stream *stream)
{
    ZI_TRY(retire(params));
    return ops_of(params)->stream_wait(self_of(params), stream, params->gathers_done, NULL);
}

zero_status zi_params_updated(zi_params *params, uint32_t unit, zi_stream *stream)
{
    return ops_of(params)->event_record(self_of(params), params->units[unit].updated, stream);
}

zero_status zi_params_step_end(zi_params *params)
{
    return params->slotted ? look_ahead(params, &params->schedules[0]) : ZERO_OK;
}

zi_schedule *zi_params_schedule(zi_params *params, int which)
{
    return &params->schedules[which];
}

void zi_params_reset_schedule(zi_params *params, int which)
{
    zi_schedule_reset(&params->schedules[which], params->layout, passes_of[which]);
}
