/* Owns the slots of parameters: which unit has which, and which of them is evicted for another.
 * Invariant: what is chosen follows from the schedule alone, so that all ranks evict the same. */
#include <inttypes.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "stage3/param_internal.h"

/* In registered memory, which may be symmetric windows, a unit must be gathered to the same place
 * on all ranks. With free choice that may fail: a rank that still holds a unit evicts another one
 * than a rank that has left it out. So there the units of a class take its slots in turn, whatever
 * ranks hold. */
static void fix_slots(zi_params *params)
{
    const zi_layout *layout = params->layout;
    const bool fixed = layout->can.registered;
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        params->units[u].slot = ZI_NO_INDEX;
        params->units[u].fixed_slot = ZI_NO_INDEX;
    }
    for (uint32_t c = 0; fixed && c < layout->param_class_count; c++) {
        uint32_t next = 0;
        for (uint32_t u = 0; u < layout->unit_count; u++) {
            if (layout->units[u].param_class == c) {
                params->units[u].fixed_slot = next++ % layout->param_classes[c].slot_count;
            }
        }
    }
}

zero_status zi_params_make_slots(zi_params *params)
{
    const zi_layout *layout = params->layout;
    const uint32_t count = zi_slot_count(layout->param_classes, layout->param_class_count);
    ZI_TRY(zi_calloc(count, sizeof *params->slot_units, (void **)&params->slot_units));
    for (uint32_t i = 0; i < count; i++) {
        params->slot_units[i] = ZI_NO_INDEX;
    }
    fix_slots(params);
    return ZERO_OK;
}

unsigned char *zi_params_slot_data(const zi_params *params, uint32_t unit)
{
    const zi_slot_class *class =
        &params->layout->param_classes[params->layout->units[unit].param_class];
    return params->desc.slots + class->slots_at + params->units[unit].slot * class->slot_bytes;
}

unsigned char *zi_params_flat(const zi_params *params, uint32_t flat)
{
    const zi_flat *place = &params->layout->flats[flat];
    return params->slotted ? zi_params_slot_data(params, place->unit) + place->slot_at
                           : params->arena + place->at[ZERO_ROLE_PARAM];
}

/* Give the slot back: from here on the gather stream may overwrite it, once its readers are done.
 */
static zero_status param_slots_free_slot(zi_params *params, uint32_t unit)
{
    param_unit *holder = &params->units[unit];
    if (!params->slotted || holder->slot == ZI_NO_INDEX) {
        return ZERO_OK;
    }
    const zi_unit_place *place = &params->layout->units[unit];
    zi_stream *stream = params->desc.gather_stream;
    ZI_TRY(
        param_ops_of(params)->stream_wait(param_self_of(params), stream, holder->released, NULL));
    params
        ->slot_units[params->layout->param_classes[place->param_class].slot_first + holder->slot] =
        ZI_NO_INDEX;
    holder->slot = ZI_NO_INDEX;
    return ZERO_OK;
}

zero_status zi_params_leave(zi_params *params, uint32_t unit, zi_unit_event event)
{
    const zi_unit_step step = zi_unit_on(params->units[unit].state, event);
    zi_assert(step.action != ZI_DO_REFUSE);
    if (step.action == ZI_DO_FREE) {
        ZI_TRY(param_slots_free_slot(params, unit));
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
    const uint32_t fixed = params->units[taker].fixed_slot;
    const uint32_t *holders = params->slot_units + params->layout->param_classes[class].slot_first;
    uint32_t best = ZI_NO_INDEX;
    for (uint32_t s = 0; s < params->layout->param_classes[class].slot_count; s++) {
        if (fixed != ZI_NO_INDEX && fixed != s) {
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

zero_status zi_params_take_slot(zi_params *params, uint32_t unit, bool may_drop, bool *taken)
{
    const uint32_t class = params->layout->units[unit].param_class;
    const uint32_t slot = choose_slot(params, unit, may_drop);
    *taken = slot != ZI_NO_INDEX;
    if (!*taken) {
        return ZERO_OK;
    }
    uint32_t *holder = &params->slot_units[params->layout->param_classes[class].slot_first + slot];
    if (*holder != ZI_NO_INDEX) {
        ZI_TRY(zi_params_leave(params, *holder, ZI_ON_EVICT));
    }
    *holder = unit;
    params->units[unit].slot = slot;
    return ZERO_OK;
}

zero_status zi_params_no_slot(const zi_params *params, uint32_t unit)
{
    const uint32_t class = params->layout->units[unit].param_class;
    const uint32_t *holders = params->slot_units + params->layout->param_classes[class].slot_first;
    const uint32_t count = params->layout->param_classes[class].slot_count;
    const uint32_t fixed = params->units[unit].fixed_slot;
    if (fixed != ZI_NO_INDEX) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.40s\" finds its slot held by unit %" PRIu32
                " \"%.40s\": in registered memory units of a size take %" PRIu32
                " slots in turn; release that one first, or change param_slots",
                unit, params->layout->unit_infos[unit].name, holders[fixed],
                params->layout->unit_infos[holders[fixed]].name, count);
    }
    ZI_FAIL(ZERO_ERR_STATE,
            "unit %" PRIu32 " \"%.40s\" finds all %" PRIu32 " slots of its size held (unit %" PRIu32
            " \"%.40s\" among them); release one first, or set param_slots to %" PRIu32 " or more",
            unit, params->layout->unit_infos[unit].name, count, holders[0],
            params->layout->unit_infos[holders[0]].name, count + 1);
}
