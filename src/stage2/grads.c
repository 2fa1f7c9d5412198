/* Owns who has which gradient slot and the states of units and buckets.
 * Invariant: buckets before grads->next are reduced in this micro-step, the others are not. */
#include "stage2/grads.h"

#include <inttypes.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "stage2/grad_internal.h"

static zero_status grads_allocate(zi_grads *grads)
{
    const zi_layout *layout = grads->layout;
    const uint32_t slot_count = zi_slot_count(layout->grad_classes, layout->grad_class_count);
    ZI_TRY(zi_calloc(layout->unit_count, sizeof *grads->units, (void **)&grads->units));
    ZI_TRY(zi_calloc(layout->bucket_count, sizeof *grads->buckets, (void **)&grads->buckets));
    ZI_TRY(zi_calloc(slot_count, sizeof *grads->slots, (void **)&grads->slots));
    for (uint32_t i = 0; i < slot_count; i++) {
        grads->slots[i] = (grad_slot){.bucket = ZI_NO_INDEX};
        ZI_TRY(grad_ops_of(grads)->event_create(grad_self_of(grads), &grads->slots[i].emptied));
    }
    const size_t flats = layout->flat_count;
    for (int i = 0; i < ZI_HOPS; i++) {
        const size_t count = layout->routes[0][i].sums ? flats : 0;
        ZI_TRY(zi_calloc(count, sizeof(zi_collective), (void **)&grads->batches[i]));
        ZI_TRY(zi_calloc(count, sizeof(grad_folding), (void **)&grads->foldings[i]));
    }
    return ZERO_OK;
}

/* Buckets before this one were reduced before `bucket` can have found a slot: in its class, one
 * more than the slots. */
static uint32_t behind(const zi_grads *grads, uint32_t bucket)
{
    const zi_bucket *buckets = grads->layout->buckets;
    const uint32_t class = buckets[bucket].grad_class;
    if (class == ZI_NO_INDEX) {
        return 0;
    }
    uint32_t seen = 0;
    for (uint32_t b = bucket + 1; b-- > 0;) {
        seen += buckets[b].grad_class == class;
        if (seen > grads->layout->grad_classes[class].slot_count) {
            return b + 1;
        }
    }
    return 0;
}

static void find_order(zi_grads *grads)
{
    uint32_t due = 0;
    for (uint32_t u = grads->layout->unit_count; u-- > 0;) {
        const uint32_t bucket = grads->layout->units[u].bucket;
        due = bucket != ZI_NO_INDEX ? bucket : due;
        grads->units[u].bucket = due;
    }
    uint32_t most = 0;
    for (uint32_t b = 0; b < grads->layout->bucket_count; b++) {
        const uint32_t own = behind(grads, b);
        most = own > most ? own : most;
        grads->buckets[b].behind = most;
    }
}

static zero_status grads_build(zi_grads *grads)
{
    ZI_TRY(grads_allocate(grads));
    for (uint32_t b = 0; b < grads->layout->bucket_count; b++) {
        grads->buckets[b].slot = ZI_NO_INDEX;
        ZI_TRY(grad_ops_of(grads)->event_create(grad_self_of(grads), &grads->buckets[b].ready));
        ZI_TRY(grad_ops_of(grads)->event_create(grad_self_of(grads), &grads->buckets[b].reduced));
        ZI_TRY(grad_ops_of(grads)->event_create(grad_self_of(grads), &grads->buckets[b].filled));
    }
    find_order(grads);
    return grad_ops_of(grads)->event_create(grad_self_of(grads), &grads->consumed);
}

zero_status zi_grads_create(const zi_grads_desc *desc, zi_grads **out)
{
    *out = NULL;
    zi_grads *grads = NULL;
    ZI_TRY(zi_calloc(1, sizeof *grads, (void **)&grads));
    grads->desc = *desc;
    grads->layout = desc->layout;
    grads->arena = zi_shards_arena(desc->shards);
    grads->marking = desc->layout->tuning.check_added != 0;
    grads->assigned = ZI_NO_INDEX;
    const zero_status status = grads_build(grads);
    if (status != ZERO_OK) {
        zi_grads_destroy(grads);
        return status;
    }
    *out = grads;
    return ZERO_OK;
}

void zi_grads_destroy(zi_grads *grads)
{
    if (grads == NULL) {
        return;
    }
    for (uint32_t b = 0; grads->buckets != NULL && b < grads->layout->bucket_count; b++) {
        if (grads->buckets[b].filling) { /* its memory goes; what a stream failed with is known */
            (void)grad_ops_of(grads)->event_wait(grad_self_of(grads), grads->buckets[b].filled,
                                                 NULL);
        }
        grad_ops_of(grads)->event_destroy(grad_self_of(grads), grads->buckets[b].ready);
        grad_ops_of(grads)->event_destroy(grad_self_of(grads), grads->buckets[b].reduced);
        grad_ops_of(grads)->event_destroy(grad_self_of(grads), grads->buckets[b].filled);
    }
    const uint32_t slot_count =
        zi_slot_count(grads->layout->grad_classes, grads->layout->grad_class_count);
    for (uint32_t i = 0; grads->slots != NULL && i < slot_count; i++) {
        grad_ops_of(grads)->event_destroy(grad_self_of(grads), grads->slots[i].emptied);
    }
    grad_ops_of(grads)->event_destroy(grad_self_of(grads), grads->consumed);
    zi_grads_marks_end(grads);
    zi_free(grads->units);
    zi_free(grads->buckets);
    zi_free(grads->slots);
    for (int i = 0; i < ZI_HOPS; i++) {
        zi_free(grads->batches[i]);
        zi_free(grads->foldings[i]);
    }
    zi_free(grads);
}

static const char *grads_name_of(const zi_grads *grads, uint32_t unit)
{
    return grads->layout->unit_infos[unit].name;
}

void zi_grads_micro_begin(zi_grads *grads, bool first, bool last)
{
    grads->first = first;
    grads->last = last;
    grads->micro_count = first ? 1 : grads->micro_count + 1;
    grads->norm_cleared = false;
    grads->ended = false;
    grads->next = 0;
    for (uint32_t u = 0; u < grads->layout->unit_count; u++) {
        const bool zeroed = !first && grads->units[u].zeroed;
        grads->units[u] = (grad_unit){
            .zeroed = zeroed, .bucket = grads->units[u].bucket, .came = grads->units[u].came};
    }
    for (uint32_t b = 0; b < grads->layout->bucket_count; b++) {
        grads->buckets[b].ready_count = 0;
    }
}

/* A free slot of the bucket's class, the longest unused first, or ZI_NO_INDEX. */
static uint32_t grads_free_slot(const zi_grads *grads, uint32_t class)
{
    const grad_slot *slots = grads->slots + grads->layout->grad_classes[class].slot_first;
    uint32_t found = ZI_NO_INDEX;
    for (uint32_t s = 0; s < grads->layout->grad_classes[class].slot_count; s++) {
        if (slots[s].bucket == ZI_NO_INDEX &&
            (found == ZI_NO_INDEX || slots[s].freed < slots[found].freed)) {
            found = s;
        }
    }
    return found;
}

/* True if any unit of the bucket is acquired now. */
static bool bucket_in_use(const zi_grads *grads, uint32_t bucket)
{
    const zi_bucket *place = &grads->layout->buckets[bucket];
    for (uint32_t i = 0; i < place->flat_count; i++) {
        const uint32_t flat = grads->layout->bucket_flats[place->flat_first + i];
        if (zi_grads_in_use(grads, grads->layout->flats[flat].unit)) {
            return true;
        }
    }
    return false;
}

zero_status zi_grads_pass(zi_grads *grads, uint32_t unit)
{
    const uint32_t due = grads->units[unit].bucket;
    if (grads->layout->bucket_count == 0) {
        return ZERO_OK;
    }
    while (grads->next < grads->buckets[due].behind && !bucket_in_use(grads, grads->next)) {
        ZI_TRY(zi_grads_reduce_next(grads));
    }
    return ZERO_OK;
}

static zero_status no_slot(const zi_grads *grads, uint32_t unit, uint32_t class)
{
    const uint32_t count = grads->layout->grad_classes[class].slot_count;
    const uint32_t held = grads->slots[grads->layout->grad_classes[class].slot_first].bucket;
    const uint32_t flat = grads->layout->bucket_flats[grads->layout->buckets[held].flat_first];
    ZI_FAIL(ZERO_ERR_STATE,
            "unit %" PRIu32 " \"%.40s\" finds all %" PRIu32
            " gradient slots of its size held (unit "
            "\"%.40s\" among them); set grad_slots to %" PRIu32 " or more",
            unit, grads_name_of(grads, unit), count,
            grads_name_of(grads, grads->layout->flats[flat].unit), count + 1);
}

/* The slot that a bucket holds, or NULL. */
static grad_slot *grads_slot_of(const zi_grads *grads, uint32_t bucket)
{
    const uint32_t slot = grads->buckets[bucket].slot;
    const uint32_t class = grads->layout->buckets[bucket].grad_class;
    return slot != ZI_NO_INDEX ? &grads->slots[grads->layout->grad_classes[class].slot_first + slot]
                               : NULL;
}

/* True if a slot of the class becomes free when the buckets before `bucket` that nobody uses are
 * given up as left out, in their order. */
static bool can_free_slot(const zi_grads *grads, uint32_t bucket, uint32_t class)
{
    for (uint32_t b = grads->next; b < bucket && !bucket_in_use(grads, b); b++) {
        const grad_slot *held = grads_slot_of(grads, b);
        if (held != NULL && held->reserved) {
            return false;
        }
        if (held != NULL && grads->layout->buckets[b].grad_class == class) {
            return true;
        }
    }
    return false;
}

/* Find the unit's bucket a slot, but put nothing on a stream yet. When none is free, buckets before
 * it are given up as left out, if that makes one free. */
static zero_status reserve_slot(zi_grads *grads, uint32_t unit)
{
    const uint32_t bucket = grads->layout->units[unit].bucket;
    if (bucket == ZI_NO_INDEX) {
        return ZERO_OK; /* only what it ties to is trained */
    }
    const uint32_t class = grads->layout->buckets[bucket].grad_class;
    if (class == ZI_NO_INDEX || grads->buckets[bucket].slot != ZI_NO_INDEX) {
        return ZERO_OK;
    }
    uint32_t slot = grads_free_slot(grads, class);
    if (slot == ZI_NO_INDEX && !can_free_slot(grads, bucket, class)) {
        return no_slot(grads, unit, class);
    }
    while (slot == ZI_NO_INDEX) {
        ZI_TRY(zi_grads_reduce_next(grads));
        slot = grads_free_slot(grads, class);
    }
    grads->buckets[bucket].slot = slot;
    grads_slot_of(grads, bucket)->bucket = bucket;
    grads_slot_of(grads, bucket)->reserved = true;
    return ZERO_OK;
}

static void unreserve_slot(zi_grads *grads, uint32_t unit)
{
    const uint32_t bucket = grads->layout->units[unit].bucket;
    grad_slot *held = bucket != ZI_NO_INDEX ? grads_slot_of(grads, bucket) : NULL;
    if (held != NULL && held->reserved) {
        held->reserved = false;
        held->bucket = ZI_NO_INDEX;
        grads->buckets[bucket].slot = ZI_NO_INDEX;
    }
}

/* Fill a slot that was just reserved, once the reduction of whoever held it is done. Another unit
 * of the bucket may have filled it on another of the caller's streams. */
static zero_status prepare_slot(zi_grads *grads, uint32_t bucket, zi_stream *stream)
{
    grad_slot *held = grads_slot_of(grads, bucket);
    if (held == NULL) {
        return ZERO_OK;
    }
    if (!held->reserved) {
        return grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream,
                                               grads->buckets[bucket].filled,
                                               &grads->desc.stats->grad_wait_ns);
    }
    held->reserved = false;
    if (held->used) {
        ZI_TRY(grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream, held->emptied,
                                               &grads->desc.stats->grad_wait_ns));
    }
    return zi_grads_fill_slot(grads, bucket, stream);
}

/* In-place flats start the step at zero, once the last step has read them. In a slot they do
 * anyway. */
static zero_status zero_in_place(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    bool fills = false;
    const zi_unit_place *place = &grads->layout->units[unit];
    if (grads->units[unit].zeroed || !zi_shards_here(grads->desc.shards)) {
        return ZERO_OK;
    }
    grads->units[unit].zeroed = true;
    for (uint32_t f = place->flat_first; f < place->flat_first + place->flat_count; f++) {
        const zi_flat *flat = &grads->layout->flats[f];
        if (flat->trained && zi_flat_grad_in_place(grads->layout, flat)) {
            ZI_TRY(grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream, grads->consumed,
                                                   &grads->desc.stats->grad_wait_ns));
            ZI_TRY(grad_ops_of(grads)->fill(
                grad_self_of(grads), stream, zi_shards_at(grads->desc.shards, f, 0), 0,
                zi_codec_bytes(flat->kept[ZERO_ROLE_GRAD], flat->count)));
            fills = true;
        }
    }
    return fills ? zi_grads_note_fill(grads, place->bucket, stream) : ZERO_OK;
}

static zero_status grads_check_unit(const zi_grads *grads, uint32_t unit)
{
    const uint32_t bucket = grads->layout->units[unit].bucket;
    if (grads->units[unit].left_out) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32
                " \"%.40s\": backward has gone past it, so its gradient was taken as left out; "
                "acquire units in the order of earlier steps, or leave left_out_at_once at 0",
                unit, grads_name_of(grads, unit));
    }
    if (grads->units[unit].ready) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.40s\": its gradient of this micro-step was already declared "
                "ready; for a unit that backward uses more than once call zero_unit_grads_acquire "
                "before its first use and zero_unit_grads_ready after its last",
                unit, grads_name_of(grads, unit));
    }
    if (bucket != ZI_NO_INDEX && bucket < grads->next) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32
                " \"%.40s\": backward has gone so far past it that its gradient was "
                "taken as left out; raise grad_slots, describe units in the order of forward, or "
                "recompute several units with ZERO_PASS_FORWARD",
                unit, grads_name_of(grads, unit));
    }
    return ZERO_OK;
}

bool zi_grads_trained(const zi_grads *grads, uint32_t unit)
{
    const zi_unit_place *place = &grads->layout->units[unit];
    bool trained = place->bucket != ZI_NO_INDEX;
    for (uint32_t i = 0; i < place->owner_count; i++) {
        const uint32_t owner = grads->layout->owners[place->owner_first + i];
        trained = trained || grads->layout->units[owner].bucket != ZI_NO_INDEX;
    }
    return trained;
}

/* The units whose gradients a unit adds to: its owners, then itself. */
static uint32_t member_of(const zi_grads *grads, uint32_t unit, uint32_t index)
{
    const zi_unit_place *place = &grads->layout->units[unit];
    return index < place->owner_count ? grads->layout->owners[place->owner_first + index] : unit;
}

/* Slots for all that the unit adds to, or for none of them. */
static zero_status reserve_slots(zi_grads *grads, uint32_t unit)
{
    const uint32_t count = grads->layout->units[unit].owner_count + 1;
    for (uint32_t i = 0; i < count; i++) {
        ZI_TRY(grads_check_unit(grads, member_of(grads, unit, i)));
    }
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < count && status == ZERO_OK; i++) {
        status = reserve_slot(grads, member_of(grads, unit, i));
    }
    for (uint32_t i = 0; i < count && status != ZERO_OK; i++) {
        unreserve_slot(grads, member_of(grads, unit, i));
    }
    return status;
}

/* Units that are tied add to the same tensors, each on a stream of the caller's. */
static zero_status follow_ties(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const zi_unit_place *place = &grads->layout->units[unit];
    return place->tied_by == 0
               ? ZERO_OK
               : grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream,
                                                 grads->buckets[place->bucket].ready,
                                                 &grads->desc.stats->grad_wait_ns);
}

zero_status zi_grads_acquire(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const zi_unit_place *place = &grads->layout->units[unit];
    if (!zi_grads_trained(grads, unit)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.60s\" has no trained tensor, so it has no gradient", unit,
                grads_name_of(grads, unit));
    }
    ZI_TRY(zi_grads_pass(grads, unit));
    ZI_TRY(reserve_slots(grads, unit));
    for (uint32_t i = 0; i <= place->owner_count; i++) {
        const uint32_t member = member_of(grads, unit, i);
        grads->units[member].came = true;
        if (grads->layout->units[member].bucket != ZI_NO_INDEX) {
            ZI_TRY(prepare_slot(grads, grads->layout->units[member].bucket, stream));
            ZI_TRY(zero_in_place(grads, member, stream));
            ZI_TRY(follow_ties(grads, member, stream));
        }
    }
    for (uint32_t i = 0; i < place->owner_count; i++) {
        grads->units[grads->layout->owners[place->owner_first + i]].tie_count++;
    }
    grads->units[unit].own_count++;
    grads->units[unit].own_done = false;
    for (uint32_t i = 0; i <= place->owner_count; i++) {
        ZI_TRY(zi_grads_mark(grads, member_of(grads, unit, i), stream));
    }
    return ZERO_OK;
}

/* The last record speaks for all who add to the bucket, on whichever of the caller's streams. */
static zero_status record_ready(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const zi_unit_place *place = &grads->layout->units[unit];
    grad_bucket *bucket = &grads->buckets[place->bucket];
    if (grads->layout->buckets[place->bucket].unit_count > 1 || place->tied_by != 0) {
        ZI_TRY(grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream, bucket->ready,
                                               &grads->desc.stats->grad_wait_ns));
    }
    bucket->filling = false;
    return grad_ops_of(grads)->event_record(grad_self_of(grads), bucket->ready, stream);
}

/* Count the unit in its bucket once all who add to it have. stream: carries what was added; NULL:
 * nothing was. */
static zero_status count_ready(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    grad_unit *state = &grads->units[unit];
    const uint32_t bucket = grads->layout->units[unit].bucket;
    const bool complete = state->own_count == 0 && state->tie_count == 0 && state->own_done &&
                          state->ties_done == grads->layout->units[unit].tied_by;
    if (bucket != ZI_NO_INDEX && stream != NULL) {
        ZI_TRY(record_ready(grads, unit, stream));
    }
    if (!complete || state->ready) {
        return ZERO_OK;
    }
    state->ready = true;
    if (bucket == ZI_NO_INDEX) {
        return ZERO_OK;
    }
    grads->buckets[bucket].ready_count++;
    while (grads->next < grads->layout->bucket_count &&
           grads->buckets[grads->next].ready_count ==
               grads->layout->buckets[grads->next].unit_count) {
        ZI_TRY(zi_grads_reduce_next(grads));
    }
    return ZERO_OK;
}

zero_status zi_grads_ready(zi_grads *grads, uint32_t unit, zi_stream *stream)
{
    const zi_unit_place *place = &grads->layout->units[unit];
    grad_unit *state = &grads->units[unit];
    if (state->own_count == 0) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.60s\": its gradient is not acquired; call "
                "zero_unit_grads_acquire first",
                unit, grads_name_of(grads, unit));
    }
    for (uint32_t i = 0; i <= place->owner_count; i++) {
        const uint32_t member = member_of(grads, unit, i);
        if (grads->units[member].own_count + grads->units[member].tie_count == 1) {
            ZI_TRY(zi_grads_unmark(grads, member, stream));
        }
    }
    state->own_count--;
    state->own_done = state->own_count == 0;
    for (uint32_t i = 0; i < place->owner_count; i++) {
        grad_unit *owner = &grads->units[grads->layout->owners[place->owner_first + i]];
        owner->tie_count--;
        owner->ties_done += state->own_done;
    }
    for (uint32_t i = 0; i < place->owner_count; i++) {
        ZI_TRY(count_ready(grads, grads->layout->owners[place->owner_first + i], stream));
    }
    return count_ready(grads, unit, stream);
}

zero_status zi_grads_left_out(zi_grads *grads, uint32_t unit)
{
    const zi_unit_place *place = &grads->layout->units[unit];
    grad_unit *state = &grads->units[unit];
    if (state->own_done || state->own_count != 0 || !zi_grads_trained(grads, unit)) {
        return ZERO_OK;
    }
    state->own_done = true;
    state->left_out = true;
    for (uint32_t i = 0; i < place->owner_count; i++) {
        grads->units[grads->layout->owners[place->owner_first + i]].ties_done++;
    }
    for (uint32_t i = 0; i <= place->owner_count; i++) {
        ZI_TRY(count_ready(grads, member_of(grads, unit, i), NULL));
    }
    return ZERO_OK;
}

uint32_t zi_grads_never_came(const zi_grads *grads, uint32_t *first, uint32_t *came)
{
    uint32_t missing = 0;
    *came = 0;
    for (uint32_t u = grads->layout->unit_count; u-- > 0;) {
        if (grads->layout->units[u].bucket != ZI_NO_INDEX) {
            *came += grads->units[u].came;
            missing += !grads->units[u].came;
            *first = grads->units[u].came ? *first : u;
        }
    }
    return missing;
}

zero_status zi_grads_micro_end(zi_grads *grads)
{
    for (uint32_t u = 0; u < grads->layout->unit_count; u++) {
        if (zi_grads_in_use(grads, u)) {
            ZI_FAIL(ZERO_ERR_STATE,
                    "unit %" PRIu32 " \"%.60s\": its gradient is still acquired at the end of "
                    "the micro-step; call zero_unit_grads_ready",
                    u, grads_name_of(grads, u));
        }
    }
    while (grads->next < grads->layout->bucket_count) {
        ZI_TRY(zi_grads_reduce_next(grads));
    }
    zi_grads_marks_end(grads);
    return zi_grads_end_boundary(grads);
}

void *zi_grads_data(const zi_grads *grads, uint32_t tensor)
{
    const uint32_t flat = grads->layout->tensors[tensor].flat;
    return zi_grads_in_use(grads, grads->layout->flats[flat].unit)
               ? zi_grads_tensor_at(grads, tensor)
               : NULL;
}

void zi_grads_rebind(zi_grads *grads, unsigned char *slots)
{
    grads->desc.slots = slots;
    grads->arena = zi_shards_arena(grads->desc.shards);
}

bool zi_grads_in_use(const zi_grads *grads, uint32_t unit)
{
    return grads->units[unit].own_count != 0 || grads->units[unit].tie_count != 0;
}

uint32_t zi_grads_own_count(const zi_grads *grads, uint32_t unit)
{
    return grads->units[unit].own_count;
}

uint32_t zi_grads_slot(const zi_grads *grads, uint32_t unit)
{
    const uint32_t bucket = grads->layout->units[unit].bucket;
    return bucket != ZI_NO_INDEX ? grads->buckets[bucket].slot : ZI_NO_INDEX;
}

zero_status zi_grads_consumed(zi_grads *grads, zi_stream *stream)
{
    return grad_ops_of(grads)->event_record(grad_self_of(grads), grads->consumed, stream);
}
