/* Groups over NCCL, with fakes of NCCL and of the CUDA runtime and ranks that are threads: the
 * conformance cases, sums that NCCL makes, and which calls a batch becomes. */
#include "bridge.h"
#include "conformance_packed.h"
#include "nccl_rig.h"

/* ---- the conformance cases: host buffers that are copied to the GPU and back ---- */

static zero_status run_bridged(zero_world *world, void *user)
{
    const bridge_case run = {*(const zero_rank_fn *)user, make_group, NULL, false};
    return bridge_run(world, &run);
}

static void run_case(zero_rank_fn fn, uint32_t ranks, size_t scratch_bytes, fake_cuda_mode mode)
{
    fake_cuda_start(mode, test_seed);
    common.scratch_bytes = scratch_bytes;
    CHECK_OK(run_world(ranks, run_bridged, &fn));
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

TEST_CALL(large, run_case(case_large, 2, LARGE_SCRATCH, FAKE_CUDA_EAGER));

TEST(packed)
{
    run_case(case_packed, 3, LARGE_SCRATCH, FAKE_CUDA_RANDOM);
    run_case(case_packed, 4, SMALL_SCRATCH, FAKE_CUDA_LAZY);
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

/* Of fp32; the fake adds in the order of ranks, so the bits are those of the contract. */
static zero_status native(zero_world *world, void *user)
{
    (void)user;
    static const size_t counts[] = {1, 64, 1000, 5000};
    conf test = {.plain = true};
    conf_open_all(&test, world, 5000, "native");
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        for (int r = 0; r < 3; r++) {
            conf_shape shape = {.send_dtype = ZERO_DTYPE_F32,
                                .recv_dtype = conf_dtypes[r],
                                .count = counts[k],
                                .flags = ZI_COLLECTIVE_NATIVE};
            for (int kind = ZI_REDUCE_SCATTER; kind <= ZI_ALL_REDUCE; kind++) {
                shape.kind = (zi_collective_kind)kind;
                conf_run(&test, shape);
                shape.in_place = r == 0;
                conf_run(&test, shape);
                shape.in_place = false;
            }
            shape.kind = ZI_REDUCE_SCATTER;
            shape.flags |= ZI_COLLECTIVE_ACCUMULATE;
            conf_run(&test, shape);
        }
    }
    conf_close(&test);
    return ZERO_OK;
}

TEST(sums_by_nccl)
{
    run_case(native, 2, LARGE_SCRATCH, FAKE_CUDA_AT_SYNC);
    CHECK(fake_nccl_calls(FAKE_NCCL_REDUCE_SCATTER) != 0);
    CHECK(fake_nccl_calls(FAKE_NCCL_ALL_REDUCE) != 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SEND), 0);
    run_case(native, 4, SMALL_SCRATCH, FAKE_CUDA_RANDOM);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SEND), 0);
}

/* ---- ranks that say that they are on several hosts ---- */

static void run_hosts(zero_rank_fn fn, uint32_t ranks, uint32_t per_host, size_t scratch_bytes)
{
    conf_per_host = common.per_host = per_host;
    for (conf_how = 0; conf_how <= ZI_COLLECTIVE_EXACT; conf_how += ZI_COLLECTIVE_EXACT) {
        run_case(fn, ranks, scratch_bytes, FAKE_CUDA_RANDOM);
    }
    conf_how = ZI_COLLECTIVE_EXACT;
    conf_per_host = common.per_host = 0;
}

TEST(two_hosts_of_two)
{
    run_hosts(case_kinds, 4, 2, LARGE_SCRATCH);
    run_hosts(case_kinds, 4, 2, SMALL_SCRATCH);
    run_hosts(case_batches, 4, 2, SMALL_SCRATCH);
    run_hosts(case_large, 4, 2, LARGE_SCRATCH);
    run_hosts(case_packed, 4, 2, SMALL_SCRATCH);
    run_hosts(case_packed, 4, 1, LARGE_SCRATCH);
}

TEST(two_hosts_of_four)
{
    run_hosts(case_kinds, 8, 4, SMALL_SCRATCH);
    run_hosts(case_subgroups, 8, 4, LARGE_SCRATCH);
    run_hosts(case_packed, 8, 4, SMALL_SCRATCH);
}

TEST(four_hosts_of_two)
{
    run_hosts(case_kinds, 8, 2, LARGE_SCRATCH);
    run_hosts(case_packed, 8, 2, LARGE_SCRATCH);
}

TEST(hosts_of_unlike_numbers_of_ranks)
{
    run_hosts(case_kinds, 5, 2, LARGE_SCRATCH);
    run_hosts(case_packed, 5, 2, LARGE_SCRATCH);
    run_hosts(case_subgroups, 6, 4, SMALL_SCRATCH);
}

/* The reference tells the ways apart: in none of these cases is a sum of two levels the same. */
TEST(a_sum_in_levels_has_bits_of_its_own)
{
    conf test = {.size = 4, .members = {0, 1, 2, 3}, .sorted = {0, 1, 2, 3}};
    for (int d = 0; d < 3; d++) {
        conf_shape shape = {
            ZI_REDUCE_SCATTER, conf_dtypes[d], ZERO_DTYPE_F32, 1000, 0, false, 0, 1};
        shape.count += conf_sum_dtype(&shape) != shape.send_dtype; /* sums in the type itself */
        uint32_t unlike = 0;
        conf_per_host = 2;
        for (uint64_t i = 0; i < 1000; i++) {
            shape.flags = 0;
            const float levels = conf_sum(&test, &shape, i);
            shape.flags = ZI_COLLECTIVE_EXACT;
            unlike += value_f32_bits(levels) != value_f32_bits(conf_sum(&test, &shape, i));
        }
        CHECK(unlike > 100);
        conf_per_host = 0;
    }
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
    const pair p = pair_open(world, "count", 65536);
    zi_collective batch[4];
    for (uint32_t i = 0; i < 4; i++) {
        batch[i] = (zi_collective){.kind = i == 3 ? ZI_ALL_GATHER : (zi_collective_kind)(1 + i),
                                   .send_dtype = ZERO_DTYPE_F32,
                                   .recv_dtype = ZERO_DTYPE_F32,
                                   .flags = i == 3 ? 0 : ZI_COLLECTIVE_NATIVE,
                                   .count = i == 3 ? 0 : 100,
                                   .send = p.memory + i * 8192,
                                   .recv = p.memory + i * 8192 + 4096};
    }
    call_counts counts = counts_of(p.group, world, batch, 4);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_ALL_GATHER], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_REDUCE_SCATTER], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_ALL_REDUCE], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_SEND], 0);
    /* Three sums that NCCL does not make share a round; the ALL_REDUCE needs another to spread it.
     */
    for (uint32_t i = 0; i < 3; i++) {
        batch[i].flags = 0;
        batch[i].kind = i == 2 ? ZI_ALL_REDUCE : ZI_REDUCE_SCATTER;
        batch[i].send_dtype = ZERO_DTYPE_BF16;
    }
    batch[2].count = 2 * ZI_SHARE_COUNT;
    counts = counts_of(p.group, world, batch, 2);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 2);
    CHECK_EQ(counts.of[FAKE_NCCL_SEND], 4);
    CHECK_EQ(counts.of[FAKE_NCCL_RECV], 4);
    counts = counts_of(p.group, world, batch, 3);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 4);
    CHECK_EQ(counts.of[FAKE_NCCL_SEND], 8);
    CHECK_EQ(counts.of[FAKE_NCCL_REDUCE_SCATTER], 0);
    /* Nothing at all. */
    counts = counts_of(p.group, world, &batch[3], 1);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 0);
    counts = counts_of(p.group, world, NULL, 0);
    CHECK_EQ(counts.of[FAKE_NCCL_GROUP], 0);
    return pair_close(&p, world);
}

TEST(a_batch_is_as_few_calls_as_can_be)
{
    CHECK_OK(run_world(2, count_calls, NULL));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 2);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT), 2);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_DESTROY), 4);
    finish();
}

/* More batches under way than the watcher has marks for. */
static zero_status run_far_ahead(zero_world *world, void *user)
{
    (void)user;
    enum { BATCHES = 300, COUNT = 16 };
    const pair p = pair_open(world, "ahead", ZI_PAGE_BYTES);
    const zi_collective job = {.kind = ZI_ALL_REDUCE,
                               .send_dtype = ZERO_DTYPE_F32,
                               .recv_dtype = ZERO_DTYPE_F32,
                               .count = COUNT,
                               .send = p.memory,
                               .recv = p.memory};
    for (int i = 0; i < BATCHES; i++) {
        CHECK_OK(zi_group_submit(p.group, own.stream, &job, 1));
    }
    CHECK_OK(gpu_wait(&own));
    CHECK_OK(zi_group_check(p.group));
    return pair_close(&p, world);
}

TEST(many_batches_under_way)
{
    fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
    CHECK_OK(run_world(2, run_far_ahead, NULL));
    finish();
}

/* ---- connecting ahead ---- */

/* After ranks have connected for a batch together, one goes through its submit while the other has
 * not come to it: rank 1 submits only when rank 0 is back. */
static zero_status submit_alone(zero_world *world, void *user)
{
    (void)user;
    enum { MEMORY_BYTES = 1 << 17, KINDS = 4 };
    const pair p = pair_open(world, "ahead", MEMORY_BYTES);
    CHECK(zi_group_connects(p.group));
    zi_collective batches[KINDS];
    for (uint32_t i = 0; i < KINDS; i++) {
        /* Collectives that NCCL picks by kind and by size, and those that go from rank to rank. */
        batches[i] = (zi_collective){.kind = i == 3 ? ZI_REDUCE_SCATTER : ZI_ALL_GATHER,
                                     .send_dtype = i == 2 ? ZERO_DTYPE_BF16 : ZERO_DTYPE_F32,
                                     .recv_dtype = ZERO_DTYPE_F32,
                                     .tag = i,
                                     .count = i == 1 ? 8192 : 64,
                                     .send = p.memory,
                                     .recv = p.memory + MEMORY_BYTES / 2};
        batches[i].kind = i == 2 ? ZI_ALL_REDUCE : batches[i].kind;
        CHECK_OK(zi_group_connect(p.group, own.stream, &batches[i], 1));
    }
    const uint64_t calls = fake_nccl_calls(FAKE_NCCL_GROUP);
    CHECK_OK(zero_world_barrier(world));
    for (uint32_t i = 0; i < KINDS; i++) {
        batches[i].tag += KINDS; /* another unit of the same size */
        CHECK_OK(zi_group_connect(p.group, own.stream, &batches[i], 1)); /* nothing to do */
    }
    CHECK_OK(zero_world_barrier(world));
    CHECK(fake_nccl_calls(FAKE_NCCL_GROUP) <= calls + KINDS + 1); /* that the other was behind */
    CHECK_OK(zero_world_barrier(world)); /* both have looked before rank 0 goes on */
    for (uint32_t i = 0; i < KINDS && zero_world_rank(world) == 0; i++) {
        CHECK_OK(zi_group_submit(p.group, own.stream, &batches[i], 1));
    }
    CHECK_OK(zero_world_barrier(world));
    for (uint32_t i = 0; i < KINDS && zero_world_rank(world) == 1; i++) {
        CHECK_OK(zi_group_submit(p.group, own.stream, &batches[i], 1));
    }
    CHECK_OK(gpu_wait(&own));
    CHECK_OK(zi_group_check(p.group));
    return pair_close(&p, world);
}

TEST(who_has_connected_waits_for_nobody)
{
    for (int mode = 0; mode < FAKE_CUDA_MODES; mode++) {
        fake_cuda_start((fake_cuda_mode)mode, test_seed);
        CHECK_OK(run_world(2, submit_alone, NULL));
        finish();
    }
}
