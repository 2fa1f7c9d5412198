/* Owns the data of a batch: which calls of NCCL it becomes. The calls and their order depend on the
 * batch's terms alone and never on a pointer, so that all members make matching calls.
 *
 * First come all collectives that NCCL does by itself, in one group of calls. The other sums go
 * through scratch memory, in rounds: as many chunks of them as fit it are moved together. Members
 * send one another their parts, and kernels add them up (grid.h):
 *
 *   one level    every part to its owner                    add up        to recv
 *   two levels   the parts of a column to its rank here     add up        one sum for each host
 *                these sums to the column's ranks           add up        to recv
 *
 * An ALL_REDUCE then goes the same way back. In two levels a round has half of the memory: its
 * first level is in one group of calls with the second of the round before, so that links within
 * hosts and between them work at the same time. A round may use memory again because it comes later
 * on the same stream.
 *
 * A rank without a send buffer sends the zeros at the begin of scratch memory, the same to all. So
 * no message is longer than they are. */
#include "comm/nccl/nccl_state.h"
#include "core/check.h"
#include "core/error.h"
#include "core/sizes.h"
#include "device/cuda/cuda_device.h"

/* Chunks start at multiples of this many bytes of scratch memory. */
#define CHUNK_ALIGN 256

_Static_assert(ZI_SHARE_COUNT % ZI_NORM_CHUNK == 0, "chunks can add their squares themselves");

/* A group of NCCL's calls being issued. It begins with its first call, so that there is none
 * without any. */
typedef struct call_group {
    zi_nccl_group *group;
    cudaStream_t stream;
    bool open;
    zero_status status;  /* of beginning it */
    ncclResult_t result; /* the first that is no success */
    const char *call;    /* the call that gave it */
} call_group;

/* A batch that is being moved. */
typedef struct batch_state {
    zi_nccl_group *group;
    zi_stream *stream;
    const zi_collective *batch;
    uint32_t batch_count;
    uint64_t round_bytes; /* of scratch memory that a round may use */
    uint32_t index;       /* of the collective that the next round begins with */
    uint64_t begin;       /* of the elements of it that are left */
} batch_state;

static ncclDataType_t type_of(zero_dtype dtype)
{
    if (dtype == ZERO_DTYPE_BF16) {
        return ncclBfloat16;
    }
    if (dtype == ZERO_DTYPE_F16) {
        return ncclFloat16;
    }
    if (dtype == ZERO_DTYPE_I8) {
        return ncclInt8;
    }
    zi_assert(dtype == ZERO_DTYPE_F32);
    return ncclFloat32;
}

/* Empty collectives are left out: their terms are the same on all ranks. */
static bool is_empty(const zi_collective *c)
{
    return c->count == 0;
}

/* True if NCCL adds up. */
static bool is_native(const zi_collective *c)
{
    return (c->flags & ZI_COLLECTIVE_NATIVE) != 0;
}

/* True if NCCL does all of it, into recv. */
static bool is_direct(const zi_nccl_group *group, const zi_collective *c)
{
    if (c->kind == ZI_ALL_GATHER) {
        return true;
    }
    zi_assert(group->sums != NULL); /* the group was made for gathers only */
    return is_native(c) && c->recv_dtype == c->send_dtype && c->scale <= 1.0f &&
           (c->flags & ZI_COLLECTIVE_ACCUMULATE) == 0;
}

/* True if the folds of the chunks add the squares: they write all of recv, in whole chunks of a
 * norm. */
static bool nccl_move_adds_squares(const zi_nccl_group *group, const zi_collective *c)
{
    return c->kind == ZI_REDUCE_SCATTER && !is_direct(group, c);
}

/* Element `first` of the send buffer; zeros for a rank that has none. */
static const void *source_of(const zi_nccl_group *group, const zi_collective *c, uint64_t first)
{
    return c->send == NULL ? group->zeros
                           : (const unsigned char *)c->send + zi_packed_bytes(c->send_dtype, first);
}

static unsigned char *nccl_move_target_of(const zi_collective *c, uint64_t first)
{
    return (unsigned char *)c->recv + first * zero_dtype_bytes(c->recv_dtype);
}

/* ---- groups of calls ---- */

static call_group calls_on(const batch_state *m)
{
    return (call_group){.group = m->group,
                        .stream = zi_cuda_stream_native(m->stream),
                        .result = ncclSuccess,
                        .call = "ncclGroupEnd"};
}

/* The group's call from here to calls_end. */
static zero_status calls_begin(zi_nccl_group *group)
{
    ZI_TRY(zi_nccl_enter(group, "ncclGroupEnd"));
    const ncclResult_t result = group->handle->api->group_start();
    if (result != ncclSuccess) {
        zi_nccl_leave(group);
    }
    return zi_nccl_result(group, result, "ncclGroupStart");
}

/* Before each call; false: it is not made. */
static bool calls_open(call_group *calls)
{
    if (!calls->open && calls->status == ZERO_OK) {
        calls->status = calls_begin(calls->group);
        calls->open = calls->status == ZERO_OK;
    }
    return calls->open;
}

static void record_result(call_group *calls, ncclResult_t result, const char *call)
{
    if (calls->result == ncclSuccess && result != ncclSuccess) {
        calls->result = result;
        calls->call = call;
    }
}

/* Once it returns the calls are with the driver, and other work may be put on the stream. */
static zero_status calls_end(call_group *calls)
{
    zi_nccl_group *group = calls->group;
    if (!calls->open) {
        return calls->status;
    }
    record_result(calls, group->handle->api->group_end(), "ncclGroupEnd");
    zi_nccl_leave(group);
    return zi_nccl_wait(group, calls->result, calls->call);
}

/* api->function(..., communicator, stream), in the group of calls. */
#define PUT(calls, function, name, ...)                                                    \
    do {                                                                                   \
        if (calls_open(calls)) {                                                           \
            record_result(calls,                                                           \
                          (calls)->group->handle->api->function(                           \
                              __VA_ARGS__, (calls)->group->handle->comm, (calls)->stream), \
                          name);                                                           \
        }                                                                                  \
    } while (0)

/* Packed elements go as bytes. */
static ncclDataType_t message_type_of(zero_dtype dtype)
{
    return zi_dtype_is_packed(dtype) ? ncclInt8 : type_of(dtype);
}

static uint64_t message_count_of(zero_dtype dtype, uint64_t count)
{
    return zi_dtype_is_packed(dtype) ? zi_packed_bytes(dtype, count) : count;
}

static void put_send(call_group *calls, const void *source, uint64_t count, zero_dtype dtype,
                     uint32_t peer)
{
    if (count != 0) {
        PUT(calls, send, "ncclSend", source, message_count_of(dtype, count), message_type_of(dtype),
            (int)peer);
    }
}

static void put_recv(call_group *calls, void *target, uint64_t count, zero_dtype dtype,
                     uint32_t peer)
{
    if (count != 0) {
        PUT(calls, recv, "ncclRecv", target, message_count_of(dtype, count), message_type_of(dtype),
            (int)peer);
    }
}

/* NCCL's own sum of `count` elements of each part, or of the array. */
static void put_sum_to(call_group *calls, const zi_collective *c, uint64_t first, uint64_t count,
                       void *target)
{
    const ncclDataType_t type = type_of(c->send_dtype);
    const void *source = source_of(calls->group, c, first);
    if (c->kind == ZI_REDUCE_SCATTER) {
        PUT(calls, reduce_scatter, "ncclReduceScatter", source, target, count, type, ncclSum);
    } else {
        PUT(calls, all_reduce, "ncclAllReduce", source, target, count, type, ncclSum);
    }
}

/* ---- what NCCL does by itself ---- */

static zero_status move_direct(const batch_state *m)
{
    call_group calls = calls_on(m);
    for (uint32_t i = 0; i < m->batch_count; i++) {
        const zi_collective *c = &m->batch[i];
        if (is_empty(c) || !is_direct(m->group, c)) {
            continue;
        }
        if (c->kind == ZI_ALL_GATHER) {
            PUT(&calls, all_gather, "ncclAllGather", c->send, c->recv, c->count,
                type_of(c->send_dtype));
        } else {
            put_sum_to(&calls, c, 0, c->count, c->recv);
        }
    }
    return calls_end(&calls);
}

/* ---- chunks of the other sums ---- */

/* How many elements an ALL_REDUCE must have for every member to have a part of it. */
static uint64_t least_shared(const zi_nccl_group *group)
{
    return (uint64_t)group->base.size * ZI_SHARE_COUNT;
}

static const zi_grid *nccl_move_grid_of(const zi_nccl_group *group, const zi_collective *c)
{
    return zi_collective_in_levels(&group->base, c) ? &group->grid : &group->flat;
}

/* Elements that one member adds up of `count` ones, at most. */
static uint64_t part_count(const zi_nccl_group *group, const zi_collective *c, uint64_t count)
{
    return c->kind == ZI_REDUCE_SCATTER
               ? count
               : zi_align_up(zi_div_up(count, group->base.size), ZI_SHARE_COUNT);
}

/* Elements [*first, *first + result) of the send buffer are what member `rank` adds up. */
static uint64_t nccl_move_share_of(const zi_nccl_group *group, const zi_nccl_chunk *chunk,
                                   uint32_t rank, uint64_t *first)
{
    const zi_collective *c = chunk->collective;
    if (c->kind == ZI_REDUCE_SCATTER) {
        *first = rank * (uint64_t)c->count + chunk->begin;
        return chunk->count;
    }
    const uint64_t count = zi_collective_share(chunk->count, group->base.size, rank, first);
    *first += chunk->begin;
    return count;
}

/* True if members add up within each host first. */
static bool is_within(const zi_nccl_group *group, const zi_collective *c)
{
    return !is_native(c) && nccl_move_grid_of(group, c)->columns > 1;
}

/* The bytes of hosts' sums behind a chunk's slots, where they are in another type than what they
 * are made of. Else 0, and they take the place of slots. */
static uint64_t nccl_move_sums_bytes(const zi_nccl_group *group, const zi_collective *c,
                                     uint64_t part)
{
    const zero_dtype sum = zi_collective_sum_dtype(c);
    const bool other = sum != c->send_dtype || zi_dtype_is_packed(sum);
    return other && is_within(group, c)
               ? nccl_move_grid_of(group, c)->rows * zi_packed_bytes(sum, part)
               : 0;
}

/* Elements of the next chunk of a collective of which `left` are left, and the bytes of scratch
 * memory that it takes. */
static uint64_t chunk_size(const batch_state *m, const zi_collective *c, uint64_t left,
                           uint64_t *bytes)
{
    const zi_nccl_group *group = m->group;
    const uint64_t element = zero_dtype_bytes(c->send_dtype);
    const uint64_t size = group->base.size;
    if (is_native(c)) { /* a sum of NCCL's own; a reduce-scatter's cannot be cut */
        const uint64_t fits = m->round_bytes / element / ZI_SHARE_COUNT * ZI_SHARE_COUNT;
        const uint64_t count = c->kind == ZI_REDUCE_SCATTER ? left : zi_min_u64(left, fits);
        *bytes = count * element;
        return count;
    }
    const uint64_t one = zi_packed_bytes(c->send_dtype, ZI_SHARE_COUNT);
    const uint64_t each = size * one + nccl_move_sums_bytes(group, c, ZI_SHARE_COUNT); /* of all */
    const uint64_t fits = zi_min_u64(group->zeros_bytes / one, m->round_bytes / each);
    const uint64_t part = fits * ZI_SHARE_COUNT;
    uint64_t count = zi_min_u64(left, c->kind == ZI_ALL_REDUCE ? part * size : part);
    if (c->kind == ZI_ALL_REDUCE && count < left && left - count < least_shared(group)) {
        count -= least_shared(group); /* all members have a part of what is left, too */
    }
    *bytes = zi_div_up(part_count(group, c, count), ZI_SHARE_COUNT) * each;
    return count;
}

/* Cut the next round: as many chunks as fit its memory, from `memory` on, together. It has no chunk
 * when the batch is done. */
static zero_status cut_round(batch_state *m, zi_nccl_round *round, unsigned char *memory)
{
    const zi_nccl_group *group = m->group;
    uint64_t used = 0;
    round->count = 0;
    while (m->index < m->batch_count && round->count < group->chunk_limit) {
        const zi_collective *c = &m->batch[m->index];
        if (is_empty(c) || is_direct(group, c)) {
            m->index++;
            continue;
        }
        uint64_t bytes = 0;
        const uint64_t count = chunk_size(m, c, c->count - m->begin, &bytes);
        if (round->count != 0 && bytes > m->round_bytes - used) {
            break;
        }
        if (bytes > m->round_bytes) {
            ZI_FAIL(
                ZERO_ERR_INVALID_ARGUMENT,
                "group %s: NCCL's sum of %zu elements takes %llu bytes of scratch memory, which "
                "has %llu for sums",
                group->base.name, c->count, (unsigned long long)bytes,
                (unsigned long long)m->round_bytes);
        }
        round->chunks[round->count++] = (zi_nccl_chunk){c, m->begin, count, memory + used};
        used = zi_min_u64(m->round_bytes, zi_align_up(used + bytes, CHUNK_ALIGN));
        m->begin += count;
        if (m->begin == c->count) {
            m->index++;
            m->begin = 0;
        }
    }
    return ZERO_OK;
}

/* The place in scratch memory of the part of row `row` that comes from column `column` of this row.
 * The rows of a column lie end to end. */
static unsigned char *nccl_move_slot_of(const zi_nccl_group *group, const zi_nccl_chunk *chunk,
                                        uint32_t row, uint32_t column)
{
    const zi_collective *c = chunk->collective;
    const uint64_t bytes = zi_packed_bytes(c->send_dtype, part_count(group, c, chunk->count));
    return chunk->at + ((uint64_t)column * nccl_move_grid_of(group, c)->rows + row) * bytes;
}

/* The place of the sum of this host that goes to row `row`. */
static unsigned char *nccl_move_sum_of(const zi_nccl_group *group, const zi_nccl_chunk *chunk,
                                       uint32_t row)
{
    const zi_collective *c = chunk->collective;
    const zi_grid *grid = nccl_move_grid_of(group, c);
    const uint64_t part = part_count(group, c, chunk->count);
    const uint64_t bytes = zi_packed_bytes(zi_collective_sum_dtype(c), part);
    const uint32_t behind =
        nccl_move_sums_bytes(group, c, part) != 0 ? grid->columns : grid->column;
    return nccl_move_slot_of(group, chunk, 0, behind) + row * bytes;
}

/* ---- within each host ---- */

/* Send each column of this row its ranks' parts, and take those of this column from all, this rank
 * included: so one fold finds the parts of all rows end to end. */
static void put_within(call_group *calls, const zi_nccl_chunk *chunk)
{
    const zi_nccl_group *group = calls->group;
    const zi_collective *c = chunk->collective;
    const zi_grid *grid = nccl_move_grid_of(group, c);
    for (uint32_t step = 0; step < grid->columns; step++) {
        const uint32_t to = (grid->column + step) % grid->columns;
        const uint32_t from = (grid->column + grid->columns - step) % grid->columns;
        for (uint32_t row = 0; row < grid->rows; row++) {
            uint64_t first = 0;
            const uint64_t mine =
                nccl_move_share_of(group, chunk, zi_grid_at(grid, row, grid->column), &first);
            put_recv(calls, nccl_move_slot_of(group, chunk, row, from), mine, c->send_dtype,
                     zi_grid_at(grid, grid->row, from));
            const uint64_t theirs =
                nccl_move_share_of(group, chunk, zi_grid_at(grid, row, to), &first);
            put_send(calls, source_of(group, c, first), theirs, c->send_dtype,
                     zi_grid_at(grid, grid->row, to));
        }
    }
}

/* The divisor of a host's sum before it is rounded. */
static float nccl_move_headroom_of(const zi_nccl_group *group, const zi_collective *c)
{
    return zi_sum_headroom(zi_collective_sum_dtype(c), nccl_move_grid_of(group, c)->columns);
}

/* The sums of this host, of the parts of rows [row, row + rows) of this column: in place of what
 * this rank has sent itself, or behind all slots. */
static zero_status fold_rows(const batch_state *m, const zi_nccl_chunk *chunk, uint32_t row,
                             uint32_t rows)
{
    zi_nccl_group *group = m->group;
    const zi_collective *c = chunk->collective;
    const zi_grid *grid = nccl_move_grid_of(group, c);
    const zi_kernels *kernels = group->base.kernels;
    uint64_t first = 0;
    (void)nccl_move_share_of(group, chunk, zi_grid_at(grid, row, grid->column), &first);
    for (uint32_t column = 0; column < grid->columns; column++) {
        group->sources[column] = nccl_move_slot_of(group, chunk, row, column);
    }
    const zi_fold job = {
        .dst = nccl_move_sum_of(group, chunk, row),
        .sources = group->sources,
        .source_count = grid->columns,
        .count = rows * part_count(group, c, chunk->count),
        .dst_dtype = zi_collective_sum_dtype(c),
        .source_dtype = c->send_dtype,
        .scale = 1.0f / nccl_move_headroom_of(group, c),
        .key = zi_collective_host_key(c, grid->row),
        .first = first,
    };
    return kernels->ops->fold(kernels->self, m->stream, &job);
}

/* The rows' parts lie end to end. Packed sums are rounded by where their elements are in the array,
 * so there each row is a fold of its own. */
static zero_status nccl_move_fold_within(const batch_state *m, const zi_nccl_chunk *chunk)
{
    const zi_grid *grid = nccl_move_grid_of(m->group, chunk->collective);
    const bool packed = zi_dtype_is_packed(zi_collective_sum_dtype(chunk->collective));
    const uint32_t rows = packed ? 1 : grid->rows;
    for (uint32_t row = 0; row < grid->rows; row += rows) {
        ZI_TRY(fold_rows(m, chunk, row, rows));
    }
    return ZERO_OK;
}

/* ---- between the rows of a column ---- */

/* The type of what goes between rows. */
static zero_dtype row_dtype(const zi_nccl_group *group, const zi_collective *c)
{
    return is_within(group, c) ? zi_collective_sum_dtype(c) : c->send_dtype;
}

/* The place at which what row `row` sends this rank arrives: not where the sums are that this rank
 * sends. Sums longer than a slot have two columns, all of which are folded by then. */
static unsigned char *arrival_of(const zi_nccl_group *group, const zi_nccl_chunk *chunk,
                                 uint32_t row)
{
    const zi_collective *c = chunk->collective;
    const zi_grid *grid = nccl_move_grid_of(group, c);
    const uint64_t part = part_count(group, c, chunk->count);
    const bool longer = nccl_move_sums_bytes(group, c, part) != 0;
    return nccl_move_slot_of(group, chunk, 0, longer ? 0 : (grid->column + 1) % grid->columns) +
           row * zi_packed_bytes(row_dtype(group, c), part);
}

/* The data of this rank for the rank of its column in row `row`: the sum of its host, or its own
 * part. */
static const void *own_of(const zi_nccl_group *group, const zi_nccl_chunk *chunk, uint32_t row,
                          uint64_t first)
{
    const zi_collective *c = chunk->collective;
    return is_within(group, c) ? nccl_move_sum_of(group, chunk, row) : source_of(group, c, first);
}

static void put_between(call_group *calls, const zi_nccl_chunk *chunk)
{
    const zi_nccl_group *group = calls->group;
    const zi_collective *c = chunk->collective;
    const zi_grid *grid = nccl_move_grid_of(group, c);
    uint64_t first = 0;
    if (is_native(c)) {
        put_sum_to(calls, c, chunk->begin, chunk->count, chunk->at);
        return;
    }
    const uint64_t mine = nccl_move_share_of(group, chunk, group->base.rank, &first);
    for (uint32_t step = 1; step < grid->rows; step++) {
        const uint32_t to = (grid->row + step) % grid->rows;
        const uint32_t from = (grid->row + grid->rows - step) % grid->rows;
        const uint32_t peer = zi_grid_at(grid, to, grid->column);
        const uint64_t theirs = nccl_move_share_of(group, chunk, peer, &first);
        put_send(calls, own_of(group, chunk, to, first), theirs, row_dtype(group, c), peer);
        put_recv(calls, arrival_of(group, chunk, from), mine, row_dtype(group, c),
                 zi_grid_at(grid, from, grid->column));
    }
}

/* recv = round([recv +] sum), of this rank's part of a chunk, or of what NCCL has summed. */
static zero_status nccl_move_fold(const batch_state *m, const zi_nccl_chunk *chunk)
{
    zi_nccl_group *group = m->group;
    const zi_collective *c = chunk->collective;
    const zi_grid *grid = nccl_move_grid_of(group, c);
    const zi_kernels *kernels = group->base.kernels;
    uint64_t first = chunk->begin;
    uint64_t count = chunk->count;
    uint32_t source_count = 1;
    group->sources[0] = chunk->at;
    if (!is_native(c)) {
        count = nccl_move_share_of(group, chunk, group->base.rank, &first);
        source_count = grid->rows;
        for (uint32_t row = 0; row < grid->rows; row++) {
            group->sources[row] = arrival_of(group, chunk, row);
        }
        const bool absent = c->send == NULL && !is_within(group, c);
        group->sources[grid->row] = absent ? NULL : own_of(group, chunk, grid->row, first);
    }
    const uint64_t target = c->kind == ZI_REDUCE_SCATTER ? chunk->begin : first;
    zi_fold job = zi_collective_fold(c, target, group->sources, source_count, count);
    if (is_within(group, c)) {
        job.source_dtype = row_dtype(group, c);
        job.scale = zi_fold_scale(&job) * nccl_move_headroom_of(group, c);
    }
    job.squares = nccl_move_adds_squares(group, c) ? c->squares : NULL;
    return count != 0 ? kernels->ops->fold(kernels->self, m->stream, &job) : ZERO_OK;
}

/* ---- an ALL_REDUCE's way back: the parts that each has added up ---- */

static bool is_gathered(const zi_collective *c)
{
    return !is_native(c) && c->kind == ZI_ALL_REDUCE;
}

/* Send rank `to` the part that member `mine` has added up, and take that of member `theirs` from
 * rank `from`. */
static void nccl_move_put_shares(call_group *calls, const zi_nccl_chunk *chunk, uint32_t mine,
                                 uint32_t to, uint32_t theirs, uint32_t from)
{
    const zi_collective *c = chunk->collective;
    uint64_t first = 0;
    uint64_t count = nccl_move_share_of(calls->group, chunk, mine, &first);
    put_send(calls, nccl_move_target_of(c, first), count, c->recv_dtype, to);
    count = nccl_move_share_of(calls->group, chunk, theirs, &first);
    put_recv(calls, nccl_move_target_of(c, first), count, c->recv_dtype, from);
}

static void put_gather_between(call_group *calls, const zi_nccl_chunk *chunk)
{
    const zi_nccl_group *group = calls->group;
    const zi_grid *grid = nccl_move_grid_of(group, chunk->collective);
    for (uint32_t step = 1; step < grid->rows; step++) {
        const uint32_t to = zi_grid_at(grid, (grid->row + step) % grid->rows, grid->column);
        const uint32_t from =
            zi_grid_at(grid, (grid->row + grid->rows - step) % grid->rows, grid->column);
        nccl_move_put_shares(calls, chunk, group->base.rank, to, from, from);
    }
}

static void put_gather_within(call_group *calls, const zi_nccl_chunk *chunk)
{
    const zi_grid *grid = nccl_move_grid_of(calls->group, chunk->collective);
    for (uint32_t step = 1; step < grid->columns; step++) {
        const uint32_t to = (grid->column + step) % grid->columns;
        const uint32_t from = (grid->column + grid->columns - step) % grid->columns;
        for (uint32_t row = 0; row < grid->rows; row++) {
            nccl_move_put_shares(calls, chunk, zi_grid_at(grid, row, grid->column),
                                 zi_grid_at(grid, grid->row, to), zi_grid_at(grid, row, from),
                                 zi_grid_at(grid, grid->row, from));
        }
    }
}

static zero_status nccl_move_gather(const batch_state *m, const zi_nccl_round *round,
                                    void (*put)(call_group *calls, const zi_nccl_chunk *chunk))
{
    call_group calls = calls_on(m);
    for (uint32_t i = 0; i < round->count; i++) {
        if (is_gathered(round->chunks[i].collective)) {
            put(&calls, &round->chunks[i]);
        }
    }
    return calls_end(&calls);
}

/* ---- rounds ---- */

/* The second level of one round, and the first of the next. */
static zero_status nccl_move_exchange(const batch_state *m, const zi_nccl_round *last,
                                      const zi_nccl_round *next)
{
    call_group calls = calls_on(m);
    for (uint32_t i = 0; i < last->count; i++) {
        put_between(&calls, &last->chunks[i]);
    }
    for (uint32_t i = 0; i < next->count; i++) {
        if (is_within(m->group, next->chunks[i].collective)) {
            put_within(&calls, &next->chunks[i]);
        }
    }
    ZI_TRY(calls_end(&calls));
    for (uint32_t i = 0; i < last->count; i++) {
        ZI_TRY(nccl_move_fold(m, &last->chunks[i]));
    }
    for (uint32_t i = 0; i < next->count; i++) {
        if (is_within(m->group, next->chunks[i].collective)) {
            ZI_TRY(nccl_move_fold_within(m, &next->chunks[i]));
        }
    }
    return ZERO_OK;
}

static zero_status run_rounds(batch_state *m)
{
    zi_nccl_group *group = m->group;
    zi_nccl_round *last = &group->rounds[1];
    bool levels = false;
    for (uint32_t i = 0; i < m->batch_count; i++) {
        levels = levels || (m->batch[i].kind != ZI_ALL_GATHER && is_within(group, &m->batch[i]));
    }
    m->round_bytes = levels ? group->sums_bytes / 2 / CHUNK_ALIGN * CHUNK_ALIGN : group->sums_bytes;
    last->count = 0;
    for (uint32_t i = 0;; i++) {
        zi_nccl_round *next = &group->rounds[i % 2];
        ZI_TRY(cut_round(m, next, group->sums + (levels ? i % 2 * m->round_bytes : 0)));
        if (last->count == 0 && next->count == 0) {
            return ZERO_OK;
        }
        ZI_TRY(nccl_move_exchange(m, last, next));
        ZI_TRY(nccl_move_gather(m, last, put_gather_between));
        ZI_TRY(nccl_move_gather(m, last, put_gather_within));
        last = next;
    }
}

/* Add the squares of what no fold has completed. */
static zero_status add_squares(const batch_state *m)
{
    for (uint32_t i = 0; i < m->batch_count; i++) {
        const zi_collective *c = &m->batch[i];
        if (c->kind != ZI_ALL_GATHER && !nccl_move_adds_squares(m->group, c)) {
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
    ZI_TRY(run_rounds(&m));
    return add_squares(&m);
}
