/* Owns a group over a shared block and runs its batches: post, barrier, compare, move, barrier.
 * Invariants: every failure is written into the block, so nobody waits for a member that has
 * failed; run() returns only when no peer reads this rank's memory any more (threads), or when a
 * peer that reads it has a mapping of its own (processes). Nothing is allocated after create. */
#include "comm/peer/peer.h"

#include <stdio.h>
#include <string.h>

#include "comm/peer/peer_group.h"
#include "core/check.h"
#include "core/error.h"
#include "core/fault.h"
#include "core/hash.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/trace.h"

static void post(const zi_peer_batch *batch)
{
    zi_peer_group *group = batch->group;
    const uint32_t size = group->base.size;
    zi_peer_member *own = &group->block->member[group->base.rank];
    zi_peer_entry *table = zi_peer_block_table(group->block, group->base.rank);
    uint64_t hash = ZI_HASH_START;
    for (uint32_t i = 0; i < batch->count; i++) {
        const zi_collective *collective = &batch->collectives[i];
        const zi_collective_terms terms = zi_collective_terms_of(collective);
        hash = zi_hash_bytes(hash, &terms, sizeof terms);
        table[i].terms = terms;
        table[i].send =
            zi_peer_locate(group->space, collective->send, zi_peer_send_bytes(collective, size));
        table[i].recv =
            zi_peer_locate(group->space, collective->recv,
                           collective->kind == ZI_ALL_REDUCE ? zi_peer_recv_bytes(collective) : 0);
    }
    own->batch_count = batch->count;
    own->batch_hash = hash;
}

/* MISMATCH, naming what group rank `other` does differently from group rank 0. */
static zero_status peer_mismatch(const zi_peer_batch *batch, uint32_t other)
{
    zi_peer_group *group = batch->group;
    const zi_peer_member *member = group->block->member;
    const zi_peer_entry *mine = zi_peer_block_table(group->block, 0);
    const zi_peer_entry *theirs = zi_peer_block_table(group->block, other);
    const uint32_t common = (uint32_t)zi_min_u64(member[0].batch_count, member[other].batch_count);
    for (uint32_t i = 0; i < common; i++) {
        if (memcmp(&mine[i].terms, &theirs[i].terms, sizeof mine[i].terms) != 0) {
            return zi_collective_mismatch(group->base.name, i, group->members[other],
                                          &theirs[i].terms, group->members[0], &mine[i].terms);
        }
    }
    return zi_batch_mismatch(group->base.name, group->members[other], member[other].batch_count,
                             group->members[0], member[0].batch_count);
}

/* All members compare all with group rank 0, so all find the same difference. */
static zero_status peer_check(const zi_peer_batch *batch)
{
    const zi_peer_member *member = batch->group->block->member;
    for (uint32_t i = 1; i < batch->group->base.size; i++) {
        if (member[i].batch_hash != member[0].batch_hash ||
            member[i].batch_count != member[0].batch_count) {
            return peer_mismatch(batch, i);
        }
    }
    return ZERO_OK;
}

/* Run a batch of several members. */
static zero_status run_together(const zi_peer_batch *batch)
{
    zi_peer_group *group = batch->group;
    if (zi_peer_block_failed(group->block)) {
        return zi_peer_block_error(group->block);
    }
    post(batch);
    ZI_TRY(zi_peer_barrier(batch, "arrive at"));
    if (!zi_peer_block_read_begin(group->block, group->base.rank)) {
        return zi_peer_block_error(group->block);
    }
    zero_status status = peer_check(batch);
    if (status == ZERO_OK) {
        status = zi_peer_move(batch);
    }
    zi_peer_block_read_end(group->block, group->base.rank);
    return status == ZERO_OK ? zi_peer_barrier(batch, "finish") : status;
}

/* Fail the block with the group's error, and stay until no peer reads this rank's buffers. */
static void peer_fail_block(zi_peer_group *group, bool own_fault)
{
    const zi_failure failure =
        own_fault ? zi_failure_of_abort(group->space->world_rank, &group->first_error)
                  : zi_failure_of_all(&group->first_error);
    zi_peer_block_fail(group->block, &failure);
    if (group->space->one_address_space) {
        zi_peer_block_quiesce(group->block);
    }
}

static zero_status peer_run_batch(const zi_peer_batch *batch)
{
    zi_peer_group *group = batch->group;
    if (group->first_error.status != ZERO_OK) {
        return zi_error_adopt(&group->first_error);
    }
    const bool injected = zi_fault_hit(ZI_FAULT_COLLECTIVE);
    zero_status status = ZERO_OK;
    if (injected) {
        status = zi_error_set(ZERO_ERR_COMM, 0, __FILE__, __LINE__, "group %s: injected fault",
                              group->base.name);
    } else if (group->base.size == 1) {
        status = zi_peer_move_alone(batch);
    } else {
        zi_fault_sleep(ZI_FAULT_COLLECTIVE);
        status = run_together(batch);
    }
    if (status != ZERO_OK) {
        group->first_error = *zero_last_error();
        if (group->base.size > 1) {
            peer_fail_block(group, injected);
        }
        return zi_error_adopt(&group->first_error);
    }
    return ZERO_OK;
}

static zero_status peer_run(void *argument)
{
    const zi_peer_batch *batch = argument;
    zi_recorder *recorder = &batch->group->base.recorder;
    zi_span_begin(NULL, ZI_SPAN_COLLECTIVE, batch->group->base.name);
    zi_recorder_start(recorder, batch->number);
    const zero_status status = peer_run_batch(batch);
    zi_recorder_end(recorder, batch->number, status == ZERO_OK ? ZI_RECORD_DONE : ZI_RECORD_FAILED);
    zi_span_end(NULL);
    return status;
}

static zero_status peer_submit(zi_group *base, zi_stream *stream, const zi_collective *batch,
                               size_t batch_count)
{
    zi_assert_cmp(batch_count, <=, ZI_BATCH_MAX);
    const zi_device *device = base->kernels->device;
    const zi_peer_batch argument = {(zi_peer_group *)base, stream, batch, (uint32_t)batch_count,
                                    zi_recorder_last(&base->recorder)};
    return device->ops->task(device->self, stream, peer_run, &argument, sizeof argument);
}

/* Make the fences of ranks that are threads, or map the stages of processes to the device. */
static zero_status peer_open_device(zi_peer_group *group)
{
    const zi_device *device = group->base.kernels->device;
    if (group->base.size == 1) {
        return ZERO_OK;
    }
    if (!group->space->one_address_space) {
        ZI_TRY(device->ops->host_map(device->self, zi_peer_block_stage(group->block, 0),
                                     group->base.size * group->block->stage_bytes));
        group->stage_mapped = true;
        return ZERO_OK;
    }
    zi_fence *fences[2] = {NULL, NULL};
    ZI_TRY(device->ops->fence_create(device->self, &fences[0]));
    const zero_status status = device->ops->fence_create(device->self, &fences[1]);
    if (status != ZERO_OK) {
        device->ops->fence_destroy(device->self, fences[0]);
        return status;
    }
    zi_peer_block_open_fences(group->block, group->base.rank, fences);
    memcpy(group->fences, fences, sizeof group->fences);
    group->fenced = true;
    return ZERO_OK;
}

static void peer_close_device(zi_peer_group *group)
{
    const zi_device *device = group->base.kernels->device;
    if (group->stage_mapped) {
        device->ops->host_unmap(device->self, zi_peer_block_stage(group->block, 0));
    }
    if (group->fenced) {
        zi_peer_block_close_fences(group->block, device);
    }
}

/* Fail the block, so that members that wait for this one, now or later, do not wait in vain.
 * Members that have all they need never see it. The most likely reason why a member leaves is the
 * last error of its thread. */
static void peer_leave(const zi_peer_group *group)
{
    const zero_error *last = zero_last_error();
    zero_error left = {.status = ZERO_ERR_COMM, .file = "peer.c", .line = __LINE__, .of_other = 2};
    (void)snprintf(left.message, sizeof left.message,
                   "rank %u has left group %s, its engine or world is destroyed; all ranks must "
                   "make the same calls%s%.120s",
                   group->space->world_rank, group->base.name,
                   last->status != ZERO_OK ? "; its last error: " : "",
                   last->status != ZERO_OK ? last->message : "");
    const zi_failure failure = zi_failure_of_all(&left);
    zi_peer_block_fail(group->block, &failure);
}

static void peer_destroy(zi_group *base)
{
    zi_peer_group *group = (zi_peer_group *)base;
    if (group->base.size > 1) {
        peer_leave(group);
    }
    peer_close_device(group);
    if (group->block_free != NULL && group->block != NULL) {
        group->block_free(group->owner, group->block);
    }
    zi_free(group);
}

static const zi_group_ops peer_ops = {
    .struct_bytes = sizeof(zi_group_ops),
    .submit = peer_submit,
    .destroy = peer_destroy,
};

/* The part of world rank `world_rank` in the windows of a space. */
static uint32_t find_part(const zi_peer_space *space, uint32_t world_rank)
{
    uint32_t low = 0;
    uint32_t high = space->rank_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (space->ranks[middle] < world_rank) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    zi_assert(low < space->rank_count && space->ranks[low] == world_rank);
    return low;
}

zero_status zi_peer_group_create(const zi_peer_group_desc *desc, zi_group **out)
{
    *out = NULL;
    const uint32_t size = desc->size;
    zi_assert_cmp(size, >=, 1);
    ZI_TRY(zi_group_check_sources(desc->kernels, size, desc->name,
                                  "start a process for each GPU and use NCCL"));
    zi_assert(size == 1 || (desc->block != NULL && desc->block->size == size));
    zi_peer_group *group = NULL;
    const size_t member_bytes = sizeof group->sources[0] + 4 * sizeof *group->members;
    ZI_TRY(zi_calloc(1, sizeof *group + size * member_bytes, (void **)&group));
    group->members = (uint32_t *)(void *)&group->sources[size];
    group->order = group->members + size;
    group->parts = group->order + size;
    group->missing = group->parts + size;
    group->base.ops = &peer_ops;
    group->base.kernels = desc->kernels;
    group->base.size = size;
    (void)snprintf(group->base.name, sizeof group->base.name, "%s", desc->name);
    group->block = desc->block;
    group->space = desc->space;
    group->deadline_ms = desc->deadline_ms;
    group->crowded = desc->crowded;
    group->block_free = desc->block_free;
    group->owner = desc->owner;
    memcpy(group->members, desc->members, size * sizeof *group->members);
    group->base.rank = zi_group_index(group->members, size, desc->space->world_rank, group->order);
    for (uint32_t i = 1; i < size; i++) {
        zi_assert(group->members[group->order[i - 1]] != group->members[group->order[i]]);
    }
    for (uint32_t i = 0; i < size && !desc->space->one_address_space; i++) {
        group->parts[i] = find_part(desc->space, desc->members[i]);
    }
    const zero_status status = peer_open_device(group);
    if (status != ZERO_OK) {
        peer_close_device(group);
        zi_free(group);
        return status;
    }
    *out = &group->base;
    return ZERO_OK;
}

zero_status zi_peer_group_create_alone(const zi_comm *comm, const zi_peer_space *space,
                                       const zi_kernels *kernels, const char *name, zi_group **out)
{
    const zi_peer_group_desc desc = {
        .kernels = kernels,
        .space = space,
        .members = &comm->rank,
        .size = 1,
        .deadline_ms = comm->deadline_ms,
        .crowded = &comm->crowded,
        .name = name,
    };
    return zi_peer_group_create(&desc, out);
}
