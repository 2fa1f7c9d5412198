/* Owns the data of a batch: which calls of NCCL it becomes. The calls and their order depend on the
 * batch's terms alone and never on a pointer, so that all members make matching calls.
 *
 * First come all collectives that NCCL does by itself, in one group of calls. The other sums go
 * through scratch memory, in rounds: as many chunks of them as fit it are moved in one group of
 * calls and folded by kernels. The next round, or batch, may use the scratch memory again because
 * it comes later on the same stream. */
#include "comm/nccl/nccl_state.h"
#include "core/check.h"
#include "core/error.h"
#include "core/sizes.h"
#include "device/cuda/cuda_device.h"

/* Chunks start at multiples of this many bytes of scratch memory. */
#define CHUNK_ALIGN 256

_Static_assert(ZI_PART_COUNT % ZI_NORM_CHUNK == 0, "chunks can add their squares themselves");

/* A group of NCCL's calls being issued. */
typedef struct call_group {
    zi_nccl_group *group;
    cudaStream_t stream;
    ncclResult_t result; /* the first that is no success */
    const char *call;    /* what it was about */
} call_group;

/* A batch that is being moved. */
typedef struct batch_state {
    zi_nccl_group *group;
    zi_stream *stream;
    const zi_collective *batch;
    uint32_t batch_count;
    uint32_t index; /* of the collective that the next round begins with */
    uint64_t begin; /* of the elements of it that are left */
} batch_state;

static ncclDataType_t type_of(zero_dtype dtype)
{
    switch (dtype) {
    case ZERO_DTYPE_BF16:
        return ncclBfloat16;
    case ZERO_DTYPE_F16:
        return ncclFloat16;
    case ZERO_DTYPE_F32:
        return ncclFloat32;
    case ZERO_DTYPE_DEFAULT:
    case ZERO_DTYPE_NONE:
        break;
    }
    zi_assert(dtype == ZERO_DTYPE_F32);
    return ncclFloat32;
}

/* Empty collectives are left out: their terms are the same on all ranks. */
static bool is_empty(const zi_collective *c)
{
    return c->count == 0;
}

/* Whether members exchange their parts of the sum, to be folded by kernels. */
static bool is_exchanged(const zi_collective *c)
{
    return (c->flags & ZI_COLLECTIVE_EXACT) != 0 || c->send_dtype != ZERO_DTYPE_F32;
}

static uint64_t send_bytes(const zi_nccl_group *group, const zi_collective *c)
{
    const uint64_t parts = c->kind == ZI_REDUCE_SCATTER ? group->base.size : 1;
    return parts * c->count * zero_dtype_bytes(c->send_dtype);
}

/* Whether NCCL can sum it directly from send: a rank without send has as many zeros. */
static bool is_contiguous(const zi_nccl_group *group, const zi_collective *c)
{
    return send_bytes(group, c) <= group->half_bytes;
}

/* Whether NCCL does it by itself, into recv. */
static bool is_direct(const zi_nccl_group *group, const zi_collective *c)
{
    if (c->kind == ZI_ALL_GATHER) {
        return true;
    }
    zi_assert(group->scratch != NULL); /* the group was made for gathers only */
    const bool plain = !is_exchanged(c) && c->recv_dtype == ZERO_DTYPE_F32 &&
                       (c->flags & ZI_COLLECTIVE_ACCUMULATE) == 0;
    return plain && (c->kind == ZI_ALL_REDUCE || is_contiguous(group, c));
}

/* Whether the folds of the chunks add the squares: they write all of recv, in whole chunks of a
 * norm. */
static bool adds_squares(const zi_nccl_group *group, const zi_collective *c)
{
    return c->kind == ZI_REDUCE_SCATTER && !is_direct(group, c);
}

static const unsigned char *zeros_of(const zi_nccl_group *group)
{
    return group->scratch;
}

/* Element `first` of the send buffer; zeros for a rank that has none. */
static const void *source_of(const zi_nccl_group *group, const zi_collective *c, uint64_t first)
{
    return c->send == NULL
               ? zeros_of(group)
               : (const unsigned char *)c->send + first * zero_dtype_bytes(c->send_dtype);
}

static unsigned char *target_of(const zi_collective *c, uint64_t first)
{
    return (unsigned char *)c->recv + first * zero_dtype_bytes(c->recv_dtype);
}

/* ---- groups of calls ---- */

static void record_result(call_group *calls, ncclResult_t result, const char *call)
{
    if (calls->result == ncclSuccess && result != ncclSuccess && result != ncclInProgress) {
        calls->result = result;
        calls->call = call;
    }
}

/* Holds the group's mutex until calls_end. */
static zero_status calls_begin(zi_nccl_group *group, zi_stream *stream, call_group *calls)
{
    *calls = (call_group){.group = group,
                          .stream = zi_cuda_stream_native(stream),
                          .result = ncclSuccess,
                          .call = "ncclGroupStart"};
    (void)pthread_mutex_lock(&group->mutex);
    if (group->handle == NULL) {
        (void)pthread_mutex_unlock(&group->mutex);
        return zi_nccl_check(group);
    }
    const ncclResult_t result = group->api->group_start();
    if (result != ncclSuccess) {
        (void)pthread_mutex_unlock(&group->mutex);
        return zi_nccl_result(group, result, "ncclGroupStart");
    }
    return ZERO_OK;
}

/* Once it returns the calls are with the driver, and other work may be put on the stream. */
static zero_status calls_end(call_group *calls)
{
    zi_nccl_group *group = calls->group;
    const ncclResult_t ended = group->api->group_end();
    (void)pthread_mutex_unlock(&group->mutex);
    ZI_TRY(zi_nccl_result(group, calls->result, calls->call));
    return zi_nccl_wait(group, ended, "ncclGroupEnd");
}

static void put_send(call_group *calls, const void *source, uint64_t count, zero_dtype dtype,
                     uint32_t peer)
{
    const zi_nccl_group *group = calls->group;
    record_result(
        calls,
        group->api->send(source, count, type_of(dtype), (int)peer, group->handle, calls->stream),
        "ncclSend");
}

static void put_recv(call_group *calls, void *target, uint64_t count, zero_dtype dtype,
                     uint32_t peer)
{
    const zi_nccl_group *group = calls->group;
    record_result(
        calls,
        group->api->recv(target, count, type_of(dtype), (int)peer, group->handle, calls->stream),
        "ncclRecv");
}

static void put_reduce_scatter(call_group *calls, const void *source, void *target, uint64_t count)
{
    const zi_nccl_group *group = calls->group;
    record_result(calls,
                  group->api->reduce_scatter(source, target, count, ncclFloat32, ncclSum,
                                             group->handle, calls->stream),
                  "ncclReduceScatter");
}

static void put_all_reduce(call_group *calls, const void *source, void *target, uint64_t count)
{
    const zi_nccl_group *group = calls->group;
    record_result(calls,
                  group->api->all_reduce(source, target, count, ncclFloat32, ncclSum, group->handle,
                                         calls->stream),
                  "ncclAllReduce");
}

/* ---- what NCCL does by itself ---- */

/* In steps that are as long as the zeros, since some rank may need these. */
static void put_direct_all_reduce(call_group *calls, const zi_collective *c)
{
    const zi_nccl_group *group = calls->group;
    const uint64_t step = group->half_bytes / sizeof(float) / ZI_PART_COUNT * ZI_PART_COUNT;
    for (uint64_t begin = 0; begin < c->count; begin += step) {
        put_all_reduce(calls, source_of(group, c, begin), target_of(c, begin),
                       zi_min_u64(step, c->count - begin));
    }
}

static void put_direct(call_group *calls, const zi_collective *c)
{
    const zi_nccl_group *group = calls->group;
    if (c->kind == ZI_ALL_GATHER) {
        record_result(calls,
                      group->api->all_gather(c->send, c->recv, c->count, type_of(c->send_dtype),
                                             group->handle, calls->stream),
                      "ncclAllGather");
    } else if (c->kind == ZI_REDUCE_SCATTER) {
        put_reduce_scatter(calls, source_of(group, c, 0), c->recv, c->count);
    } else {
        put_direct_all_reduce(calls, c);
    }
}

static zero_status move_direct(const batch_state *m)
{
    bool any = false;
    for (uint32_t i = 0; i < m->batch_count; i++) {
        any = any || (!is_empty(&m->batch[i]) && is_direct(m->group, &m->batch[i]));
    }
    if (!any) {
        return ZERO_OK;
    }
    call_group calls;
    ZI_TRY(calls_begin(m->group, m->stream, &calls));
    for (uint32_t i = 0; i < m->batch_count; i++) {
        if (!is_empty(&m->batch[i]) && is_direct(m->group, &m->batch[i])) {
            put_direct(&calls, &m->batch[i]);
        }
    }
    return calls_end(&calls);
}

/* ---- chunks of the other sums ---- */

/* Elements that one member adds up of an exchanged chunk of an ALL_REDUCE; the last parts may be
 * shorter or empty. */
static uint64_t part_count(const zi_nccl_group *group, const zi_nccl_chunk *chunk)
{
    return chunk->collective->kind == ZI_REDUCE_SCATTER
               ? chunk->count
               : zi_align_up(zi_div_up(chunk->count, group->base.size), ZI_PART_COUNT);
}

/* Elements [*first, *first + result) of the send buffer are what member `rank` adds up. */
static uint64_t part_of(const zi_nccl_group *group, const zi_nccl_chunk *chunk, uint32_t rank,
                        uint64_t *first)
{
    const zi_collective *c = chunk->collective;
    if (c->kind == ZI_REDUCE_SCATTER) {
        *first = rank * (uint64_t)c->count + chunk->begin;
        return chunk->count;
    }
    const uint64_t count = zi_collective_part(chunk->count, group->base.size, rank, first);
    *first += chunk->begin;
    return count;
}

/* Elements of the next chunk, for `space` bytes of scratch memory, and the bytes it needs of them.
 * 0: too little space for a chunk worth its calls. */
static uint64_t chunk_size(const zi_nccl_group *group, const zi_collective *c, uint64_t left,
                           uint64_t space, uint64_t *bytes)
{
    const uint64_t element = zero_dtype_bytes(c->send_dtype);
    const uint64_t size = group->base.size;
    const bool whole = c->kind == ZI_REDUCE_SCATTER && !is_exchanged(c) && is_contiguous(group, c);
    const bool summed_here = c->kind == ZI_ALL_REDUCE && !is_exchanged(c);
    if (whole || summed_here) {
        /* NCCL leaves its sum there. */
        const uint64_t fits = space / element / ZI_PART_COUNT * ZI_PART_COUNT;
        const uint64_t count = whole && fits < left ? 0 : zi_min_u64(left, fits);
        *bytes = count * element;
        return count;
    }
    /* Every member sends a part. */
    const uint64_t fits = space / (size * element) / ZI_PART_COUNT * ZI_PART_COUNT;
    const uint64_t parts = c->kind == ZI_ALL_REDUCE ? size : 1;
    const uint64_t count = zi_min_u64(left, fits * parts);
    const uint64_t part = parts == 1 ? count : zi_align_up(zi_div_up(count, size), ZI_PART_COUNT);
    *bytes = size * part * element;
    return count;
}

/* Cut the next round: as many chunks as fit scratch memory together. A collective is cut in two
 * only where it has all of the scratch memory. False when the batch is done. */
static bool next_round(batch_state *m)
{
    zi_nccl_group *group = m->group;
    uint64_t used = 0;
    group->chunk_count = 0;
    while (m->index < m->batch_count && group->chunk_count < group->chunk_limit) {
        const zi_collective *c = &m->batch[m->index];
        if (is_empty(c) || is_direct(group, c)) {
            m->index++;
            continue;
        }
        uint64_t bytes = 0;
        const uint64_t left = c->count - m->begin;
        const uint64_t count = chunk_size(group, c, left, group->half_bytes - used, &bytes);
        if (group->chunk_count != 0 && count < left) {
            break;
        }
        zi_assert_cmp(count, >, 0);
        group->chunks[group->chunk_count++] =
            (zi_nccl_chunk){c, m->begin, count, group->scratch + group->half_bytes + used};
        used = zi_min_u64(group->half_bytes, zi_align_up(used + bytes, CHUNK_ALIGN));
        m->begin += count;
        if (m->begin == c->count) {
            m->index++;
            m->begin = 0;
        }
    }
    return group->chunk_count != 0;
}

/* Whether the chunk's parts of the send buffer must be packed end to end for NCCL to sum them. */
static bool is_packed(const zi_nccl_group *group, const zi_nccl_chunk *chunk)
{
    const zi_collective *c = chunk->collective;
    return c->kind == ZI_REDUCE_SCATTER && !is_exchanged(c) && !is_contiguous(group, c);
}

static zero_status pack(const batch_state *m, const zi_nccl_chunk *chunk)
{
    const zi_nccl_group *group = m->group;
    const zi_device *device = group->base.kernels->device;
    const uint64_t bytes = chunk->count * zero_dtype_bytes(chunk->collective->send_dtype);
    for (uint32_t i = 0; i < group->base.size && chunk->collective->send != NULL; i++) {
        uint64_t first = 0;
        (void)part_of(group, chunk, i, &first);
        ZI_TRY(device->ops->copy(device->self, m->stream, chunk->at + i * bytes,
                                 source_of(group, chunk->collective, first), bytes));
    }
    return ZERO_OK;
}

/* Where NCCL writes the sum of a chunk: of a packed one in place. */
static unsigned char *sum_of(const zi_nccl_group *group, const zi_nccl_chunk *chunk)
{
    const uint64_t bytes = chunk->count * sizeof(float);
    return chunk->at + (is_packed(group, chunk) ? group->base.rank * bytes : 0);
}

static void put_sum(call_group *calls, const zi_nccl_chunk *chunk)
{
    const zi_nccl_group *group = calls->group;
    const zi_collective *c = chunk->collective;
    if (c->kind == ZI_ALL_REDUCE) {
        put_all_reduce(calls, source_of(group, c, chunk->begin), chunk->at, chunk->count);
    } else {
        const bool packed = is_packed(group, chunk) && c->send != NULL;
        put_reduce_scatter(calls, packed ? chunk->at : source_of(group, c, 0), sum_of(group, chunk),
                           chunk->count);
    }
}

/* Send each member its part and take this rank's from all. */
static void put_exchange(call_group *calls, const zi_nccl_chunk *chunk)
{
    const zi_nccl_group *group = calls->group;
    const zi_collective *c = chunk->collective;
    const uint64_t stride = part_count(group, chunk) * zero_dtype_bytes(c->send_dtype);
    uint64_t first = 0;
    const uint64_t mine = part_of(group, chunk, group->base.rank, &first);
    for (uint32_t step = 1; step < group->base.size; step++) {
        const uint32_t to = (group->base.rank + step) % group->base.size;
        const uint32_t from = (group->base.rank + group->base.size - step) % group->base.size;
        const uint64_t theirs = part_of(group, chunk, to, &first);
        if (theirs != 0) {
            put_send(calls, source_of(group, c, first), theirs, c->send_dtype, to);
        }
        if (mine != 0) {
            put_recv(calls, chunk->at + from * stride, mine, c->send_dtype, from);
        }
    }
}

/* recv = round([recv +] sum), of this rank's part of an exchanged chunk or of what NCCL summed. */
static zero_status fold(const batch_state *m, const zi_nccl_chunk *chunk)
{
    zi_nccl_group *group = m->group;
    const zi_collective *c = chunk->collective;
    const zi_kernels *kernels = group->base.kernels;
    uint64_t first = chunk->begin;
    uint64_t count = chunk->count;
    uint32_t source_count = 1;
    group->sources[0] = sum_of(group, chunk);
    if (is_exchanged(c)) {
        const uint64_t stride = part_count(group, chunk) * zero_dtype_bytes(c->send_dtype);
        count = part_of(group, chunk, group->base.rank, &first);
        source_count = group->base.size;
        for (uint32_t i = 0; i < source_count; i++) {
            const uint32_t rank = group->order[i];
            const void *own = c->send == NULL ? NULL : source_of(group, c, first);
            group->sources[i] = rank == group->base.rank ? own : chunk->at + rank * stride;
        }
    }
    const uint64_t target = c->kind == ZI_REDUCE_SCATTER ? chunk->begin : first;
    zi_fold job = zi_collective_fold(c, target, group->sources, source_count, count);
    job.squares = adds_squares(group, c) ? c->squares : NULL;
    return count != 0 ? kernels->ops->fold(kernels->self, m->stream, &job) : ZERO_OK;
}

/* Whether members must gather the parts that each has folded. */
static bool is_gathered(const zi_nccl_chunk *chunk)
{
    return chunk->collective->kind == ZI_ALL_REDUCE && is_exchanged(chunk->collective);
}

static void put_gather_of(call_group *calls, const zi_nccl_chunk *chunk)
{
    const zi_nccl_group *group = calls->group;
    const zi_collective *c = chunk->collective;
    uint64_t own = 0;
    const uint64_t mine = part_of(group, chunk, group->base.rank, &own);
    for (uint32_t step = 1; step < group->base.size; step++) {
        const uint32_t to = (group->base.rank + step) % group->base.size;
        const uint32_t from = (group->base.rank + group->base.size - step) % group->base.size;
        uint64_t first = 0;
        const uint64_t theirs = part_of(group, chunk, from, &first);
        if (mine != 0) {
            put_send(calls, target_of(c, own), mine, c->recv_dtype, to);
        }
        if (theirs != 0) {
            put_recv(calls, target_of(c, first), theirs, c->recv_dtype, from);
        }
    }
}

static zero_status move_round(const batch_state *m)
{
    const zi_nccl_group *group = m->group;
    call_group calls;
    bool gathers = false;
    for (uint32_t i = 0; i < group->chunk_count; i++) {
        if (is_packed(group, &group->chunks[i])) {
            ZI_TRY(pack(m, &group->chunks[i]));
        }
    }
    ZI_TRY(calls_begin(m->group, m->stream, &calls));
    for (uint32_t i = 0; i < group->chunk_count; i++) {
        const zi_nccl_chunk *chunk = &group->chunks[i];
        if (is_exchanged(chunk->collective)) {
            put_exchange(&calls, chunk);
        } else {
            put_sum(&calls, chunk);
        }
        gathers = gathers || is_gathered(chunk);
    }
    ZI_TRY(calls_end(&calls));
    for (uint32_t i = 0; i < group->chunk_count; i++) {
        ZI_TRY(fold(m, &group->chunks[i]));
    }
    if (!gathers) {
        return ZERO_OK;
    }
    ZI_TRY(calls_begin(m->group, m->stream, &calls));
    for (uint32_t i = 0; i < group->chunk_count; i++) {
        if (is_gathered(&group->chunks[i])) {
            put_gather_of(&calls, &group->chunks[i]);
        }
    }
    return calls_end(&calls);
}

/* Add the squares of what no fold has completed. */
static zero_status add_squares(const batch_state *m)
{
    for (uint32_t i = 0; i < m->batch_count; i++) {
        const zi_collective *c = &m->batch[i];
        if (c->kind != ZI_ALL_GATHER && !adds_squares(m->group, c)) {
            ZI_TRY(zi_collective_square_sum(m->group->base.kernels, m->stream, c));
        }
    }
    return ZERO_OK;
}

zero_status zi_nccl_move(zi_nccl_group *group, zi_stream *stream, const zi_collective *batch,
                         uint32_t batch_count)
{
    batch_state m = {.group = group, .stream = stream, .batch = batch, .batch_count = batch_count};
    ZI_TRY(move_direct(&m));
    while (next_round(&m)) {
        ZI_TRY(move_round(&m));
    }
    return add_squares(&m);
}
