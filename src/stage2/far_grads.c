/* Owns the moves between the shelf of gradients and the trays and slots where they are added up and
 * read. Invariant: after the first micro-step of a step every record holds that step's sum. */
#include "core/error.h"
#include "stage2/grad_internal.h"

static const zi_device_ops *ops_of(const zi_grads *grads)
{
    return grads->desc.device->ops;
}

static void *self_of(const zi_grads *grads)
{
    return grads->desc.device->self;
}

unsigned char *zi_grads_tray_data(const zi_grads *grads, uint32_t bucket)
{
    const zi_shelf_place *place = &grads->layout->shelves[ZERO_ROLE_GRAD];
    return grads->desc.slots + place->trays_at + bucket % ZI_TRAYS * place->record_bytes_max;
}

/* All of a flat's shard, from or to `memory`. */
static zi_shelf_move whole_flat(const zi_grads *grads, uint32_t flat, void *memory)
{
    const zi_layout *layout = grads->layout;
    const zi_flat *place = &layout->flats[flat];
    return (zi_shelf_move){.record = place->bucket,
                           .replaces = true, /* all flats of a bucket are stored together */
                           .at = place->grad_at,
                           .bytes = zi_shard_count(layout, place, layout->sharding.grad) *
                                    zero_dtype_bytes(layout->tuning.accum_dtype),
                           .memory = memory};
}

static zero_status load_flat(zi_grads *grads, uint32_t flat, void *memory)
{
    zi_shelf_move move = whole_flat(grads, flat, memory);
    zi_shelf_go_on(grads->desc.shelf, &move, false); /* buckets are numbered in their order */
    return zi_shelf_load(grads->desc.shelf, &move);
}

zero_status zi_grads_fetch(zi_grads *grads, uint32_t bucket, bool all)
{
    const zi_layout *layout = grads->layout;
    const zi_bucket *place = &layout->buckets[bucket];
    if (grads->desc.shelf == NULL) {
        return ZERO_OK;
    }
    /* An update that began during backward may read the tray. */
    ZI_TRY(ops_of(grads)->stream_wait(self_of(grads), grads->desc.reduce_stream,
                                      grads->trays[bucket % ZI_TRAYS].taken, NULL));
    for (uint32_t i = 0; i < place->flat_count; i++) {
        const uint32_t flat = layout->bucket_flats[place->flat_first + i];
        const bool in_place = zi_flat_grad_in_place(layout, &layout->flats[flat]);
        void *target = zi_grads_shard(grads, flat);
        if (in_place && grads->buckets[bucket].slot != ZI_NO_INDEX) {
            continue; /* it is in the slot, added to */
        }
        if (all || !grads->first) {
            ZI_TRY(load_flat(grads, flat, target));
        } else if (in_place) {
            ZI_TRY(ops_of(grads)->fill(self_of(grads), grads->desc.reduce_stream, target, 0,
                                       whole_flat(grads, flat, target).bytes));
        }
    }
    return ZERO_OK;
}

zero_status zi_grads_store(zi_grads *grads, uint32_t bucket)
{
    const zi_layout *layout = grads->layout;
    const zi_bucket *place = &layout->buckets[bucket];
    for (uint32_t i = 0; i < place->flat_count && grads->desc.shelf != NULL; i++) {
        const uint32_t flat = layout->bucket_flats[place->flat_first + i];
        const zi_shelf_move move = whole_flat(grads, flat, zi_grads_shard(grads, flat));
        ZI_TRY(zi_shelf_store(grads->desc.shelf, &move));
    }
    return ZERO_OK;
}

/* Whether backward adds to sums that lie in the bucket's slot. */
static bool adds_in_slot(const zi_grads *grads, uint32_t bucket)
{
    const zi_layout *layout = grads->layout;
    const zi_bucket *place = &layout->buckets[bucket];
    for (uint32_t i = 0; i < place->flat_count && grads->desc.shelf != NULL; i++) {
        if (zi_flat_grad_in_place(layout,
                                  &layout->flats[layout->bucket_flats[place->flat_first + i]])) {
            return true;
        }
    }
    return false;
}

zero_status zi_grads_fill_slot(zi_grads *grads, uint32_t bucket, zi_stream *stream)
{
    const zi_layout *layout = grads->layout;
    const zi_bucket *place = &layout->buckets[bucket];
    zi_stream *reduce = grads->desc.reduce_stream;
    unsigned char *slot = zi_grads_slot_data(grads, bucket);
    if (grads->first || !adds_in_slot(grads, bucket)) {
        return ops_of(grads)->fill(self_of(grads), stream, slot, 0, place->slot_bytes);
    }
    ZI_TRY(ops_of(grads)->fill(self_of(grads), reduce, slot, 0, place->slot_bytes));
    for (uint32_t i = 0; i < place->flat_count; i++) {
        const uint32_t flat = layout->bucket_flats[place->flat_first + i];
        if (zi_flat_grad_in_place(layout, &layout->flats[flat])) {
            ZI_TRY(load_flat(grads, flat, zi_grads_shard(grads, flat)));
        }
    }
    ZI_TRY(ops_of(grads)->event_record(self_of(grads), grads->buckets[bucket].filled, reduce));
    return ops_of(grads)->stream_wait(self_of(grads), stream, grads->buckets[bucket].filled,
                                      &grads->desc.stats->grad_wait_ns);
}

/* The bucket that an update of the unit reads from a tray; ZI_NO_INDEX: none. */
static uint32_t lent_bucket(const zi_grads *grads, uint32_t unit)
{
    return grads->desc.shelf != NULL ? grads->layout->units[unit].bucket : ZI_NO_INDEX;
}

/* The last units are in bucket 0. What the first micro-step has not reduced yet is not the step's.
 */
static void name_next(const zi_grads *grads, zi_shelf_move *move, bool down)
{
    const uint32_t reduced = grads->next - 1 - move->record;
    zi_shelf_go_on(grads->desc.shelf, move, !down);
    if (down && grads->first && move->next_count > reduced) {
        move->next_count = reduced;
    }
}

zero_status zi_grads_bring(zi_grads *grads, uint32_t unit, bool down, const int *unless)
{
    const zi_layout *layout = grads->layout;
    const uint32_t bucket = lent_bucket(grads, unit);
    if (bucket == ZI_NO_INDEX || bucket == grads->brought) {
        return ZERO_OK;
    }
    const zi_bucket *place = &layout->buckets[bucket];
    grad_tray *tray = &grads->trays[bucket % ZI_TRAYS];
    zi_stream *reduce = grads->desc.reduce_stream;
    grads->brought = bucket;
    ZI_TRY(ops_of(grads)->stream_wait(self_of(grads), reduce, tray->taken, NULL));
    for (uint32_t i = 0; i < place->flat_count; i++) {
        const uint32_t flat = layout->bucket_flats[place->flat_first + i];
        zi_shelf_move move = {
            .record = bucket,
            .at = zi_grads_reduced_at(grads, flat),
            .bytes = zi_shard_count(layout, &layout->flats[flat], layout->sharding.optimizer) *
                     zero_dtype_bytes(layout->tuning.accum_dtype),
            .memory = zi_grads_reduced(grads, flat),
            .unless = unless};
        name_next(grads, &move, down);
        ZI_TRY(zi_shelf_load(grads->desc.shelf, &move));
    }
    return ops_of(grads)->event_record(self_of(grads), tray->moved, reduce);
}

zero_status zi_grads_lend(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const uint32_t bucket = lent_bucket(grads, unit);
    return bucket != ZI_NO_INDEX
               ? ops_of(grads)->stream_wait(self_of(grads), stream,
                                            grads->trays[bucket % ZI_TRAYS].moved, NULL)
               : ZERO_OK;
}

zero_status zi_grads_give_back(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const uint32_t bucket = lent_bucket(grads, unit);
    return bucket != ZI_NO_INDEX
               ? ops_of(grads)->event_record(self_of(grads), grads->trays[bucket % ZI_TRAYS].taken,
                                             stream)
               : ZERO_OK;
}
