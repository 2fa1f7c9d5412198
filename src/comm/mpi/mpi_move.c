/* Owns how the data of one collective moves between hosts. MPI's own algorithm is used in host
 * memory where it may add in its own order and all members have plain buffers. Otherwise members
 * exchange their parts in chunks, and fold them in ascending world rank. All members decide alike,
 * since they decide by the records that all have sent.
 *
 * Chunks of host memory are sent from where they are. Chunks of device memory are copied to pinned
 * memory of the host, exchanged, and copied back or folded into the result by the device. There the
 * stage of each member has two halves for alternate chunks, so that copies overlap exchanges:
 *
 *   stream   to host 0 | to host 1  | from host 0, to host 2 | from host 1, to host 3 |
 *   host               | exchange 0 | exchange 1             | exchange 2             |
 *
 * Invariant: at each `|` the host waits for the stream. So what an exchange sends is in host
 * memory, and what it overwrites has been read. */
#include <limits.h>
#include <stdio.h>

#include "comm/mpi/mpi_group.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"

_Static_assert(ZI_PAGE_BYTES / sizeof(float) % ZI_NORM_CHUNK == 0,
               "what fits a stage can add its squares itself");

/* An array that is being moved. */
typedef struct array_move {
    zi_mpi_group *group;
    zi_stream *stream; /* whose task this is */
    const zi_collective *collective;
    uint32_t index;       /* of the collective in its batch */
    bool sliced;          /* members share an array of `count`, else each has `count` elements */
    bool on_host;         /* it is host memory */
    size_t element_bytes; /* of what is sent */
    size_t step;          /* elements of a chunk */
} array_move;

/* The steps of the chunks that begin at element `done` of their parts. */
typedef struct move_steps {
    zero_status (*to_host)(const array_move *m, size_t done); /* of device memory only */
    void (*describe)(const array_move *m, size_t done);       /* what the members exchange */
    zero_status (*finish)(const array_move *m, size_t done);
} move_steps;

/* Whether a member sends nothing to collective `index`. */
static bool is_absent(const zi_mpi_group *group, uint32_t member, uint32_t index)
{
    return (group->records[member].bits[index / 64].absent >> (index % 64) & 1) != 0;
}

static bool is_in_place(const zi_mpi_group *group, uint32_t member, uint32_t index)
{
    return (group->records[member].bits[index / 64].in_place >> (index % 64) & 1) != 0;
}

/* ---- chunks ---- */

/* Elements of member `i`'s part, and where it starts. The first member's is the longest. */
static size_t part_of(const array_move *m, uint32_t i, size_t *first)
{
    const zi_collective *c = m->collective;
    if (m->sliced) {
        return zi_collective_part(c->count, m->group->base.size, i, first);
    }
    *first = i * c->count;
    return c->count;
}

/* Elements of member `i`'s chunk, and the first of them. */
static size_t chunk_of(const array_move *m, uint32_t i, size_t done, size_t *first)
{
    const size_t part = part_of(m, i, first);
    *first += done;
    return done < part ? zi_min_u64(m->step, part - done) : 0;
}

/* Where the stage has a chunk from member `i`, and one that goes to it. */
static unsigned char *incoming(const array_move *m, uint32_t i, size_t done)
{
    const zi_mpi_group *group = m->group;
    const size_t half = m->on_host ? 0 : done / m->step % 2;
    return group->stage + i * group->stage_bytes + half * (group->stage_bytes / 2);
}

static unsigned char *outgoing(const array_move *m, uint32_t i, size_t done)
{
    return incoming(m, m->group->base.size + i, done);
}

static zero_status copy(const array_move *m, void *target, const void *source, size_t count)
{
    const zi_device *device = m->group->base.kernels->device;
    return device->ops->copy(device->self, m->stream, target, source, count * m->element_bytes);
}

static zero_status drain(const array_move *m)
{
    const zi_device *device = m->group->base.kernels->device;
    return m->on_host ? ZERO_OK : device->ops->drain(device->self, m->stream);
}

/* ---- each member's part of recv to all ---- */

static zero_status gather_to_host(const array_move *m, size_t done)
{
    const uint32_t rank = m->group->base.rank;
    size_t first = 0;
    const size_t count = chunk_of(m, rank, done, &first);
    const unsigned char *recv = m->collective->recv;
    return copy(m, outgoing(m, rank, done), recv + first * m->element_bytes, count);
}

static void gather_describe(const array_move *m, size_t done)
{
    const uint32_t rank = m->group->base.rank;
    unsigned char *recv = m->collective->recv;
    size_t own = 0;
    const size_t own_count = chunk_of(m, rank, done, &own);
    for (uint32_t i = 0; i < m->group->base.size; i++) {
        size_t first = 0;
        const size_t count = chunk_of(m, i, done, &first);
        m->group->exchange.transfers[i] = (zi_mpi_transfer){
            .send_at = m->on_host ? recv + own * m->element_bytes : outgoing(m, rank, done),
            .send_bytes = own_count * m->element_bytes,
            .recv_at = m->on_host ? recv + first * m->element_bytes : incoming(m, i, done),
            .recv_bytes = count * m->element_bytes,
        };
    }
}

static zero_status gather_finish(const array_move *m, size_t done)
{
    unsigned char *recv = m->collective->recv;
    for (uint32_t i = 0; i < m->group->base.size && !m->on_host; i++) {
        size_t first = 0;
        const size_t count = chunk_of(m, i, done, &first);
        if (i != m->group->base.rank) {
            ZI_TRY(copy(m, recv + first * m->element_bytes, incoming(m, i, done), count));
        }
    }
    return ZERO_OK;
}

static const move_steps gather_steps = {gather_to_host, gather_describe, gather_finish};

/* ---- each member's part of all send to that member, and their sum to recv ---- */

static zero_status fold_to_host(const array_move *m, size_t done)
{
    const unsigned char *send = m->collective->send;
    for (uint32_t i = 0; i < m->group->base.size && send != NULL; i++) {
        size_t first = 0;
        const size_t count = chunk_of(m, i, done, &first);
        if (i != m->group->base.rank) {
            ZI_TRY(copy(m, outgoing(m, i, done), send + first * m->element_bytes, count));
        }
    }
    return ZERO_OK;
}

static void fold_describe(const array_move *m, size_t done)
{
    const unsigned char *send = m->collective->send;
    size_t first = 0;
    const size_t own_count = chunk_of(m, m->group->base.rank, done, &first);
    for (uint32_t i = 0; i < m->group->base.size; i++) {
        const size_t count = chunk_of(m, i, done, &first);
        const unsigned char *from =
            m->on_host ? send + first * m->element_bytes : outgoing(m, i, done);
        m->group->exchange.transfers[i] = (zi_mpi_transfer){
            .send_at = send != NULL ? from : NULL,
            .send_bytes = send != NULL ? count * m->element_bytes : 0,
            .recv_at = incoming(m, i, done),
            .recv_bytes = is_absent(m->group, i, m->index) ? 0 : own_count * m->element_bytes,
        };
    }
}

/* The kernels read what the others sent directly from the stage. */
static zero_status fold_finish(const array_move *m, size_t done)
{
    zi_mpi_group *group = m->group;
    const zi_collective *c = m->collective;
    const unsigned char *send = c->send;
    size_t first = 0;
    const size_t count = chunk_of(m, group->base.rank, done, &first);
    for (uint32_t i = 0; i < group->base.size; i++) {
        const uint32_t member = group->order[i];
        group->sources[i] = NULL;
        if (!is_absent(group, member, m->index)) {
            group->sources[i] = member == group->base.rank ? send + first * m->element_bytes
                                                           : incoming(m, member, done);
        }
    }
    /* In a reduce-scatter recv is this rank's part alone. */
    const size_t place = m->sliced ? first : done;
    zi_fold fold = zi_collective_fold(c, place, group->sources, group->base.size, count);
    fold.squares = m->sliced ? NULL : c->squares; /* of slices only once all are here */
    const zi_kernels *kernels = group->base.kernels;
    return count != 0 ? kernels->ops->fold(kernels->self, m->stream, &fold) : ZERO_OK;
}

static const move_steps fold_steps = {fold_to_host, fold_describe, fold_finish};

static zero_status exchange(const array_move *m)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES];
    char what[ZI_COLLECTIVE_TEXT_BYTES + 40];
    (void)snprintf(what, sizeof what, "%s (group %s)",
                   zi_collective_text(m->collective, text, sizeof text), m->group->base.name);
    return zi_mpi_exchange_run(&m->group->exchange, what);
}

/* Move all chunks of at most `step` elements. */
static zero_status run_chunks(const array_move *m, const move_steps *steps)
{
    size_t first = 0;
    const size_t longest = part_of(m, 0, &first);
    ZI_TRY(m->on_host ? ZERO_OK : steps->to_host(m, 0));
    ZI_TRY(drain(m));
    for (size_t done = 0; done < longest; done += m->step) {
        const bool more = m->step < longest - done;
        if (more && !m->on_host) {
            ZI_TRY(steps->to_host(m, done + m->step));
        }
        steps->describe(m, done);
        ZI_TRY(exchange(m));
        if (more) {
            ZI_TRY(drain(m));
        }
        ZI_TRY(steps->finish(m, done));
    }
    return ZERO_OK;
}

/* Gather all parts of recv. */
static zero_status gather_parts(array_move *m)
{
    m->element_bytes = zero_dtype_bytes(m->collective->recv_dtype);
    m->step = (m->on_host ? ZI_MPI_TRANSFER_MAX : m->group->stage_bytes / 2) / m->element_bytes;
    return run_chunks(m, &gather_steps);
}

/* Fold this rank's part of all members' send buffers. */
static zero_status fold_parts(array_move *m)
{
    m->element_bytes = zero_dtype_bytes(m->collective->send_dtype);
    m->step = m->group->stage_bytes / (m->on_host ? 1 : 2) / m->element_bytes;
    return run_chunks(m, &fold_steps);
}

/* ---- MPI's own collectives ---- */

static int start_own(zi_mpi_op *op)
{
    const zi_mpi_group *group = op->argument;
    const zi_collective *c = group->moving;
    const MPI_Comm comm = group->link->comm;
    MPI_Request *request = &op->requests[0];
    op->collective = true;
    op->request_count = 1;
    switch (c->kind) {
    case ZI_ALL_GATHER:
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, c->recv,
                              (int)(c->count * zero_dtype_bytes(c->send_dtype)), MPI_BYTE, comm,
                              request);
    case ZI_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(c->send, c->recv, (int)c->count, MPI_FLOAT, MPI_SUM, comm,
                                         request);
    case ZI_ALL_REDUCE:
        break;
    }
    return MPI_Iallreduce(c->send == c->recv ? MPI_IN_PLACE : c->send, c->recv, (int)c->count,
                          MPI_FLOAT, MPI_SUM, comm, request);
}

static zero_status run_own(zi_mpi_group *group, const zi_collective *c)
{
    const uint32_t deadline_ms = group->comm->base.deadline_ms;
    group->moving = c;
    group->op.start = start_own;
    group->op.argument = group;
    group->op.group_id = group->id;
    group->op.requests = &group->op_request;
    group->op.request_capacity = 1;
    const zero_status status = zi_mpi_progress_run(group->comm->progress, &group->op, deadline_ms);
    if (status == ZERO_TIMEOUT) {
        char text[ZI_COLLECTIVE_TEXT_BYTES];
        ZI_FAIL(ZERO_TIMEOUT,
                "group %s: %s began but did not end within %u ms; a rank hangs or a link is down",
                group->base.name, zi_collective_text(c, text, sizeof text), deadline_ms);
    }
    return status;
}

/* Whether MPI's own reduction does what is asked, on every member. */
static bool is_plain_sum(const array_move *m)
{
    const zi_mpi_group *group = m->group;
    const zi_collective *c = m->collective;
    const size_t total = c->kind == ZI_REDUCE_SCATTER ? c->count * group->base.size : c->count;
    uint32_t absent_count = 0;
    uint32_t in_place_count = 0;
    for (uint32_t i = 0; i < group->base.size; i++) {
        absent_count += is_absent(group, i, m->index);
        in_place_count += is_in_place(group, i, m->index);
    }
    const bool all_in_place = c->kind == ZI_ALL_REDUCE && in_place_count == group->base.size;
    return m->on_host && c->send_dtype == ZERO_DTYPE_F32 && c->recv_dtype == ZERO_DTYPE_F32 &&
           (c->flags & ~(uint32_t)ZI_COLLECTIVE_LAST) == 0 && total <= INT_MAX &&
           absent_count == 0 && (in_place_count == 0 || all_in_place);
}

/* Our sums begin with +0, MPI's with a member's element: there -0 + -0 stays -0. The fold adds +0,
 * and the squares on the way. */
static zero_status run_own_sum(const array_move *m)
{
    const zi_collective *c = m->collective;
    const zi_kernels *kernels = m->group->base.kernels;
    const void *const sources[1] = {c->recv};
    ZI_TRY(run_own(m->group, c));
    zi_fold fold = zi_collective_fold(c, 0, sources, 1, c->count);
    fold.squares = c->squares;
    return kernels->ops->fold(kernels->self, m->stream, &fold);
}

/* ---- collectives ---- */

static zero_status move_gather(array_move *m)
{
    const zi_collective *c = m->collective;
    m->element_bytes = zero_dtype_bytes(c->send_dtype);
    const size_t bytes = c->count * m->element_bytes;
    unsigned char *own = (unsigned char *)c->recv + m->group->base.rank * bytes;
    if (c->send != own) {
        ZI_TRY(copy(m, own, c->send, c->count));
    }
    return m->on_host && bytes <= ZI_MPI_TRANSFER_MAX ? run_own(m->group, c) : gather_parts(m);
}

zero_status zi_mpi_move(zi_mpi_group *group, zi_stream *stream, const zi_collective *collective,
                        uint32_t index)
{
    array_move m = {
        .group = group,
        .stream = stream,
        .collective = collective,
        .index = index,
        .sliced = collective->kind == ZI_ALL_REDUCE,
        .on_host = group->base.kernels->device->ops->host_memory,
    };
    if (collective->kind == ZI_ALL_GATHER) {
        return move_gather(&m);
    }
    if (is_plain_sum(&m)) {
        return run_own_sum(&m);
    }
    ZI_TRY(fold_parts(&m));
    if (collective->kind == ZI_REDUCE_SCATTER) {
        return ZERO_OK;
    }
    ZI_TRY(gather_parts(&m));
    return zi_collective_square_sum(group->base.kernels, stream, collective);
}
