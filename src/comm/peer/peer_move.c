/* Owns the data of a batch: which peer's bytes are copied or folded into which of ours. Invariant:
 * within a batch a rank writes only its own receive buffers and its stage, and of a buffer that is
 * also a send buffer only the part that no peer reads until the next barrier. */
#include <string.h>

#include "comm/peer/peer_group.h"
#include "core/check.h"
#include "core/error.h"
#include "core/sizes.h"

_Static_assert(ZI_SHARE_COUNT % ZI_NORM_CHUNK == 0, "chunks can add their squares themselves");

static uint64_t peer_move_bytes_of(uint64_t count, zero_dtype dtype)
{
    zi_assert_cmp(count, <=, UINT64_MAX / sizeof(float));
    return zi_packed_bytes(dtype, count);
}

uint64_t zi_peer_send_bytes(const zi_collective *collective, uint32_t size)
{
    uint64_t count = collective->count;
    if (collective->kind == ZI_REDUCE_SCATTER) {
        zi_assert(zi_mul_u64(count, size, &count));
    }
    return peer_move_bytes_of(count, collective->send_dtype);
}

uint64_t zi_peer_recv_bytes(const zi_collective *collective)
{
    return peer_move_bytes_of(collective->count, collective->recv_dtype);
}

zi_peer_address zi_peer_locate(const zi_peer_space *space, const void *pointer, uint64_t bytes)
{
    if (pointer == NULL || bytes == 0) {
        return (zi_peer_address){.window = ZI_PEER_NOWHERE};
    }
    if (space->one_address_space) {
        return (zi_peer_address){.at = (uintptr_t)pointer, .window = ZI_PEER_POINTER};
    }
    for (uint32_t i = 0; i < space->window_count; i++) {
        const zi_peer_window *window = &space->windows[i];
        const uintptr_t base = (uintptr_t)window->base + space->part * window->bytes;
        const uintptr_t at = (uintptr_t)pointer;
        if (window->bytes != 0 && at >= base && at - base <= window->bytes &&
            bytes <= window->bytes - (at - base)) {
            return (zi_peer_address){.at = at - base, .window = i};
        }
    }
    return (zi_peer_address){.window = ZI_PEER_UNREADABLE};
}

/* The buffer of member `rank` as mapped here; NULL for zeros. */
static const unsigned char *reach(const zi_peer_group *group, uint32_t rank,
                                  const zi_peer_address *address)
{
    if (address->window == ZI_PEER_NOWHERE) {
        return NULL;
    }
    if (address->window == ZI_PEER_POINTER) {
        return (const unsigned char *)(uintptr_t)address->at;
    }
    zi_assert_cmp(address->window, <, group->space->window_count);
    const zi_peer_window *window = &group->space->windows[address->window];
    zi_assert_cmp(address->at, <, window->bytes);
    return window->base + group->parts[rank] * window->bytes + address->at;
}

static const unsigned char *send_of(const zi_peer_group *group, uint32_t rank, uint32_t index)
{
    const zi_peer_entry *entry = &zi_peer_block_table(group->block, rank)[index];
    return reach(group, rank, &entry->send);
}

/* Data moves by copies and folds, on the stream whose task this is. */
static zero_status peer_move_copy(const zi_peer_batch *batch, void *target, const void *source,
                                  uint64_t bytes)
{
    const zi_device *device = batch->group->base.kernels->device;
    return device->ops->copy(device->self, batch->stream, target, source, bytes);
}

static zero_status run_fold(const zi_peer_batch *batch, const zi_fold *job)
{
    const zi_kernels *kernels = batch->group->base.kernels;
    return kernels->ops->fold(kernels->self, batch->stream, job);
}

static zero_status all_gather(const zi_peer_batch *batch, uint32_t index)
{
    const zi_peer_group *group = batch->group;
    const zi_collective *collective = &batch->collectives[index];
    const uint64_t bytes = peer_move_bytes_of(collective->count, collective->send_dtype);
    /* Each starts with its neighbour, so that not all read the same memory at once. */
    for (uint32_t step = 1; step <= group->base.size && bytes != 0; step++) {
        const uint32_t rank = (group->base.rank + step) % group->base.size;
        const unsigned char *source = send_of(group, rank, index);
        unsigned char *target = (unsigned char *)collective->recv + rank * bytes;
        if (source != target) {
            ZI_TRY(peer_move_copy(batch, target, source, bytes));
        }
    }
    return ZERO_OK;
}

static zero_status peer_move_square_sum(const zi_peer_batch *batch, uint32_t index)
{
    return zi_collective_square_sum(batch->group->base.kernels, batch->stream,
                                    &batch->collectives[index]);
}

/* Fold this rank's part of all members' send buffers into recv: all of recv in a REDUCE_SCATTER. In
 * an ALL_REDUCE it is a part of recv, whose squares are added once the other parts are there. */
static zero_status peer_move_fold(const zi_peer_batch *batch, uint32_t index)
{
    zi_peer_group *group = batch->group;
    const zi_collective *collective = &batch->collectives[index];
    const bool scatters = collective->kind == ZI_REDUCE_SCATTER;
    uint64_t begin = 0;
    uint64_t count = collective->count;
    if (!scatters) {
        count = zi_collective_share(count, group->base.size, group->base.rank, &begin);
    }
    const uint64_t source_begin = scatters ? group->base.rank * count : begin;
    for (uint32_t i = 0; i < group->base.size; i++) {
        const unsigned char *source = send_of(group, group->order[i], index);
        group->sources[i] = source == NULL
                                ? NULL
                                : source + peer_move_bytes_of(source_begin, collective->send_dtype);
    }
    zi_fold job = zi_collective_fold(collective, begin, group->sources, group->base.size, count);
    job.squares = scatters ? collective->squares : NULL;
    return run_fold(batch, &job);
}

/* After a barrier: copy the other parts, which are complete in their owners' receive buffers. */
static zero_status all_reduce_copy(const zi_peer_batch *batch, uint32_t index)
{
    const zi_peer_group *group = batch->group;
    const zi_collective *collective = &batch->collectives[index];
    for (uint32_t step = 1; step < group->base.size; step++) {
        const uint32_t rank = (group->base.rank + step) % group->base.size;
        uint64_t begin = 0;
        const uint64_t count =
            zi_collective_share(collective->count, group->base.size, rank, &begin);
        const uint64_t offset = peer_move_bytes_of(begin, collective->recv_dtype);
        const zi_peer_entry *entry = &zi_peer_block_table(group->block, rank)[index];
        if (count != 0) {
            ZI_TRY(peer_move_copy(batch, (unsigned char *)collective->recv + offset,
                                  reach(group, rank, &entry->recv) + offset,
                                  peer_move_bytes_of(count, collective->recv_dtype)));
        }
    }
    return ZERO_OK;
}

/* True if some member's buffer must go through the stages. All members read the same tables, so all
 * decide alike. */
static bool is_staged(const zi_peer_group *group, uint32_t index)
{
    for (uint32_t i = 0; i < group->base.size && !group->space->one_address_space; i++) {
        const zi_peer_entry *entry = &zi_peer_block_table(group->block, i)[index];
        if (entry->send.window == ZI_PEER_UNREADABLE || entry->recv.window == ZI_PEER_UNREADABLE) {
            return true;
        }
    }
    return false;
}

/* Elements of each slice that fit a stage at once: a chunk. */
static uint64_t peer_move_chunk_of(const zi_peer_group *group, const zi_collective *collective)
{
    const uint64_t slices = collective->kind == ZI_REDUCE_SCATTER ? group->base.size : 1;
    const uint64_t share = peer_move_bytes_of(ZI_SHARE_COUNT, collective->send_dtype);
    const uint64_t shares = group->block->stage_bytes / (slices * share);
    if (shares != 0 || zi_dtype_is_packed(collective->send_dtype)) {
        return shares * ZI_SHARE_COUNT;
    }
    return group->block->stage_bytes / (slices * zero_dtype_bytes(collective->send_dtype));
}

/* True if the folds of the chunks add the squares: each chunk begins with a chunk of a norm. */
static bool peer_move_adds_squares(const zi_peer_group *group, const zi_collective *collective)
{
    const uint64_t chunk = peer_move_chunk_of(group, collective);
    return chunk % ZI_NORM_CHUNK == 0 || chunk >= collective->count;
}

/* Copy elements [begin, begin + count) of every slice of this rank's send buffer to its stage. */
static zero_status stage_chunk(const zi_peer_batch *batch, uint32_t index, uint64_t begin,
                               uint64_t count)
{
    const zi_peer_group *group = batch->group;
    const zi_collective *collective = &batch->collectives[index];
    const uint32_t slices = collective->kind == ZI_REDUCE_SCATTER ? group->base.size : 1;
    const uint64_t bytes = peer_move_bytes_of(count, collective->send_dtype);
    unsigned char *stage = zi_peer_block_stage(group->block, group->base.rank);
    for (uint32_t i = 0; i < slices && collective->send != NULL; i++) {
        const uint64_t first = i * collective->count + begin;
        ZI_TRY(peer_move_copy(batch, stage + i * bytes,
                              (const unsigned char *)collective->send +
                                  peer_move_bytes_of(first, collective->send_dtype),
                              bytes));
    }
    return ZERO_OK;
}

/* Copy or fold this rank's part of the chunk from all stages. In an ALL_REDUCE every member folds
 * the whole chunk, so that peers need not read its result. */
static zero_status unstage_chunk(const zi_peer_batch *batch, uint32_t index, uint64_t begin,
                                 uint64_t count)
{
    zi_peer_group *group = batch->group;
    const zi_collective *collective = &batch->collectives[index];
    const uint64_t bytes = peer_move_bytes_of(count, collective->send_dtype);
    const uint64_t slice = collective->kind == ZI_REDUCE_SCATTER ? group->base.rank * bytes : 0;
    unsigned char *recv =
        (unsigned char *)collective->recv + peer_move_bytes_of(begin, collective->recv_dtype);
    for (uint32_t i = 0; i < group->base.size; i++) {
        const uint32_t rank = group->order[i];
        const zi_peer_entry *entry = &zi_peer_block_table(group->block, rank)[index];
        const unsigned char *source = zi_peer_block_stage(group->block, rank) + slice;
        group->sources[i] = entry->send.window == ZI_PEER_NOWHERE ? NULL : source;
        if (collective->kind == ZI_ALL_GATHER) {
            ZI_TRY(peer_move_copy(
                batch, recv + peer_move_bytes_of(rank * collective->count, collective->recv_dtype),
                source, bytes));
        }
    }
    if (collective->kind == ZI_ALL_GATHER) {
        return ZERO_OK;
    }
    zi_fold job = zi_collective_fold(collective, begin, group->sources, group->base.size, count);
    job.squares = peer_move_adds_squares(group, collective) ? collective->squares : NULL;
    return run_fold(batch, &job);
}

static zero_status move_staged(const zi_peer_batch *batch, uint32_t index)
{
    const zi_collective *collective = &batch->collectives[index];
    const uint64_t chunk = peer_move_chunk_of(batch->group, collective);
    if (chunk == 0) {
        char text[ZI_COLLECTIVE_TEXT_BYTES];
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "group %s: %s lies outside the shared memory, and the stage has only %llu bytes; "
                "use memory of the world",
                batch->group->base.name, zi_collective_text(collective, text, sizeof text),
                (unsigned long long)batch->group->block->stage_bytes);
    }
    for (uint64_t begin = 0; begin < collective->count; begin += chunk) {
        const uint64_t count = zi_min_u64(chunk, collective->count - begin);
        ZI_TRY(stage_chunk(batch, index, begin, count));
        ZI_TRY(zi_peer_barrier(batch, "stage"));
        ZI_TRY(unstage_chunk(batch, index, begin, count));
        ZI_TRY(zi_peer_barrier(batch, "take up"));
    }
    return peer_move_adds_squares(batch->group, collective) ? ZERO_OK
                                                            : peer_move_square_sum(batch, index);
}

zero_status zi_peer_move(const zi_peer_batch *batch)
{
    zi_peer_group *group = batch->group;
    bool barrier = false;
    for (uint32_t i = 0; i < batch->count; i++) {
        const zi_collective *collective = &batch->collectives[i];
        if (is_staged(group, i)) {
            ZI_TRY(move_staged(batch, i));
        } else if (collective->kind == ZI_ALL_GATHER) {
            ZI_TRY(all_gather(batch, i));
        } else {
            ZI_TRY(peer_move_fold(batch, i));
            barrier = barrier || collective->kind == ZI_ALL_REDUCE;
        }
    }
    if (barrier) {
        ZI_TRY(zi_peer_barrier(batch, "fold its part of"));
    }
    for (uint32_t i = 0; i < batch->count && barrier; i++) {
        if (batch->collectives[i].kind == ZI_ALL_REDUCE && !is_staged(group, i)) {
            ZI_TRY(all_reduce_copy(batch, i));
            ZI_TRY(peer_move_square_sum(batch, i));
        }
    }
    return ZERO_OK;
}

zero_status zi_peer_move_alone(const zi_peer_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const zi_collective *collective = &batch->collectives[i];
        if (collective->kind == ZI_ALL_GATHER) {
            if (collective->send != collective->recv) {
                ZI_TRY(peer_move_copy(batch, collective->recv, collective->send,
                                      zi_peer_recv_bytes(collective)));
            }
            continue;
        }
        /* Folded even in place: a sum starts from +0, so -0 becomes +0 for any number of ranks. */
        zi_fold job = zi_collective_fold(collective, 0, &collective->send, 1, collective->count);
        job.squares = collective->squares;
        ZI_TRY(run_fold(batch, &job));
    }
    return ZERO_OK;
}
