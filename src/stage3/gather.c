/* Owns what is put on the gather stream so that a unit's parameters are in its slot: loads where
 * they are offloaded, and the gather. Invariant: what a batch points to stays until its gather is
 * issued.
 */
#include "core/error.h"
#include "stage3/param_internal.h"

/* This rank's own part of a flat in its slot. */
static unsigned char *own_part(const zi_params *params, uint32_t flat)
{
    const zi_flat *place = &params->layout->flats[flat];
    return zi_params_flat(params, flat) +
           zi_codec_offset(place->wire[ZERO_ROLE_PARAM],
                           params->desc.gather[place->sharding]->rank *
                               zi_role_count(params->layout, place, ZERO_ROLE_PARAM));
}

/* Name the flats of the units that this sweep will gather after this one: those that are not here.
 */
static void gather_name_next(const zi_params *params, uint32_t unit, zi_offload_move *move)
{
    const zi_schedule *sweep = params->sweep;
    uint32_t at = sweep->position != 0 ? sweep->position - 1 : 0;
    while (at < sweep->count && sweep->entries[at].unit != unit) {
        at++;
    }
    for (uint32_t i = at + 1; i < sweep->count && move->next_count < ZI_WINDOW_AHEAD; i++) {
        const zi_unit_place *next = &params->layout->units[sweep->entries[i].unit];
        bool wanted = sweep->entries[i].unit != unit && next->slot_bytes != 0 &&
                      params->units[sweep->entries[i].unit].state == ZI_UNIT_ABSENT;
        for (uint32_t k = 0; k < move->next_count; k++) {
            wanted = wanted && move->next[k] != next->flat_first;
        }
        for (uint32_t f = 0; wanted && f < next->flat_count; f++) {
            if (move->next_count < ZI_WINDOW_AHEAD) {
                move->next[move->next_count++] = next->flat_first + f;
            }
        }
    }
}

/* Load this rank's shard of the unit into its slot, where peers read it. */
static zero_status gather_load(zi_params *params, uint32_t unit)
{
    const zi_unit_place *place = &params->layout->units[unit];
    const uint32_t end = place->flat_first + place->flat_count;
    for (uint32_t f = place->flat_first; f < end && params->desc.offload != NULL; f++) {
        zi_offload_move move = {
            .flat = f, .count = params->collectives[f].count, .memory = own_part(params, f)};
        for (uint32_t next = f + 1; next < end && move.next_count < ZI_WINDOW_AHEAD; next++) {
            move.next[move.next_count++] = next;
        }
        gather_name_next(params, unit, &move);
        ZI_TRY(zi_offload_load(params->desc.offload, params->desc.gather_stream, &move));
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
            .send_dtype = flat->wire[ZERO_ROLE_PARAM].dtype,
            .recv_dtype = flat->wire[ZERO_ROLE_PARAM].dtype,
            .tag = unit,
            .count = zi_role_count(params->layout, flat, ZERO_ROLE_PARAM),
            .send = params->desc.offload != NULL ? own_part(params, f)
                                                 : params->desc.shards + flat->at[ZERO_ROLE_PARAM],
            .recv = zi_params_flat(params, f)};
    }
}

zero_status zi_params_gather(zi_params *params, uint32_t unit)
{
    const zi_unit_place *place = &params->layout->units[unit];
    param_unit *target = &params->units[unit];
    zi_stream *stream = params->desc.gather_stream;
    /* An unused gather of the same unit may still be on its way and read the batch. */
    ZI_TRY(param_ops_of(params)->issue_wait(param_self_of(params), target->gathered, NULL));
    make_batch(params, unit);
    ZI_TRY(param_ops_of(params)->stream_wait(param_self_of(params), stream, target->updated, NULL));
    ZI_TRY(gather_load(params, unit));
    zi_group *group = params->desc.gather[place->sharding];
    if (group->size > 1 || params->desc.offload == NULL) {
        ZI_TRY(zi_group_submit(group, stream, &params->collectives[place->flat_first],
                               place->flat_count));
    }
    params->desc.stats->gather_bytes += group->size > 1 ? place->slot_bytes : 0;
    params->desc.stats->gathers++;
    return param_ops_of(params)->event_record(param_self_of(params), target->gathered, stream);
}

zero_status zi_params_connect(zi_params *params)
{
    for (uint32_t u = 0; u < params->layout->unit_count; u++) {
        const zi_unit_place *place = &params->layout->units[u];
        param_unit *unit = &params->units[u];
        if (unit->shown != NULL) {
            ZI_TRY(zi_params_hide_both(params, u, params->desc.gather_stream));
        }
        if (!params->slotted || place->param_class == ZI_NO_INDEX) {
            continue;
        }
        unit->slot = unit->fixed_slot != ZI_NO_INDEX ? unit->fixed_slot : 0; /* all are empty */
        make_batch(params, u);
        const zero_status status =
            zi_group_connect(params->desc.gather[place->sharding], params->desc.gather_stream,
                             &params->collectives[place->flat_first], place->flat_count);
        unit->slot = ZI_NO_INDEX;
        ZI_TRY(status);
    }
    return ZERO_OK;
}
