/* Owns the grouping of units into buckets, and of units and buckets into classes that share slots.
 */
#include <stdlib.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "layout/layout.h"

/* Add a unit's trained flats to the bucket that is open. Returns the bytes of their gradients. */
static uint64_t fill_bucket(zi_layout *layout, zi_bucket *bucket, uint32_t index, uint32_t unit)
{
    const zi_unit_place *place = &layout->units[unit];
    const uint32_t end = place->flat_first + zi_unit_trained_count(layout, unit);
    uint64_t grad_bytes = 0;
    for (uint32_t f = place->flat_first; f < end; f++) {
        zi_flat *flat = &layout->flats[f];
        const uint64_t bytes = zi_codec_padded_bytes(flat->slot[ZERO_ROLE_GRAD], flat->count);
        grad_bytes += bytes;
        flat->bucket = index;
        layout->bucket_flats[bucket->flat_first + bucket->flat_count++] = f;
        if (zi_flat_grad_in_slot(layout, flat)) {
            flat->grad_slot_at = bucket->slot_bytes;
            bucket->slot_bytes += bytes;
        }
        bucket->wire_bytes += zi_codec_padded_bytes(flat->wire[ZERO_ROLE_GRAD], flat->count);
    }
    bucket->unit_count++;
    bucket->tied = place->tied_by != 0;
    layout->units[unit].bucket = index;
    return grad_bytes;
}

/* True if a trained flat's gradients cross ranks in another codec than they lie in. */
static bool is_grad_cast(const zi_layout *layout, const zi_flat *flat)
{
    bool cast = false;
    for (int i = 0; i < ZI_HOPS; i++) {
        const zi_hop_kind kind = (zi_hop_kind)i;
        const zi_hop *hop = &layout->routes[flat->sharding][kind];
        const zi_codec source = zi_hop_source(flat, kind);
        cast = cast || (hop->sums && zi_hop_crosses(hop) &&
                        (!zi_codec_same(zi_hop_wire(flat, hop, kind, true), source) ||
                         !zi_codec_same(zi_hop_wire(flat, hop, kind, false), source)));
    }
    return cast;
}

/* True if they do anywhere, may do so where ranks are on several hosts, or zeros are sent. */
static bool needs_grad_wire(const zi_layout *layout)
{
    bool needs = zi_grads_sends_zeros(layout);
    const bool hosts = layout->tuning.host_wire_dtype != ZERO_DTYPE_DEFAULT;
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const zi_flat *flat = &layout->flats[f];
        needs = needs || (flat->trained && (hosts || is_grad_cast(layout, flat)));
    }
    return needs;
}

zero_status zi_layout_make_buckets(zi_layout *layout)
{
    ZI_TRY(zi_calloc(layout->unit_count, sizeof *layout->buckets, (void **)&layout->buckets));
    ZI_TRY(zi_calloc(layout->flat_count, sizeof *layout->bucket_flats,
                     (void **)&layout->bucket_flats));
    uint32_t flats = 0;
    uint64_t open_bytes = 0;
    bool open = false;
    for (uint32_t i = layout->unit_count; i-- > 0;) {
        layout->units[i].bucket = ZI_NO_INDEX;
        const uint32_t trained = zi_unit_trained_count(layout, i);
        if (trained == 0) {
            continue;
        }
        /* A tied owner waits for more than its neighbours do, so it never shares. */
        const bool alone = layout->units[i].tied_by != 0;
        if (!open || alone ||
            layout->buckets[layout->bucket_count - 1].sharding != layout->units[i].sharding ||
            layout->buckets[layout->bucket_count - 1].flat_count + trained > ZI_BUCKET_FLATS_MAX) {
            layout->buckets[layout->bucket_count++] =
                (zi_bucket){.flat_first = flats,
                            .sharding = layout->units[i].sharding,
                            .grad_class = ZI_NO_INDEX};
            open_bytes = 0;
        }
        zi_bucket *bucket = &layout->buckets[layout->bucket_count - 1];
        open_bytes += fill_bucket(layout, bucket, layout->bucket_count - 1, i);
        flats = bucket->flat_first + bucket->flat_count;
        open = !alone && open_bytes < layout->tuning.bucket_bytes;
    }
    for (uint32_t i = 0; i < layout->bucket_count && needs_grad_wire(layout); i++) {
        layout->grad_wire_bytes =
            zi_max_u64(layout->grad_wire_bytes, layout->buckets[i].wire_bytes);
    }
    return ZERO_OK;
}

/* A unit or bucket to be given a class. */
typedef struct candidate {
    uint64_t bytes;
    uint32_t index;
    bool tied;
} candidate;

static int by_bytes_falling(const void *left, const void *right)
{
    const candidate *a = left;
    const candidate *b = right;
    if (a->bytes != b->bytes) {
        return a->bytes < b->bytes ? 1 : -1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

/* Cut the sorted candidates into classes; class_of[k] is candidate k's class. */
static uint32_t classify(candidate *candidates, uint32_t count, uint32_t slots,
                         zi_slot_class *classes, uint32_t *class_of)
{
    uint32_t class_count = 0;
    if (count != 0) {
        qsort(candidates, count, sizeof *candidates, by_bytes_falling);
    }
    uint32_t k = 0;
    while (k < count) {
        zi_slot_class *class = &classes[class_count];
        *class = (zi_slot_class){.slot_bytes = candidates[k].bytes,
                                 .slot_first = zi_slot_count(classes, class_count)};
        bool tied = false;
        while (k < count && candidates[k].bytes >= class->slot_bytes - class->slot_bytes / 2) {
            class_of[k] = class_count;
            tied = tied || candidates[k].tied;
            class->member_count++;
            k++;
        }
        class->slot_count = (uint32_t)zi_min_u64(slots + (tied ? 1 : 0), class->member_count);
        class_count++;
    }
    return class_count;
}

static uint32_t unit_candidates(zi_layout *layout, candidate *candidates)
{
    uint32_t count = 0;
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        zi_unit_place *place = &layout->units[u];
        place->param_class = ZI_NO_INDEX;
        for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
            layout->flats[f].slot_at = place->slot_bytes;
            place->slot_bytes += zi_codec_padded_bytes(layout->flats[f].slot[ZERO_ROLE_PARAM],
                                                       layout->flats[f].count);
        }
        if (zi_params_in_slots(layout) && place->flat_count != 0) {
            candidates[count++] = (candidate){place->slot_bytes, u, false};
        }
    }
    return count;
}

static uint32_t bucket_candidates(const zi_layout *layout, candidate *candidates)
{
    uint32_t count = 0;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        const zi_bucket *bucket = &layout->buckets[b];
        bool slotted = false;
        for (uint32_t i = 0; i < bucket->flat_count; i++) {
            const uint32_t f = layout->bucket_flats[bucket->flat_first + i];
            slotted = slotted || zi_flat_grad_in_slot(layout, &layout->flats[f]);
        }
        if (slotted) {
            candidates[count++] = (candidate){bucket->slot_bytes, b, bucket->tied};
        }
    }
    return count;
}

static void slots_assign(zi_layout *layout, candidate *candidates, uint32_t *class_of)
{
    uint32_t count = unit_candidates(layout, candidates);
    layout->param_class_count =
        classify(candidates, count, layout->tuning.param_slots, layout->param_classes, class_of);
    for (uint32_t k = 0; k < count; k++) {
        layout->units[candidates[k].index].param_class = class_of[k];
    }
    count = bucket_candidates(layout, candidates);
    layout->grad_class_count =
        classify(candidates, count, layout->tuning.grad_slots, layout->grad_classes, class_of);
    for (uint32_t k = 0; k < count; k++) {
        layout->buckets[candidates[k].index].grad_class = class_of[k];
    }
}

/* Count the bytes that units' gathers assemble, and find the largest wire buffer. */
static void size_gathers(zi_layout *layout)
{
    for (uint32_t u = 0; u < layout->unit_count; u++) {
        zi_unit_place *place = &layout->units[u];
        uint64_t buffer = 0;
        for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
            const zi_flat *flat = &layout->flats[f];
            const zi_codec wire = flat->wire[ZERO_ROLE_PARAM];
            place->wire_bytes += zi_codec_bytes(wire, flat->count);
            buffer += zi_flat_gathered_by_wire(layout, flat)
                          ? zi_codec_padded_bytes(wire, flat->count)
                          : 0;
        }
        layout->param_wire_bytes = zi_max_u64(layout->param_wire_bytes, buffer);
    }
}

/* The same of updated parameters, where they go unit by unit: those that are offloaded go chunk by
 * chunk (extents.c). */
static void size_updated_gathers(zi_layout *layout)
{
    for (uint32_t u = 0; u < layout->unit_count && !zi_role_offloaded(layout, ZERO_ROLE_PARAM);
         u++) {
        const zi_unit_place *place = &layout->units[u];
        uint64_t buffer = 0;
        for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
            const zi_flat *flat = &layout->flats[f];
            buffer +=
                zi_flat_updated_wire_bytes(layout, flat, zi_optimizer_shard_count(layout, flat));
        }
        layout->updated_wire_bytes = zi_max_u64(layout->updated_wire_bytes, buffer);
    }
}

zero_status zi_layout_make_classes(zi_layout *layout)
{
    const size_t most = layout->unit_count;
    size_gathers(layout);
    size_updated_gathers(layout);
    ZI_TRY(zi_calloc(most, sizeof *layout->param_classes, (void **)&layout->param_classes));
    ZI_TRY(zi_calloc(most, sizeof *layout->grad_classes, (void **)&layout->grad_classes));
    candidate *candidates = NULL;
    uint32_t *class_of = NULL;
    zero_status status = zi_calloc(most, sizeof *candidates, (void **)&candidates);
    if (status == ZERO_OK) {
        status = zi_calloc(most, sizeof *class_of, (void **)&class_of);
    }
    if (status == ZERO_OK) {
        slots_assign(layout, candidates, class_of);
    }
    zi_free(candidates);
    zi_free(class_of);
    return status;
}
