/* Owns how the data of device memory moves between hosts: chunk by chunk it is copied to pinned
 * memory of the host, exchanged, and copied back or folded into the result by the device. The stage
 * of each member has two halves for alternate chunks, so that copies overlap exchanges:
 *
 *   stream   to host 0 | to host 1  | from host 0, to host 2 | from host 1, to host 3 |
 *   host               | exchange 0 | exchange 1             | exchange 2             |
 *
 * Invariant: at each `|` the host waits for the stream. So what an exchange sends is in host
 * memory, and what it overwrites has been read. */
#include "comm/mpi/mpi_group.h"
#include "core/check.h"
#include "core/error.h"
#include "core/sizes.h"

/* An array that is being moved. */
typedef struct staged {
    zi_mpi_group *group;
    zi_stream *stream;
    const zi_mpi_plan *plan;
    size_t element_bytes; /* of what travels */
    size_t step;          /* elements of a chunk */
} staged;

/* The steps of the chunks that begin at element `done` of their parts. */
typedef struct staged_way {
    zero_status (*to_host)(const staged *s, size_t done);
    void (*describe)(const staged *s, size_t done); /* what the members exchange */
    zero_status (*from_host)(const staged *s, size_t done);
} staged_way;

/* Elements of member `i`'s chunk, and the first of them. */
static size_t chunk_of(const staged *s, uint32_t i, size_t done, size_t *first)
{
    const size_t part = zi_mpi_part_of(s->group, s->plan, i, first);
    *first += done;
    return done < part ? zi_min_u64(s->step, part - done) : 0;
}

/* Where a chunk from member `i` is received, and where one that goes to it lies. */
static unsigned char *incoming(const staged *s, uint32_t i, size_t done)
{
    const size_t half = done / s->step % 2;
    return s->group->stage + i * s->group->stage_bytes + half * (s->group->stage_bytes / 2);
}

static unsigned char *outgoing(const staged *s, uint32_t i, size_t done)
{
    return incoming(s, s->group->base.size + i, done);
}

static zero_status copy(const staged *s, void *target, const void *source, size_t count)
{
    const zi_device *device = s->group->base.kernels->device;
    return device->ops->copy(device->self, s->stream, target, source, count * s->element_bytes);
}

static zero_status drain(const staged *s)
{
    const zi_device *device = s->group->base.kernels->device;
    return device->ops->drain(device->self, s->stream);
}

/* ---- each member's part of recv to all ---- */

static zero_status gather_to_host(const staged *s, size_t done)
{
    const uint32_t rank = s->group->base.rank;
    size_t first = 0;
    const size_t count = chunk_of(s, rank, done, &first);
    const unsigned char *recv = s->plan->collective->recv;
    return copy(s, outgoing(s, rank, done), recv + first * s->element_bytes, count);
}

static void gather_describe(const staged *s, size_t done)
{
    const uint32_t rank = s->group->base.rank;
    size_t first = 0;
    const size_t own_count = chunk_of(s, rank, done, &first);
    for (uint32_t i = 0; i < s->group->base.size; i++) {
        zi_mpi_transfer *transfer = &s->group->exchange.transfers[i];
        transfer->send_at = outgoing(s, rank, done);
        transfer->send_bytes = own_count * s->element_bytes;
        transfer->recv_at = incoming(s, i, done);
        transfer->recv_bytes = chunk_of(s, i, done, &first) * s->element_bytes;
    }
}

static zero_status gather_from_host(const staged *s, size_t done)
{
    unsigned char *recv = s->plan->collective->recv;
    for (uint32_t i = 0; i < s->group->base.size; i++) {
        size_t first = 0;
        const size_t count = chunk_of(s, i, done, &first);
        if (i != s->group->base.rank) {
            ZI_TRY(copy(s, recv + first * s->element_bytes, incoming(s, i, done), count));
        }
    }
    return ZERO_OK;
}

static const staged_way gather_way = {gather_to_host, gather_describe, gather_from_host};

/* ---- each member's part of all send to that member, and their sum to recv ---- */

static zero_status fold_to_host(const staged *s, size_t done)
{
    const unsigned char *send = s->plan->collective->send;
    for (uint32_t i = 0; i < s->group->base.size && send != NULL; i++) {
        size_t first = 0;
        const size_t count = chunk_of(s, i, done, &first);
        if (i != s->group->base.rank) {
            ZI_TRY(copy(s, outgoing(s, i, done), send + first * s->element_bytes, count));
        }
    }
    return ZERO_OK;
}

static void fold_describe(const staged *s, size_t done)
{
    const zi_collective *c = s->plan->collective;
    size_t first = 0;
    const size_t own_count = chunk_of(s, s->group->base.rank, done, &first);
    for (uint32_t i = 0; i < s->group->base.size; i++) {
        zi_mpi_transfer *transfer = &s->group->exchange.transfers[i];
        const size_t count = c->send != NULL ? chunk_of(s, i, done, &first) : 0;
        const bool silent = zi_mpi_absent(s->group, i, s->plan->index);
        transfer->send_at = outgoing(s, i, done);
        transfer->send_bytes = count * s->element_bytes;
        transfer->recv_at = incoming(s, i, done);
        transfer->recv_bytes = silent ? 0 : own_count * s->element_bytes;
    }
}

/* The device reads what the others sent directly from the stage. */
static zero_status fold_from_host(const staged *s, size_t done)
{
    zi_mpi_group *group = s->group;
    const zi_collective *c = s->plan->collective;
    const unsigned char *send = c->send;
    size_t first = 0;
    const size_t count = chunk_of(s, group->base.rank, done, &first);
    for (uint32_t i = 0; i < group->base.size; i++) {
        const uint32_t member = group->order[i];
        group->sources[i] = NULL;
        if (!zi_mpi_absent(group, member, s->plan->index)) {
            group->sources[i] = member == group->base.rank ? send + first * s->element_bytes
                                                           : incoming(s, member, done);
        }
    }
    /* In a reduce-scatter recv is this rank's part alone. */
    const size_t place = s->plan->sliced ? first : done;
    zi_fold fold = zi_collective_fold(c, place, group->sources, group->base.size, count);
    fold.squares = s->plan->sliced ? NULL : c->squares; /* of slices only once all are here */
    const zi_kernels *kernels = group->base.kernels;
    return count != 0 ? kernels->ops->fold(kernels->self, s->stream, &fold) : ZERO_OK;
}

static const staged_way fold_way = {fold_to_host, fold_describe, fold_from_host};

/* All chunks, `dtype` elements. */
static zero_status run_chunks(zi_mpi_group *group, zi_stream *stream, const zi_mpi_plan *plan,
                              zero_dtype dtype, const staged_way *way)
{
    const size_t element_bytes = zero_dtype_bytes(dtype);
    const staged s = {group, stream, plan, element_bytes, group->stage_bytes / 2 / element_bytes};
    size_t first = 0;
    const size_t longest = zi_mpi_part_of(group, plan, 0, &first);
    ZI_TRY(way->to_host(&s, 0));
    ZI_TRY(drain(&s));
    for (size_t done = 0; done < longest; done += s.step) {
        const bool more = s.step < longest - done;
        if (more) {
            ZI_TRY(way->to_host(&s, done + s.step));
        }
        way->describe(&s, done);
        ZI_TRY(zi_mpi_group_exchange(group, plan->collective));
        if (more) {
            ZI_TRY(drain(&s));
        }
        ZI_TRY(way->from_host(&s, done));
    }
    return ZERO_OK;
}

/* Own part of recv from send, on the device. */
static zero_status take_own(const zi_mpi_group *group, zi_stream *stream, const zi_collective *c)
{
    const zi_device *device = group->base.kernels->device;
    const size_t bytes = c->count * zero_dtype_bytes(c->send_dtype);
    unsigned char *own = (unsigned char *)c->recv + group->base.rank * bytes;
    return c->send != own ? device->ops->copy(device->self, stream, own, c->send, bytes) : ZERO_OK;
}

zero_status zi_mpi_move_staged(zi_mpi_group *group, zi_stream *stream,
                               const zi_collective *collective, uint32_t index)
{
    const zi_collective *c = collective;
    const zi_mpi_plan plan = {c, index, c->kind == ZI_ALL_REDUCE};
    switch (c->kind) {
    case ZI_ALL_GATHER:
        ZI_TRY(take_own(group, stream, c));
        return run_chunks(group, stream, &plan, c->recv_dtype, &gather_way);
    case ZI_REDUCE_SCATTER:
        return run_chunks(group, stream, &plan, c->send_dtype, &fold_way);
    case ZI_ALL_REDUCE:
        ZI_TRY(run_chunks(group, stream, &plan, c->send_dtype, &fold_way));
        ZI_TRY(run_chunks(group, stream, &plan, c->recv_dtype, &gather_way));
        return zi_collective_square_sum(group->base.kernels, stream, c);
    }
    zi_assert_cmp(c->kind, <=, ZI_ALL_REDUCE);
    return ZERO_OK;
}
