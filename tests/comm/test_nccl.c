/* Groups over NCCL, with fakes of NCCL and of the CUDA runtime and ranks that are threads: the
 * conformance cases, sums that NCCL makes, and which calls a batch becomes. */
#include "conformance.h"
#include "nccl_rig.h"

/* ---- the conformance cases: host buffers that are copied to the GPU and back ---- */

#define GAP_BYTES ((size_t)256)
#define GAP_BYTE 0x6b
#define BATCH_MAX 4
#define BLOCKS_MAX (3 * BATCH_MAX)

/* A group of host memory, as the cases want one, over a group of device memory. */
typedef struct bridge {
    zi_group base;
    zi_group *inner;
    unsigned char *device;
    size_t device_bytes;
} bridge;

/* Host memory and its copy on the GPU. */
typedef struct block {
    unsigned char *host;
    unsigned char *device;
    size_t bytes;
} block;

static size_t bytes_of(const zi_collective *c, uint32_t size, bool received)
{
    const zi_collective_kind many = received ? ZI_ALL_GATHER : ZI_REDUCE_SCATTER;
    return c->count * (c->kind == many ? size : 1) *
           zero_dtype_bytes(received ? c->recv_dtype : c->send_dtype);
}

/* The blocks that a collective needs: the squares', and one where its buffers overlap, else two. */
static uint32_t blocks_of(const zi_collective *c, uint32_t size, block *blocks)
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

static unsigned char *device_of(const block *blocks, uint32_t count, const void *host)
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
static void place_blocks(bridge *b, block *blocks, uint32_t count)
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

static void take_blocks(const block *blocks, uint32_t count)
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

static zero_status bridge_submit(zi_group *base, zi_stream *stream, const zi_collective *batch,
                                 size_t batch_count)
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
    ZI_TRY(zi_group_submit(b->inner, own.stream, jobs, batch_count));
    ZI_TRY(gpu_wait(&own));
    ZI_TRY(zi_group_check(b->inner));
    take_blocks(blocks, count);
    return ZERO_OK;
}

static void bridge_destroy(zi_group *base)
{
    bridge *b = (bridge *)base;
    zi_group_destroy(b->inner);
    own.device.ops->memory_free(own.device.self, b->device, b->device_bytes);
    free(b);
}

static const zi_group_ops bridge_ops = {
    .struct_bytes = sizeof(zi_group_ops),
    .submit = bridge_submit,
    .destroy = bridge_destroy,
};

/* The comm that a case calls: groups are bridges, all else is the real one's. */
typedef struct bridge_comm {
    zi_comm base;
    zero_world *world;
    zi_comm *real;
} bridge_comm;

static zero_status bridge_create(zi_comm *comm, const zi_kernels *kernels, const uint32_t *members,
                                 uint32_t size, const char *name, zi_group **out)
{
    (void)kernels;
    const bridge_comm *outer = (const bridge_comm *)comm;
    bridge *b = calloc(1, sizeof *b);
    CHECK(b != NULL);
    outer->world->comm = outer->real;
    const zero_status status = make_group(outer->world, members, size, name, &b->inner);
    outer->world->comm = comm;
    if (status != ZERO_OK) {
        free(b);
        return status;
    }
    b->base = *b->inner;
    b->base.ops = &bridge_ops;
    *out = &b->base;
    return ZERO_OK;
}

static zero_status bridge_alloc(zi_comm *comm, size_t bytes, void **out)
{
    zi_comm *real = ((bridge_comm *)comm)->real;
    return real->ops->memory_alloc(real, bytes, out);
}

static void bridge_free(zi_comm *comm, void *pointer, size_t bytes)
{
    zi_comm *real = ((bridge_comm *)comm)->real;
    real->ops->memory_free(real, pointer, bytes);
}

static const zi_comm_ops bridge_comm_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "bridge",
    .group_create = bridge_create,
    .memory_alloc = bridge_alloc,
    .memory_free = bridge_free,
};

static zero_status run_bridged(zero_world *world, void *user)
{
    const zero_rank_fn *fn = user;
    bridge_comm comm = {.base = *world->comm, .world = world, .real = world->comm};
    comm.base.ops = &bridge_comm_ops;
    gpu_open(&own);
    world->comm = &comm.base;
    const zero_status status = (*fn)(world, NULL);
    world->comm = comm.real;
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return status;
}

static void run_case(zero_rank_fn fn, uint32_t ranks, size_t scratch_bytes, fake_cuda_mode mode)
{
    zi_nccl_api_replace(fake_nccl_api());
    fake_cuda_start(mode, test_seed);
    common.scratch_bytes = scratch_bytes;
    CHECK_OK(zero_world_run(ranks, LONG_MS, run_bridged, &fn));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    finish();
}

TEST(kinds)
{
    run_case(case_kinds, 2, LARGE_SCRATCH, FAKE_CUDA_AT_SYNC);
    run_case(case_kinds, 3, LARGE_SCRATCH, FAKE_CUDA_RANDOM);
}

TEST(kinds_with_little_scratch)
{
    run_case(case_kinds, 3, SMALL_SCRATCH, FAKE_CUDA_AT_SYNC);
    run_case(case_kinds, 4, SMALL_SCRATCH, FAKE_CUDA_LAZY);
}

TEST(large)
{
    run_case(case_large, 2, LARGE_SCRATCH, FAKE_CUDA_EAGER);
}

TEST(subgroups)
{
    run_case(case_subgroups, 2, SMALL_SCRATCH, FAKE_CUDA_AT_SYNC);
    run_case(case_subgroups, 4, LARGE_SCRATCH, FAKE_CUDA_AT_SYNC);
}

TEST(batches)
{
    for (int mode = 0; mode < FAKE_CUDA_MODES; mode++) {
        run_case(case_batches, 3, mode % 2 == 0 ? SMALL_SCRATCH : LARGE_SCRATCH,
                 (fake_cuda_mode)mode);
    }
}

/* ---- sums that NCCL makes itself ---- */

/* Without EXACT; the fake adds in the order of ranks, so the bits are those of the contract. */
static zero_status inexact(zero_world *world, void *user)
{
    (void)user;
    static const size_t counts[] = {1, 64, 1000, 5000};
    conf test = {.plain = true};
    conf_members_all(&test, world);
    conf_open(&test, 5000 * sizeof(float) * test.size, "inexact");
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        for (int r = 0; r < 3; r++) {
            conf_shape shape = {
                .send_dtype = ZERO_DTYPE_F32, .recv_dtype = conf_dtypes[r], .count = counts[k]};
            for (int kind = ZI_REDUCE_SCATTER; kind <= ZI_ALL_REDUCE; kind++) {
                shape.kind = (zi_collective_kind)kind;
                for (shape.silent = 0; shape.silent < 3; shape.silent++) {
                    conf_run(&test, shape);
                }
                shape.silent = 0;
                shape.in_place = r == 0;
                conf_run(&test, shape);
                shape.in_place = false;
            }
            shape.kind = ZI_REDUCE_SCATTER;
            shape.flags = ZI_COLLECTIVE_ACCUMULATE;
            conf_run(&test, shape);
            shape.silent = 2;
            conf_run(&test, shape);
        }
    }
    conf_close(&test);
    return ZERO_OK;
}

TEST(sums_by_nccl)
{
    run_case(inexact, 2, LARGE_SCRATCH, FAKE_CUDA_AT_SYNC);
    CHECK(fake_nccl_calls(FAKE_NCCL_REDUCE_SCATTER) != 0);
    CHECK(fake_nccl_calls(FAKE_NCCL_ALL_REDUCE) != 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SEND), 0);
    run_case(inexact, 4, SMALL_SCRATCH, FAKE_CUDA_RANDOM);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SEND), 0);
}

/* ---- which calls a batch becomes ---- */

/* The calls of all ranks that one batch of rank functions below makes. */
typedef struct call_counts {
    uint64_t of[FAKE_NCCL_CALLS];
} call_counts;

static call_counts counts_now(void)
{
    call_counts counts;
    for (int i = 0; i < FAKE_NCCL_CALLS; i++) {
        counts.of[i] = fake_nccl_calls((fake_nccl_call)i);
    }
    return counts;
}

static call_counts counts_of(zi_group *group, zero_world *world, const zi_collective *batch,
                             size_t batch_count)
{
    CHECK_OK(zero_world_barrier(world));
    const call_counts before = counts_now();
    CHECK_OK(zero_world_barrier(world));
    CHECK_OK(zi_group_submit(group, own.stream, batch, batch_count));
    CHECK_OK(gpu_wait(&own));
    CHECK_OK(zero_world_barrier(world));
    call_counts counts = counts_now();
    for (int i = 0; i < FAKE_NCCL_CALLS; i++) {
        counts.of[i] -= before.of[i];
    }
    return counts;
}

/* Two ranks: one batch of everything that NCCL does by itself is one group of calls each. */
static zero_status count_calls(zero_world *world, void *user)
{
    (void)user;
    static const uint32_t members[] = {0, 1};
    zi_group *group = NULL;
    unsigned char *memory = NULL;
    gpu_open(&own);
    CHECK_OK(make_group(world, members, 2, "count", &group));
    CHECK_OK(own.device.ops->memory_alloc(own.device.self, 65536, (void **)&memory));
    zi_collective batch[4];
    for (uint32_t i = 0; i < 4; i++) {
        batch[i] = (zi_collective){.kind = i == 3 ? ZI_ALL_GATHER : (zi_collective_kind)(1 + i),
                                   .send_dtype = ZERO_DTYPE_F32,
                                   .recv_dtype = ZERO_DTYPE_F32,
                                   .count = i == 3 ? 0 : 100,
                                   .send = memory + i * 8192,
                                   .recv = memory + i * 8192 + 4096};
    }
    call_counts counts = counts_of(group, world, batch, 4);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_ALL_GATHER], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_REDUCE_SCATTER], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_ALL_REDUCE], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_SEND], 0);
    /* Three sums of a 16-bit type share a round; the ALL_REDUCE needs another to spread it. */
    for (uint32_t i = 0; i < 3; i++) {
        batch[i].kind = i == 2 ? ZI_ALL_REDUCE : ZI_REDUCE_SCATTER;
        batch[i].send_dtype = ZERO_DTYPE_BF16;
    }
    counts = counts_of(group, world, batch, 2);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_SEND], 4);
    CHECK_EQ(counts.of[FAKE_NCCL_RECV], 4);
    counts = counts_of(group, world, batch, 3);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 4);
    CHECK_EQ(counts.of[FAKE_NCCL_SEND], 8);
    CHECK_EQ(counts.of[FAKE_NCCL_REDUCE_SCATTER], 0);
    /* Nothing at all. */
    counts = counts_of(group, world, &batch[3], 1);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 0);
    counts = counts_of(group, world, NULL, 0);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 0);
    zi_group_destroy(group);
    own.device.ops->memory_free(own.device.self, memory, 65536);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(a_batch_is_as_few_calls_as_can_be)
{
    zi_nccl_api_replace(fake_nccl_api());
    CHECK_OK(zero_world_run(2, LONG_MS, count_calls, NULL));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 2);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT), 2);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_FINALIZE), 4);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_DESTROY), 4);
    finish();
}

/* More batches under way than the watcher has marks for. */
static zero_status run_far_ahead(zero_world *world, void *user)
{
    (void)user;
    enum { BATCHES = 300, COUNT = 16 };
    static const uint32_t members[] = {0, 1};
    zi_group *group = NULL;
    unsigned char *memory = NULL;
    gpu_open(&own);
    CHECK_OK(make_group(world, members, 2, "ahead", &group));
    CHECK_OK(own.device.ops->memory_alloc(own.device.self, ZI_PAGE_BYTES, (void **)&memory));
    const zi_collective job = {.kind = ZI_ALL_REDUCE,
                               .send_dtype = ZERO_DTYPE_F32,
                               .recv_dtype = ZERO_DTYPE_F32,
                               .count = COUNT,
                               .send = memory,
                               .recv = memory};
    for (int i = 0; i < BATCHES; i++) {
        CHECK_OK(zi_group_submit(group, own.stream, &job, 1));
    }
    CHECK_OK(gpu_wait(&own));
    CHECK_OK(zi_group_check(group));
    zi_group_destroy(group);
    own.device.ops->memory_free(own.device.self, memory, ZI_PAGE_BYTES);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(many_batches_under_way)
{
    zi_nccl_api_replace(fake_nccl_api());
    fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
    CHECK_OK(zero_world_run(2, LONG_MS, run_far_ahead, NULL));
    finish();
}

TEST_MAIN()
