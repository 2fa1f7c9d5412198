/* Ranks that MPI started: an MPI program, run by mpirun. Every case is collective over the ranks.
 *
 *   test_mpi            the conformance cases on the host as it is, and on pretended hosts, so that
 *                       one machine exercises what several would; the program initialises MPI
 *   test_mpi wide       what goes in two levels, on more pretended hosts
 *   test_mpi launched   the library initialises MPI and finalises it
 *   test_mpi abandoned  a rank aborts: no rank may hang, and mpirun must report a failure
 *   test_mpi_cuda       the cases on memory of a GPU, which is the fake of the CUDA runtime (the
 *                       same source with MPI_ON_GPU)
 *   test_mpi_cuda broken  a GPU fails while long messages are on their way: what MPI may still use
 *                       is left to the end of the process
 *
 * A check that fails ends the process, and mpirun the others. */
#include <mpi.h>

#include "comm/mpi/mpi_comm.h"
#include "comm/mpi/mpi_group.h"
#include "comm/world.h"
#include "conformance_packed.h"
#include "core/fault.h"
#include "zero/mpi.h"

#ifdef MPI_ON_GPU
#include "bridge.h"
#endif

#define LONG_MS 60000

/* How many successive ranks pretend to share a host; 0: the hosts as they are. */
static uint32_t ranks_per_host;
static uint32_t passed;
static uint32_t skipped;

static zero_world *make_world(uint32_t deadline_ms)
{
    const zi_mpi_options options = {.ranks_per_host = ranks_per_host};
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    CHECK_OK(zi_mpi_comm_create(MPI_Comm_c2f(MPI_COMM_WORLD), deadline_ms, &options, &comm));
    CHECK_OK(zi_world_create(comm, &world));
    return world;
}

static int own_rank(void)
{
    int rank = 0;
    CHECK_EQ(MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_SUCCESS);
    return rank;
}

static uint32_t world_size(void)
{
    int size = 0;
    CHECK_EQ(MPI_Comm_size(MPI_COMM_WORLD, &size), MPI_SUCCESS);
    return (uint32_t)size;
}

static void say(const char *name)
{
    passed++;
    if (own_rank() == 0) {
        printf("ok      %s, ", name);
        if (ranks_per_host == 0) {
            printf("hosts as they are\n");
        } else {
            printf("%u ranks a host\n", ranks_per_host);
        }
        fflush(stdout);
    }
}

#ifdef MPI_ON_GPU

/* As an engine with ZERO_TRANSPORT_HOST does. */
static zero_status make_group(zero_world *world, const uint32_t *members, uint32_t size,
                              const char *name, zi_group **out)
{
    const zi_group_desc desc = {
        .kernels = &own.kernels, .members = members, .size = size, .name = name};
    const zi_transport *transport = NULL;
    CHECK_OK(zi_transport_choose(world, ZERO_TRANSPORT_HOST, &transport));
    ZI_TRY(transport->group_create(world, &desc, out));
    CHECK_EQ((*out)->submit_waits, size > 1);
    return ZERO_OK;
}

/* Cases take the orders in which the GPU may run things in turn. */
static zero_status call_case(zero_world *world, zero_rank_fn fn, uint32_t *deadline_ms)
{
    const bridge_case run = {fn, make_group, deadline_ms, true};
    fake_cuda_start((fake_cuda_mode)((passed + world_size()) % FAKE_CUDA_MODES),
                    test_seed * 100 + passed);
    const uint64_t before = fake_cuda_live();
    const zero_status status = bridge_run(world, &run);
    CHECK(fake_cuda_check());
    /* Memory that MPI may still read is left to the end of the process: a group's stage. */
    const bool ended = world->comm->ops->check(world->comm) != ZERO_OK;
    CHECK(fake_cuda_live() - before <= (ended ? 1 : 0));
    return status;
}

#else

static zero_status call_case(zero_world *world, zero_rank_fn fn, uint32_t *deadline_ms)
{
    return fn(world, deadline_ms);
}

#endif

static void run_case(const char *name, zero_rank_fn fn, uint32_t deadline_ms)
{
    zero_world *world = make_world(deadline_ms);
    CHECK_OK(call_case(world, fn, &deadline_ms));
    zero_world_destroy(world);
    say(name);
}

/* Hosts and backend are what they should be. */
static zero_status case_hosts(zero_world *world, void *user)
{
    (void)user;
    const uint32_t size = zero_world_size(world);
    const uint32_t rank = zero_world_rank(world);
    CHECK(strcmp(zero_world_backend(world), "mpi") == 0);
    CHECK_EQ(size, world_size());
    CHECK_EQ(rank, own_rank());
    uint32_t local = 0;
    if (ranks_per_host != 0) {
        const uint32_t first = rank / ranks_per_host * ranks_per_host;
        local = first + ranks_per_host <= size ? ranks_per_host : size - first;
    } else {
        MPI_Comm host = MPI_COMM_NULL;
        int host_size = 0;
        CHECK_EQ(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
                 MPI_SUCCESS);
        CHECK_EQ(MPI_Comm_size(host, &host_size), MPI_SUCCESS);
        CHECK_EQ(MPI_Comm_free(&host), MPI_SUCCESS);
        local = (uint32_t)host_size;
    }
    CHECK_EQ(zero_world_local_size(world), local);
    zero_path path = zero_path_init();
    zi_world_group_path(world, world->coordination, true, &path);
    CHECK_EQ(path.carrier, size == 1       ? ZERO_CARRIER_NONE
                           : local == size ? ZERO_CARRIER_HOST
                                           : ZERO_CARRIER_MPI);
    return ZERO_OK;
}

/* Sums of numbers whose sum depends on the order, exact: bit for bit in ascending world rank,
 * whatever the hosts. */
static zero_status case_order(zero_world *world, void *user)
{
    (void)user;
    enum { COUNT = 300 };
    conf test = {.world = world};
    conf_open_all(&test, world, COUNT, "order");
    float *send = (float *)(void *)test.send;
    const float *recv = (const float *)(const void *)test.recv;
    for (uint32_t i = 0; i < COUNT * test.size; i++) {
        send[i] = 1.0f / (float)(1 + i + 7919 * test.group->rank);
    }
    zi_collective job = conf_job(&test, ZI_REDUCE_SCATTER, COUNT);
    job.flags = ZI_COLLECTIVE_EXACT;
    CHECK_OK(zi_group_submit(test.group, test.host, &job, 1));
    for (uint32_t i = 0; i < COUNT; i++) {
        float sum = 0.0f;
        for (uint32_t rank = 0; rank < test.size; rank++) {
            sum += 1.0f / (float)(1 + test.group->rank * COUNT + i + 7919 * rank);
        }
        CHECK_BYTES(&recv[i], &sum, sizeof sum);
    }
    conf_close(&test);
    return ZERO_OK;
}

/* Sums that MPI makes, in its own order: close, never -0, and the same bits on all members of an
 * all-reduce. */
static zero_status case_own_order(zero_world *world, void *user)
{
    (void)user;
    enum { COUNT = 5000 };
    conf test = {.world = world};
    conf_open_all(&test, world, COUNT, "own");
    float *send = (float *)(void *)test.send;
    const float *recv = (const float *)(const void *)test.recv;
    const uint32_t me = test.group->rank;
    for (uint32_t i = 0; i < COUNT * test.size; i++) {
        send[i] = i % 7 == 0 ? -0.0f : 1.0f / (float)(1 + i + 7919 * me);
    }
    for (int kind = ZI_REDUCE_SCATTER; kind <= ZI_ALL_REDUCE; kind++) {
        zi_collective job = conf_job(&test, (zi_collective_kind)kind, COUNT);
        job.flags = ZI_COLLECTIVE_NATIVE;
        CHECK_OK(zi_group_submit(test.group, test.host, &job, 1));
        const uint32_t first = kind == ZI_REDUCE_SCATTER ? me * COUNT : 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            double sum = 0.0;
            for (uint32_t rank = 0; rank < test.size && (first + i) % 7 != 0; rank++) {
                sum += 1.0 / (1 + first + i + 7919 * rank);
            }
            CHECK_NEAR(recv[i], sum, sum * 1e-6);
            CHECK(!signbit(recv[i]));
        }
    }
    uint32_t all[CONF_RANKS_MAX];
    CHECK_OK(zero_world_gather(world, &recv[COUNT - 1], all, sizeof all[0]));
    for (uint32_t rank = 1; rank < test.size; rank++) {
        CHECK_EQ(all[rank], all[0]);
    }
    conf_close(&test);
    return ZERO_OK;
}

#ifndef MPI_ON_GPU

/* Bytes that a reduce-scatter sends to other hosts: in two levels a part for each of them. */
static zero_status case_crossed(zero_world *world, void *user)
{
    (void)user;
    enum { COUNT = 100000 };
    conf test = {.world = world};
    zero_path path = zero_path_init();
    conf_open_all(&test, world, COUNT, "crossed");
    zi_world_group_path(world, test.group, true, &path);
    const bool crosses = path.carrier == ZERO_CARRIER_MPI;
    const zi_mpi_group *group = (const zi_mpi_group *)test.group;
    const uint32_t hosts = ranks_per_host != 0 ? test.size / ranks_per_host : 1;
    const bool levels = crosses && ranks_per_host > 1 && test.size % ranks_per_host == 0;
    const uint64_t others = test.size - zero_world_local_size(world);
    CHECK_EQ(path.hosts, levels ? hosts : 0);
    for (uint32_t exact = 0; exact < 2; exact++) {
        const uint64_t before = crosses ? group->crossed_bytes : 0;
        conf_shape shape = {.kind = ZI_REDUCE_SCATTER,
                            .send_dtype = ZERO_DTYPE_BF16,
                            .recv_dtype = ZERO_DTYPE_F32,
                            .flags = exact != 0 ? ZI_COLLECTIVE_EXACT : 0,
                            .count = COUNT,
                            .stride = 61};
        conf_run(&test, shape);
        const uint64_t crossed = crosses ? group->crossed_bytes - before : 0;
        const uint64_t sums = zero_dtype_bytes(conf_sum_dtype(&shape)) * COUNT * (hosts - 1);
        CHECK_EQ(crossed, levels && exact == 0 ? sums : 2 * COUNT * others);
    }
    conf_close(&test);
    return ZERO_OK;
}

#endif

/* More elements than fit the stage, in every way a sum can travel. */
static zero_status case_pieces(zero_world *world, void *user)
{
    (void)user;
    enum { COUNT = 700001 };
    conf test = {.world = world, .plain = true};
    conf_open_all(&test, world, COUNT, "pieces");
    conf_shape shape = conf_within(ZI_REDUCE_SCATTER, ZERO_DTYPE_F32, COUNT);
    shape.stride = 61;
    conf_run(&test, shape);
    shape.silent = 2;
    conf_run(&test, shape);
    shape.silent = 0;
    shape.in_place = true;
    conf_run(&test, shape);
    shape.kind = ZI_ALL_REDUCE;
    conf_run(&test, shape);
    shape.in_place = false;
    shape.recv_dtype = ZERO_DTYPE_BF16;
    conf_run(&test, shape);
    conf_close(&test);
    return ZERO_OK;
}

/* Many groups one after another, two alive at a time: communicators are used again. */
static zero_status case_many_groups(zero_world *world, void *user)
{
    (void)user;
    for (uint32_t round = 0; round < 100; round++) {
        conf tests[2] = {{.world = world, .plain = true}, {.world = world, .plain = true}};
        for (int i = 0; i < 2; i++) {
            conf_members_all(&tests[i], world);
            conf_open(&tests[i], 64 * sizeof(float) * tests[i].size, i == 0 ? "one" : "two");
            conf_run(&tests[i], (conf_shape){ZI_REDUCE_SCATTER, ZERO_DTYPE_BF16, ZERO_DTYPE_F32, 64,
                                             0, 0, 0, 1});
        }
        conf_close(&tests[round % 2]);
        conf_close(&tests[1 - round % 2]);
    }
    return ZERO_OK;
}

/* One rank has no memory: all are told and go on. */
static zero_status case_no_memory(zero_world *world, void *user)
{
    (void)user;
    zi_comm *comm = world->comm;
    const uint32_t last = comm->size - 1;
    void *piece = NULL;
    if (comm->rank == last) {
        zi_fault_arm(ZI_FAULT_ALLOC, 1);
    }
    const char *words =
        comm->rank == last ? "no 4096 bytes" : test_text("rank %u: no 4096 bytes", last);
    CHECK_FAILS(comm->ops->memory_alloc(comm, ZI_PAGE_BYTES, &piece), ZERO_ERR_OUT_OF_MEMORY,
                words);
    CHECK(piece == NULL);
    if (comm->size > 1) {
        const size_t bytes = (comm->rank == last ? 2 : 1) * ZI_PAGE_BYTES;
        CHECK_FAILS(comm->ops->memory_alloc(comm, bytes, &piece), ZERO_ERR_MISMATCH, "");
        CHECK(piece == NULL);
    }
    return case_memory(world, NULL);
}

/* A collective of the last rank fails: the others hear of it at once, and other groups live on. */
static zero_status case_group_fails(zero_world *world, void *user)
{
    (void)user;
    const uint32_t last = zero_world_size(world) - 1;
    conf test = {.world = world, .plain = true};
    conf_members_all(&test, world);
    if (last == 0) {
        return ZERO_OK;
    }
    conf_open(&test, 4096 * test.size, "fails");
    const zi_collective job = conf_job(&test, ZI_ALL_GATHER, 9);
    CHECK_OK(zero_world_barrier(world));
    const bool failing = zero_world_rank(world) == last;
    if (failing) {
        zi_fault_arm(ZI_FAULT_COLLECTIVE, 1);
    }
    const char *words = test_text(failing ? "injected" : "rank %u: ", last);
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), ZERO_ERR_COMM, words);
    CHECK(in_time(start_ns, 5000));
    zi_fault_arm(ZI_FAULT_COLLECTIVE, 0);
    CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), ZERO_ERR_COMM, words);
    conf_close(&test);
    CHECK_OK(zero_world_barrier(world));
    return case_gather(world, NULL);
}

/* Nothing of ours is allocated in a batch, between hosts either. */
static zero_status case_no_allocation(zero_world *world, void *user)
{
    (void)user;
    conf test = {.world = world, .plain = true};
    conf_open_all(&test, world, 1000, "calls");
    CHECK_OK(zero_world_barrier(world));
    const uint64_t before = zi_memory_calls();
    for (int kind = ZI_ALL_GATHER; kind <= ZI_ALL_REDUCE; kind++) {
        conf_shape shape = conf_within((zi_collective_kind)kind, ZERO_DTYPE_F32, 1000);
        shape.flags = 0;
        const zi_collective own_order = conf_prepare(&test, &shape);
        CHECK_OK(zi_group_submit(test.group, test.host, &own_order, 1));
        conf_verify_squares(&test, &shape, &own_order);
        shape.flags = ZI_COLLECTIVE_EXACT;
        conf_run(&test, shape);
    }
    CHECK_EQ(zi_memory_calls(), before);
    conf_close(&test);
    return ZERO_OK;
}

#ifdef MPI_ON_GPU

/* The last rank's GPU fails at a copy: the others hear of it. */
static void gpu_fails(zero_world *world, zi_collective_kind kind, size_t count, uint64_t nth_copy)
{
    conf test = {.world = world, .plain = true};
    conf_members_all(&test, world);
    const uint32_t last = test.size - 1;
    const bool failing = zero_world_rank(world) == last;
    conf_open(&test, count * sizeof(float) * test.size, "fails");
    const zi_collective job = conf_job(&test, kind, count);
    CHECK_OK(zero_world_barrier(world));
    char words[48] = "cudaMemcpyAsync";
    if (failing) {
        fake_cuda_fail("cudaMemcpyAsync", nth_copy, cudaErrorLaunchFailure);
    } else {
        snprintf(words, sizeof words, "rank %u: cudaMemcpyAsync", last);
    }
    const zero_status status = failing ? ZERO_ERR_DEVICE : ZERO_ERR_COMM;
    CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), status, words);
    CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), status, words);
    conf_close(&test);
}

/* Short messages: the world goes on. */
static zero_status case_gpu_fails(zero_world *world, void *user)
{
    (void)user;
    gpu_fails(world, ZI_ALL_GATHER, 100, 1);
    gpu_fails(world, ZI_ALL_GATHER, 100, 2);
    gpu_fails(world, ZI_REDUCE_SCATTER, 100, 1);
    gpu_fails(world, ZI_ALL_REDUCE, 200, 1);
    return zero_world_barrier(world);
}

/* Several pieces, failing in the middle. MPI may be of no use afterwards: the world ends. */
#define GPU_BREAKS(name, kind)                             \
    static zero_status name(zero_world *world, void *user) \
    {                                                      \
        (void)user;                                        \
        gpu_fails(world, kind, 700001, 4);                 \
        zero_world_abort(world);                           \
        return ZERO_OK;                                    \
    }
GPU_BREAKS(case_gpu_breaks_gather, ZI_ALL_GATHER)
GPU_BREAKS(case_gpu_breaks_scatter, ZI_REDUCE_SCATTER)
GPU_BREAKS(case_gpu_breaks_reduce, ZI_ALL_REDUCE)

/* The last rank gives up while the others wait in a batch; ends the world. */
static zero_status case_gpu_abort(zero_world *world, void *user)
{
    (void)user;
    conf test = {.world = world, .plain = true};
    conf_members_all(&test, world);
    const uint32_t last = test.size - 1;
    conf_open(&test, 4096 * test.size, "abort");
    const zi_collective job = {ZI_ALL_REDUCE,
                               0,
                               ZERO_DTYPE_F32,
                               ZERO_DTYPE_BF16,
                               1,
                               300,
                               test.send,
                               test.recv,
                               NULL,
                               0,
                               0,
                               0};
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == last) {
        sleep_ms(100);
        (void)zi_error_set(ZERO_ERR_IO, 5, __FILE__, __LINE__, "the disk is on fire");
        zero_world_abort(world);
    } else {
        const char *words = test_text("rank %u: the disk is on fire", last);
        CHECK_FAILS(zi_group_submit(test.group, test.host, &job, 1), ZERO_ERR_COMM, words);
    }
    conf_close(&test);
    return ZERO_OK;
}

/* A batch that ranks disagree on, put right behind one that the GPU has not finished: the results
 * of that one stay whole. */
static zero_status case_gpu_mismatch(zero_world *world, void *user)
{
    (void)user;
    enum { COUNT = 1000 };
    const zi_device_ops *ops = own.device.ops;
    const size_t bytes = zi_align_up(COUNT * sizeof(float), ZI_PAGE_BYTES);
    const uint32_t size = zero_world_size(world);
    float values[COUNT];
    float *send = NULL;
    float *recv = NULL;
    zi_group *group = NULL;
    conf test;
    conf_members_all(&test, world);
    fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
    CHECK_OK(ops->memory_alloc(own.device.self, bytes, (void **)&send));
    CHECK_OK(ops->memory_alloc(own.device.self, bytes * size, (void **)&recv));
    zi_comm *bridged = world->comm;
    world->comm = ((const bridge_comm *)bridged)->real;
    CHECK_OK(make_group(world, test.members, size, "pending", &group));
    world->comm = bridged;
    for (uint32_t i = 0; i < COUNT; i++) {
        values[i] = (float)(i + 1 + COUNT * zero_world_rank(world));
    }
    fake_cuda_poke(send, values, sizeof values);
    const zi_collective gather = {
        ZI_ALL_GATHER, 0, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 1, COUNT, send, recv, NULL, 0, 0, 0};
    zi_collective odd = gather;
    odd.tag = zero_world_rank(world);
    CHECK_OK(zi_group_submit(group, own.stream, &gather, 1));
    CHECK_OK(zi_group_submit(group, own.stream, &odd, 1));
    CHECK_FAILS(gpu_wait(&own), ZERO_ERR_MISMATCH, "rank 1 has all_gather of unit 1");
    CHECK_OK(ops->drain(own.device.self, own.stream));
    for (uint32_t rank = 0; rank < size; rank++) {
        fake_cuda_peek(values, recv + rank * COUNT, sizeof values);
        for (uint32_t i = 0; i < COUNT; i++) {
            CHECK_SAME(values[i], (float)(i + 1 + COUNT * rank));
        }
    }
    zi_group_destroy(group);
    ops->memory_free(own.device.self, send, bytes);
    ops->memory_free(own.device.self, recv, bytes * size);
    return ZERO_OK;
}

/* A kernel adds up so many arrays and no more. */
static zero_status case_many_sources(zero_world *world, void *user)
{
    (void)user;
    uint32_t members[300];
    zi_group *group = NULL;
    for (uint32_t i = 0; i < 300; i++) {
        members[i] = i % zero_world_size(world);
    }
    CHECK_EQ(own.kernels.ops->sources_max, 256);
    zi_comm *real = ((const bridge_comm *)world->comm)->real;
    CHECK_FAILS(real->ops->group_create(real, &own.kernels, members, 300, "wide", &group),
                ZERO_ERR_UNSUPPORTED, "group wide: its sums are of 300 ranks");
    CHECK(group == NULL);
    return ZERO_OK;
}

#endif

/* The communicator is the caller's: any part of his ranks, in any order. */
static void test_own_communicator(void)
{
    const int rank = own_rank();
    const int size = (int)world_size();
    MPI_Comm part = MPI_COMM_NULL;
    CHECK_EQ(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, size - rank, &part), MPI_SUCCESS);
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_mpi(part, 0, &world));
    int part_rank = 0;
    int part_size = 0;
    CHECK_EQ(MPI_Comm_rank(part, &part_rank), MPI_SUCCESS);
    CHECK_EQ(MPI_Comm_size(part, &part_size), MPI_SUCCESS);
    CHECK_EQ(MPI_Comm_free(&part), MPI_SUCCESS);
    CHECK_EQ(zero_world_rank(world), part_rank);
    CHECK_EQ(zero_world_size(world), part_size);
    CHECK_OK(case_gather(world, NULL));
    zero_world_destroy(world);
    CHECK_FAILS(zero_world_create_mpi(MPI_COMM_NULL, 0, &world), ZERO_ERR_INVALID_ARGUMENT, "NULL");
    CHECK_FAILS(zero_world_create_mpi(MPI_COMM_WORLD, 0, NULL), ZERO_ERR_INVALID_ARGUMENT, "world");
    say("own communicator");
}

/* The last rank does not come. */
static void test_missing_rank(void)
{
    if (world_size() == 1) {
        skipped++;
        return;
    }
    MPI_Comm copy = MPI_COMM_NULL;
    CHECK_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &copy), MPI_SUCCESS);
    zero_world *world = NULL;
    if (own_rank() != (int)world_size() - 1) {
        CHECK_FAILS(zero_world_create_mpi(copy, 300, &world), ZERO_ERR_TIMEOUT, "within 300 ms");
    }
    CHECK(world == NULL);
    say("missing rank");
}

/* Run the cases that go in two levels where hosts have as many ranks. */
static void run_levels(uint32_t per_host)
{
    ranks_per_host = conf_per_host = per_host;
    conf_how = 0;
    run_case("kinds, not exact", case_kinds, LONG_MS);
    run_case("large, not exact", case_large, LONG_MS);
    run_case("packed, not exact", case_packed, LONG_MS);
    run_case("pieces, not exact", case_pieces, LONG_MS);
    run_case("subgroups, not exact", case_subgroups, LONG_MS);
    run_case("batches, not exact", case_batches, LONG_MS);
#ifndef MPI_ON_GPU
    run_case("crossed", case_crossed, LONG_MS);
#endif
    conf_how = ZI_COLLECTIVE_EXACT;
}

static void run_hosts(uint32_t per_host)
{
    run_levels(per_host);
    run_case("hosts", case_hosts, LONG_MS);
    run_case("kinds", case_kinds, LONG_MS);
    run_case("large", case_large, LONG_MS);
    run_case("packed", case_packed, LONG_MS);
    run_case("own order", case_own_order, LONG_MS);
    run_case("pieces", case_pieces, LONG_MS);
    run_case("subgroups", case_subgroups, LONG_MS);
    run_case("batches", case_batches, LONG_MS);
    run_case("mismatch", case_mismatch, LONG_MS);
    run_case("order", case_order, LONG_MS);
    run_case("many groups", case_many_groups, LONG_MS);
    run_case("no memory", case_no_memory, LONG_MS);
    run_case("group fails", case_group_fails, LONG_MS);
    run_case("no allocation", case_no_allocation, LONG_MS);
    run_case("late", case_late, 500);
#ifdef MPI_ON_GPU
    if (per_host != 0) {
        run_case("GPU mismatch", case_gpu_mismatch, LONG_MS);
        run_case("GPU fails", case_gpu_fails, LONG_MS);
        run_case("many sources", case_many_sources, LONG_MS);
        run_case("GPU abort", case_gpu_abort, LONG_MS);
    }
#else
    run_case("streams", case_streams, LONG_MS);
    run_case("gather", case_gather, LONG_MS);
    run_case("memory", case_memory, LONG_MS);
    run_case("abort", case_abort_waiting, LONG_MS);
#endif
}

#ifdef MPI_ON_GPU

static int run_broken(void)
{
    int level = 0;
    CHECK_EQ(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), MPI_SUCCESS);
    for (ranks_per_host = 1; ranks_per_host < 3; ranks_per_host++) {
        run_case("GPU fails in a gather", case_gpu_breaks_gather, LONG_MS);
        run_case("GPU fails in a scatter", case_gpu_breaks_scatter, LONG_MS);
        run_case("GPU fails in a reduction", case_gpu_breaks_reduce, LONG_MS);
    }
    const int rank = own_rank();
    CHECK_EQ(MPI_Finalize(), MPI_SUCCESS);
    return rank;
}

#endif

/* More hosts, and more ranks on each, with sums in two levels. */
static int run_wide(void)
{
    int level = 0;
    CHECK_EQ(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), MPI_SUCCESS);
    for (uint32_t per_host = 2; per_host <= 4; per_host++) { /* 4: unlike numbers, of 6 ranks */
        run_levels(per_host);
    }
    const int rank = own_rank();
    CHECK_EQ(MPI_Finalize(), MPI_SUCCESS);
    return rank;
}

static int run_conformance(void)
{
    zero_world *world = NULL;
    CHECK_FAILS(zero_world_create_mpi(MPI_COMM_WORLD, 0, &world), ZERO_ERR_STATE,
                "not initialised");
    int level = 0;
    CHECK_EQ(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), MPI_SUCCESS);
    CHECK_EQ(level, MPI_THREAD_MULTIPLE);
    run_hosts(0);
    if (world_size() > 1) {
        run_hosts(1);
    }
    if (world_size() > 2) {
        run_hosts(2);
    }
    ranks_per_host = 0;
    test_own_communicator();
    /* Last: what it leaves in MPI is only taken back at the end. */
    test_missing_rank();
    const int rank = own_rank();
    CHECK_EQ(MPI_Finalize(), MPI_SUCCESS);
    CHECK_FAILS(zero_world_create_mpi(MPI_COMM_WORLD, 0, &world), ZERO_ERR_STATE, "finalised");
    return rank;
}

/* The world comes from the launcher, and MPI with it. */
static int run_launched(void)
{
    zero_world *world = NULL;
    CHECK_EQ(zero_world_is_launched(), 1);
    CHECK_OK(zero_world_create_launched(LONG_MS, &world));
    CHECK(strcmp(zero_world_backend(world), "mpi") == 0);
    const int rank = own_rank();
    CHECK_EQ(zero_world_rank(world), rank);
    CHECK_OK(case_kinds(world, NULL));
    CHECK_OK(case_batches(world, NULL));
    CHECK_OK(case_gather(world, NULL));
    zero_world_destroy(world);
    int finalised = 0;
    CHECK_EQ(MPI_Finalized(&finalised), MPI_SUCCESS);
    CHECK(finalised);
    CHECK_FAILS(zero_world_create_launched(LONG_MS, &world), ZERO_ERR_STATE,
                "keep the first world");
    CHECK(world == NULL);
    passed = 1;
    return rank;
}

/* A rank gives up. All come to the end without MPI_Finalize. */
static int run_abandoned(void)
{
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_launched(LONG_MS, &world));
    const int rank = own_rank();
    CHECK_OK(case_abort_waiting(world, NULL));
    zero_world_destroy(world);
    int finalised = 0;
    CHECK_EQ(MPI_Finalized(&finalised), MPI_SUCCESS);
    CHECK(!finalised);
    passed = 1;
    return rank;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    alarm(strcmp(mode, "abandoned") == 0 ? 20 : 280);
#ifdef MPI_ON_GPU
    if (strcmp(mode, "broken") == 0) {
        if (run_broken() == 0) {
            printf("%u passed, 0 failed, 0 skipped\n", passed);
        }
        return 0;
    }
#endif
    const int rank = strcmp(mode, "launched") == 0    ? run_launched()
                     : strcmp(mode, "abandoned") == 0 ? run_abandoned()
                     : strcmp(mode, "wide") == 0      ? run_wide()
                                                      : run_conformance();
    if (rank == 0) {
        printf("%u passed, 0 failed, %u skipped\n", passed, skipped);
    }
    return 0;
}
