/* Owns a group of host memory over a link. Invariant: all members make the same exchanges, because
 * each compares the terms in all messages before it uses their payload. So they find a difference
 * in the same exchange, and report the same one. */
#include "comm/nccl/nccl_host.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

typedef struct host_group {
    zi_group base;
    zi_comm *comm;
    zi_nccl_link *link;
    zi_nccl_host_close close;
    zero_error first_error; /* status ZERO_OK: none. Of the thread that runs batches */
    /* One entry a member each, behind `sources` in the group's own memory. */
    uint32_t *members;     /* world ranks */
    uint32_t *order;       /* group ranks in ascending world rank */
    const void *sources[]; /* what is being folded */
} host_group;

/* The tasks' argument. */
typedef struct batch_argument {
    host_group *group;
    zi_stream *stream;
    const zi_collective *batch;
    uint32_t batch_count;
} batch_argument;

/* Elements [first, first + count) of the part of group rank `part`. */
typedef struct host_chunk {
    const zi_collective *collective;
    uint32_t part;
    uint64_t first;
    uint64_t count;
} host_chunk;

static zero_status mismatch(const host_group *group, uint32_t other)
{
    const zi_nccl_message *left = zi_nccl_link_message(group->link, other);
    const zi_nccl_message *right = zi_nccl_link_message(group->link, 0);
    if (left->batch_count != right->batch_count) {
        return zi_batch_mismatch(group->base.name, group->members[other], left->batch_count,
                                 group->members[0], right->batch_count);
    }
    return zi_collective_mismatch(group->base.name, left->index, group->members[other],
                                  &left->terms, group->members[0], &right->terms);
}

/* The message is an abort notice, with which the world fails. */
static zero_status take_notice(const host_group *group, uint32_t other)
{
    const zi_nccl_message *message = zi_nccl_link_message(group->link, other);
    const zero_status status = zi_error_set(ZERO_COMM, 0, __FILE__, __LINE__, "rank %u: %.200s",
                                            group->members[other], (const char *)message->payload);
    const zero_error error = *zero_last_error();
    (void)zi_nccl_set_error(zi_nccl_base_of(group->comm), &error);
    return status;
}

/* Compare the terms of all messages. */
static zero_status compare(const host_group *group)
{
    const zi_nccl_message *first = zi_nccl_link_message(group->link, 0);
    for (uint32_t i = 0; i < group->base.size; i++) {
        if (zi_nccl_link_message(group->link, i)->status != ZERO_OK) {
            return take_notice(group, i);
        }
    }
    for (uint32_t i = 1; i < group->base.size; i++) {
        const zi_nccl_message *message = zi_nccl_link_message(group->link, i);
        if (memcmp(message, first, ZI_NCCL_TERMS_BYTES) != 0) {
            return mismatch(group, i);
        }
    }
    return ZERO_OK;
}

/* A TIMEOUT without the rank that is missing: NCCL does not know it. */
static zero_status late(const host_group *group, const zi_collective *collective)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES] = "an empty batch";
    if (collective != NULL) {
        (void)zi_collective_text(collective, text, sizeof text);
    }
    ZI_FAIL(ZERO_TIMEOUT,
            "not all of %u ranks arrived at %s (group %s, seen from rank %u) within %u ms; one has "
            "died, is slow or makes other calls",
            group->base.size, text, group->base.name, group->comm->rank, group->comm->deadline_ms);
}

static void fill_message(const host_group *group, const host_chunk *chunk)
{
    const zi_collective *c = chunk->collective;
    const uint64_t element = zero_dtype_bytes(c->send_dtype);
    const uint64_t first = chunk->part * (uint64_t)c->count + chunk->first;
    unsigned char *payload = zi_nccl_link_own(group->link)->payload;
    if (c->send == NULL) {
        memset(payload, 0, chunk->count * element);
    } else if (chunk->count != 0) {
        memcpy(payload, (const unsigned char *)c->send + first * element, chunk->count * element);
    }
}

static zero_status fold(host_group *group, zi_stream *stream, const host_chunk *chunk)
{
    const zi_collective *c = chunk->collective;
    const zi_kernels *kernels = group->base.kernels;
    for (uint32_t i = 0; i < group->base.size; i++) {
        group->sources[i] = zi_nccl_link_message(group->link, group->order[i])->payload;
    }
    const zi_fold job =
        zi_collective_fold(c, chunk->first, group->sources, group->base.size, chunk->count);
    return kernels->ops->fold(kernels->self, stream, &job);
}

static zero_status take_chunk(host_group *group, zi_stream *stream, const host_chunk *chunk)
{
    const zi_collective *c = chunk->collective;
    const uint64_t element = zero_dtype_bytes(c->recv_dtype);
    if (chunk->count == 0) {
        return ZERO_OK;
    }
    if (c->kind != ZI_ALL_GATHER) {
        const bool mine = c->kind == ZI_ALL_REDUCE || chunk->part == group->base.rank;
        return mine ? fold(group, stream, chunk) : ZERO_OK;
    }
    for (uint32_t i = 0; i < group->base.size; i++) {
        memcpy((unsigned char *)c->recv + (i * (uint64_t)c->count + chunk->first) * element,
               zi_nccl_link_message(group->link, i)->payload, chunk->count * element);
    }
    return ZERO_OK;
}

/* Make one exchange. chunk NULL: of an empty batch. */
static zero_status move_chunk(const batch_argument *task, uint32_t index, uint64_t number,
                              const host_chunk *chunk)
{
    host_group *group = task->group;
    zi_nccl_message *message = zi_nccl_link_own(group->link);
    memset(message, 0, offsetof(zi_nccl_message, payload));
    message->batch_count = task->batch_count;
    message->index = index;
    message->chunk = number;
    if (chunk != NULL) {
        message->terms = zi_collective_terms_of(chunk->collective);
        fill_message(group, chunk);
    }
    const zero_status status = zi_nccl_link_exchange(group->link);
    if (status == ZERO_TIMEOUT) {
        return late(group, chunk != NULL ? chunk->collective : NULL);
    }
    ZI_TRY(status);
    ZI_TRY(compare(group));
    return chunk != NULL ? take_chunk(group, task->stream, chunk) : ZERO_OK;
}

/* Move all chunks of one collective, of which there is at least one. */
static zero_status move(const batch_argument *task, uint32_t index)
{
    const zi_collective *c = &task->batch[index];
    const uint64_t most = ZI_NCCL_PAYLOAD_BYTES / zero_dtype_bytes(c->send_dtype);
    const uint32_t parts =
        c->kind == ZI_REDUCE_SCATTER && c->count != 0 ? task->group->base.size : 1;
    uint64_t number = 0;
    for (uint32_t part = 0; part < parts; part++) {
        uint64_t first = 0;
        do {
            const host_chunk chunk = {c, part, first, zi_min_u64(most, c->count - first)};
            ZI_TRY(move_chunk(task, index, number++, &chunk));
            first += chunk.count;
        } while (first < c->count);
    }
    return ZERO_OK;
}

static zero_status run_batch(const batch_argument *task)
{
    if (task->batch_count == 0) {
        return move_chunk(task, 0, 0, NULL);
    }
    for (uint32_t i = 0; i < task->batch_count; i++) {
        ZI_TRY(move(task, i));
        ZI_TRY(zi_collective_square_sum(task->group->base.kernels, task->stream, &task->batch[i]));
    }
    return ZERO_OK;
}

static zero_status run(void *argument)
{
    const batch_argument *task = argument;
    host_group *group = task->group;
    if (group->first_error.status != ZERO_OK) {
        return zi_error_adopt(&group->first_error);
    }
    const zero_status status = run_batch(task);
    if (status != ZERO_OK) {
        group->first_error = *zero_last_error();
    }
    return status;
}

static zero_status submit(zi_group *base, zi_stream *stream, const zi_collective *batch,
                          size_t batch_count)
{
    zi_assert_cmp(batch_count, <=, ZI_BATCH_MAX);
    const zi_device *device = base->kernels->device;
    const batch_argument argument = {(host_group *)base, stream, batch, (uint32_t)batch_count};
    return device->ops->task(device->self, stream, run, &argument, sizeof argument);
}

static void close_link(zi_comm *comm, zi_nccl_link *link, zi_nccl_host_close close)
{
    if (close != NULL) {
        close(comm, link);
    } else {
        zi_nccl_link_destroy(link);
    }
}

static void destroy(zi_group *base)
{
    host_group *group = (host_group *)base;
    close_link(group->comm, group->link, group->close);
    zi_free(group);
}

static const zi_group_ops host_ops = {
    .struct_bytes = sizeof(zi_group_ops),
    .submit = submit,
    .destroy = destroy,
};

zero_status zi_nccl_host_create(const zi_nccl_host_desc *desc, zi_group **out)
{
    *out = NULL;
    host_group *group = NULL;
    const size_t member_bytes = sizeof group->sources[0] + 2 * sizeof *group->members;
    const zero_status status =
        zi_calloc(1, sizeof *group + desc->size * member_bytes, (void **)&group);
    if (status != ZERO_OK) {
        close_link(desc->comm, desc->link, desc->close);
        return status;
    }
    group->members = (uint32_t *)(void *)&group->sources[desc->size];
    group->order = group->members + desc->size;
    group->base = (zi_group){.ops = &host_ops, .kernels = desc->kernels, .size = desc->size};
    (void)snprintf(group->base.name, sizeof group->base.name, "%s", desc->name);
    group->comm = desc->comm;
    group->link = desc->link;
    group->close = desc->close;
    memcpy(group->members, desc->members, desc->size * sizeof *group->members);
    group->base.rank = zi_group_place(desc->members, desc->size, desc->comm->rank, group->order);
    *out = &group->base;
    return ZERO_OK;
}
