/* Owns what is put on the gather stream so that a unit's parameters are in its slot: loads where
 * they are offloaded, the gather, and conversions where ranks exchange another type: casts, or
 * codes and scales. Invariants: what a batch points to stays until its gather is issued; the wire
 * buffer is used by one gather after the other, since all of them are on one stream.
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

/* A flat of the unit in the wire buffer. */
static unsigned char *wire_of(const zi_params *params, uint32_t unit, uint32_t flat)
{
    const zi_layout *layout = params->layout;
    unsigned char *at = params->desc.slots + layout->param_wire_at;
    for (uint32_t f = layout->units[unit].flat_first; f < flat; f++) {
        const zi_flat *before = &layout->flats[f];
        at += zi_flat_gathered_in_place(layout, before)
                  ? 0
                  : zi_codec_padded_bytes(before->wire[ZERO_ROLE_PARAM], before->count);
    }
    return at;
}

/* Elements of a flat in the wire buffer, in its wire's codec. */
typedef struct wire_place {
    unsigned char *values; /* or codes */
    unsigned char *scales; /* behind all codes; NULL: the codec has none */
} wire_place;

static wire_place wire_at(const zi_params *params, uint32_t unit, uint32_t flat, uint64_t element)
{
    const zi_flat *place = &params->layout->flats[flat];
    const zero_dtype wire = place->wire[ZERO_ROLE_PARAM].dtype;
    unsigned char *values = wire_of(params, unit, flat);
    wire_place at = {.values = values + element * zero_dtype_bytes(wire)};
    if (zi_dtype_is_block(wire)) {
        at.scales = values + place->count + zi_block_scales_bytes(wire, element);
    }
    return at;
}

/* This rank's shard there. */
static wire_place own_wire(const zi_params *params, uint32_t unit, uint32_t flat)
{
    const zi_flat *place = &params->layout->flats[flat];
    return wire_at(params, unit, flat,
                   params->desc.groups[place->sharding][ZI_HOP_GATHER]->rank *
                       zi_role_count(params->layout, place, ZERO_ROLE_PARAM));
}

/* This rank's shard of a flat where a gather takes it from. */
static unsigned char *shard_of(const zi_params *params, uint32_t flat)
{
    return zi_shards_here(params->desc.shards) ? zi_shards_at(params->desc.shards, flat, 0)
                                               : own_shard(params, flat);
}

/* Round this rank's shard to the wire's codec. */
static zero_status encode(const zi_params *params, uint32_t unit, uint32_t f)
{
    const zi_kernels *kernels = params->desc.kernels;
    const zi_flat *flat = &params->layout->flats[f];
    const zero_dtype wire = flat->wire[ZERO_ROLE_PARAM].dtype;
    const zero_dtype kept = flat->kept[ZERO_ROLE_PARAM].dtype;
    const uint64_t count = zi_role_count(params->layout, flat, ZERO_ROLE_PARAM);
    const wire_place to = own_wire(params, unit, f);
    zi_stream *stream = params->desc.gather_stream;
    return to.scales != NULL ? kernels->ops->encode(kernels->self, stream, to.values, to.scales,
                                                    wire, shard_of(params, f), kept, count)
                             : kernels->ops->cast(kernels->self, stream, to.values, wire,
                                                  shard_of(params, f), kept, count);
}

/* Fill the flat's place in the slot with what has come. */
static zero_status decode(const zi_params *params, uint32_t unit, uint32_t f)
{
    const zi_kernels *kernels = params->desc.kernels;
    const zi_flat *flat = &params->layout->flats[f];
    const zero_dtype wire = flat->wire[ZERO_ROLE_PARAM].dtype;
    const zero_dtype slot = flat->slot[ZERO_ROLE_PARAM].dtype;
    const wire_place from = wire_at(params, unit, f, 0);
    zi_stream *stream = params->desc.gather_stream;
    return from.scales != NULL
               ? kernels->ops->decode(kernels->self, stream, zi_params_flat(params, f), slot,
                                      from.values, from.scales, wire, flat->count)
               : kernels->ops->cast(kernels->self, stream, zi_params_flat(params, f), slot,
                                    from.values, wire, flat->count);
}

/* Encode this rank's shards of the unit, or after the gather decode those of all. */
static zero_status convert_wired(const zi_params *params, uint32_t unit, bool arrived)
{
    const zi_unit_place *place = &params->layout->units[unit];
    zi_stream *stream = params->desc.gather_stream;
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &params->layout->flats[f];
        zi_mark *mark = NULL;
        if (zi_flat_gathered_in_place(params->layout, flat)) {
            continue;
        }
        const uint64_t count =
            arrived ? flat->count : zi_role_count(params->layout, flat, ZERO_ROLE_PARAM);
        ZI_TRY(zi_stream_begin(params->desc.device, stream, ZI_SPAN_CAST,
                               params->layout->unit_infos[unit].name,
                               zi_codec_bytes(flat->wire[ZERO_ROLE_PARAM], count), &mark));
        ZI_TRY(arrived ? decode(params, unit, f) : encode(params, unit, f));
        ZI_TRY(zi_stream_end(params->desc.device, stream, mark));
    }
    return ZERO_OK;
}

/* Each rank's `count` values of a type, from this rank's to all of them. */
static zi_collective values_gather(uint32_t unit, zero_dtype dtype, uint64_t count,
                                   const void *send, void *recv)
{
    return (zi_collective){.kind = ZI_ALL_GATHER,
                           .send_dtype = dtype,
                           .recv_dtype = dtype,
                           .tag = unit,
                           .count = count,
                           .send = send,
                           .recv = recv};
}

/* The unit's gather, into its slot or the wire buffer. *batch: out; returns its length. */
static uint32_t make_batch(zi_params *params, uint32_t unit, zi_collective **batch)
{
    const zi_unit_place *place = &params->layout->units[unit];
    uint32_t made = 0;
    *batch = params->collectives + (size_t)ZI_GATHERS_PER_FLAT * place->flat_first;
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &params->layout->flats[f];
        const uint64_t count = zi_role_count(params->layout, flat, ZERO_ROLE_PARAM);
        const zero_dtype wire = flat->wire[ZERO_ROLE_PARAM].dtype;
        if (zi_flat_gathered_in_place(params->layout, flat)) {
            (*batch)[made++] = values_gather(unit, flat->kept[ZERO_ROLE_PARAM].dtype, count,
                                             shard_of(params, f), zi_params_flat(params, f));
            continue;
        }
        const wire_place own = own_wire(params, unit, f);
        const wire_place all = wire_at(params, unit, f, 0);
        (*batch)[made++] = values_gather(unit, own.scales != NULL ? ZERO_DTYPE_I8 : wire, count,
                                         own.values, all.values);
        if (own.scales != NULL) {
            (*batch)[made++] = values_gather(
                unit, ZERO_DTYPE_I8, zi_block_scales_bytes(wire, count), own.scales, all.scales);
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
