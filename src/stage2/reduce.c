/* Owns what is put on the reduce stream: casts to the wire type, the three reductions, the sum of
 * squares.
 * Invariant: at the boundary every element of this rank's optimizer shard is counted once, by the
 * last reduction that its flat goes through, or by itself where there is none. */
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "stage2/grad_internal.h"

/* One bucket on its way through the reductions. */
typedef struct bucket_job {
    uint32_t bucket;
    const zi_bucket *place;
} bucket_job;

static const zi_hop *hop_of(const zi_grads *grads, const bucket_job *job, zi_hop_kind kind)
{
    return &grads->layout->routes[job->place->sharding][kind];
}

static uint32_t flat_at(const zi_grads *grads, const bucket_job *job, uint32_t i)
{
    return grads->layout->bucket_flats[job->place->flat_first + i];
}

/* A flat on its way through a hop. */
typedef struct flat_crossing {
    uint32_t position; /* of the flat in the list of all buckets' flats */
    zi_hop_kind kind;
    zero_dtype dtype; /* of the wire */
    uint64_t wire_at; /* bytes of the wire buffer before it */
    uint64_t count;   /* elements that this rank gives */
    uint64_t key;     /* of the rounding of packed elements */
} flat_crossing;

/* Copy what is to be sent to the wire buffer, divided by the collective's scale, or packed. */
static zero_status fold_to(zi_grads *grads, const flat_crossing *f, unsigned char *wire,
                           const zi_collective *collective)
{
    const zi_kernels *kernels = grads->desc.kernels;
    grad_folding *folding = &grads->foldings[f->kind][f->position];
    folding->source = collective->send;
    folding->fold = (zi_fold){.dst = wire,
                              .sources = &folding->source,
                              .source_count = 1,
                              .count = f->count,
                              .dst_dtype = f->dtype,
                              .source_dtype = collective->send_dtype,
                              .scale = 1.0f / collective->scale,
                              .key = f->key};
    return kernels->ops->fold(kernels->self, grads->desc.reduce_stream, &folding->fold);
}

/* Put what is to be sent into the wire buffer where its type or scale asks for it; *collective is
 * updated. The buffer is free: its last use was an earlier batch of this stream. */
static zero_status to_wire(zi_grads *grads, const flat_crossing *f, zi_collective *collective)
{
    const zi_flat *flat = &grads->layout->flats[grads->layout->bucket_flats[f->position]];
    const zi_kernels *kernels = grads->desc.kernels;
    const bool folded = collective->scale > 1.0f || zi_dtype_is_packed(f->dtype);
    const bool zeros = collective->send == NULL && zi_grads_sends_zeros(grads->layout);
    const bool as_it_is = f->dtype == collective->send_dtype && !folded;
    if (!zeros && (as_it_is || collective->send == NULL)) {
        collective->send_dtype = f->dtype;
        return ZERO_OK;
    }
    unsigned char *wire = grads->desc.slots + grads->layout->grad_wire_at + f->wire_at;
    const uint64_t bytes = zi_packed_bytes(f->dtype, f->count);
    if (zeros) {
        collective->send = wire;
        collective->send_dtype = f->dtype;
        return grad_ops_of(grads)->fill(grad_self_of(grads), grads->desc.reduce_stream, wire, 0,
                                        bytes);
    }
    zi_mark *mark = NULL;
    ZI_TRY(zi_grads_begin(grads, ZI_SPAN_CAST, flat, bytes, &mark));
    ZI_TRY(folded ? fold_to(grads, f, wire, collective)
                  : kernels->ops->cast(kernels->self, grads->desc.reduce_stream, wire, f->dtype,
                                       collective->send, collective->send_dtype, f->count));
    ZI_TRY(zi_grads_end(grads, mark));
    collective->send = wire;
    collective->send_dtype = f->dtype;
    return ZERO_OK;
}

/* Say how sums of what is sent in `dtype` go on. addends: micro-steps that each element is a sum
 * of. Members make room for their own sums (comm.h); a transport's library does not. */
static void set_sums(const zi_grads *grads, const zi_flat *flat, const zi_group *group,
                     zero_dtype dtype, uint64_t addends, zi_collective *collective)
{
    const bool native = grads->layout->tuning.reduction == ZERO_REDUCTION_NATIVE;
    collective->sum_dtype = zi_flat_host_dtype(grads->layout, flat, dtype);
    collective->scale = zi_sum_headroom(dtype, native ? addends * group->size : addends);
}

static uint32_t how_flag(const zi_grads *grads)
{
    switch (grads->layout->tuning.reduction) {
    case ZERO_REDUCTION_DEFAULT:
        break;
    case ZERO_REDUCTION_EXACT:
        return ZI_COLLECTIVE_EXACT;
    case ZERO_REDUCTION_NATIVE:
        return ZI_COLLECTIVE_NATIVE;
    }
    return 0;
}

/* Flags of the reduction that every micro-step has. In a group of one no library adds, and what did
 * not come is NULL. */
static uint32_t micro_flags(const zi_grads *grads, const bucket_job *job)
{
    const uint32_t how = zi_hop_crosses(hop_of(grads, job, ZI_HOP_SCATTER)) ? how_flag(grads) : 0;
    return how | (grads->first ? 0 : (uint32_t)ZI_COLLECTIVE_ACCUMULATE) |
           (grads->last ? (uint32_t)ZI_COLLECTIVE_LAST : 0);
}

/* Count a batch that crosses ranks. */
static void count_batch(zi_grads *grads, const bucket_job *job, const zi_group *group,
                        const zi_collective *batch, uint32_t batch_count)
{
    if (group->size == 1) {
        return;
    }
    grads->desc.stats->reduces += job->place->unit_count;
    for (uint32_t i = 0; i < batch_count; i++) {
        const uint64_t sent =
            batch[i].count * (batch[i].kind == ZI_REDUCE_SCATTER ? group->size : 1);
        grads->desc.stats->reduce_bytes +=
            zi_codec_bytes((zi_codec){.dtype = batch[i].send_dtype}, sent);
    }
}

/* True if the sums are final once they are in the gradient shard. */
static bool scatter_is_last(const zi_grads *grads, const bucket_job *job)
{
    return grads->last && hop_of(grads, job, ZI_HOP_SCATTER)->ends;
}

/* A reduction of a bucket, ready to be submitted. */
typedef struct bucket_batch {
    zi_group *group;
    zi_collective *batch;
    uint32_t count;
} bucket_batch;

/* A flat's collective in a hop, before its wire type is known. It takes the flat's gradient from
 * the slot, from the gradient shard or from this rank's optimizer shard of that, and adds it to one
 * of the last two. */
static void make_sum(const zi_grads *grads, const bucket_job *job, zi_hop_kind kind, uint32_t index,
                     zi_collective *c)
{
    const zi_flat *flat = &grads->layout->flats[index];
    const zi_hop *hop = hop_of(grads, job, kind);
    const bool touched = grads->buckets[job->bucket].slot != ZI_NO_INDEX;
    *c = (zi_collective){.kind = hop->whole ? ZI_ALL_REDUCE : ZI_REDUCE_SCATTER,
                         .flags = hop->boundary ? how_flag(grads) : micro_flags(grads, job),
                         .send_dtype = zi_hop_source(flat, kind).dtype,
                         .recv_dtype = flat->kept[ZERO_ROLE_GRAD].dtype,
                         .tag = flat->unit,
                         .count = zi_shard_count(grads->layout, flat, zi_hop_received(hop)),
                         .recv = hop->boundary ? zi_grads_optimizer_shard(grads, index)
                                               : zi_grads_shard(grads, index),
                         .squares = grads->last && hop->ends ? norm_of(grads, flat) : NULL};
    if (kind == ZI_HOP_SCATTER) {
        c->send = touched ? zi_grads_slot_data(grads, job->bucket) + flat->grad_slot_at : NULL;
    } else {
        c->send =
            hop->whole ? zi_grads_optimizer_shard(grads, index) : zi_grads_shard(grads, index);
    }
}

/* Of the keys of a flat's roundings on its way through a hop: those of hosts' sums come first, by
 * host. Those of what ranks send follow, by rank, but where each rank is a host of its own. */
#define KEYS_OF_RANKS (UINT64_C(1) << 24)
#define KEYS_OF_HOP (UINT64_C(1) << 26)

static uint64_t hop_key_of(const zi_grads *grads, uint32_t index, zi_hop_kind kind)
{
    const uint64_t hops = (uint64_t)index * ZI_HOPS + kind;
    return zi_packed_key_next(grads->layout->options.seed, hops * KEYS_OF_HOP);
}

/* The codec in which members of a group send: that of hosts, where every member may send to another
 * host. */
static zi_codec sent_codec(const zi_grads *grads, const zi_group *group, zi_codec wire)
{
    const zero_dtype hosts = grads->layout->tuning.host_wire_dtype;
    const bool crosses = group->hosts_at_once && hosts != ZERO_DTYPE_DEFAULT;
    return crosses ? (zi_codec){.dtype = hosts} : wire;
}

/* Let it cross ranks in the hop's codec. *wire_at: bytes of the wire buffer before it. */
static zero_status make_cross(zi_grads *grads, const bucket_job *job, zi_hop_kind kind,
                              uint32_t position, uint64_t *wire_at, zi_collective *c)
{
    const zi_layout *layout = grads->layout;
    const zi_flat *flat = &layout->flats[layout->bucket_flats[position]];
    const zi_hop *hop = hop_of(grads, job, kind);
    const bool adds_up = hop->boundary && !hop->summed; /* micro-steps */
    const bool single = !adds_up || grads->micro_count == 1;
    const zi_group *group = grads->desc.groups[job->place->sharding][kind];
    const zi_codec wire = sent_codec(grads, group, zi_hop_wire(flat, hop, kind, single));
    if (single &&
        !zi_codec_same(wire, sent_codec(grads, group, zi_hop_wire(flat, hop, kind, false)))) {
        c->flags |= ZI_COLLECTIVE_SINGLE;
    }
    set_sums(grads, flat, group, wire.dtype, adds_up ? grads->micro_count : 1, c);
    c->key = hop_key_of(grads, layout->bucket_flats[position], kind);
    const uint64_t own = (group->hosts_at_once ? 0 : KEYS_OF_RANKS) + group->rank;
    const flat_crossing f = {.position = position,
                             .kind = kind,
                             .dtype = wire.dtype,
                             .wire_at = *wire_at,
                             .count = zi_shard_count(layout, flat, zi_hop_given(hop)),
                             .key = zi_packed_key_next(c->key, own)};
    ZI_TRY(to_wire(grads, &f, c));
    *wire_at += zi_codec_padded_bytes(wire, f.count);
    return ZERO_OK;
}

/* The bucket's batch of a hop. Within one rank there is nothing to do, but in every micro-step to
 * add slots to gradient shards; not for flats that backward adds to in place. */
static zero_status make_sums(zi_grads *grads, const bucket_job *job, zi_hop_kind kind,
                             bucket_batch *out)
{
    const zi_hop *hop = hop_of(grads, job, kind);
    uint64_t wire_at = 0;
    *out = (bucket_batch){.group = grads->desc.groups[job->place->sharding][kind],
                          .batch = grads->batches[kind] + job->place->flat_first};
    for (uint32_t i = 0; i < job->place->flat_count; i++) {
        const uint32_t index = flat_at(grads, job, i);
        if (hop->boundary ? !zi_hop_crosses(hop)
                          : zi_flat_grad_in_place(grads->layout, &grads->layout->flats[index])) {
            continue;
        }
        zi_collective *c = &out->batch[out->count++];
        make_sum(grads, job, kind, index, c);
        if (zi_hop_crosses(hop)) {
            ZI_TRY(make_cross(grads, job, kind, job->place->flat_first + i, &wire_at, c));
        }
    }
    return ZERO_OK;
}

static zero_status reduce_submit(zi_grads *grads, const bucket_job *job, const bucket_batch *ready)
{
    if (ready->count == 0) {
        return ZERO_OK;
    }
    count_batch(grads, job, ready->group, ready->batch, ready->count);
    return zi_group_submit(ready->group, grads->desc.reduce_stream, ready->batch, ready->count);
}

static zero_status scatter(zi_grads *grads, const bucket_job *job)
{
    bucket_batch ready;
    uint32_t used = 0;
    ZI_TRY(make_sums(grads, job, ZI_HOP_SCATTER, &ready));
    for (uint32_t i = 0; i < job->place->flat_count; i++) {
        if (zi_grads_added_in_window(grads, flat_at(grads, job, i))) {
            ZI_TRY(zi_grads_add_in_window(grads, job->place->flat_first + i, &ready.batch[used++]));
        }
    }
    return used == 0 ? reduce_submit(grads, job, &ready)
                     : ZERO_OK; /* one rank: all of them, or none */
}

/* In-place flats of units that never came in this step still hold the last step's sum. Offloaded
 * ones are zeros then. */
static zero_status zero_missing(zi_grads *grads, const bucket_job *job)
{
    for (uint32_t i = 0; i < job->place->flat_count && zi_shards_here(grads->desc.shards); i++) {
        const uint32_t index = flat_at(grads, job, i);
        const zi_flat *flat = &grads->layout->flats[index];
        if (zi_flat_grad_in_place(grads->layout, flat) && !grads->units[flat->unit].zeroed) {
            const uint64_t bytes = zi_codec_bytes(flat->kept[ZERO_ROLE_GRAD], flat->count);
            zi_mark *mark = NULL;
            ZI_TRY(zi_grads_begin(grads, ZI_SPAN_CLEAR, flat, bytes, &mark));
            ZI_TRY(grad_ops_of(grads)->fill(grad_self_of(grads), grads->desc.reduce_stream,
                                            zi_shards_at(grads->desc.shards, index, 0), 0, bytes));
            ZI_TRY(zi_grads_end(grads, mark));
        }
    }
    return ZERO_OK;
}

/* Add the squares of what went through no reduction: flats written in place that nobody else
 * holds. */
static zero_status sum_squares(zi_grads *grads, const bucket_job *job)
{
    const zi_layout *layout = grads->layout;
    const zi_kernels *kernels = grads->desc.kernels;
    for (uint32_t i = 0; i < job->place->flat_count && scatter_is_last(grads, job); i++) {
        const uint32_t index = flat_at(grads, job, i);
        const zi_flat *flat = &layout->flats[index];
        const bool missing = grads->buckets[job->bucket].slot == ZI_NO_INDEX;
        zi_mark *mark = NULL;
        if (zi_flat_grad_in_place(layout, flat) && missing && !zi_shards_here(grads->desc.shards)) {
            ZI_TRY(zi_grads_square_offloaded(grads, job->place->flat_first + i));
        } else if (zi_flat_grad_in_place(layout, flat)) {
            const uint64_t count = zi_optimizer_shard_count(layout, flat);
            ZI_TRY(zi_grads_begin(grads, ZI_SPAN_NORM, flat,
                                  count * zero_dtype_bytes(layout->tuning.accum_dtype), &mark));
            ZI_TRY(kernels->ops->square_sum(
                kernels->self, grads->desc.reduce_stream, zi_grads_optimizer_shard(grads, index),
                layout->tuning.accum_dtype, count, norm_of(grads, flat)));
            ZI_TRY(zi_grads_end(grads, mark));
        }
    }
    return ZERO_OK;
}

/* Before the first bucket of a boundary. */
static zero_status clear_norm(zi_grads *grads)
{
    if (!grads->last || grads->norm_cleared) {
        return ZERO_OK;
    }
    grads->norm_cleared = true;
    ZI_TRY(grad_ops_of(grads)->fill(grad_self_of(grads), grads->desc.reduce_stream,
                                    grads->desc.replicas, 0, sizeof *grads->desc.replicas));
    return grad_ops_of(grads)->fill(grad_self_of(grads), grads->desc.reduce_stream,
                                    grads->desc.norm, 0, sizeof *grads->desc.norm);
}

static zero_status boundary(zi_grads *grads, const bucket_job *job)
{
    bucket_batch ready;
    ZI_TRY(zero_missing(grads, job));
    for (zi_hop_kind kind = ZI_HOP_BOUNDARY; kind <= ZI_HOP_REPLICA; kind++) {
        ZI_TRY(make_sums(grads, job, kind, &ready));
        ZI_TRY(reduce_submit(grads, job, &ready));
    }
    ZI_TRY(sum_squares(grads, job));
    return grads->desc.so_far != NULL
               ? grad_ops_of(grads)->copy(grad_self_of(grads), grads->desc.reduce_stream,
                                          &grads->desc.so_far[job->bucket], grads->desc.norm,
                                          sizeof *grads->desc.norm)
               : ZERO_OK;
}

/* The work on the reduce stream so far was the last to use the slot, which has an event of its own:
 * a bucket's may be recorded again, in another slot, before this one is taken. */
static zero_status empty_slot(zi_grads *grads, uint32_t class, uint32_t index)
{
    grad_slot *slot = &grads->slots[grads->layout->grad_classes[class].slot_first + index];
    slot->bucket = ZI_NO_INDEX;
    slot->freed = ++grads->clock;
    slot->used = true;
    return grad_ops_of(grads)->event_record(grad_self_of(grads), slot->emptied,
                                            grads->desc.reduce_stream);
}

zero_status zi_grads_reduce_next(zi_grads *grads)
{
    bucket_job job = {.bucket = grads->next, .place = &grads->layout->buckets[grads->next]};
    grad_bucket *bucket = &grads->buckets[job.bucket];
    zi_stream *stream = grads->desc.reduce_stream;
    /* Its last reduction may still read the batches. */
    ZI_TRY(grad_ops_of(grads)->issue_wait(grad_self_of(grads), bucket->reduced,
                                          &grads->desc.stats->grad_wait_ns));
    ZI_TRY(grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream, bucket->ready, NULL));
    ZI_TRY(grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream, grads->consumed, NULL));
    ZI_TRY(clear_norm(grads));
    const bool ends = grads->last && !zi_grads_end_late(grads->layout);
    ZI_TRY(zi_grads_load(grads, job.bucket, false));
    ZI_TRY(scatter(grads, &job));
    ZI_TRY(ends ? boundary(grads, &job) : ZERO_OK);
    ZI_TRY(zi_grads_store(grads, job.bucket, false));
    ZI_TRY(grad_ops_of(grads)->event_record(grad_self_of(grads), bucket->reduced, stream));
    if (bucket->slot != ZI_NO_INDEX) {
        ZI_TRY(empty_slot(grads, job.place->grad_class, bucket->slot));
        bucket->slot = ZI_NO_INDEX;
    }
    grads->next++;
    return ZERO_OK;
}

static zero_status connect_bucket(zi_grads *grads, uint32_t bucket)
{
    bucket_job job = {.bucket = bucket, .place = &grads->layout->buckets[bucket]};
    zi_event *reduced = grads->buckets[bucket].reduced;
    bucket_batch ready;
    ZI_TRY(grad_ops_of(grads)->issue_wait(grad_self_of(grads), reduced,
                                          NULL)); /* the batches are read */
    /* From a slot, as most ranks will; all of them are empty. */
    grads->buckets[bucket].slot = job.place->grad_class != ZI_NO_INDEX ? 0 : ZI_NO_INDEX;
    for (zi_hop_kind kind = ZI_HOP_SCATTER; kind <= ZI_HOP_REPLICA; kind++) {
        ZI_TRY(make_sums(grads, &job, kind, &ready));
        ZI_TRY(zi_group_connect(ready.group, grads->desc.reduce_stream, ready.batch, ready.count));
    }
    grads->buckets[bucket].slot = ZI_NO_INDEX;
    return grad_ops_of(grads)->event_record(grad_self_of(grads), reduced,
                                            grads->desc.reduce_stream);
}

zero_status zi_grads_connect(zi_grads *grads)
{
    bool connects = false;
    for (uint32_t i = 0; i < grads->layout->sharding_count; i++) {
        for (zi_hop_kind kind = ZI_HOP_SCATTER; kind <= ZI_HOP_REPLICA; kind++) {
            connects = connects || zi_group_connects(grads->desc.groups[i][kind]);
        }
    }
    if (!connects) {
        return ZERO_OK;
    }
    /* The first micro-step of a step and the others go other ways; any may be the last. */
    for (int way = 0; way < 2; way++) {
        grads->first = way == 0;
        grads->micro_count = grads->first ? 1 : 2;
        grads->last = true;
        for (uint32_t b = 0; b < grads->layout->bucket_count; b++) {
            ZI_TRY(connect_bucket(grads, b));
        }
    }
    return ZERO_OK;
}

zero_status zi_grads_end_boundary(zi_grads *grads)
{
    if (!grads->last || !zi_grads_end_late(grads->layout)) {
        return ZERO_OK;
    }
    for (uint32_t b = 0; b < grads->layout->bucket_count; b++) {
        bucket_job job = {.bucket = b, .place = &grads->layout->buckets[b]};
        const uint32_t class = job.place->grad_class;
        /* In the class's first slot: backward is over, so all are free. */
        grads->buckets[b].slot = 0;
        ZI_TRY(zi_grads_load(grads, b, true));
        ZI_TRY(boundary(grads, &job));
        ZI_TRY(zi_grads_store(grads, b, true));
        grads->buckets[b].slot = ZI_NO_INDEX;
        ZI_TRY(empty_slot(grads, class, 0));
        ZI_TRY(grad_ops_of(grads)->event_record(grad_self_of(grads), grads->buckets[b].reduced,
                                                grads->desc.reduce_stream));
    }
    grads->ended = true;
    return ZERO_OK;
}

uint32_t zi_grads_reduced_count(const zi_grads *grads)
{
    return zi_grads_end_late(grads->layout) && !grads->ended ? 0 : grads->next;
}

zero_status zi_grads_wait_bucket(zi_grads *grads, uint32_t bucket, zi_stream *stream)
{
    return grad_ops_of(grads)->stream_wait(grad_self_of(grads), stream,
                                           grads->buckets[bucket].reduced, NULL);
}

zero_status zi_grads_wait_reduced(zi_grads *grads, zi_stream *stream)
{
    const uint32_t count = grads->layout->bucket_count;
    return count == 0 ? ZERO_OK : zi_grads_wait_bucket(grads, count - 1, stream);
}
