/* Owns the trays of parameters. Invariant: neighbouring units of an update have different trays. */
#include "stage3/param_trays.h"

#include "core/error.h"
#include "core/memory.h"

typedef struct tray {
    zi_event *moved;
    zi_event *updated;
} tray;

struct zi_param_trays {
    zi_param_trays_desc desc;
    const zi_layout *layout;
    uint32_t *turns; /* by unit: its tray */
    tray trays[ZI_TRAYS];
    zi_event *shown;
};

static zero_status build(zi_param_trays *trays)
{
    const zi_device *device = trays->desc.device;
    const zi_layout *layout = trays->layout;
    uint32_t next = 0;
    ZI_TRY(zi_calloc(layout->unit_count, sizeof *trays->turns, (void **)&trays->turns));
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        trays->turns[u] = next % ZI_TRAYS;
        next += zi_unit_trained_count(layout, u) != 0;
    }
    for (uint32_t i = 0; i < ZI_TRAYS; i++) {
        ZI_TRY(device->ops->event_create(device->self, &trays->trays[i].moved));
        ZI_TRY(device->ops->event_create(device->self, &trays->trays[i].updated));
    }
    return device->ops->event_create(device->self, &trays->shown);
}

zero_status zi_param_trays_create(const zi_param_trays_desc *desc, zi_param_trays **out)
{
    *out = NULL;
    zi_param_trays *trays = NULL;
    ZI_TRY(zi_calloc(1, sizeof *trays, (void **)&trays));
    trays->desc = *desc;
    trays->layout = desc->layout;
    const zero_status status = build(trays);
    if (status != ZERO_OK) {
        zi_param_trays_destroy(trays);
        return status;
    }
    *out = trays;
    return ZERO_OK;
}

void zi_param_trays_destroy(zi_param_trays *trays)
{
    if (trays == NULL) {
        return;
    }
    const zi_device *device = trays->desc.device;
    for (uint32_t i = 0; i < ZI_TRAYS; i++) {
        device->ops->event_destroy(device->self, trays->trays[i].moved);
        device->ops->event_destroy(device->self, trays->trays[i].updated);
    }
    device->ops->event_destroy(device->self, trays->shown);
    zi_free(trays->turns);
    zi_free(trays);
}

/* The room of the unit's tray. */
static unsigned char *room_of(const zi_param_trays *trays, uint32_t unit)
{
    const zi_shelf_place *place = &trays->layout->shelves[ZERO_ROLE_PARAM];
    return trays->desc.slots + place->trays_at + trays->turns[unit] * place->record_bytes_max;
}

unsigned char *zi_param_trays_shard(const zi_param_trays *trays, uint32_t flat)
{
    const zi_flat *place = &trays->layout->flats[flat];
    return trays->desc.shelf != NULL ? room_of(trays, place->unit) + place->param_at
                                     : trays->desc.shards + place->param_at;
}

/* Whether the unit has a part in updates that trays serve. */
static bool is_served(const zi_param_trays *trays, uint32_t unit)
{
    return trays->desc.shelf != NULL && zi_unit_trained_count(trays->layout, unit) != 0;
}

/* All trained flats of the unit: the front of its record. */
static zi_shelf_move trained_part(const zi_param_trays *trays, uint32_t unit)
{
    const zi_layout *layout = trays->layout;
    const zi_flat *last =
        &layout->flats[layout->units[unit].flat_first + zi_unit_trained_count(layout, unit) - 1];
    return (zi_shelf_move){.record = unit,
                           .bytes = last->param_at +
                                    zi_shard_count(layout, last, layout->sharding.param) *
                                        zero_dtype_bytes(last->dtype),
                           .memory = room_of(trays, unit)};
}

/* The gather stream has moved what it was to. */
static zero_status mark(zi_param_trays *trays, uint32_t unit)
{
    const zi_device *device = trays->desc.device;
    return device->ops->event_record(device->self, trays->trays[trays->turns[unit]].moved,
                                     trays->desc.gather_stream);
}

/* An update that skips leaves in the tray what is there. Where that is stored all the same, on a
 * device whose decision the host does not see, it has to be the parameters. */
zero_status zi_param_trays_bring(zi_param_trays *trays, uint32_t unit, bool down)
{
    if (!is_served(trays, unit) ||
        (trays->desc.skip != NULL && !zi_unit_updates_in_place(trays->layout, unit))) {
        return ZERO_OK;
    }
    zi_shelf_move move = trained_part(trays, unit);
    zi_shelf_go_on(trays->desc.shelf, &move, down);
    ZI_TRY(zi_shelf_load(trays->desc.shelf, &move));
    return mark(trays, unit);
}

zero_status zi_param_trays_lend(zi_param_trays *trays, uint32_t unit)
{
    const zi_device *device = trays->desc.device;
    return is_served(trays, unit)
               ? device->ops->stream_wait(device->self, trays->desc.step_stream,
                                          trays->trays[trays->turns[unit]].moved, NULL)
               : ZERO_OK;
}

zero_status zi_param_trays_put_back(zi_param_trays *trays, uint32_t unit)
{
    const zi_device *device = trays->desc.device;
    if (!is_served(trays, unit)) {
        return ZERO_OK;
    }
    tray *own = &trays->trays[trays->turns[unit]];
    zi_shelf_move move = trained_part(trays, unit);
    move.unless = trays->desc.skip;
    move.replaces =
        zi_unit_trained_count(trays->layout, unit) == trays->layout->units[unit].flat_count;
    ZI_TRY(device->ops->event_record(device->self, own->updated, trays->desc.step_stream));
    ZI_TRY(device->ops->stream_wait(device->self, trays->desc.gather_stream, own->updated, NULL));
    ZI_TRY(zi_shelf_store(trays->desc.shelf, &move));
    return mark(trays, unit);
}

/* The gather stream is behind the step stream's last use of that memory: it has stored what the
 * last step left in this unit's tray. */
zero_status zi_param_trays_show(zi_param_trays *trays, uint32_t flat, uint64_t at, uint64_t bytes,
                                void *memory)
{
    const zi_device *device = trays->desc.device;
    const zi_flat *place = &trays->layout->flats[flat];
    zi_shelf_move move = {
        .record = place->unit, .at = place->param_at + at, .bytes = bytes, .memory = memory};
    if (trays->desc.shelf == NULL) {
        return ZERO_OK;
    }
    zi_shelf_go_on(trays->desc.shelf, &move, true); /* backward does */
    ZI_TRY(zi_shelf_load(trays->desc.shelf, &move));
    ZI_TRY(device->ops->event_record(device->self, trays->shown, trays->desc.gather_stream));
    return device->ops->stream_wait(device->self, trays->desc.step_stream, trays->shown, NULL);
}

zero_status zi_param_trays_settle(zi_param_trays *trays)
{
    const zi_device *device = trays->desc.device;
    for (uint32_t i = 0; i < ZI_TRAYS && trays->desc.shelf != NULL; i++) {
        ZI_TRY(device->ops->stream_wait(device->self, trays->desc.step_stream,
                                        trays->trays[i].moved, NULL));
    }
    return ZERO_OK;
}
