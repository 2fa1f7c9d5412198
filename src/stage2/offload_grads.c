/* Owns the moves between offloaded gradients and where they are added up and reduced. Invariants:
 * after the first micro-step of a step every extent holds that step's sum; after the last, those of
 * this rank's optimizer shard do. */
#include "core/error.h"
#include "stage2/grad_internal.h"

/* True if sums are added up in the window: they are on disk, and cross no ranks. */
static bool adds_in_window(const zi_grads *grads)
{
    return zi_shards_on_disk(grads->desc.shards) && grads->layout->world == 1;
}

static uint64_t shard_count(const zi_grads *grads, uint32_t flat)
{
    return zi_role_count(grads->layout, &grads->layout->flats[flat], ZERO_ROLE_GRAD);
}

/* The flats behind a position of the list of all buckets' flats are those that come next. */
static uint32_t offload_grads_name_next(const zi_layout *layout, uint32_t position,
                                        uint32_t next[ZI_WINDOW_AHEAD])
{
    const zi_bucket *last = &layout->buckets[layout->bucket_count - 1];
    const uint32_t end = last->flat_first + last->flat_count;
    uint32_t count = 0;
    while (count < ZI_WINDOW_AHEAD && position + 1 + count < end) {
        next[count] = layout->bucket_flats[position + 1 + count];
        count++;
    }
    return count;
}

static zero_status load_flat(zi_grads *grads, uint32_t position)
{
    const uint32_t flat = grads->layout->bucket_flats[position];
    zi_shards_move move = {
        .flat = flat, .count = shard_count(grads, flat), .memory = zi_grads_shard(grads, flat)};
    move.next_count = offload_grads_name_next(grads->layout, position, move.next);
    return zi_shards_load(grads->desc.shards, grads->desc.reduce_stream, &move);
}

zero_status zi_grads_load(zi_grads *grads, uint32_t bucket, bool all)
{
    const zi_layout *layout = grads->layout;
    const zi_bucket *place = &layout->buckets[bucket];
    for (uint32_t i = 0; i < place->flat_count && !zi_shards_here(grads->desc.shards); i++) {
        const uint32_t position = place->flat_first + i;
        const zi_flat *flat = &layout->flats[layout->bucket_flats[position]];
        const bool staged = !zi_flat_grad_in_place(layout, flat) && !adds_in_window(grads);
        if (all || (staged && !grads->first)) {
            ZI_TRY(load_flat(grads, position));
        }
    }
    return ZERO_OK;
}

zero_status zi_grads_note_fill(zi_grads *grads, uint32_t bucket, zi_stream *stream)
{
    if (grads->buckets[bucket].filling) { /* another unit's, perhaps on another stream */
        ZI_TRY(grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream,
                                               grads->buckets[bucket].filled,
                                               &grads->desc.stats->grad_wait_ns));
    }
    grads->buckets[bucket].filling = true;
    return grad_ops_of(grads)->event_record(grad_self_of(grads), grads->buckets[bucket].filled,
                                            stream);
}

zero_status zi_grads_fill_slot(zi_grads *grads, uint32_t bucket, zi_stream *stream)
{
    const zi_layout *layout = grads->layout;
    const zi_bucket *place = &layout->buckets[bucket];
    zi_stream *reduce = grads->desc.reduce_stream;
    unsigned char *slot = zi_grads_slot_data(grads, bucket);
    bool adds = false;
    for (uint32_t i = 0; i < place->flat_count && !zi_shards_here(grads->desc.shards); i++) {
        const zi_flat *flat = &layout->flats[layout->bucket_flats[place->flat_first + i]];
        adds = adds || zi_flat_grad_in_place(layout, flat);
    }
    if (grads->first || !adds) {
        ZI_TRY(grad_ops_of(grads)->fill(grad_self_of(grads), stream, slot, 0, place->slot_bytes));
        return zi_grads_note_fill(grads, bucket, stream);
    }
    ZI_TRY(grad_ops_of(grads)->fill(grad_self_of(grads), reduce, slot, 0, place->slot_bytes));
    for (uint32_t i = 0; i < place->flat_count; i++) {
        const uint32_t position = place->flat_first + i;
        if (zi_flat_grad_in_place(layout, &layout->flats[layout->bucket_flats[position]])) {
            ZI_TRY(load_flat(grads, position));
        }
    }
    ZI_TRY(grad_ops_of(grads)->event_record(grad_self_of(grads), grads->buckets[bucket].filled,
                                            reduce));
    return grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream,
                                           grads->buckets[bucket].filled,
                                           &grads->desc.stats->grad_wait_ns);
}

/* ---- in the window, extent by extent ---- */

typedef struct visit_work {
    zi_grads *grads;
    uint32_t position;
    zi_codec codec;
    const unsigned char *source; /* values that are added, by `codec`; NULL: zeros */
    bool adds;                   /* else only the squares are */
    bool first;                  /* the sum begins */
    zi_norm_sum *squares;        /* NULL: not asked for */
} visit_work;

_Static_assert(sizeof(visit_work) <= ZI_TASK_ARGUMENT_BYTES, "travels by value");

static zero_status visit_extent(const visit_work *work, const zi_extent_place *place,
                                unsigned char *extent)
{
    const zi_grads *grads = work->grads;
    const zi_kernels *kernels = grads->desc.kernels;
    zi_stream *stream = grads->desc.reduce_stream;
    const zero_dtype sum_dtype = grads->layout->tuning.accum_dtype;
    const void *source =
        work->source != NULL ? work->source + zi_codec_offset(work->codec, place->first) : NULL;
    const zi_fold fold = {.dst = extent,
                          .sources = &source,
                          .source_count = 1,
                          .count = place->count,
                          .dst_dtype = sum_dtype,
                          .source_dtype = work->codec.dtype,
                          .accumulate = !work->first,
                          .squares = work->squares};
    ZI_TRY(work->adds ? kernels->ops->fold(kernels->self, stream, &fold)
                      : kernels->ops->square_sum(kernels->self, stream, extent, sum_dtype,
                                                 place->count, work->squares));
    return grad_ops_of(grads)->drain(grad_self_of(grads), stream);
}

static zero_status visit(void *argument)
{
    const visit_work *work = argument;
    const zi_shards *shards = work->grads->desc.shards;
    const zi_layout *layout = work->grads->layout;
    const uint32_t flat = layout->bucket_flats[work->position];
    const uint64_t end = shard_count(work->grads, flat);
    const bool replaces = work->adds && work->first;
    for (uint64_t at = 0; at < end;) {
        uint32_t flats[ZI_WINDOW_AHEAD];
        const uint32_t count = offload_grads_name_next(layout, work->position, flats);
        const zi_shards_element element = {.flat = flat, .index = at, .end = end};
        zi_extent_place place;
        unsigned char *extent = NULL;
        ZI_TRY(zi_shards_acquire(shards, element, replaces ? ZI_WINDOW_REPLACES : ZI_WINDOW_READS,
                                 flats, count, &place, &extent));
        ZI_TRY(visit_extent(work, &place, extent));
        ZI_TRY(zi_shards_release(shards, &place, work->adds));
        at = place.first + place.count;
    }
    return ZERO_OK;
}

static zero_status enqueue_visit(zi_grads *grads, const visit_work *work)
{
    const zi_flat *flat = &grads->layout->flats[grads->layout->bucket_flats[work->position]];
    zi_mark *mark = NULL;
    ZI_TRY(zi_grads_begin(grads, work->adds ? ZI_SPAN_FOLD : ZI_SPAN_NORM, flat,
                          zi_codec_bytes(flat->kept[ZERO_ROLE_GRAD], flat->count), &mark));
    ZI_TRY(grad_ops_of(grads)->task(grad_self_of(grads), grads->desc.reduce_stream, visit, work,
                                    sizeof *work));
    return zi_grads_end(grads, mark);
}

bool zi_grads_added_in_window(const zi_grads *grads, uint32_t flat)
{
    return adds_in_window(grads) &&
           !zi_flat_grad_in_place(grads->layout, &grads->layout->flats[flat]);
}

zero_status zi_grads_add_in_window(zi_grads *grads, uint32_t position, const zi_collective *sum)
{
    const visit_work work = {.grads = grads,
                             .position = position,
                             .codec = {.dtype = sum->send_dtype},
                             .source = sum->send,
                             .adds = true,
                             .first = grads->first,
                             .squares = sum->squares};
    return enqueue_visit(grads, &work);
}

zero_status zi_grads_square_offloaded(zi_grads *grads, uint32_t position)
{
    const uint32_t index = grads->layout->bucket_flats[position];
    const zi_flat *flat = &grads->layout->flats[index];
    const zi_kernels *kernels = grads->desc.kernels;
    zi_norm_sum *norm = norm_of(grads, flat);
    const visit_work work = {.grads = grads, .position = position, .squares = norm};
    if (grads->first) {
        return ZERO_OK; /* they are zeros */
    }
    if (adds_in_window(grads)) {
        return enqueue_visit(grads, &work);
    }
    return kernels->ops->square_sum(kernels->self, grads->desc.reduce_stream,
                                    zi_shards_at(grads->desc.shards, index, 0),
                                    grads->layout->tuning.accum_dtype, flat->count, norm);
}

/* A sum that backward adds to in place and that this rank left out: it is what it was or, in the
 * first micro-step, zeros. */
static zero_status store_missing(zi_grads *grads, uint32_t position)
{
    const uint32_t index = grads->layout->bucket_flats[position];
    const zi_flat *flat = &grads->layout->flats[index];
    const zi_codec codec = flat->kept[ZERO_ROLE_GRAD];
    const visit_work work = {
        .grads = grads, .position = position, .codec = codec, .adds = true, .first = true};
    if (!grads->first) {
        return ZERO_OK;
    }
    if (zi_shards_on_disk(grads->desc.shards)) {
        return enqueue_visit(grads, &work);
    }
    return grad_ops_of(grads)->fill(grad_self_of(grads), grads->desc.reduce_stream,
                                    zi_shards_at(grads->desc.shards, index, 0), 0,
                                    zi_codec_bytes(codec, flat->count));
}

zero_status zi_grads_store(zi_grads *grads, uint32_t bucket, bool own)
{
    const zi_layout *layout = grads->layout;
    const zi_bucket *place = &layout->buckets[bucket];
    for (uint32_t i = 0; i < place->flat_count && !zi_shards_here(grads->desc.shards); i++) {
        const uint32_t position = place->flat_first + i;
        const uint32_t flat = layout->bucket_flats[position];
        const bool in_place = zi_flat_grad_in_place(layout, &layout->flats[flat]);
        if (in_place && grads->buckets[bucket].slot == ZI_NO_INDEX) {
            ZI_TRY(store_missing(grads, position));
            continue;
        }
        if (zi_grads_added_in_window(grads, flat)) {
            continue;
        }
        const uint64_t first = own ? zi_grads_shard_first(grads, flat) : 0;
        const zi_shards_move move = {
            .flat = flat,
            .first = first,
            .count = own ? zi_optimizer_shard_count(layout, &layout->flats[flat])
                         : shard_count(grads, flat),
            .memory = zi_grads_shard(grads, flat) +
                      zi_codec_offset(layout->flats[flat].kept[ZERO_ROLE_GRAD], first)};
        ZI_TRY(zi_shards_store(grads->desc.shards, grads->desc.reduce_stream, &move));
    }
    return ZERO_OK;
}
