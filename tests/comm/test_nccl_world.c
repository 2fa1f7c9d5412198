/* Worlds whose ranks have nothing in common but NCCL: what is exchanged on the host, groups of
 * device memory beside it, how they are made, and how they fail. Over the fakes of NCCL and of the
 * CUDA runtime. */
#include "conformance.h"
#include "nccl_world_rig.h"

#include <sched.h>

/* ---- the conformance cases: the world's memory is made the host's own ---- */

typedef struct plain_comm {
    zi_comm base;
    zi_comm *real;
} plain_comm;

static zero_status plain_create(zi_comm *comm, const zi_kernels *kernels, const uint32_t *members,
                                uint32_t size, const char *name, zi_group **out)
{
    zi_comm *real = ((plain_comm *)comm)->real;
    return real->ops->group_create(real, kernels, members, size, name, out);
}

static zero_status plain_alloc(zi_comm *comm, size_t bytes, void **out)
{
    (void)comm;
    return zi_pages_alloc(bytes, out);
}

static void plain_free(zi_comm *comm, void *pointer, size_t bytes)
{
    (void)comm;
    zi_pages_free(pointer, bytes);
}

static zero_status plain_check(zi_comm *comm)
{
    zi_comm *real = ((plain_comm *)comm)->real;
    return real->ops->check(real);
}

static void plain_abort(zi_comm *comm, const zero_error *error)
{
    zi_comm *real = ((plain_comm *)comm)->real;
    real->ops->abort(real, error);
}

static const zi_comm_ops plain_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "plain",
    .group_create = plain_create,
    .memory_alloc = plain_alloc,
    .memory_free = plain_free,
    .abort = plain_abort,
    .check = plain_check,
};

static zero_status run_plain(zero_world *world, void *user)
{
    const zero_rank_fn *fn = user;
    plain_comm comm = {.base = *world->comm, .real = world->comm};
    comm.base.ops = &plain_ops;
    world->comm = &comm.base;
    const zero_status status = (*fn)(world, NULL);
    world->comm = comm.real;
    return status;
}

static void run_case(zero_rank_fn fn, uint32_t ranks, fake_cuda_mode mode)
{
    fake_cuda_start(mode, test_seed);
    rig_run(&(rig){.ranks = ranks,
                   .deadline_ms = LONG_MS,
                   .blocking = ranks % 2 == 0,
                   .fn = run_plain,
                   .user = &fn},
            ZERO_OK);
}

TEST(mismatches)
{
    run_case(case_mismatch, 2, FAKE_CUDA_AT_SYNC);
    run_case(case_mismatch, 3, FAKE_CUDA_AT_SYNC);
    finish();
}

TEST(gathers)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        run_case(case_gather, ranks, FAKE_CUDA_RANDOM);
    }
    finish();
}

/* Communicators that were aborted leave events behind in the fake. */
static void finish_failed(void)
{
    CHECK(fake_nccl_check());
    CHECK_EQ(fake_nccl_live(), 0);
    CHECK(fake_cuda_check());
}

TEST(last_words)
{
    run_case(case_abort, 2, FAKE_CUDA_AT_SYNC);
    run_case(case_abort, 4, FAKE_CUDA_EAGER);
    finish_failed();
}

/* ---- making worlds ---- */

static zero_status describe(zero_world *world, void *user)
{
    const uint32_t *ranks = user;
    uint32_t seen[RIG_RANKS_MAX];
    const uint32_t mine = zero_world_rank(world);
    CHECK_EQ(zero_world_size(world), *ranks);
    CHECK_EQ(zero_world_local_size(world), *ranks);
    CHECK(strcmp(zero_world_backend(world), "nccl") == 0);
    CHECK_OK(zero_world_gather(world, &mine, seen, sizeof mine));
    for (uint32_t i = 0; i < *ranks; i++) {
        CHECK_EQ(seen[i], i);
    }
    int device = -1;
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, mine);
    return ZERO_OK;
}

/* The caller's communicator is split once, and nothing else: rig_main checks that it is as it was.
 */
TEST(worlds_on_the_callers_communicator)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        for (int blocking = 0; blocking < 2; blocking++) {
            const rig g = {.ranks = ranks,
                           .deadline_ms = LONG_MS,
                           .blocking = blocking == 1,
                           .fn = describe,
                           .user = &ranks};
            const uint64_t before = fake_nccl_calls(FAKE_NCCL_SPLIT);
            rig_run(&g, ZERO_OK);
            CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT) - before, ranks);
        }
    }
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 0);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    finish();
}

/* They have no communicator before they make a group: see groups_of_launched_ranks. */
TEST(worlds_that_meet_at_an_address)
{
    uint32_t ranks = 3;
    const rig g = {
        .ranks = ranks, .deadline_ms = LONG_MS, .launched = true, .fn = describe, .user = &ranks};
    rig_run(&g, ZERO_OK);
    rig_run(&g, ZERO_OK);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 0);
    finish();
}

TEST(nothing_to_make_a_world_of)
{
    zero_world *world = NULL;
    zi_nccl_api_replace(fake_nccl_api());
    fake_cuda_devices(2);
    CHECK_FAILS(zero_world_create_nccl(NULL, 0, &world), ZERO_ERR_INVALID_ARGUMENT, "comm is NULL");
    ncclComm_t lent = fake_nccl_lend("one", 1, 0, true);
    CHECK_FAILS(zero_world_create_nccl(lent, 0, NULL), ZERO_ERR_INVALID_ARGUMENT, "world is NULL");
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_FAILS(zero_world_create_nccl(lent, 0, &world), ZERO_ERR_INVALID_ARGUMENT,
                "comm is of GPU 0 but GPU 1 is current; call cudaSetDevice(0)");
    CHECK(world == NULL);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    fake_nccl_set_version(21805);
    CHECK_FAILS(zero_world_create_nccl(lent, 0, &world), ZERO_ERR_UNSUPPORTED, "2.18.5 is too old");
    fake_nccl_set_version(NCCL_VERSION_CODE);
    fake_nccl_break(0, ncclRemoteError);
    CHECK_FAILS(zero_world_create_nccl(lent, 0, &world), ZERO_ERR_COMM, "a fake error");
    fake_nccl_break(-1, ncclSuccess);
    CHECK_OK(zero_world_create_nccl(lent, 0, &world));
    zero_world_destroy(world);
    fake_nccl_take_back(lent);
    finish();
}

/* Two ranks have a communicator, and one does not come. */
static void miss_create(bool blocking)
{
    zero_world *world = NULL;
    ncclComm_t lent[2];
    zi_nccl_api_replace(fake_nccl_api());
    fake_cuda_devices(2);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    lent[1] = fake_nccl_lend("late", 2, 1, false);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    lent[0] = fake_nccl_lend("late", 2, 0, blocking);
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zero_world_create_nccl(lent[0], SHORT_MS, &world), ZERO_ERR_TIMEOUT,
                "did not finish within 1500 ms");
    CHECK(elapsed_ms(start_ns) + 1 >= SHORT_MS);
    CHECK(in_time(start_ns, 20000));
    CHECK(world == NULL);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    /* Do what the text advises. */
    CHECK_EQ(fake_nccl_abort(lent[0]), ncclSuccess);
    CHECK_EQ(fake_nccl_abort(lent[1]), ncclSuccess);
    const struct timespec span = {.tv_nsec = 50000000}; /* the thread in NCCL's call ends */
    (void)nanosleep(&span, NULL);
    finish();
}

TEST_CALL(a_rank_that_does_not_come, miss_create(false));
TEST_CALL(a_rank_that_does_not_come_to_a_blocking_communicator, miss_create(true));

TEST(ranks_that_never_meet_at_an_address)
{
    const zi_launch launch = {.rank = 1, .size = 2, .address = "127.0.0.1"};
    const zi_control_endpoint endpoint = rig_free_endpoint();
    zi_comm *comm = NULL;
    zi_nccl_api_replace(fake_nccl_api());
    CHECK_FAILS(zi_nccl_launch(&launch, SHORT_MS, &endpoint, &comm), ZERO_ERR_TIMEOUT,
                test_text("rank 1 could not join rank 0 at 127.0.0.1 port %u within 1500 ms",
                          endpoint.port));
    CHECK(comm == NULL);
    const zi_launch first = {.rank = 0, .size = 2, .address = "127.0.0.1"};
    CHECK_FAILS(zi_nccl_launch(&first, SHORT_MS, &endpoint, &comm), ZERO_ERR_TIMEOUT,
                "rank 1 did not arrive at the meeting of the ranks within 1500 ms");
    CHECK(comm == NULL);
    fake_nccl_set_version(21805);
    CHECK_FAILS(zi_nccl_can_launch(&launch), ZERO_ERR_UNSUPPORTED, "mpirun");
    CHECK_SAID("too old");
}

/* A process of torchrun's on another host than rank 0. Nothing is put into the environment. */
TEST(launched_on_several_hosts)
{
    const zi_control_endpoint endpoint = rig_free_endpoint();
    const char *const variables[][2] = {
        {"RANK", "1"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", test_text("%u", endpoint.port - 1)},
        {"LOCAL_WORLD_SIZE", "1"},
    };
    zero_world *world = NULL;
    zi_nccl_api_replace(fake_nccl_api());
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        CHECK_EQ(setenv(variables[i][0], variables[i][1], 1), 0);
    }
    CHECK_EQ(unsetenv("NCCL_COMM_ID"), 0);
    CHECK_FAILS(zero_world_create_launched(SHORT_MS, &world), ZERO_ERR_TIMEOUT,
                test_text("at 127.0.0.1 port %u within", endpoint.port));
    CHECK(getenv("NCCL_COMM_ID") == NULL);
    CHECK_EQ(setenv("NCCL_COMM_ID", "[::1]:7", 1), 0);
    CHECK_FAILS(zero_world_create_launched(SHORT_MS, &world), ZERO_ERR_TIMEOUT,
                "at ::1 port 8 within");
    CHECK(strcmp(getenv("NCCL_COMM_ID"), "[::1]:7") == 0);
    CHECK(world == NULL);
    CHECK_EQ(fake_nccl_live(), 0);
    CHECK(fake_nccl_check());
}

/* ---- groups of device memory ---- */

static void check_gather(zero_world *world, const uint32_t *members, uint32_t size,
                         const char *name)
{
    enum { COUNT = 64 };
    zi_group *group = NULL;
    unsigned char *memory = NULL;
    float values[COUNT];
    const zi_group_desc desc = {.kernels = &own.kernels,
                                .members = members,
                                .size = size,
                                .gathers_only = true,
                                .name = name};
    CHECK_OK(zi_nccl_transport.group_create(world, &desc, &group));
    CHECK_EQ(members[group->rank], zero_world_rank(world));
    CHECK_OK(own.device.ops->memory_alloc(own.device.self, ZI_PAGE_BYTES, (void **)&memory));
    for (uint32_t i = 0; i < COUNT; i++) {
        values[i] = (float)(zero_world_rank(world) * COUNT + i);
    }
    fake_cuda_poke(memory, values, sizeof values);
    const zi_collective job = {.kind = ZI_ALL_GATHER,
                               .send_dtype = ZERO_DTYPE_F32,
                               .recv_dtype = ZERO_DTYPE_F32,
                               .count = COUNT,
                               .send = memory,
                               .recv = memory + sizeof values};
    CHECK_OK(zi_group_submit(group, own.stream, &job, 1));
    CHECK_OK(gpu_wait(&own));
    CHECK_OK(zi_group_check(group));
    for (uint32_t m = 0; m < size; m++) {
        fake_cuda_peek(values, memory + (1 + m) * sizeof values, sizeof values);
        for (uint32_t i = 0; i < COUNT; i++) {
            CHECK_EQ(values[i], members[m] * COUNT + i);
        }
    }
    zi_group_destroy(group);
    own.device.ops->memory_free(own.device.self, memory, ZI_PAGE_BYTES);
}

/* As hybrid sharding has them: neighbours, and every second rank; and all, backwards. */
static zero_status hybrid(zero_world *world, void *user)
{
    (void)user;
    const uint32_t me = zero_world_rank(world);
    const uint32_t shard[] = {me / 2 * 2, me / 2 * 2 + 1};
    const uint32_t replica[] = {me % 2, me % 2 + 2};
    const uint32_t all[] = {3, 2, 1, 0};
    gpu_open(&own);
    const zi_transport *transport = NULL;
    CHECK_OK(zi_transport_choose(world, ZERO_TRANSPORT_DEFAULT, &transport));
    CHECK(transport == &zi_nccl_transport);
    check_gather(world, shard, 2, "scatter");
    check_gather(world, replica, 2, "replica");
    check_gather(world, all, 4, "gather");
    check_gather(world, &me, 1, "alone");
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    return ZERO_OK;
}

TEST(groups_of_device_memory)
{
    fake_cuda_start(FAKE_CUDA_RANDOM, test_seed);
    rig_run(&(rig){.ranks = 4, .deadline_ms = LONG_MS, .fn = hybrid}, ZERO_OK);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    finish();
}

static zero_status refuse(zero_world *world, void *user)
{
    (void)user;
    static const uint32_t members[] = {0, 1};
    zi_group *group = NULL;
    void *memory = NULL;
    zero_model *model = NULL;
    zero_engine *engine = NULL;
    gpu_open(&own);
    const zi_group_desc desc = {
        .kernels = &own.kernels, .members = members, .size = 2, .name = "gather"};
    const zi_transport *transport = NULL;
    CHECK_OK(zi_transport_choose(world, ZERO_TRANSPORT_HOST, &transport));
    CHECK_FAILS(transport->group_create(world, &desc, &group), ZERO_ERR_UNSUPPORTED,
                "share no host memory");
    CHECK_FAILS(world->comm->ops->memory_alloc(world->comm, ZI_PAGE_BYTES, &memory),
                ZERO_ERR_UNSUPPORTED, "zero_world_create_mpi");
    CHECK_EQ(cudaSetDevice(1 - (int)zero_world_rank(world)), cudaSuccess);
    CHECK_FAILS(zi_nccl_transport.group_create(world, &desc, &group), ZERO_ERR_INVALID_ARGUMENT,
                "GPU");
    CHECK_EQ(cudaSetDevice((int)zero_world_rank(world)), cudaSuccess);
    CHECK_OK(zero_world_barrier(world));
    gpu_close(&own);
    /* An engine on the CPU, last, since a create that fails ends the world. */
    zero_engine_options options = zero_engine_options_init();
    uint32_t unit = 0;
    uint32_t tensor = 0;
    const zero_tensor_desc weight = {.name = "w", .shape = {64}, .dims = 1};
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "u"}, &unit, NULL));
    CHECK_OK(zero_tensor_add(model, unit, &weight, &tensor));
    CHECK_FAILS(zero_engine_create(world, model, &options, &engine), ZERO_ERR_UNSUPPORTED,
                "ZERO_DEVICE_CUDA");
    zero_model_destroy(model);
    return ZERO_OK;
}

TEST(what_such_a_world_cannot_do)
{
    rig_run(&(rig){.ranks = 2, .deadline_ms = LONG_MS, .fn = refuse}, ZERO_OK);
    finish_failed();
}

/* The base is made with an id of rank 0's, which goes over the control plane. */
TEST(groups_of_launched_ranks)
{
    fake_cuda_start(FAKE_CUDA_RANDOM, test_seed);
    rig_run(&(rig){.ranks = 4, .deadline_ms = LONG_MS, .launched = true, .fn = hybrid}, ZERO_OK);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 4);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_ABORT), 0);
    finish();
}

/* ---- failures ---- */

/* Rank 1 does not come to the second barrier in time. */
static zero_status be_late(zero_world *world, void *user)
{
    (void)user;
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 1) {
        sleep_ms(3 * SHORT_MS);
    }
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_TIMEOUT,
                "rank 1 did not arrive at all_gather of zero_world_barrier, 0 x f32 (group "
                "coordination) within 1500 ms");
    CHECK(in_time(start_ns, 10000));
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_TIMEOUT, "rank 1 did not arrive");
    return ZERO_ERR_TIMEOUT;
}

TEST(a_rank_that_is_late)
{
    rig_run(&(rig){.ranks = 2, .deadline_ms = SHORT_MS, .fn = be_late}, ZERO_ERR_TIMEOUT);
    CHECK_EQ(fake_nccl_live(), 0);
}

/* Rank 1 gives up where the others make a group: they hear why in their meeting. */
static zero_status give_up(zero_world *world, void *user)
{
    (void)user;
    static const uint32_t members[] = {0, 1, 2};
    zi_group *group = NULL;
    gpu_open(&own);
    const zi_group_desc desc = {
        .kernels = &own.kernels, .members = members, .size = 3, .name = "gather"};
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 1) {
        (void)zi_error_set(ZERO_ERR_IO, 5, __FILE__, __LINE__, "the disk is on fire");
        zero_world_abort(world);
        CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_COMM, "rank 1: the disk is on fire");
    } else {
        CHECK_FAILS(zi_nccl_transport.group_create(world, &desc, &group), ZERO_ERR_COMM,
                    "rank 1: the disk is on fire");
        CHECK_FAILS(world->comm->ops->check(world->comm), ZERO_ERR_COMM,
                    "rank 1: the disk is on fire");
    }
    gpu_close(&own);
    return ZERO_OK;
}

TEST(a_rank_that_gives_up_elsewhere)
{
    const uint64_t start_ns = zi_clock_ns();
    rig_run(&(rig){.ranks = 3, .deadline_ms = LONG_MS, .fn = give_up}, ZERO_OK);
    CHECK(in_time(start_ns, 10000));
    finish_failed();
}

/* An error that NCCL finds on one rank fails its world, and the others are told. */
static zero_status break_down(zero_world *world, void *user)
{
    (void)user;
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == 1) {
        fake_nccl_break(1, ncclRemoteError);
        AWAIT(world->comm->ops->check(world->comm) != ZERO_OK);
    }
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_COMM, "rank 1: ");
    CHECK_SAID("a fake error");
    if (zero_world_rank(world) == 1) {
        fake_nccl_break(-1, ncclSuccess);
    }
    return ZERO_OK;
}

TEST(an_error_that_nccl_reports)
{
    rig_run(&(rig){.ranks = 2, .deadline_ms = LONG_MS, .fn = break_down}, ZERO_OK);
    CHECK_EQ(fake_nccl_live(), 0);
}
