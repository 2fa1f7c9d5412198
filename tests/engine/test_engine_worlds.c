/* Owns the tests of an engine and what it lives in: ranks that leave or die while others train,
 * creates that are refused, a world that is destroyed first, and a process that forks. */
#include "harness.h"
#include "reads.h"

#include <sys/mman.h>

#include "folders.h"
#include "launched.h"
#include "refusals.h"
#include "waits.h"

#define SOON_MS 10000
#define RANKS 3
#define GONE 2

/* ---- ranks that leave or die ---- */

typedef enum departure {
    LEAVES_BEFORE_CREATE,
    ENDS_ITS_LOOP, /* destroys its engine, returns well */
    IS_KILLED,
    IS_KILLED_IN_FORWARD
} departure;

typedef struct absence {
    toy_run run;
    departure how;
} absence;

static zero_status be_gone(zero_world *world, const absence *a)
{
    toy_trainer trainer;
    if (a->how == LEAVES_BEFORE_CREATE) {
        return ZERO_OK;
    }
    TOY_TRY(toy_open(&trainer, &a->run, world));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(toy_step(&trainer));
    if (a->how == IS_KILLED_IN_FORWARD) {
        TOY_TRY(toy_micro_begin(&trainer, true));
        TOY_TRY(toy_forward(&trainer, 0));
    }
    if (a->how != ENDS_ITS_LOOP) {
        (void)kill(getpid(), SIGKILL);
    }
    toy_close(&trainer);
    return ZERO_OK;
}

/* Train until it cannot go on. */
static void go_on(zero_world *world, const absence *a)
{
    toy_trainer trainer;
    uint64_t start_ns = zi_clock_ns();
    zero_status status = toy_open(&trainer, &a->run, world);
    const bool made = status == ZERO_OK;
    for (uint32_t s = 0; s < 20 && status == ZERO_OK; s++) {
        start_ns = zi_clock_ns();
        status = toy_step_or_skip(&trainer, false);
    }
    const char *said = zero_last_error()->message;
    const bool died = a->how == IS_KILLED || a->how == IS_KILLED_IN_FORWARD;
    if (status != ZERO_ERR_COMM || strstr(said, "rank 2") == NULL ||
        strstr(said, died ? "died" : "left") == NULL) {
        TEST_FAIL("rank %u: %s: %s", zero_world_rank(world), zero_status_name(status), said);
    }
    CHECK(in_time(start_ns, SOON_MS));
    if (made) {
        CHECK_FAILS(zero_micro_begin(trainer.engine, ZERO_MICRO_LAST), ZERO_ERR_POISONED, "rank 2");
        toy_close(&trainer);
    }
}

static zero_status take_part(zero_world *world, void *user)
{
    if (zero_world_rank(world) == GONE) {
        return be_gone(world, user);
    }
    go_on(world, user);
    return ZERO_OK;
}

static void lose(departure how, bool threads)
{
    static const zero_stage stages[] = {ZERO_STAGE_0, ZERO_STAGE_2, ZERO_STAGE_3};
    absence a = {.run = toy_run_mixed(ZERO_DTYPE_F32), .how = how};
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        a.run.options.stage = stages[i];
        if (threads) {
            /* Poisoned engines abort the world, unless none was made. */
            const zero_status status = zero_world_run(RANKS, TOY_DEADLINE_MS, take_part, &a);
            CHECK_EQ(status, how == LEAVES_BEFORE_CREATE ? ZERO_OK : ZERO_ERR_COMM);
            continue;
        }
        launched part = {take_part, &a};
        pid_t children[RANKS];
        for (uint32_t r = 0; r < RANKS; r++) {
            children[r] = start_rank(r, RANKS, launched_rank, &part);
        }
        const bool killed = how == IS_KILLED || how == IS_KILLED_IN_FORWARD;
        CHECK_EQ(end_of(children[0]), 0);
        CHECK_EQ(end_of(children[1]), 0);
        CHECK_EQ(end_of(children[GONE]), killed ? 128 + SIGKILL : 0);
        CHECK_EQ(names_left(), 0);
    }
}

REAL_TEST(a_rank_that_ends_its_loop_earlier)
{
    lose(ENDS_ITS_LOOP, true);
    lose(ENDS_ITS_LOOP, false);
}

REAL_TEST(a_rank_that_leaves_before_create)
{
    lose(LEAVES_BEFORE_CREATE, true);
    lose(LEAVES_BEFORE_CREATE, false);
}

REAL_TEST(a_process_that_is_killed_in_training)
{
    lose(IS_KILLED, false);
    lose(IS_KILLED_IN_FORWARD, false);
}

/* ---- creates that are refused ---- */

REAL_TEST(a_refused_create_leaves_the_world_good)
{
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_self(&world));
    CHECK_OK(case_refusals(world, NULL));
    zero_world_destroy(world);
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, case_refusals, NULL));
    CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, case_refusals, NULL));
    run_launched(RANKS, case_refusals, NULL);
}

/* ---- a world that is destroyed before its engine ---- */

static void destroy_in_wrong_order(zero_world *world)
{
    zero_model *model = refusal_model();
    zero_engine *engines[2] = {NULL, NULL};
    CHECK_OK(zero_engine_create(world, model, NULL, &engines[0]));
    CHECK_OK(zero_engine_create(world, model, NULL, &engines[1]));
    zero_world_destroy(world);
    CHECK_FAILS(zero_micro_begin(engines[0], 1), ZERO_ERR_STATE, "world was destroyed");
    CHECK_FAILS(zero_unit_acquire(engines[1], 0, ZERO_PASS_EVAL, zero_stream_host(), NULL),
                ZERO_ERR_STATE, "world was destroyed");
    CHECK_EQ(engine_stats(engines[1]).steps, 0);
    zero_engine_destroy(engines[1]);
    CHECK_FAILS(zero_step(engines[0], NULL, zero_stream_host()), ZERO_ERR_STATE,
                "destroy its engines");
    zero_engine_destroy(engines[0]);
    zero_model_destroy(model);
}

static void wrong_order_process(uint32_t rank, void *user)
{
    zero_world *world = NULL;
    (void)rank;
    (void)user;
    CHECK_OK(zero_world_create_launched(TOY_DEADLINE_MS, &world));
    destroy_in_wrong_order(world);
}

REAL_TEST(a_world_that_is_destroyed_before_its_engines)
{
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_self(&world));
    destroy_in_wrong_order(world);
    run_ranks(RANKS, wrong_order_process, NULL);
    CHECK_EQ(names_left(), 0);
}

static zero_engine *forgotten[2];

static zero_status forget(zero_world *world, void *user)
{
    zero_model *model = refusal_model();
    (void)user;
    TOY_TRY(zero_engine_create(world, model, NULL, &forgotten[zero_world_rank(world)]));
    zero_model_destroy(model);
    return ZERO_OK;
}

/* Threads whose function returns have no world any more. */
TEST(an_engine_that_outlives_its_rank)
{
    CHECK_FAILS(zero_world_run(2, TOY_DEADLINE_MS, forget, NULL), ZERO_ERR_STATE,
                "destroy the engine first");
    for (int i = 0; i < 2; i++) {
        CHECK_FAILS(zero_micro_begin(forgotten[i], ZERO_MICRO_LAST), ZERO_ERR_STATE,
                    "world was destroyed");
        zero_engine_destroy(forgotten[i]);
    }
}

/* ---- a process that forks ---- */

static zero_status train_refusal(zero_world *world, void *user)
{
    (void)user;
    return refusal_train(world);
}

/* Check what the child finds. It ends with 0, without the parent's exit handlers. */
static void be_a_child(zero_world *world, zero_engine *engine)
{
    zero_stats stats = engine_stats(engine);
    zero_world *own = NULL;
    uint32_t value = 0;
    alarm(20);
    CHECK_EQ(stats.steps, 1);
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_LAST), ZERO_ERR_STATE,
                "make them in the child");
    CHECK_FAILS(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL), ZERO_ERR_STATE,
                "child");
    CHECK_FAILS(zero_engine_fill(engine, toy_fill, NULL), ZERO_ERR_STATE, "child");
    CHECK_FAILS(zero_step(engine, NULL, toy_stream()), ZERO_ERR_STATE, "child");
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_STATE, "child");
    CHECK_FAILS(zero_world_gather(world, &value, &value, 4), ZERO_ERR_STATE, "child");
    CHECK_FAILS(zero_engine_create(world, NULL, NULL, &engine), ZERO_ERR_STATE, "child");
    CHECK_EQ(zero_world_size(world) != 0, 1);
    zero_world_abort(world);
    zero_engine_destroy(engine);
    zero_world_destroy(world);
    CHECK_OK(zero_world_create_self(&own));
    CHECK_OK(refusal_train(own));
    zero_world_destroy(own);
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, train_refusal, NULL));
    _exit(0);
}

/* A fork after the first step; the parameters at the end are those of steps without. */
static zero_status step_and_fork(toy_trainer *trainer)
{
    TOY_TRY(toy_step(trainer));
    if (trainer->step == 1) {
        CHECK_OK(toy_wait(trainer));
        fflush(NULL);
        const pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            be_a_child(trainer->world, trainer->engine);
        }
        CHECK_EQ(end_of(child), 0);
    }
    return ZERO_OK;
}

static zero_status fork_in_training(zero_world *world, void *user)
{
    return toy_compare(user, world, toy_step, step_and_fork, "after a fork");
}

REAL_TEST(a_forked_child_is_refused_and_harms_nobody)
{
#if UNDER_SANITIZER
    SKIP("sanitizers do not take a child well that was forked beside threads");
#endif
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    run.steps = 3;
    CHECK_OK(fork_in_training(NULL, &run));
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, fork_in_training, &run));
    run_launched(RANKS, fork_in_training, &run);
    CHECK_EQ(names_left(), 0);
    rig_folders(1, 0);
    toy_run_tiers(&run, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    run.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DISK;
    toy_run_disk(&run, rig_paths, 1);
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, fork_in_training, &run));
}
