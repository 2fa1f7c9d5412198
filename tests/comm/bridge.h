/* Runs the conformance cases on device memory: to a case groups are of host memory; what it submits
 * is copied to the GPU (the fake of the CUDA runtime) before and back after. */
#ifndef TESTS_COMM_BRIDGE_H
#define TESTS_COMM_BRIDGE_H

#include "conformance.h"
#include "gpu_rig.h"

#define GAP_BYTES ((size_t)256)
#define GAP_BYTE 0x6b
#define BATCH_MAX 4
#define BLOCKS_MAX (3 * BATCH_MAX)

/* A group of host memory, as the cases want one, over a group of device memory. */
typedef struct bridge {
    zi_group base;
    zi_group *inner;
    zi_stream *stream; /* its own, for a failure stays in it, and in the event */
    zi_event *done;
    unsigned char *device;
    size_t device_bytes;
} bridge;

/* Host memory and its copy on the GPU. */
typedef struct block {
    unsigned char *host;
    unsigned char *device;
    size_t bytes;
} block;

static inline size_t bytes_of(const zi_collective *c, uint32_t size, bool received)
{
    const zi_collective_kind many = received ? ZI_ALL_GATHER : ZI_REDUCE_SCATTER;
    return zi_packed_bytes(received ? c->recv_dtype : c->send_dtype,
                           c->count * (c->kind == many ? size : 1));
}

/* The blocks that a collective needs: the squares', and one where its buffers overlap, else two. */
static inline uint32_t blocks_of(const zi_collective *c, uint32_t size, block *blocks)
{
    *blocks++ = (block){.host = (unsigned char *)c->squares,
                        .bytes = c->squares != NULL ? sizeof *c->squares : 0};
    union {
        const void *const_pointer;
        unsigned char *pointer;
    } send = {.const_pointer = c->send};
    const size_t send_bytes = c->send != NULL ? bytes_of(c, size, false) : 0;
    const size_t recv_bytes = bytes_of(c, size, true);
    unsigned char *recv = c->recv;
    if (send_bytes != 0 && send.pointer < recv + recv_bytes && recv < send.pointer + send_bytes) {
        unsigned char *first = send.pointer < recv ? send.pointer : recv;
        unsigned char *send_end = send.pointer + send_bytes;
        unsigned char *recv_end = recv + recv_bytes;
        blocks[0] = (block){.host = first,
                            .bytes = (size_t)((send_end > recv_end ? send_end : recv_end) - first)};
        return 2;
    }
    blocks[0] = (block){.host = send.pointer, .bytes = send_bytes};
    blocks[1] = (block){.host = recv, .bytes = recv_bytes};
    return 3;
}

static inline unsigned char *device_of(const block *blocks, uint32_t count, const void *host)
{
    for (uint32_t i = 0; i < count; i++) {
        const uintptr_t base = (uintptr_t)blocks[i].host;
        if (blocks[i].bytes != 0 && (uintptr_t)host - base < blocks[i].bytes) {
            return blocks[i].device + ((uintptr_t)host - base);
        }
    }
    return NULL;
}

/* Room on the GPU for the blocks, with gaps that nobody may write. */
static inline void place_blocks(bridge *b, block *blocks, uint32_t count)
{
    size_t bytes = GAP_BYTES;
    for (uint32_t i = 0; i < count; i++) {
        bytes += zi_align_up(blocks[i].bytes, 64) + GAP_BYTES;
    }
    if (bytes > b->device_bytes) {
        own.device.ops->memory_free(own.device.self, b->device, b->device_bytes);
        b->device_bytes = zi_align_up(bytes, ZI_PAGE_BYTES);
        CHECK_OK(
            own.device.ops->memory_alloc(own.device.self, b->device_bytes, (void **)&b->device));
    }
    unsigned char gap[GAP_BYTES];
    memset(gap, GAP_BYTE, sizeof gap);
    size_t at = GAP_BYTES;
    fake_cuda_poke(b->device, gap, sizeof gap);
    for (uint32_t i = 0; i < count; i++) {
        blocks[i].device = b->device + at;
        if (blocks[i].bytes != 0) {
            fake_cuda_poke(blocks[i].device, blocks[i].host, blocks[i].bytes);
        }
        fake_cuda_poke(blocks[i].device + blocks[i].bytes, gap, sizeof gap);
        at += zi_align_up(blocks[i].bytes, 64) + GAP_BYTES;
    }
}

static inline void take_blocks(const block *blocks, uint32_t count)
{
    unsigned char gap[GAP_BYTES];
    for (uint32_t i = 0; i < count; i++) {
        if (blocks[i].bytes != 0) {
            fake_cuda_peek(blocks[i].host, blocks[i].device, blocks[i].bytes);
        }
        fake_cuda_peek(gap, blocks[i].device + blocks[i].bytes, sizeof gap);
        for (size_t k = 0; k < sizeof gap; k++) {
            CHECK_EQ(gap[k], GAP_BYTE);
        }
    }
}

static inline zero_status bridge_submit(zi_group *base, zi_stream *stream,
                                        const zi_collective *batch, size_t batch_count)
{
    (void)stream;
    bridge *b = (bridge *)base;
    block blocks[BLOCKS_MAX];
    zi_collective jobs[BATCH_MAX];
    uint32_t count = 0;
    CHECK(batch_count <= BATCH_MAX);
    for (size_t i = 0; i < batch_count; i++) {
        count += blocks_of(&batch[i], base->size, &blocks[count]);
    }
    place_blocks(b, blocks, count);
    for (size_t i = 0; i < batch_count; i++) {
        jobs[i] = batch[i];
        jobs[i].send = batch[i].send != NULL ? device_of(blocks, count, batch[i].send) : NULL;
        jobs[i].recv = device_of(blocks, count, batch[i].recv);
        jobs[i].squares = (zi_norm_sum *)(void *)device_of(blocks, count, batch[i].squares);
    }
    ZI_TRY(zi_group_submit(b->inner, b->stream, jobs, batch_count));
    ZI_TRY(own.device.ops->event_record(own.device.self, b->done, b->stream));
    ZI_TRY(own.device.ops->event_wait(own.device.self, b->done, NULL));
    ZI_TRY(zi_group_check(b->inner));
    take_blocks(blocks, count);
    return ZERO_OK;
}

static inline void bridge_destroy(zi_group *base)
{
    bridge *b = (bridge *)base;
    zi_group_destroy(b->inner);
    own.device.ops->stream_destroy(own.device.self, b->stream);
    own.device.ops->event_destroy(own.device.self, b->done);
    own.device.ops->memory_free(own.device.self, b->device, b->device_bytes);
    free(b);
}

static const zi_group_ops bridge_ops = {
    .struct_bytes = sizeof(zi_group_ops),
    .submit = bridge_submit,
    .destroy = bridge_destroy,
};

/* Makes a group over own.kernels. Collective. */
typedef zero_status (*bridge_make)(zero_world *world, const uint32_t *members, uint32_t size,
                                   const char *name, zi_group **out);

/* The comm that a case calls: groups are bridges, all else is the real one's. */
typedef struct bridge_comm {
    zi_comm base;
    zi_comm_ops ops;
    zero_world *world;
    zi_comm *real;
    bridge_make make;
} bridge_comm;

static inline zero_status bridge_create(zi_comm *comm, const zi_kernels *kernels,
                                        const uint32_t *members, uint32_t size, const char *name,
                                        zi_group **out)
{
    (void)kernels;
    const bridge_comm *outer = (const bridge_comm *)comm;
    bridge *b = calloc(1, sizeof *b);
    CHECK(b != NULL);
    outer->world->comm = outer->real;
    const zero_status status = outer->make(outer->world, members, size, name, &b->inner);
    outer->world->comm = comm;
    if (status != ZERO_OK) {
        free(b);
        return status;
    }
    CHECK_OK(own.device.ops->stream_create(own.device.self, name, &b->stream));
    CHECK_OK(own.device.ops->event_create(own.device.self, &b->done));
    b->base = *b->inner;
    b->base.ops = &bridge_ops;
    *out = &b->base;
    return ZERO_OK;
}

static inline zero_status bridge_alloc(zi_comm *comm, size_t bytes, void **out)
{
    zi_comm *real = ((bridge_comm *)comm)->real;
    return real->ops->memory_alloc(real, bytes, out);
}

static inline void bridge_free(zi_comm *comm, void *pointer, size_t bytes)
{
    zi_comm *real = ((bridge_comm *)comm)->real;
    real->ops->memory_free(real, pointer, bytes);
}

static inline void bridge_abort(zi_comm *comm, const zero_error *error)
{
    zi_comm *real = ((bridge_comm *)comm)->real;
    real->ops->abort(real, error);
}

static const zi_comm_ops bridge_comm_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .group_create = bridge_create,
    .memory_alloc = bridge_alloc,
    .memory_free = bridge_free,
    .abort = bridge_abort,
};

/* A conformance case, and how it is run. */
typedef struct bridge_case {
    zero_rank_fn fn;
    bridge_make make;
    void *user;
    bool queued; /* the groups meet on the host */
} bridge_case;

/* The case with its buffers on this rank's GPU. Collective. */
static inline zero_status bridge_run(zero_world *world, const bridge_case *run)
{
    bridge_comm comm = {.base = *world->comm,
                        .ops = bridge_comm_ops,
                        .world = world,
                        .real = world->comm,
                        .make = run->make};
    comm.ops.name = comm.real->ops->name;
    comm.base.ops = &comm.ops;
    gpu_open_as(&own, run->queued);
    world->comm = &comm.base;
    const zero_status status = run->fn(world, run->user);
    world->comm = comm.real;
    if (comm.real->ops->check == NULL || comm.real->ops->check(comm.real) == ZERO_OK) {
        CHECK_OK(zero_world_barrier(world)); /* the case has not ended the world */
    }
    gpu_close(&own);
    return status;
}

#endif
