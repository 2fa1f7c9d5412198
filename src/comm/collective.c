/* Owns what the backends share about collectives: the terms that members compare, their text, the
 * order in which members are added up, the part that each adds up, and how a batch is submitted.
 * Invariant: all terms show in the text, so two collectives that differ read differently. */
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "core/check.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"

const char *zi_collective_kind_name(zi_collective_kind kind)
{
    switch (kind) {
    case ZI_ALL_GATHER:
        return "all_gather";
    case ZI_REDUCE_SCATTER:
        return "reduce_scatter";
    case ZI_ALL_REDUCE:
        return "all_reduce";
    }
    return "unknown collective";
}

const char *zi_public_call_text(uint32_t call)
{
#define ZI_TEXT_ROW(name, text) text,
    static const char *const texts[] = {ZI_PUBLIC_CALLS(ZI_TEXT_ROW)};
#undef ZI_TEXT_ROW
    return call < ZI_PUBLIC_CALL_COUNT ? texts[call] : "an unknown call";
}

/* Of a tag that is no unit's. */
static void tag_text(uint32_t tag, char *text, size_t text_bytes)
{
    if (tag == ZI_TAG_STEP || tag == ZI_TAG_NORM) {
        (void)snprintf(text, text_bytes, "%s",
                       tag == ZI_TAG_STEP ? "the step's norm" : "the norm before the step");
        return;
    }
    const bool in_call = tag >= ZI_TAG_CALL;
    const uint32_t bytes =
        in_call ? tag & ((UINT32_C(1) << ZI_TAG_CALL_BITS) - 1) : tag - ZI_TAG_WORLD;
    const char *call = in_call ? zi_public_call_text((tag - ZI_TAG_CALL) >> ZI_TAG_CALL_BITS)
                               : "zero_world_gather";
    if (bytes == 0) {
        (void)snprintf(text, text_bytes, "%s", in_call ? call : "zero_world_barrier");
    } else {
        (void)snprintf(text, text_bytes, "%s's %u bytes", call, bytes);
    }
}

const char *zi_collective_text(const zi_collective *collective, char *text, size_t text_bytes)
{
    const char *accumulate = (collective->flags & ZI_COLLECTIVE_ACCUMULATE) != 0 ? " added" : "";
    const char *how = (collective->flags & ZI_COLLECTIVE_EXACT) != 0    ? ", exact"
                      : (collective->flags & ZI_COLLECTIVE_NATIVE) != 0 ? ", native"
                                                                        : "";
    char target[16] = "";
    if (collective->recv_dtype != collective->send_dtype) {
        (void)snprintf(target, sizeof target, " to %s", zero_dtype_name(collective->recv_dtype));
    }
    char about[48];
    if (collective->tag < ZI_TAG_WORLD) {
        (void)snprintf(about, sizeof about, "unit %u", collective->tag);
    } else {
        tag_text(collective->tag, about, sizeof about);
    }
    (void)snprintf(text, text_bytes, "%s of %s, %zu x %s%s%s%s",
                   zi_collective_kind_name(collective->kind), about, collective->count,
                   zero_dtype_name(collective->send_dtype), target, accumulate, how);
    return text;
}

/* True if granules may not be cut. */
static bool packs_sums(const zi_collective *collective)
{
    return collective->kind != ZI_ALL_GATHER && (zi_dtype_is_packed(collective->send_dtype) ||
                                                 zi_dtype_is_packed(collective->sum_dtype));
}

zi_collective_terms zi_collective_terms_of(const zi_collective *collective)
{
    zi_assert(collective->kind >= ZI_ALL_GATHER && collective->kind <= ZI_ALL_REDUCE);
    zi_assert(zi_packed_bytes(collective->send_dtype, ZI_GRANULE) != 0);
    zi_assert(!packs_sums(collective) || collective->count % ZI_GRANULE == 0);
    zi_assert(zero_dtype_bytes(collective->recv_dtype) != 0);
    zi_assert(collective->kind != ZI_ALL_GATHER ||
              (collective->recv_dtype == collective->send_dtype &&
               (collective->send != NULL || collective->count == 0)));
    zi_assert(collective->kind == ZI_REDUCE_SCATTER ||
              (collective->flags & ZI_COLLECTIVE_ACCUMULATE) == 0);
    zi_assert(collective->kind != ZI_ALL_GATHER || collective->squares == NULL);
    zi_assert((collective->flags & ZI_COLLECTIVE_NATIVE) == 0 || collective->send != NULL ||
              collective->count == 0);
    return (zi_collective_terms){
        .kind = (uint8_t)collective->kind,
        .flags = (uint8_t)collective->flags,
        .send_dtype = (uint8_t)collective->send_dtype,
        .recv_dtype = (uint8_t)collective->recv_dtype,
        .tag = collective->tag,
        .count = collective->count,
    };
}

const char *zi_collective_terms_text(const zi_collective_terms *terms, char *text,
                                     size_t text_bytes)
{
    const zi_collective collective = {
        .kind = (zi_collective_kind)terms->kind,
        .flags = terms->flags,
        .send_dtype = (zero_dtype)terms->send_dtype,
        .recv_dtype = (zero_dtype)terms->recv_dtype,
        .tag = terms->tag,
        .count = terms->count,
    };
    return zi_collective_text(&collective, text, text_bytes);
}

zero_status zi_collective_mismatch(const char *group, uint32_t index, uint32_t rank,
                                   const zi_collective_terms *terms, uint32_t first,
                                   const zi_collective_terms *first_terms)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES];
    char first_text[ZI_COLLECTIVE_TEXT_BYTES];
    const bool last = (terms->flags & ZI_COLLECTIVE_LAST) != 0;
    const bool single = (terms->flags & ZI_COLLECTIVE_SINGLE) != 0;
    zi_collective_terms other = *terms;
    other.flags ^= ZI_COLLECTIVE_SINGLE;
    other.send_dtype = first_terms->send_dtype;
    if (memcmp(&other, first_terms, sizeof other) == 0) {
        ZI_FAIL(ZERO_ERR_MISMATCH,
                "rank %u makes one micro-step in this step, rank %u several (group %s, %s); make "
                "the same number of micro-steps on all ranks",
                single ? rank : first, single ? first : rank, group,
                zi_collective_terms_text(terms, text, sizeof text));
    }
    other = *terms;
    other.flags ^= ZI_COLLECTIVE_LAST;
    if (memcmp(&other, first_terms, sizeof other) == 0) {
        ZI_FAIL(ZERO_ERR_MISMATCH,
                "rank %u is in the last micro-step of its step, rank %u in one before the last "
                "(group %s, %s); make the same number of micro-steps on all ranks",
                last ? rank : first, last ? first : rank, group,
                zi_collective_terms_text(terms, text, sizeof text));
    }
    ZI_FAIL(ZERO_ERR_MISMATCH,
            "group %s, collective %u: rank %u has %s, rank %u has %s; all ranks must make the same "
            "calls and hold the same units (zero/unit.h)",
            group, index, rank, zi_collective_terms_text(terms, text, sizeof text), first,
            zi_collective_terms_text(first_terms, first_text, sizeof first_text));
}

zero_status zi_batch_mismatch(const char *group, uint32_t rank, uint64_t count, uint32_t first,
                              uint64_t first_count)
{
    ZI_FAIL(ZERO_ERR_MISMATCH,
            "group %s: rank %u has a batch of %llu collectives, rank %u one of %llu; all ranks "
            "must make the same calls",
            group, rank, (unsigned long long)count, first, (unsigned long long)first_count);
}

const char *zi_ranks_text(const uint32_t *ranks, uint32_t count, char *text, size_t text_bytes)
{
    const uint32_t named = count < 6 ? count : 6;
    size_t used = (size_t)snprintf(text, text_bytes, "rank%s", count == 1 ? "" : "s");
    for (uint32_t i = 0; i < named && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, i == 0 ? " %u" : ", %u", ranks[i]);
    }
    if (count > named && used < text_bytes) {
        (void)snprintf(text + used, text_bytes - used, " and %u more", count - named);
    }
    return text;
}

zero_status zi_comm_pages_alloc(zi_comm *comm, size_t bytes, void **out)
{
    (void)comm;
    return zi_pages_alloc(bytes, out);
}

void zi_comm_pages_free(zi_comm *comm, void *pointer, size_t bytes)
{
    (void)comm;
    zi_pages_free(pointer, bytes);
}

zero_status zi_group_gather(zi_group *group, uint32_t tag, const void *mine, void *all,
                            size_t bytes)
{
    const zi_device *device = group->kernels->device;
    zi_stream *stream = NULL;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &stream));
    zi_assert_cmp(bytes % sizeof(float), ==, 0);
    const zi_collective gather = {
        .kind = ZI_ALL_GATHER,
        .send_dtype = ZERO_DTYPE_F32,
        .recv_dtype = ZERO_DTYPE_F32,
        .tag = tag,
        .count = bytes / sizeof(float),
        .send = mine,
        .recv = all,
    };
    const zero_status status = zi_group_submit(group, stream, &gather, 1);
    /* It has run by now, whatever backend did so. */
    zi_recorder_end(&group->recorder, zi_recorder_last(&group->recorder),
                    status == ZERO_OK ? ZI_RECORD_DONE : ZI_RECORD_FAILED);
    return status;
}

uint32_t zi_group_index(const uint32_t *members, uint32_t size, uint32_t world_rank,
                        uint32_t *order)
{
    uint32_t rank = UINT32_MAX;
    for (uint32_t i = 0; i < size; i++) {
        rank = members[i] == world_rank ? i : rank;
        uint32_t at = i;
        for (; at > 0 && members[order[at - 1]] > members[i]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    zi_assert_cmp(rank, <, size);
    return rank;
}

zero_status zi_group_check_sources(const zi_kernels *kernels, uint32_t size, const char *name,
                                   const char *remedy)
{
    const uint32_t most = kernels->ops->sources_max;
    if (most != 0 && size > most) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "group %s: its sums are of %u ranks, and a kernel adds up %u at most; %s, or split "
                "over at most %u ranks (shard_group, grad_group, optimizer_group)",
                name, size, most, remedy, most);
    }
    return ZERO_OK;
}

uint64_t zi_collective_share(uint64_t count, uint32_t size, uint32_t rank, uint64_t *begin)
{
    const uint64_t blocks = zi_div_up(count, ZI_SHARE_COUNT);
    *begin = zi_min_u64(zi_div_up(rank * blocks, size) * ZI_SHARE_COUNT, count);
    return zi_min_u64(zi_div_up((rank + 1) * blocks, size) * ZI_SHARE_COUNT, count) - *begin;
}

bool zi_collective_in_levels(const zi_group *group, const zi_collective *collective)
{
    const uint32_t most = group->kernels->ops->sources_max;
    const bool is_short = collective->kind == ZI_ALL_REDUCE &&
                          collective->count < (uint64_t)group->size * ZI_SHARE_COUNT;
    const bool at_once = is_short && (most == 0 || group->size <= most);
    return (collective->flags & ZI_COLLECTIVE_EXACT) == 0 && !at_once;
}

float zi_sum_headroom(zero_dtype dtype, uint64_t addends)
{
    float divisor = 1.0f;
    while (dtype == ZERO_DTYPE_F16 && divisor < (float)addends) {
        divisor *= 2.0f;
    }
    return divisor;
}

zi_fold zi_collective_fold(const zi_collective *collective, uint64_t first,
                           const void *const *sources, uint32_t source_count, uint64_t count)
{
    return (zi_fold){
        .dst = (unsigned char *)collective->recv + first * zero_dtype_bytes(collective->recv_dtype),
        .sources = sources,
        .source_count = source_count,
        .count = count,
        .dst_dtype = collective->recv_dtype,
        .source_dtype = collective->send_dtype,
        .accumulate = (collective->flags & ZI_COLLECTIVE_ACCUMULATE) != 0,
        .scale = collective->scale,
    };
}

zero_status zi_collective_square_sum(const zi_kernels *kernels, zi_stream *stream,
                                     const zi_collective *collective)
{
    if (collective->squares == NULL || collective->count == 0) {
        return ZERO_OK;
    }
    return kernels->ops->square_sum(kernels->self, stream, collective->recv, collective->recv_dtype,
                                    collective->count, collective->squares);
}

/* Bytes of the whole array that a collective is about. */
static uint64_t collective_bytes_of(const zi_group *group, const zi_collective *collective)
{
    const uint64_t parts = collective->kind == ZI_ALL_REDUCE ? 1 : group->size;
    return zi_packed_bytes(collective->send_dtype, collective->count * parts);
}

static zi_span span_of(const zi_group *group, const zi_collective *collective)
{
    if (collective->kind == ZI_ALL_GATHER) {
        return ZI_SPAN_GATHER;
    }
    return group->size > 1 ? ZI_SPAN_REDUCE : ZI_SPAN_FOLD;
}

/* The subject of a batch: its first collective's unit, or the step. */
static const char *collective_name_of(const zi_timeline *timeline, const zi_collective *collective)
{
    return collective->tag < ZI_TAG_WORLD
               ? timeline->desc.unit_name(timeline->desc.user, collective->tag)
               : "the step";
}

static zero_status submit_noted(zi_group *group, zi_stream *stream, const zi_collective *batch,
                                size_t batch_count, uint64_t bytes)
{
    const zi_device *device = group->kernels->device;
    zi_mark *mark = NULL;
    ZI_TRY(zi_stream_begin(device, stream, span_of(group, batch),
                           collective_name_of(device->timeline, batch), bytes, &mark));
    if (mark != NULL && group->size > 1) {
        mark->batch = (zi_span_batch){group->name, group->leader, group->size,
                                      zi_recorder_last(&group->recorder)};
    }
    ZI_TRY(group->ops->submit(group, stream, batch, batch_count));
    return zi_stream_end(device, stream, mark);
}

/* The record that tells two batches apart. It is computed for each batch, so it takes two words at
 * a time. */
static zi_record record_of(const zi_group *group, const zi_collective *batch, size_t batch_count)
{
    zi_record record = {.collectives = (uint32_t)batch_count};
    uint64_t hash = ZI_HASH_START;
    for (size_t i = batch_count; i-- > 0;) { /* the first stays */
        const zi_collective_terms terms = zi_collective_terms_of(&batch[i]);
        memcpy(record.terms, &terms, sizeof record.terms);
        hash = (hash ^ record.terms[0]) * UINT64_C(0x9e3779b97f4a7c15);
        hash = (hash ^ hash >> 32 ^ record.terms[1]) * UINT64_C(0x9e3779b97f4a7c15);
        record.bytes += collective_bytes_of(group, &batch[i]);
    }
    record.hash = (uint32_t)(hash >> 32);
    return record;
}

zero_status zi_group_submit(zi_group *group, zi_stream *stream, const zi_collective *batch,
                            size_t batch_count)
{
    const zi_record record = record_of(group, batch, batch_count);
    (void)zi_recorder_enqueue(&group->recorder, &record);
    return group->kernels->device->timeline == NULL
               ? group->ops->submit(group, stream, batch, batch_count)
               : submit_noted(group, stream, batch, batch_count, record.bytes);
}
