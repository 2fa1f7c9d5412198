/* Owns what is put on the gather stream so that a unit's parameters are in its slot: loads where
 * they are offloaded, the gather, and conversions where ranks exchange another type: casts, or
 * codes and scales, which callers may have in place of values. Invariants: what a batch points to
 * stays until its gather is issued; the wire buffer is used by one gather after the other, since
 * all of them are on one stream.
 */
#include "core/error.h"
#include "stage3/param_internal.h"

/* This rank's shard of a flat in its slot. */
static unsigned char *own_shard(const zi_params *params, uint32_t flat)
{
    const zi_flat *place = &params->layout->flats[flat];
    return zi_params_flat(params, flat) +
           zi_codec_offset(place->slot[ZERO_ROLE_PARAM],
                           params->desc.groups[place->sharding][ZI_HOP_GATHER]->rank *
                               zi_role_count(params->layout, place, ZERO_ROLE_PARAM));
}

/* Name the flats of the units that this sweep will gather after this one: those that are not here.
 */
static void gather_name_next(const zi_params *params, uint32_t unit, zi_shards_move *move)
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
    for (uint32_t f = place->flat_first; f < end && !zi_shards_here(params->desc.shards); f++) {
        zi_shards_move move = {
            .flat = f,
            .count = zi_role_count(params->layout, &params->layout->flats[f], ZERO_ROLE_PARAM),
            .memory = own_shard(params, f)};
        for (uint32_t next = f + 1; next < end && move.next_count < ZI_WINDOW_AHEAD; next++) {
            move.next[move.next_count++] = next;
        }
        gather_name_next(params, unit, &move);
        ZI_TRY(zi_shards_load(params->desc.shards, params->desc.gather_stream, &move));
    }
    return ZERO_OK;
}

/* A flat in the wire buffer, behind those of its unit that go through it before. */
static unsigned char *wire_of(const zi_params *params, uint32_t flat)
{
    const zi_layout *layout = params->layout;
    unsigned char *at = params->desc.slots + layout->param_wire_at;
    for (uint32_t f = layout->units[layout->flats[flat].unit].flat_first; f < flat; f++) {
        const zi_flat *before = &layout->flats[f];
        at += zi_flat_gathered_by_wire(layout, before)
                  ? zi_codec_padded_bytes(before->wire[ZERO_ROLE_PARAM], before->count)
                  : 0;
    }
    return at;
}

/* This rank's shard of a flat where a gather takes it from. */
static unsigned char *shard_of(const zi_params *params, uint32_t flat)
{
    return zi_shards_here(params->desc.shards) ? zi_shards_at(params->desc.shards, flat, 0)
                                               : own_shard(params, flat);
}

/* The gather of a flat, whose codes are for the wire buffer or for its slot. */
static zi_wire_gather wire_gather(const zi_params *params, uint32_t f)
{
    const zi_flat *flat = &params->layout->flats[f];
    const zi_group *group = params->desc.groups[flat->sharding][ZI_HOP_GATHER];
    return (zi_wire_gather){.name = params->layout->unit_infos[flat->unit].name,
                            .tag = flat->unit,
                            .rank = group->rank,
                            .size = group->size,
                            .wire = flat->wire[ZERO_ROLE_PARAM].dtype,
                            .own_dtype = flat->kept[ZERO_ROLE_PARAM].dtype,
                            .all_dtype = flat->slot[ZERO_ROLE_PARAM].dtype,
                            .count = zi_role_count(params->layout, flat, ZERO_ROLE_PARAM),
                            .own = shard_of(params, f),
                            .all = zi_params_flat(params, f),
                            .buffer = zi_flat_gathered_by_wire(params->layout, flat)
                                          ? wire_of(params, f)
                                          : zi_params_flat(params, f)};
}

/* Encode this rank's shards of the unit, or after the gather decode those of all. */
static zero_status convert_wired(const zi_params *params, uint32_t unit, bool arrived)
{
    const zi_unit_place *place = &params->layout->units[unit];
    zi_stream *stream = params->desc.gather_stream;
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &params->layout->flats[f];
        const zi_wire_gather gather = wire_gather(params, f);
        if (!arrived && !zi_flat_gathered_in_place(params->layout, flat)) {
            ZI_TRY(zi_wire_encode(&gather, params->desc.kernels, stream));
        }
        if (arrived && zi_flat_gathered_by_wire(params->layout, flat)) {
            ZI_TRY(zi_wire_decode(&gather, params->desc.kernels, stream));
        }
    }
    return ZERO_OK;
}

/* The unit's gather, into its slot or the wire buffer. *batch: out; returns its length. */
static uint32_t make_batch(zi_params *params, uint32_t unit, zi_collective **batch)
{
    const zi_unit_place *place = &params->layout->units[unit];
    uint32_t made = 0;
    *batch = params->collectives + (size_t)ZI_WIRE_COLLECTIVES * place->flat_first;
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &params->layout->flats[f];
        const zi_wire_gather gather = wire_gather(params, f);
        if (zi_flat_gathered_in_place(params->layout, flat)) {
            (*batch)[made++] =
                zi_gather_values(unit, gather.own_dtype, gather.count, gather.own, gather.all);
        } else {
            made += zi_wire_batch(&gather, *batch + made);
        }
    }
    return made;
}

zero_status zi_params_gather(zi_params *params, uint32_t unit)
{
    const zi_unit_place *place = &params->layout->units[unit];
    param_unit *target = &params->units[unit];
    zi_stream *stream = params->desc.gather_stream;
    /* An unused gather of the same unit may still be on its way and read the batch. */
    ZI_TRY(param_ops_of(params)->issue_wait(param_self_of(params), target->gathered, NULL));
    zi_collective *batch = NULL;
    const uint32_t batch_count = make_batch(params, unit, &batch);
    ZI_TRY(param_ops_of(params)->stream_wait(param_self_of(params), stream, target->updated, NULL));
    ZI_TRY(gather_load(params, unit));
    zi_group *group = params->desc.groups[place->sharding][ZI_HOP_GATHER];
    if (group->size > 1 || zi_shards_here(params->desc.shards)) {
        ZI_TRY(convert_wired(params, unit, false));
        ZI_TRY(zi_group_submit(group, stream, batch, batch_count));
        ZI_TRY(convert_wired(params, unit, true));
    }
    params->desc.stats->gather_bytes += group->size > 1 ? place->wire_bytes : 0;
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
        zi_collective *batch = NULL;
        const uint32_t batch_count = make_batch(params, u, &batch);
        const zero_status status =
            zi_group_connect(params->desc.groups[place->sharding][ZI_HOP_GATHER],
                             params->desc.gather_stream, batch, batch_count);
        unit->slot = ZI_NO_INDEX;
        ZI_TRY(status);
    }
    return ZERO_OK;
}
