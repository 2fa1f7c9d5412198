/* Owns how the data of one collective moves between hosts. MPI's own algorithms are used in host
 * memory: to gather, and to add where that is asked for and all members have plain buffers.
 * Otherwise members exchange their parts in chunks, in one level or two (grid.h), and fold them in
 * ascending world rank. All members decide alike, since they decide by the records that all have
 * sent.
 *
 * A sum in two levels: within each host a member gets the parts of all ranks of its column, and
 * folds those of each row; between hosts it gets such sums of its own part. A gather goes the same
 * way back.
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
    uint32_t index;      /* of the collective in its batch */
    bool sliced;         /* members share an array of `count`, else each has `count` elements */
    bool on_host;        /* it is host memory */
    zero_dtype dtype;    /* of what is sent */
    size_t step;         /* elements of a chunk */
    const zi_grid *grid; /* who exchanges with whom */
} array_move;

/* A level that a chunk goes through: members exchange, then each works on what it has got. */
typedef struct move_level {
    bool within; /* each host, else between the members of a column */
    void (*describe)(const array_move *m, size_t done, bool within); /* tells what they exchange */
    zero_status (*finish)(const array_move *m, size_t done, bool within);
} move_level;

/* The steps of the chunks that begin at element `done` of their parts. */
typedef struct move_steps {
    zero_status (*to_host)(const array_move *m, size_t done); /* of device memory only */
    move_level levels[2]; /* those within hosts are left out where there is one column */
} move_steps;

/* True if a member sends nothing to collective `index`. */
static bool is_absent(const zi_mpi_group *group, uint32_t member, uint32_t index)
{
    return (group->records[member].bits[index / 64].absent >> (index % 64) & 1) != 0;
}

static bool mpi_move_is_in_place(const zi_mpi_group *group, uint32_t member, uint32_t index)
{
    return (group->records[member].bits[index / 64].in_place >> (index % 64) & 1) != 0;
}

/* ---- chunks ---- */

/* Elements of member `i`'s part, and where it starts. The first member's is the longest. */
static size_t mpi_move_share_of(const array_move *m, uint32_t i, size_t *first)
{
    const zi_collective *c = m->collective;
    if (m->sliced) {
        return zi_collective_share(c->count, m->group->base.size, i, first);
    }
    *first = i * c->count;
    return c->count;
}

/* Elements of member `i`'s chunk, and the first of them. */
static size_t mpi_move_chunk_of(const array_move *m, uint32_t i, size_t done, size_t *first)
{
    const size_t part = mpi_move_share_of(m, i, first);
    *first += done;
    return done < part ? zi_min_u64(m->step, part - done) : 0;
}

/* The place in the stage of a chunk from member `i`, and of one that goes to it. */
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

static zero_status mpi_move_copy(const array_move *m, void *target, const void *source,
                                 size_t count)
{
    const zi_device *device = m->group->base.kernels->device;
    return device->ops->copy(device->self, m->stream, target, source,
                             zi_packed_bytes(m->dtype, count));
}

static zero_status mpi_move_drain(const array_move *m)
{
    const zi_device *device = m->group->base.kernels->device;
    return m->on_host ? ZERO_OK : device->ops->drain(device->self, m->stream);
}

/* The place of the sum of this host's members, of what they have for member `i`, who is of this
 * rank's column: nothing else comes or goes there. */
static unsigned char *host_sum(const array_move *m, uint32_t i, size_t done)
{
    return m->on_host ? incoming(m, i, done) : outgoing(m, i, done);
}

/* The place at which the sum arrives that member `i`, in row `row`, sends. In two levels what came
 * from another column is folded by then. */
static unsigned char *arrival(const array_move *m, uint32_t row, size_t done)
{
    return incoming(m, zi_grid_at(m->grid, row, (m->grid->column + 1) % m->grid->columns), done);
}

/* A member that this rank exchanges with about the part of member `i`. Within the host that is the
 * member of its column here; it wants a part of this rank's column in return. */
typedef struct partner {
    uint32_t rank; /* this rank itself: there is none */
    uint32_t mine; /* whose part it has for this rank */
} partner;

static partner partner_of(const array_move *m, uint32_t row, uint32_t column, bool within)
{
    const zi_grid *grid = m->grid;
    if (within) {
        return (partner){zi_grid_at(grid, grid->row, column), zi_grid_at(grid, row, grid->column)};
    }
    const uint32_t own = m->group->base.rank;
    return (partner){column == grid->column ? zi_grid_at(grid, row, column) : own, own};
}

/* ---- each member's part of recv to all ---- */

static zero_status gather_to_host(const array_move *m, size_t done)
{
    const uint32_t rank = m->group->base.rank;
    size_t first = 0;
    const size_t count = mpi_move_chunk_of(m, rank, done, &first);
    const unsigned char *recv = m->collective->recv;
    return mpi_move_copy(m, outgoing(m, rank, done), recv + zi_packed_bytes(m->dtype, first),
                         count);
}

/* The place on the host of the chunk of member `i`'s part. */
static unsigned char *gathered(const array_move *m, uint32_t i, size_t first, size_t done)
{
    unsigned char *recv = m->collective->recv;
    if (m->on_host) {
        return recv + zi_packed_bytes(m->dtype, first);
    }
    return i == m->group->base.rank ? outgoing(m, i, done) : incoming(m, i, done);
}

static void gather_describe(const array_move *m, size_t done, bool within)
{
    for (uint32_t at = 0; at < m->group->base.size; at++) {
        const uint32_t i = m->grid->at[at];
        const partner with = partner_of(m, at / m->grid->columns, at % m->grid->columns, within);
        size_t own = 0;
        const size_t own_count = mpi_move_chunk_of(m, with.mine, done, &own);
        size_t first = 0;
        const size_t count = mpi_move_chunk_of(m, i, done, &first);
        m->group->exchange.transfers[at] = (zi_mpi_transfer){
            .member = with.rank,
            .send_at = gathered(m, with.mine, own, done),
            .send_bytes = zi_packed_bytes(m->dtype, own_count),
            .recv_at = gathered(m, i, first, done),
            .recv_bytes = zi_packed_bytes(m->dtype, count),
        };
    }
}

static zero_status gather_finish(const array_move *m, size_t done, bool within)
{
    unsigned char *recv = m->collective->recv;
    for (uint32_t at = 0; at < m->group->base.size && !m->on_host; at++) {
        const uint32_t i = m->grid->at[at];
        size_t first = 0;
        const size_t count = mpi_move_chunk_of(m, i, done, &first);
        /* Chunks that came between hosts are in this rank's column. */
        if (i != m->group->base.rank && within == (at % m->grid->columns != m->grid->column)) {
            ZI_TRY(mpi_move_copy(m, recv + zi_packed_bytes(m->dtype, first), incoming(m, i, done),
                                 count));
        }
    }
    return ZERO_OK;
}

static const move_steps gather_steps = {
    gather_to_host,
    {{false, gather_describe, gather_finish}, {true, gather_describe, gather_finish}}};

/* ---- each member's part of all send to that member, and their sum to recv ---- */

/* All but what this rank folds itself. */
static zero_status fold_to_host(const array_move *m, size_t done)
{
    const unsigned char *send = m->collective->send;
    for (uint32_t at = 0; at < m->group->base.size && send != NULL; at++) {
        const uint32_t i = m->grid->at[at];
        const uint32_t column = at % m->grid->columns;
        size_t first = 0;
        const size_t count = mpi_move_chunk_of(m, i, done, &first);
        if (i != m->group->base.rank && (m->grid->columns == 1 || column != m->grid->column)) {
            ZI_TRY(mpi_move_copy(m, outgoing(m, i, done), send + zi_packed_bytes(m->dtype, first),
                                 count));
        }
    }
    return ZERO_OK;
}

static bool in_levels(const array_move *m)
{
    return m->grid->columns > 1;
}

/* True if nobody on the host of row `row` sends to this collective. */
static bool is_row_absent(const array_move *m, uint32_t row)
{
    for (uint32_t column = 0; column < m->grid->columns; column++) {
        if (!is_absent(m->group, zi_grid_at(m->grid, row, column), m->index)) {
            return false;
        }
    }
    return true;
}

static void fold_describe(const array_move *m, size_t done, bool within)
{
    const unsigned char *send = m->collective->send;
    const bool sums = !within && in_levels(m); /* are sent, of whole hosts */
    const zero_dtype dtype = sums ? zi_collective_sum_dtype(m->collective) : m->dtype;
    const bool sends = sums ? !is_row_absent(m, m->grid->row) : send != NULL;
    for (uint32_t at = 0; at < m->group->base.size; at++) {
        const uint32_t i = m->grid->at[at];
        const uint32_t row = at / m->grid->columns;
        const partner with = partner_of(m, row, at % m->grid->columns, within);
        const bool absent = sums ? is_row_absent(m, row) : is_absent(m->group, with.rank, m->index);
        size_t first = 0;
        const size_t own_count = mpi_move_chunk_of(m, with.mine, done, &first);
        const size_t count = mpi_move_chunk_of(m, i, done, &first);
        const bool in_place = m->on_host && send != NULL;
        const unsigned char *from =
            in_place ? send + zi_packed_bytes(m->dtype, first) : outgoing(m, i, done);
        m->group->exchange.transfers[at] = (zi_mpi_transfer){
            .member = with.rank,
            .send_at = sums ? host_sum(m, i, done) : from,
            .send_bytes = sends ? zi_packed_bytes(dtype, count) : 0,
            .recv_at = within ? incoming(m, i, done) : arrival(m, row, done),
            .recv_bytes = absent ? 0 : zi_packed_bytes(dtype, own_count),
        };
    }
}

/* The divisor of a host's sum before it is rounded. */
static float mpi_move_headroom_of(const array_move *m)
{
    return zi_sum_headroom(zi_collective_sum_dtype(m->collective), m->grid->columns);
}

/* This host's sums of the parts of this rank's column. A host without any is not asked for them. */
static zero_status mpi_move_fold_within(const array_move *m, size_t done)
{
    zi_mpi_group *group = m->group;
    const zi_collective *c = m->collective;
    const zi_kernels *kernels = group->base.kernels;
    const unsigned char *send = c->send;
    const zi_grid *grid = m->grid;
    for (uint32_t row = 0; row < grid->rows && !is_row_absent(m, grid->row); row++) {
        const uint32_t i = zi_grid_at(grid, row, grid->column);
        size_t first = 0;
        const size_t count = mpi_move_chunk_of(m, i, done, &first);
        for (uint32_t column = 0; column < grid->columns; column++) {
            const uint32_t member = zi_grid_at(grid, grid->row, column);
            const bool absent = is_absent(group, member, m->index);
            const unsigned char *came = incoming(m, zi_grid_at(grid, row, column), done);
            const unsigned char *own =
                send != NULL ? send + zi_packed_bytes(m->dtype, first) : NULL;
            group->sources[column] = absent ? NULL : column == grid->column ? own : came;
        }
        const zi_fold fold = {
            .dst = host_sum(m, i, done),
            .sources = group->sources,
            .source_count = grid->columns,
            .count = count,
            .dst_dtype = zi_collective_sum_dtype(c),
            .source_dtype = c->send_dtype,
            .scale = 1.0f / mpi_move_headroom_of(m),
            .key = zi_collective_host_key(c, grid->row),
            .first = first,
        };
        if (count != 0) {
            ZI_TRY(kernels->ops->fold(kernels->self, m->stream, &fold));
        }
    }
    return ZERO_OK;
}

/* The kernels read what the others sent directly from the stage. */
static zero_status fold_finish(const array_move *m, size_t done, bool within)
{
    zi_mpi_group *group = m->group;
    const zi_collective *c = m->collective;
    const zi_grid *grid = m->grid;
    const unsigned char *send = c->send;
    size_t first = 0;
    if (within) {
        return mpi_move_fold_within(m, done);
    }
    const size_t count = mpi_move_chunk_of(m, group->base.rank, done, &first);
    for (uint32_t row = 0; row < grid->rows; row++) {
        const unsigned char *own = in_levels(m)   ? host_sum(m, group->base.rank, done)
                                   : send != NULL ? send + zi_packed_bytes(m->dtype, first)
                                                  : NULL;
        group->sources[row] = is_row_absent(m, row) ? NULL
                              : row == grid->row    ? own
                                                    : arrival(m, row, done);
    }
    /* In a reduce-scatter recv is this rank's part alone. */
    const size_t place = m->sliced ? first : done;
    zi_fold fold = zi_collective_fold(c, place, group->sources, grid->rows, count);
    if (in_levels(m)) {
        fold.source_dtype = zi_collective_sum_dtype(c);
        fold.scale = zi_fold_scale(&fold) * mpi_move_headroom_of(m);
    }
    fold.squares = m->sliced ? NULL : c->squares; /* of slices only once all are here */
    const zi_kernels *kernels = group->base.kernels;
    return count != 0 ? kernels->ops->fold(kernels->self, m->stream, &fold) : ZERO_OK;
}

static const move_steps fold_steps = {
    fold_to_host, {{true, fold_describe, fold_finish}, {false, fold_describe, fold_finish}}};

static zero_status mpi_move_exchange(const array_move *m)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES];
    char what[ZI_COLLECTIVE_TEXT_BYTES + 40];
    (void)snprintf(what, sizeof what, "%s (group %s)",
                   zi_collective_text(m->collective, text, sizeof text), m->group->base.name);
    return zi_mpi_exchange_run(&m->group->exchange, what);
}

static void count_crossed(zi_mpi_group *group)
{
    const uint32_t *host_of = group->comm->host_of;
    for (uint32_t i = 0; i < group->base.size; i++) {
        const zi_mpi_transfer *transfer = &group->exchange.transfers[i];
        const bool crosses =
            host_of[group->members[transfer->member]] != host_of[group->comm->base.rank];
        group->crossed_bytes += crosses ? transfer->send_bytes : 0;
    }
}

/* Exchange a chunk's level, and finish it. The entries of a pair of members must be in the same
 * order on both: those of the next row come first, so that each row begins with another. */
static zero_status run_level(const array_move *m, const move_level *level, size_t done)
{
    const zi_grid *grid = m->grid;
    zi_mpi_exchange *x = &m->group->exchange;
    x->first = (grid->row + 1) % grid->rows * grid->columns;
    level->describe(m, done, level->within);
    count_crossed(m->group);
    ZI_TRY(mpi_move_exchange(m));
    ZI_TRY(mpi_move_drain(m));
    return level->finish(m, done, level->within);
}

/* Move all chunks of at most `step` elements. */
static zero_status run_chunks(const array_move *m, const move_steps *steps)
{
    size_t first = 0;
    const size_t longest = mpi_move_share_of(m, 0, &first);
    ZI_TRY(m->on_host ? ZERO_OK : steps->to_host(m, 0));
    ZI_TRY(mpi_move_drain(m));
    for (size_t done = 0; done < longest; done += m->step) {
        if (m->step < longest - done && !m->on_host) {
            ZI_TRY(steps->to_host(m, done + m->step));
        }
        for (int i = 0; i < 2; i++) {
            const move_level *level = &steps->levels[i];
            if (in_levels(m) || !level->within) {
                /* The second level sends what the first has left. */
                ZI_TRY(i == 1 ? mpi_move_drain(m) : ZERO_OK);
                ZI_TRY(run_level(m, level, done));
            }
        }
    }
    return ZERO_OK;
}

/* Elements that so many bytes have room for, in whole granules. */
static size_t mpi_move_fitting(zero_dtype dtype, size_t bytes)
{
    return bytes / zi_packed_bytes(dtype, ZI_GRANULE) * ZI_GRANULE;
}

/* Gather all parts of recv. */
static zero_status gather_parts(array_move *m)
{
    m->dtype = m->collective->recv_dtype;
    m->step =
        mpi_move_fitting(m->dtype, m->on_host ? ZI_MPI_TRANSFER_MAX : m->group->stage_bytes / 2);
    return run_chunks(m, &gather_steps);
}

/* Fold this rank's part of all members' send buffers. */
static zero_status fold_parts(array_move *m)
{
    m->dtype = m->collective->send_dtype;
    const size_t bytes = m->group->stage_bytes / (m->on_host ? 1 : 2);
    m->step = mpi_move_fitting(m->dtype, bytes);
    if (in_levels(m)) {
        m->step =
            zi_min_u64(m->step, mpi_move_fitting(zi_collective_sum_dtype(m->collective), bytes));
    }
    return run_chunks(m, &fold_steps);
}

/* ---- MPI's own collectives ---- */

static int start_own(zi_mpi_op *op)
{
    const zi_mpi_group *group = op->argument;
    const zi_collective *c = group->moving;
    const zi_mpi_handle comm = group->link->comm;
    zi_mpi_handle *request = &op->requests[0];
    op->collective = true;
    op->request_count = 1;
    switch (c->kind) {
    case ZI_ALL_GATHER:
        return zi_mpi->iallgather(c->recv, (int)zi_packed_bytes(c->send_dtype, c->count), comm,
                                  request);
    case ZI_REDUCE_SCATTER:
        return zi_mpi->ireduce_scatter_block(c->send, c->recv, (int)c->count, comm, request);
    case ZI_ALL_REDUCE:
        break;
    }
    return zi_mpi->iallreduce(c->send, c->recv, (int)c->count, comm, request);
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
    if (status == ZERO_ERR_TIMEOUT) {
        char text[ZI_COLLECTIVE_TEXT_BYTES];
        ZI_FAIL(ZERO_ERR_TIMEOUT,
                "group %s: %s began but did not end within %u ms; a rank hangs or a link is down",
                group->base.name, zi_collective_text(c, text, sizeof text), deadline_ms);
    }
    return status;
}

/* True if MPI's own reduction does what is asked, on every member. */
static bool is_plain_sum(const array_move *m)
{
    const zi_mpi_group *group = m->group;
    const zi_collective *c = m->collective;
    const size_t total = c->kind == ZI_REDUCE_SCATTER ? c->count * group->base.size : c->count;
    uint32_t absent_count = 0;
    uint32_t in_place_count = 0;
    for (uint32_t i = 0; i < group->base.size; i++) {
        absent_count += is_absent(group, i, m->index);
        in_place_count += mpi_move_is_in_place(group, i, m->index);
    }
    const bool all_in_place = c->kind == ZI_ALL_REDUCE && in_place_count == group->base.size;
    return m->on_host && c->send_dtype == ZERO_DTYPE_F32 && c->recv_dtype == ZERO_DTYPE_F32 &&
           (c->flags & ~(uint32_t)ZI_COLLECTIVE_LAST) == ZI_COLLECTIVE_NATIVE && total <= INT_MAX &&
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
    m->dtype = c->send_dtype;
    const size_t bytes = zi_packed_bytes(c->send_dtype, c->count);
    unsigned char *own = (unsigned char *)c->recv + m->group->base.rank * bytes;
    if (c->send != own) {
        ZI_TRY(mpi_move_copy(m, own, c->send, c->count));
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
        .grid = zi_collective_in_levels(&group->base, collective) ? &group->grid : &group->flat,
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
