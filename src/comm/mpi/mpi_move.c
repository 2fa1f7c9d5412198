/* Owns how the data of one collective moves between hosts. MPI's own algorithm is used where it may
 * add in its own order and all members have plain buffers. Otherwise members exchange their parts
 * in chunks that fit the stage, and fold them in ascending world rank. All members decide alike,
 * since they decide by the records that all have sent. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "comm/mpi/mpi_group.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "kernels/cpu/cpu_kernels.h"

_Static_assert(ZI_PAGE_BYTES / sizeof(float) % ZI_NORM_CHUNK == 0,
               "what fits a stage can add its squares itself");

bool zi_mpi_absent(const zi_mpi_group *group, uint32_t member, uint32_t index)
{
    return (group->records[member].bits[index / 64].absent >> (index % 64) & 1) != 0;
}

static bool in_place(const zi_mpi_group *group, uint32_t member, uint32_t index)
{
    return (group->records[member].bits[index / 64].in_place >> (index % 64) & 1) != 0;
}

/* Number of members that send nothing, and of those that work in place. */
static void count_special(const zi_mpi_group *group, uint32_t index, uint32_t *absent_count,
                          uint32_t *in_place_count)
{
    *absent_count = 0;
    *in_place_count = 0;
    for (uint32_t i = 0; i < group->base.size; i++) {
        *absent_count += zi_mpi_absent(group, i, index);
        *in_place_count += in_place(group, i, index);
    }
}

static int start_gather(zi_mpi_op *op)
{
    const zi_mpi_group *group = op->argument;
    const zi_collective *c = group->moving;
    const int bytes = (int)(c->count * zero_dtype_bytes(c->send_dtype));
    op->collective = true;
    op->request_count = 1;
    return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, c->recv, bytes, MPI_BYTE,
                          group->link->comm, &op->requests[0]);
}

static int start_scatter(zi_mpi_op *op)
{
    const zi_mpi_group *group = op->argument;
    const zi_collective *c = group->moving;
    op->collective = true;
    op->request_count = 1;
    return MPI_Ireduce_scatter_block(c->send, c->recv, (int)c->count, MPI_FLOAT, MPI_SUM,
                                     group->link->comm, &op->requests[0]);
}

static int start_reduce(zi_mpi_op *op)
{
    const zi_mpi_group *group = op->argument;
    const zi_collective *c = group->moving;
    op->collective = true;
    op->request_count = 1;
    return MPI_Iallreduce(c->send == c->recv ? MPI_IN_PLACE : c->send, c->recv, (int)c->count,
                          MPI_FLOAT, MPI_SUM, group->link->comm, &op->requests[0]);
}

static zero_status run_own(zi_mpi_group *group, const zi_collective *c, zi_mpi_start_fn start)
{
    group->moving = c;
    group->op.start = start;
    group->op.argument = group;
    group->op.group_id = group->id;
    group->op.requests = &group->op_request;
    group->op.request_capacity = 1;
    const uint32_t deadline_ms = group->comm->base.deadline_ms;
    const zero_status status = zi_mpi_progress_run(group->comm->progress, &group->op, deadline_ms);
    if (status == ZERO_TIMEOUT) {
        char text[ZI_COLLECTIVE_TEXT_BYTES];
        ZI_FAIL(ZERO_TIMEOUT,
                "group %s: %s began but did not end within %u ms; a rank hangs or a link is down",
                group->base.name, zi_collective_text(c, text, sizeof text), deadline_ms);
    }
    return status;
}

zero_status zi_mpi_group_exchange(zi_mpi_group *group, const zi_collective *c)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES];
    char what[ZI_COLLECTIVE_TEXT_BYTES + 40];
    (void)snprintf(what, sizeof what, "%s (group %s)", zi_collective_text(c, text, sizeof text),
                   group->base.name);
    return zi_mpi_exchange_run(&group->exchange, what);
}

/* Send the own part of recv to all members and receive theirs. sliced: parts are those of an
 * ALL_REDUCE. */
static zero_status gather_parts(zi_mpi_group *group, const zi_collective *c, bool sliced)
{
    zi_mpi_exchange *x = &group->exchange;
    const size_t bytes = zero_dtype_bytes(c->recv_dtype);
    unsigned char *recv = c->recv;
    size_t own_first = 0;
    const size_t longest =
        sliced ? zi_collective_part(c->count, group->base.size, 0, &own_first) : c->count;
    const size_t step = ZI_MPI_TRANSFER_MAX / bytes;
    for (size_t done = 0; done < longest; done += step) {
        for (uint32_t i = 0; i < group->base.size; i++) {
            size_t first = i * c->count;
            const size_t count =
                sliced ? zi_collective_part(c->count, group->base.size, i, &first) : c->count;
            const size_t chunk = done < count ? zi_min_u64(step, count - done) : 0;
            x->transfers[i].recv_at = recv + (first + done) * bytes;
            x->transfers[i].recv_bytes = chunk * bytes;
        }
        const zi_mpi_transfer *own = &x->transfers[group->base.rank];
        for (uint32_t i = 0; i < group->base.size; i++) {
            x->transfers[i].send_at = own->recv_at;
            x->transfers[i].send_bytes = own->recv_bytes;
        }
        ZI_TRY(zi_mpi_group_exchange(group, c));
    }
    return ZERO_OK;
}

size_t zi_mpi_part_of(const zi_mpi_group *group, const zi_mpi_plan *plan, uint32_t i, size_t *first)
{
    if (plan->sliced) {
        return zi_collective_part(plan->collective->count, group->base.size, i, first);
    }
    *first = i * plan->collective->count;
    return plan->collective->count;
}

/* Send each member its part of `send` and fold what comes: `step` elements of each part from its
 * element `done` on, into recv from its element `target` on. */
static zero_status fold_chunk(zi_mpi_group *group, const zi_mpi_plan *plan, size_t done,
                              size_t step, size_t target)
{
    const zi_collective *c = plan->collective;
    zi_mpi_exchange *x = &group->exchange;
    const size_t bytes = zero_dtype_bytes(c->send_dtype);
    const unsigned char *send = c->send;
    const uint32_t rank = group->base.rank;
    size_t first = 0;
    const size_t own_part = zi_mpi_part_of(group, plan, rank, &first);
    const size_t own_count = done < own_part ? zi_min_u64(step, own_part - done) : 0;
    const unsigned char *own = send != NULL ? send + (first + done) * bytes : NULL;
    for (uint32_t i = 0; i < group->base.size; i++) {
        const size_t part = zi_mpi_part_of(group, plan, i, &first);
        const size_t chunk = done < part ? zi_min_u64(step, part - done) : 0;
        x->transfers[i].send_at = send != NULL ? send + (first + done) * bytes : NULL;
        x->transfers[i].send_bytes = send != NULL ? chunk * bytes : 0;
        x->transfers[i].recv_at = group->stage + i * group->stage_bytes;
        x->transfers[i].recv_bytes = zi_mpi_absent(group, i, plan->index) ? 0 : own_count * bytes;
    }
    ZI_TRY(zi_mpi_group_exchange(group, c));
    for (uint32_t i = 0; i < group->base.size; i++) {
        const uint32_t member = group->order[i];
        const void *staged = zi_mpi_absent(group, member, plan->index)
                                 ? NULL
                                 : (const void *)x->transfers[member].recv_at;
        group->sources[i] = member == rank ? (const void *)own : staged;
    }
    zi_fold fold =
        zi_collective_fold(c, target + done, group->sources, group->base.size, own_count);
    fold.squares = plan->sliced ? NULL : c->squares; /* of slices only once all are here */
    zi_cpu_fold(&fold);
    return ZERO_OK;
}

static zero_status fold_parts(zi_mpi_group *group, const zi_mpi_plan *plan, size_t target)
{
    size_t first = 0;
    const size_t longest = zi_mpi_part_of(group, plan, 0, &first);
    const size_t step = group->stage_bytes / zero_dtype_bytes(plan->collective->send_dtype);
    for (size_t done = 0; done < longest; done += step) {
        ZI_TRY(fold_chunk(group, plan, done, step, target));
    }
    return ZERO_OK;
}

static zero_status move_gather(zi_mpi_group *group, const zi_collective *c)
{
    const size_t bytes = c->count * zero_dtype_bytes(c->send_dtype);
    unsigned char *own = (unsigned char *)c->recv + group->base.rank * bytes;
    if (c->send != own) {
        memcpy(own, c->send, bytes);
    }
    return bytes <= ZI_MPI_TRANSFER_MAX ? run_own(group, c, start_gather)
                                        : gather_parts(group, c, false);
}

/* Our sums begin with +0, MPI's with a member's element: there -0 + -0 stays -0. This fold adds +0,
 * and the squares on the way. */
static void clear_signed_zeros(const zi_collective *c)
{
    const void *const sources[1] = {c->recv};
    zi_fold fold = zi_collective_fold(c, 0, sources, 1, c->count);
    fold.squares = c->squares;
    zi_cpu_fold(&fold);
}

/* MPI's own sum. */
static zero_status run_sum(zi_mpi_group *group, const zi_collective *c, zi_mpi_start_fn start)
{
    ZI_TRY(run_own(group, c, start));
    clear_signed_zeros(c);
    return ZERO_OK;
}

/* True when MPI's own reduction does what is asked, on every member. */
static bool plain_sum(const zi_collective *c, size_t total)
{
    return c->send_dtype == ZERO_DTYPE_F32 && c->recv_dtype == ZERO_DTYPE_F32 &&
           (c->flags & ~(uint32_t)ZI_COLLECTIVE_LAST) == 0 && total <= INT_MAX;
}

static zero_status move_scatter(zi_mpi_group *group, const zi_collective *c, uint32_t index)
{
    uint32_t absent_count = 0;
    uint32_t in_place_count = 0;
    count_special(group, index, &absent_count, &in_place_count);
    if (plain_sum(c, c->count * group->base.size) && absent_count + in_place_count == 0) {
        return run_sum(group, c, start_scatter);
    }
    const zi_mpi_plan plan = {.collective = c, .index = index, .sliced = false};
    return fold_parts(group, &plan, 0);
}

static zero_status move_reduce(zi_mpi_group *group, const zi_collective *c, uint32_t index)
{
    uint32_t absent_count = 0;
    uint32_t in_place_count = 0;
    count_special(group, index, &absent_count, &in_place_count);
    if (plain_sum(c, c->count) && absent_count == 0 &&
        (in_place_count == 0 || in_place_count == group->base.size)) {
        return run_sum(group, c, start_reduce);
    }
    const zi_mpi_plan plan = {.collective = c, .index = index, .sliced = true};
    size_t first = 0;
    (void)zi_collective_part(c->count, group->base.size, group->base.rank, &first);
    ZI_TRY(fold_parts(group, &plan, first));
    ZI_TRY(gather_parts(group, c, true));
    if (c->squares != NULL) {
        zi_cpu_square_sum(c->recv, c->recv_dtype, c->count, c->squares);
    }
    return ZERO_OK;
}

zero_status zi_mpi_move(zi_mpi_group *group, const zi_collective *collective, uint32_t index)
{
    switch (collective->kind) {
    case ZI_ALL_GATHER:
        return move_gather(group, collective);
    case ZI_REDUCE_SCATTER:
        return move_scatter(group, collective, index);
    case ZI_ALL_REDUCE:
        return move_reduce(group, collective, index);
    }
    zi_assert_cmp(collective->kind, <=, ZI_ALL_REDUCE);
    return ZERO_OK;
}
