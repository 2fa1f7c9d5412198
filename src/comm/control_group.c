/* Owns a group of host memory over the control plane. Invariant: all members make the same gathers,
 * because each compares the terms in all records before it uses the rest. So they find a difference
 * in the same gather, and report the same one. */
#include "comm/control_group.h"

#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

/* The head of a record: what all members must agree on. */
typedef struct record_head {
    uint32_t batch_count;
    uint32_t index; /* of the collective in its batch */
    uint64_t chunk; /* of the collective */
    zi_collective_terms terms;
} record_head;

typedef struct control_group {
    zi_group base;
    zi_control *control;
    zero_error first_error; /* status ZERO_OK: none. Of the thread that runs batches */
    uint32_t most;          /* bytes of a record behind its head */
    unsigned char record[];
} control_group;

/* The tasks' argument. */
typedef struct batch_argument {
    control_group *group;
    const zi_collective *batch;
    uint32_t batch_count;
} batch_argument;

static zero_status control_group_compare(const control_group *group)
{
    record_head first;
    memcpy(&first, zi_control_record(group->control, 0), sizeof first);
    for (uint32_t i = 1; i < group->base.size; i++) {
        record_head other;
        memcpy(&other, zi_control_record(group->control, i), sizeof other);
        if (other.batch_count != first.batch_count) {
            return zi_batch_mismatch(group->base.name, i, other.batch_count, 0, first.batch_count);
        }
        if (memcmp(&other, &first, sizeof other) != 0) {
            return zi_collective_mismatch(group->base.name, other.index, i, &other.terms, 0,
                                          &first.terms);
        }
    }
    return ZERO_OK;
}

/* Gather one record of each member: `count` elements from `first` on. gather NULL: of an empty
 * batch. */
static zero_status control_group_move_chunk(const batch_argument *task, const record_head *head,
                                            const zi_collective *gather, uint64_t first,
                                            uint64_t count)
{
    control_group *group = task->group;
    char text[ZI_COLLECTIVE_TEXT_BYTES] = "an empty batch";
    char what[ZI_COLLECTIVE_TEXT_BYTES + 40];
    const size_t element = gather != NULL ? zero_dtype_bytes(gather->send_dtype) : 0;
    const size_t bytes = count * element;
    memcpy(group->record, head, sizeof *head);
    if (bytes != 0) {
        memcpy(group->record + sizeof *head, (const unsigned char *)gather->send + first * element,
               bytes);
    }
    (void)snprintf(what, sizeof what, "%s (group %s)",
                   gather != NULL ? zi_collective_text(gather, text, sizeof text) : text,
                   group->base.name);
    ZI_TRY(
        zi_control_gather(group->control, group->record, (uint32_t)(sizeof *head + bytes), what));
    ZI_TRY(control_group_compare(group));
    for (uint32_t i = 0; i < group->base.size && bytes != 0; i++) {
        const unsigned char *record = zi_control_record(group->control, i);
        memcpy((unsigned char *)gather->recv + (i * (uint64_t)gather->count + first) * element,
               record + sizeof *head, bytes);
    }
    return ZERO_OK;
}

/* All chunks of one collective, of which there is at least one. Of a sum the first, without data,
 * finds out whether the others mean the same. */
static zero_status control_group_move(const batch_argument *task, uint32_t index)
{
    const zi_collective *c = &task->batch[index];
    const bool gathers = c->kind == ZI_ALL_GATHER;
    const uint64_t most = task->group->most / zero_dtype_bytes(c->send_dtype);
    uint64_t first = 0;
    record_head head = {
        .batch_count = task->batch_count, .index = index, .terms = zi_collective_terms_of(c)};
    do {
        const uint64_t count = gathers ? zi_min_u64(most, c->count - first) : 0;
        ZI_TRY(control_group_move_chunk(task, &head, c, first, count));
        first += count;
        head.chunk++;
    } while (gathers && first < c->count);
    if (!gathers) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "group %s: ranks on several hosts that have only NCCL in common add up nothing in "
                "host memory; use the GPUs, or start the ranks with mpirun",
                task->group->base.name);
    }
    return ZERO_OK;
}

static zero_status control_group_run(void *argument)
{
    const batch_argument *task = argument;
    control_group *group = task->group;
    const record_head empty = {.batch_count = 0};
    if (group->first_error.status != ZERO_OK) {
        return zi_error_adopt(&group->first_error);
    }
    zero_status status =
        task->batch_count == 0 ? control_group_move_chunk(task, &empty, NULL, 0, 0) : ZERO_OK;
    for (uint32_t i = 0; i < task->batch_count && status == ZERO_OK; i++) {
        status = control_group_move(task, i);
    }
    if (status != ZERO_OK) {
        group->first_error = *zero_last_error();
    }
    return status;
}

static zero_status control_group_submit(zi_group *base, zi_stream *stream,
                                        const zi_collective *batch, size_t batch_count)
{
    zi_assert_cmp(batch_count, <=, ZI_BATCH_MAX);
    const zi_device *device = base->kernels->device;
    const batch_argument argument = {(control_group *)base, batch, (uint32_t)batch_count};
    return device->ops->task(device->self, stream, control_group_run, &argument, sizeof argument);
}

static void control_group_destroy(zi_group *base)
{
    zi_free(base);
}

static const zi_group_ops control_ops = {
    .struct_bytes = sizeof(zi_group_ops),
    .submit = control_group_submit,
    .destroy = control_group_destroy,
};

zero_status zi_control_group_create(zi_comm *comm, zi_control *control, const zi_kernels *kernels,
                                    const char *name, zi_group **out)
{
    *out = NULL;
    control_group *group = NULL;
    const uint32_t most = zi_control_most(control);
    ZI_TRY(zi_calloc(1, sizeof *group + most, (void **)&group));
    group->base =
        (zi_group){.ops = &control_ops, .kernels = kernels, .rank = comm->rank, .size = comm->size};
    (void)snprintf(group->base.name, sizeof group->base.name, "%s", name);
    group->control = control;
    group->most = most - (uint32_t)sizeof(record_head);
    *out = &group->base;
    return ZERO_OK;
}
