/* engine over NCCL: memory is the plan to the byte, and what is asked of NCCL about memory and
 * communicators is in effect, said, or refused. */
#include "cuda_nccl_rig.h"
#include "folders.h"
#include "waits.h"

/* Of ranks of which one makes no window. */
#define WINDOW_DEADLINE_MS 500

/* ---- memory ---- */

static zero_status check_memory(zero_world *world, const toy_run *run)
{
    toy_trainer trainer;
    zero_plan *plan = NULL;
    uint64_t arenas = 0;
    TOY_TRY(zero_plan_create(run->model->model, TOY_OPTIONS(run), zero_world_size(world), &plan));
    TOY_TRY(zero_world_barrier(world));
    const uint64_t before = fake_cuda_calls("cudaMalloc");
    TOY_TRY(zero_world_barrier(world));
    TOY_TRY(toy_open(&trainer, run, world));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(zero_world_barrier(world));
    const uint64_t taken = fake_cuda_calls("cudaMalloc") - before;
    const zero_memory planned = plan_memory(plan);
    const zero_memory used = engine_memory(trainer.engine);
    CHECK_BYTES(&planned, &used, sizeof planned);
    CHECK_EQ(zero_plan_hash(plan), zero_plan_hash(zero_engine_plan(trainer.engine)));
    CHECK_EQ(engine_stats(trainer.engine).device_peak_bytes, planned.total_bytes);
    for (int role = 0; role < ZERO_ROLE_COUNT_MAX; role++) {
        arenas += planned.bytes[role] != 0;
    }
    /* So no group has taken memory of its own. */
    CHECK_EQ(taken, arenas * zero_world_size(world));
    CHECK(planned.bytes[ZERO_ROLE_SCRATCH] != 0);
    CHECK(planned.bytes[ZERO_ROLE_SCRATCH] <= (uint64_t)36 << 20);
    zero_plan_destroy(plan);
    TOY_TRY(zero_world_barrier(world));
    toy_close(&trainer);
    return ZERO_OK;
}

static zero_status check_kinds(zero_world *world, const toy_run *given, void *user)
{
    (void)user;
    toy_run run = *given;
    for (size_t k = 0; k < KINDS; k++) {
        ask(&run, kinds[k]);
        become_processes(world);
        TOY_TRY(check_memory(world, &run));
        TOY_TRY(become_threads(world));
    }
    return ZERO_OK;
}

static zero_status check_ways(zero_world *world, void *user)
{
    return toy_each_way(world, user, check_kinds, NULL);
}

TEST(measured_bytes_are_the_plan)
{
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_F16; dtype++) {
        toy_run run = toy_run_mixed((zero_dtype)dtype);
        start();
        run_both(RANKS, check_ways, &run);
        finish();
    }
}

/* The largest bucket goes in one round: one group of calls a rank, not pieces. */
static zero_status count_rounds(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_trainer trainer;
    become_processes(world);
    TOY_TRY(toy_open(&trainer, &run, world));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(zero_world_barrier(world));
    const uint64_t before = fake_nccl_calls(FAKE_NCCL_GROUP);
    TOY_TRY(zero_world_barrier(world));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(toy_wait(&trainer));
    TOY_TRY(zero_world_barrier(world));
    /* For every unit a scatter and a publish; one norm. */
    const uint64_t calls = fake_nccl_calls(FAKE_NCCL_GROUP) - before;
    CHECK_EQ(calls, zero_world_size(world) * (2 * run.model->unit_count + 1));
    TOY_TRY(zero_world_barrier(world));
    toy_close(&trainer);
    return become_threads(world);
}

TEST(scratch_holds_the_largest_batch)
{
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_BF16; dtype++) {
        toy_run run = toy_run_equal(3, 70000, (zero_dtype)dtype);
        run.options.stage = ZERO_STAGE_2;
        run.tuning.bucket_bytes = 1;
        start();
        CHECK_OK(fake_nccl_world_run(RANKS, DEADLINE_MS, count_rounds, &run));
        finish();
    }
}

/* ---- communicators ---- */

static zero_status create_over_nccl(zero_world *world, void *user)
{
    const toy_run *run = user;
    zero_engine *engine = NULL;
    become_processes(world);
    const zero_status status =
        zero_engine_create(world, run->model->model, TOY_OPTIONS(run), &engine);
    if (status == ZERO_OK) {
        TOY_TRY(zero_world_barrier(world));
        zero_engine_destroy(engine);
        return become_threads(world);
    }
    world->comm->one_process = true;
    return status;
}

/* Those of a rank, beside the base. */
static void check_communicators(zero_stage stage, uint32_t shard_group, bool overlaps,
                                uint64_t expected)
{
    toy_run run = toy_run_equal(3, 3000, ZERO_DTYPE_F32);
    run.options.stage = stage;
    run.options.shard_group = shard_group;
    if (overlaps) {
        toy_run_overlap(&run, rig_paths);
    }
    start();
    const uint64_t before = fake_nccl_calls(FAKE_NCCL_SPLIT);
    CHECK_OK(fake_nccl_world_run(RANKS, DEADLINE_MS, create_over_nccl, &run));
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_SPLIT) - before, RANKS * expected);
    finish();
}

/* The group that reduces over all ranks gathers the step's messages too, and the one that reduces
 * between those who share an optimizer the updated parameters, unless steps begin during backward:
 * without that there was one more for each. In hybrids of stage 3 no group reduces over all ranks
 * at once. */
TEST(communicators_of_an_engine)
{
    rig_folders(1, 0);
    check_communicators(ZERO_STAGE_0, 0, false, 1);
    check_communicators(ZERO_STAGE_1, 0, false, 1);
    check_communicators(ZERO_STAGE_1, 0, true, 2);
    check_communicators(ZERO_STAGE_2, 0, false, 1);
    check_communicators(ZERO_STAGE_2, 0, true, 2);
    check_communicators(ZERO_STAGE_3, 0, false, 2);
    check_communicators(ZERO_STAGE_3, 2, false, 4);
}

/* ---- what NCCL is told of communicators ---- */

static toy_run hinted_run(void)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.tuning.nccl_min_ctas = 2;
    run.tuning.nccl_max_ctas = 16;
    run.tuning.nccl_net_name = "Socket";
    return run;
}

TEST(configurations_are_handed_on)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    start();
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, create_over_nccl, &run));
    CHECK_EQ(fake_nccl_last_config().minCTAs, NCCL_CONFIG_UNDEF_INT);
    CHECK_EQ(fake_nccl_last_config().maxCTAs, NCCL_CONFIG_UNDEF_INT);
    CHECK(fake_nccl_last_config().netName == NCCL_CONFIG_UNDEF_PTR);
    run = hinted_run();
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, create_over_nccl, &run));
    CHECK_EQ(fake_nccl_last_config().minCTAs, 2);
    CHECK_EQ(fake_nccl_last_config().maxCTAs, 16);
    CHECK(strcmp(fake_nccl_last_config().netName, "Socket") == 0);
#if ZI_NCCL_HAS_TRAFFIC
    CHECK_EQ(fake_nccl_last_config().trafficClass, NCCL_CONFIG_UNDEF_INT);
    run.tuning.nccl_traffic_class = 106;
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, create_over_nccl, &run));
    CHECK_EQ(fake_nccl_last_config().trafficClass, 106);
#endif
    finish();
}

TEST(configurations_that_cannot_be)
{
    toy_run run = hinted_run();
    start();
    run.tuning.nccl_min_ctas = 17;
    CHECK_FAILS(fake_nccl_world_run(2, DEADLINE_MS, create_over_nccl, &run),
                ZERO_ERR_INVALID_ARGUMENT, "nccl_min_ctas is 17 and nccl_max_ctas 16");
    run.tuning.nccl_min_ctas = 0;
    run.tuning.nccl_traffic_class = 106;
    fake_nccl_set_version(22605);
    CHECK_FAILS(fake_nccl_world_run(2, DEADLINE_MS, create_over_nccl, &run), ZERO_ERR_UNSUPPORTED,
                "tuning.nccl_traffic_class needs NCCL 2.27.0");
    run.tuning.transport = ZERO_TRANSPORT_HOST;
    CHECK_FAILS(fake_nccl_world_run(2, DEADLINE_MS, create_over_nccl, &run),
                ZERO_ERR_INVALID_ARGUMENT, "nccl_max_ctas is given");
}

/* ---- what is said ---- */

typedef struct said {
    toy_run run;
    const char *gather;
    const char *reduce;
    bool processes;
} said;

static zero_status read_paths(zero_world *world, void *user)
{
    const said *expected = user;
    toy_trainer trainer;
    if (expected->processes) {
        become_processes(world);
    }
    TOY_TRY(toy_open(&trainer, &expected->run, world));
    const zero_path gather = engine_path(trainer.engine, ZERO_TRAFFIC_GATHER);
    const zero_path reduce = engine_path(trainer.engine, ZERO_TRAFFIC_REDUCE);
    if (strcmp(gather.text, expected->gather) != 0 || strcmp(reduce.text, expected->reduce) != 0) {
        TEST_FAIL("gather: \"%s\", not \"%s\"; reduce: \"%s\", not \"%s\"", gather.text,
                  expected->gather, reduce.text, expected->reduce);
    }
    CHECK_EQ(reduce.zero_cta, 0);
    CHECK_EQ(gather.zero_cta, expected->run.tuning.nccl_zero_cta);
    CHECK_EQ(gather.nccl_version != 0, gather.carrier == ZERO_CARRIER_NCCL);
    zero_path path = zero_path_init();
    CHECK_FAILS(zero_engine_path(trainer.engine, (zero_traffic)7, &path), ZERO_ERR_INVALID_ARGUMENT,
                "traffic 7");
    TOY_TRY(zero_world_barrier(world));
    toy_close(&trainer);
    return become_threads(world);
}

static void check_path(const toy_model *model, zero_stage stage, asked what, const char *gather,
                       const char *reduce)
{
    char texts[2][96];
    const char *const given[] = {gather, reduce};
    for (int i = 0; i < 2; i++) {
        char version[24] = "";
        const size_t named = strncmp(given[i], "nccl", 4) == 0 ? 4 : 0;
        if (named != 0) {
            (void)snprintf(version, sizeof version, "nccl %d.%d.%d", NCCL_MAJOR, NCCL_MINOR,
                           NCCL_PATCH);
        }
        (void)snprintf(texts[i], sizeof texts[i], "%s%s", version, given[i] + named);
    }
    said expected = {toy_run_init(model), texts[0], texts[1], true};
    expected.run.options.stage = stage;
    ask(&expected.run, what);
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, read_paths, &expected));
}

/* Check that a version older than windows that can be told from buffers makes buffers. */
static void check_old_version(const toy_model *model)
{
    said expected = {toy_run_init(model), "nccl 2.27.5, registered buffers",
                     "nccl 2.27.5, registered buffers", true};
    ask(&expected.run, kinds[1]);
    fake_nccl_set_version(22705);
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, read_paths, &expected));
    fake_nccl_set_version(NCCL_VERSION_CODE);
}

TEST(what_carries_an_engine)
{
    NEEDS_KINDS(3);
    toy_model model;
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    start();
    check_path(&model, ZERO_STAGE_3, kinds[0], "nccl", "nccl");
    set_windows(false);
    check_path(&model, ZERO_STAGE_3, kinds[1], "nccl, registered buffers",
               "nccl, registered buffers");
    set_windows(true);
    check_path(&model, ZERO_STAGE_3, kinds[1], "nccl, symmetric windows",
               "nccl, windows (2 of 4 symmetric)");
    check_path(&model, ZERO_STAGE_3, kinds[2], "nccl, symmetric windows, zero-CTA policy",
               "nccl, windows (2 of 4 symmetric)");
    check_path(&model, ZERO_STAGE_1, kinds[2], "nccl, symmetric windows, zero-CTA policy",
               "nccl, windows (2 of 4 symmetric)");
    check_path(&model, ZERO_STAGE_0, kinds[0], "none (one rank)", "nccl");
    check_old_version(&model);
    said expected = {toy_run_init(&model), "peer copies", "peer copies", false};
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, read_paths, &expected));
    expected.gather = expected.reduce = "none (one rank)";
    CHECK_OK(fake_nccl_world_run(1, DEADLINE_MS, read_paths, &expected));
    expected.gather = expected.reduce = "host memory";
    expected.processes = true;
    expected.run.tuning.transport = ZERO_TRANSPORT_HOST;
    CHECK_OK(fake_nccl_world_run(2, DEADLINE_MS, read_paths, &expected));
    finish();
    toy_model_close(&model);
}

/* ---- what is refused ---- */

typedef struct refusal {
    toy_run run;
    zero_status status;
    const char *words;
    bool processes;
} refusal;

static zero_status refuse(zero_world *world, void *user)
{
    const refusal *expected = user;
    zero_engine *engine = NULL;
    if (expected->processes) {
        become_processes(world);
    }
    const zero_status status =
        zero_engine_create(world, expected->run.model->model, TOY_OPTIONS(&expected->run), &engine);
    /* A rank that is slower may hear of it before it finds out. */
    CHECK(status == expected->status || (status == ZERO_ERR_COMM && expected->processes));
    CHECK(strstr(zero_last_error()->message, expected->words) != NULL);
    CHECK(engine == NULL);
    world->comm->one_process = true;
    return ZERO_OK;
}

/* A rank that was refused has told the others, or not: the world may end in either way. */
static void check_refused(const toy_model *model, uint32_t ranks, bool processes, asked what,
                          zero_status status, const char *words)
{
    refusal expected = {toy_run_init(model), status, words, processes};
    ask(&expected.run, what);
    const zero_status ended = fake_nccl_world_run(ranks, DEADLINE_MS, refuse, &expected);
    CHECK(ended == ZERO_OK || ended == status);
    finish();
}

TEST(what_nccl_cannot_do_is_refused)
{
    NEEDS_KINDS(3);
    toy_model model;
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    start();
    fake_nccl_set_version(22705);
    check_refused(&model, 2, true, kinds[2], ZERO_ERR_UNSUPPORTED,
                  "needs NCCL 2.28.0 or later, and 2.27.5 is loaded");
    fake_nccl_set_version(NCCL_VERSION_CODE);
    CHECK_EQ(fake_nccl_calls(FAKE_NCCL_INIT), 0);
    /* NCCL takes what it cannot do for success without a handle, or with one of something else. */
    fake_nccl_refuse_register(true);
    check_refused(&model, 2, true, kinds[1], ZERO_ERR_UNSUPPORTED, "registers no memory here");
    fake_nccl_refuse_register(false);
    for (int version = 22800; version <= 22900; version += 100) {
        fake_nccl_set_version(version);
        set_windows(false);
        check_refused(&model, 2, true, kinds[2], ZERO_ERR_UNSUPPORTED,
                      "makes no window of memory here");
        set_windows(true);
    }
    fake_nccl_set_version(NCCL_VERSION_CODE);
    check_refused(&model, 2, false, kinds[1], ZERO_ERR_INVALID_ARGUMENT, "a world of threads");
    check_refused(&model, 1, true, kinds[1], ZERO_ERR_INVALID_ARGUMENT, "a world of one rank");
    toy_model_close(&model);
}

/* ---- windows that only some ranks can have ---- */

static zero_status compare_with_peers(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_trainer trainer;
    toy_state peers;
    TOY_TRY(toy_train_by(&run, world, toy_step, &peers));
    ask(&run, kinds[1]);
    become_processes(world);
    TOY_TRY(toy_train_same(&run, world, toy_step, &peers, "over buffers"));
    TOY_TRY(toy_open(&trainer, &run, world));
    const zero_path path = engine_path(trainer.engine, ZERO_TRAFFIC_REDUCE);
    CHECK_EQ(path.windows, 0);
    CHECK(path.buffers != 0);
    TOY_TRY(zero_world_barrier(world));
    toy_close(&trainer);
    TOY_TRY(become_threads(world));
    toy_state_free(&peers);
    return ZERO_OK;
}

/* Then none has any: all use buffers, and come to the same bits. */
TEST(a_window_that_one_rank_does_not_get)
{
    NEEDS_KINDS(3);
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.steps = 2;
    run.flavour = TOY_INTEGER;
    run.options.loss_scale = 1;
    for (int rank = 0; rank < RANKS; rank += RANKS - 1) {
        start();
        fake_nccl_refuse_window(rank, true);
        const uint64_t before = fake_nccl_registered(FAKE_NCCL_WINDOW);
        CHECK_OK(fake_nccl_world_run(RANKS, DEADLINE_MS, compare_with_peers, &run));
        CHECK_EQ(fake_nccl_registered(FAKE_NCCL_WINDOW) - before, RANKS); /* to find out */
        check_refused(run.model, RANKS, true, kinds[2], ZERO_ERR_UNSUPPORTED,
                      "makes no window of memory here");
    }
}

/* NCCL waits for it on the others. Who is late first tells all. */
static zero_status wait_for_a_window(zero_world *world, void *user)
{
    const toy_run *run = user;
    zero_engine *engine = NULL;
    const uint64_t start_ns = zi_clock_ns();
    become_processes(world);
    const zero_status status =
        zero_engine_create(world, run->model->model, TOY_OPTIONS(run), &engine);
    CHECK(status == ZERO_ERR_TIMEOUT || status == ZERO_ERR_COMM);
    CHECK_SAID("set NCCL_WIN_ENABLE alike on all ranks: ");
    CHECK_SAID(" within 500 ms");
    CHECK(engine == NULL);
    CHECK(elapsed_ms(start_ns) + 1 >= WINDOW_DEADLINE_MS);
    CHECK(in_time(start_ns, WINDOW_DEADLINE_MS + 10000));
    world->comm->one_process = true;
    return status;
}

TEST(a_window_that_one_rank_does_not_ask_for)
{
    NEEDS_KINDS(3);
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    ask(&run, kinds[1]);
    for (int rank = 0; rank < RANKS; rank += RANKS - 1) {
        start();
        fake_nccl_refuse_window(rank, false);
        CHECK_FAILS(fake_nccl_world_run(RANKS, WINDOW_DEADLINE_MS, wait_for_a_window, &run),
                    ZERO_ERR_TIMEOUT, "NCCL_WIN_ENABLE");
        finish();
    }
}

/* The nth registration fails on one rank, in whichever group that is. */
typedef struct mishap {
    toy_run run;
    uint64_t nth;
    bool allocation;
} mishap;

static zero_status fail_on_one_rank(zero_world *world, void *user)
{
    const mishap *m = user;
    zero_engine *engine = NULL;
    const uint32_t rank = zero_world_rank(world);
    become_processes(world);
    TOY_TRY(zero_world_barrier(world));
    if (rank == 1 && m->allocation) {
        fake_cuda_fail("cudaMalloc", m->nth, cudaErrorMemoryAllocation);
    } else if (rank == 1) {
        fake_nccl_fail_register(1, m->nth, ncclSystemError);
    }
    TOY_TRY(zero_world_barrier(world));
    const zero_status status =
        zero_engine_create(world, m->run.model->model, TOY_OPTIONS(&m->run), &engine);
    CHECK(status != ZERO_OK);
    CHECK(engine == NULL);
    if (!m->allocation) {
        /* The watcher may look at the base before the call does. */
        CHECK(strstr(zero_last_error()->message, "communication: a fake error") != NULL ||
              strstr(zero_last_error()->message, "Register: a fake error") != NULL);
        CHECK(status == ZERO_ERR_COMM);
    }
    world->comm->one_process = true;
    return status;
}

TEST(a_registration_that_fails_on_one_rank)
{
    for (int possible = 0; possible < 2; possible++) {
        set_windows(possible == 1);
        for (uint64_t nth = 1; nth <= 7; nth++) {
            mishap m = {toy_run_mixed(ZERO_DTYPE_BF16), nth, false};
            ask(&m.run, kinds[1]);
            start();
            CHECK_FAILS(fake_nccl_world_run(2, DEADLINE_MS, fail_on_one_rank, &m), ZERO_ERR_COMM,
                        "a fake error");
            CHECK(fake_nccl_calls(FAKE_NCCL_ABORT) != 0);
            finish();
        }
    }
}

TEST(an_allocation_that_fails_on_one_rank)
{
    mishap m = {toy_run_mixed(ZERO_DTYPE_BF16), 1, true};
    for (; m.nth <= 12; m.nth += 3) {
        ask(&m.run, kinds[1]);
        start();
        /* The first is of a role that NCCL is to know. */
        CHECK_FAILS(fake_nccl_world_run(2, DEADLINE_MS, fail_on_one_rank, &m),
                    ZERO_ERR_OUT_OF_MEMORY, m.nth == 1 ? "ncclMemAlloc" : "lloc");
        finish();
    }
}
