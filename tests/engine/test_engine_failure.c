/* Owns the tests of failures: ranks that disagree, stop or sleep, and allocations, threads and
 * collectives that fail at every possible place. Always a status in time, and destroy works. */
#include "harness.h"

#include <dirent.h>
#include <stdatomic.h>
#include <time.h>

#include "core/clock.h"
#include "core/fault.h"
#include "toy.h"
#include "waits.h"

/* ---- a unit held by one rank alone ---- */

/* Rank 0 holds unit 1 through forward and backward, the others leave it out. */
static zero_status hold_in_step(toy_trainer *trainer)
{
    const uint32_t units = trainer->run->model->unit_count;
    const zero_stream host = zero_stream_host();
    TOY_TRY(toy_micro_begin(trainer, true));
    if (trainer->rank == 0) {
        TOY_TRY(zero_unit_acquire(trainer->engine, 1, ZERO_PASS_FORWARD, host, NULL));
    }
    for (uint32_t u = 2; u < units; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = units; u-- > 0;) {
        TOY_TRY(u == 1 ? ZERO_OK : toy_backward(trainer, u));
    }
    if (trainer->rank == 0) {
        TOY_TRY(zero_unit_release(trainer->engine, 1, host));
    }
    TOY_TRY(toy_micro_end(trainer));
    return toy_update(trainer);
}

static zero_status hold_alone(toy_trainer *trainer)
{
    const zero_status status = hold_in_step(trainer);
    return status;
}

/* Ranks are told the remedy if units must give up their slots; else it is legal. */
TEST(a_unit_that_one_rank_alone_holds)
{
    toy_run run = toy_run_equal(6, 200, ZERO_DTYPE_F32);
    run.tuning.param_slots = 3;
    CHECK_FAILS(toy_on_ranks(2, &run, hold_alone, NULL), ZERO_ERR_MISMATCH,
                "hold the same units (zero/unit.h)");
    run.tuning.param_slots = 6;
    CHECK_OK(toy_on_ranks(2, &run, hold_alone, NULL));
}

/* ---- ranks that disagree ---- */

typedef enum difference {
    NONE,
    UNIT_NAME,
    TENSOR_NAME,
    SHAPE,
    DTYPE,
    FLAGS,
    GROUP,
    ORDER,
    TIE,
    MORE_UNITS,
    MORE_TENSORS,
    STAGE,
    SLOTS,
    MASTER,
    SEED,
    BUCKET
} difference;

typedef struct disagreement {
    difference what;
    const char *text; /* that every rank's message names */
} disagreement;

static const disagreement disagreements[] = {
    {UNIT_NAME, "unit 1"},    {TENSOR_NAME, "tensor 1"},
    {SHAPE, "tensor 1"},      {DTYPE, "tensor 1"},
    {FLAGS, "tensor 1"},      {GROUP, "tensor 1"},
    {ORDER, "tensor 1"},      {TIE, "unit 2"},
    {MORE_UNITS, ""},         {MORE_TENSORS, ""},
    {STAGE, "stage"},         {SLOTS, "param_slots"},
    {MASTER, "master_dtype"}, {SEED, "seed"},
    {BUCKET, "bucket_bytes"},
};

static void add_tensor(zero_model *model, uint32_t unit, const char *name, bool odd,
                       difference what)
{
    uint32_t index = 0;
    const zero_tensor_desc desc = {
        .name = odd && what == TENSOR_NAME ? "other" : name,
        .dims = 1,
        .shape = {odd && what == SHAPE ? 101 : 100},
        .dtype = odd && what == DTYPE ? ZERO_DTYPE_F16 : ZERO_DTYPE_BF16,
        .flags = odd && what == FLAGS ? ZERO_TENSOR_NO_DECAY : ZERO_TENSOR_PLAIN,
        .group = odd && what == GROUP ? 1 : 0,
    };
    CHECK_OK(zero_tensor_add(model, unit, &desc, &index));
}

static zero_model *describe(difference what)
{
    zero_model *model = NULL;
    uint32_t index = 0;
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "first"}, &index, NULL));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = what == UNIT_NAME ? "odd" : "second"},
                           &index, NULL));
    CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "third"}, &index, NULL));
    add_tensor(model, 0, "a", false, what);
    add_tensor(model, 1, what == ORDER ? "c" : "b", true, what);
    add_tensor(model, 1, what == ORDER ? "b" : "c", false, what);
    if (what == TIE) {
        CHECK_OK(zero_tensor_tie(model, 2, 0));
    }
    if (what == MORE_UNITS) {
        CHECK_OK(zero_unit_add(model, &(zero_unit_desc){.name = "fourth"}, &index, NULL));
    }
    if (what == MORE_TENSORS) {
        add_tensor(model, 2, "d", false, what);
    }
    return model;
}

static zero_engine_options options_of(difference what, zero_tuning *tuning)
{
    zero_engine_options o = zero_engine_options_init();
    *tuning = zero_tuning_init();
    o.tuning = tuning;
    o.stage = what == STAGE ? ZERO_STAGE_2 : ZERO_STAGE_3;
    tuning->param_slots = what == SLOTS ? 5 : 0;
    o.master_dtype = what == MASTER ? ZERO_DTYPE_NONE : ZERO_DTYPE_DEFAULT;
    o.seed = what == SEED ? 9 : 0;
    tuning->bucket_bytes = what == BUCKET ? 1 : 0;
    return o;
}

/* The last rank differs. Afterwards the same world makes an engine that all agree on. */
static zero_status disagree(zero_world *world, void *user)
{
    const disagreement *d = user;
    const bool odd = zero_world_rank(world) + 1 == zero_world_size(world);
    const difference mine = odd ? d->what : NONE;
    zero_model *model = describe(mine);
    zero_tuning tuning;
    const zero_engine_options options = options_of(mine, &tuning);
    zero_engine *engine = NULL;
    CHECK_FAILS(zero_engine_create(world, model, &options, &engine), ZERO_ERR_MISMATCH, d->text);
    CHECK(engine == NULL);
    zero_model_destroy(model);
    model = describe(NONE);
    TOY_TRY(zero_engine_create(world, model, NULL, &engine));
    zero_engine_destroy(engine);
    zero_model_destroy(model);
    return ZERO_OK;
}

TEST(ranks_that_describe_different_models)
{
    for (size_t i = 0; i < sizeof disagreements / sizeof disagreements[0]; i++) {
        disagreement d = disagreements[i];
        printf("  difference %zu\n", i);
        CHECK_OK(zero_world_run(2, 5000, disagree, &d));
        CHECK_OK(zero_world_run(3, 5000, disagree, &d));
    }
}

static zero_status one_refuses(zero_world *world, void *user)
{
    (void)user;
    zero_model *model = describe(NONE);
    zero_engine_options o = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    zero_engine *engine = NULL;
    o.tuning = &tuning;
    tuning.param_slots = zero_world_rank(world) == 1 ? 65 : 0;
    CHECK_FAILS(zero_engine_create(world, model, &o, &engine), ZERO_ERR_INVALID_ARGUMENT,
                zero_world_rank(world) == 1 ? "tuning.param_slots 65 is"
                                            : "rank 1: tuning.param_slots 65 is");
    zero_model_destroy(model);
    return ZERO_OK;
}

TEST_CALL(rank_that_refuses_its_options, CHECK_OK(zero_world_run(3, 5000, one_refuses, NULL)));

/* ---- ranks that stop or sleep ---- */

#define SHORT_DEADLINE_MS 1500
#define SLACK_MS 3000

typedef enum absence { STOPS, SLEEPS, RETURNS_ERROR } absence;

typedef struct desertion {
    toy_run run;
    absence how;
    uint32_t after_steps; /* UINT32_MAX: before create */
    bool in_forward;      /* in the middle of one, instead of between steps */
    atomic_uint left;     /* ranks that have destroyed their engines */
} desertion;

/* The last rank: work for a while, then be gone. */
static zero_status desert(zero_world *world, desertion *d)
{
    toy_trainer trainer;
    const bool made = d->after_steps != UINT32_MAX;
    if (made) {
        TOY_TRY(toy_open(&trainer, &d->run, world));
        for (uint32_t s = 0; s < d->after_steps; s++) {
            TOY_TRY(toy_step(&trainer));
        }
        if (d->in_forward) {
            TOY_TRY(toy_micro_begin(&trainer, true));
            TOY_TRY(toy_forward(&trainer, 0));
        }
    }
    while (d->how == SLEEPS && atomic_load(&d->left) + 1 < zero_world_size(world)) {
        sleep_ms(5);
    }
    if (made) {
        toy_close(&trainer);
    }
    return d->how == RETURNS_ERROR ? ZERO_ERR_IO : ZERO_OK;
}

/* Any call after a failure repeats it. */
static void check_poisoned(zero_engine *engine, const char *first)
{
    zero_view view;
    uint64_t shard_first = 0;
    CHECK_FAILS(zero_micro_begin(engine, ZERO_MICRO_LAST), ZERO_ERR_POISONED, first);
    CHECK_FAILS(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL), ZERO_ERR_POISONED,
                first);
    CHECK_FAILS(zero_tensor_data(engine, 0, &view), ZERO_ERR_POISONED, first);
    CHECK_FAILS(zero_shard_view(engine, 0, ZERO_ROLE_PARAM, &shard_first, &view), ZERO_ERR_POISONED,
                first);
    const zero_step_params params = zero_step_params_init();
    CHECK_FAILS(zero_step(engine, &params, toy_stream()), ZERO_ERR_POISONED, first);
}

/* The others: train on until it cannot go on. */
static zero_status notice(zero_world *world, desertion *d)
{
    toy_trainer trainer;
    char message[sizeof zero_last_error()->message];
    uint64_t start = zi_clock_ns();
    zero_status status = toy_open(&trainer, &d->run, world);
    const bool made = status == ZERO_OK;
    for (uint32_t s = 0; s < 50 && status == ZERO_OK; s++) {
        start = zi_clock_ns();
        status = toy_step_or_skip(&trainer, false);
    }
    (void)snprintf(message, sizeof message, "%.200s", zero_last_error()->message);
    CHECK(status == ZERO_ERR_TIMEOUT || status == ZERO_ERR_COMM);
    CHECK(d->how == RETURNS_ERROR || strstr(message, "rank") != NULL);
    CHECK(in_time(start, SHORT_DEADLINE_MS + SLACK_MS));
    CHECK(!made || status != ZERO_ERR_TIMEOUT || strstr(message, "tuning.hang_directory") != NULL);
    if (made) {
        check_poisoned(trainer.engine, message);
        start = zi_clock_ns();
        toy_close(&trainer);
        CHECK(in_time(start, SLACK_MS));
    }
    atomic_fetch_add(&d->left, 1);
    return ZERO_OK;
}

static zero_status absent_rank(zero_world *world, void *user)
{
    desertion *d = user;
    return zero_world_rank(world) + 1 == zero_world_size(world) ? desert(world, d)
                                                                : notice(world, d);
}

static void try_absence(absence how, uint32_t after_steps, bool in_forward)
{
    static const zero_stage stages[] = {ZERO_STAGE_0, ZERO_STAGE_1, ZERO_STAGE_2, ZERO_STAGE_3};
    for (size_t s = 0; s < sizeof stages / sizeof stages[0]; s++) {
        desertion d = {.run = toy_run_mixed(ZERO_DTYPE_F32),
                       .how = how,
                       .after_steps = after_steps,
                       .in_forward = in_forward};
        d.run.options.stage = stages[s];
        const zero_status status = zero_world_run(3, SHORT_DEADLINE_MS, absent_rank, &d);
        /* Destroying an engine in the middle of a step is a failure of its own, and comes first. */
        if (how == RETURNS_ERROR && status != ZERO_ERR_IO &&
            !(in_forward && status == ZERO_ERR_COMM)) {
            TEST_FAIL("after %u steps, in forward %d, stage %d: %s: %s", after_steps, in_forward,
                      (int)stages[s] - 1, zero_status_name(status), zero_last_error()->message);
        }
        /* A rank that fails at once may keep another from ever starting. */
        CHECK(atomic_load(&d.left) == 2 || (how == RETURNS_ERROR && after_steps == UINT32_MAX));
    }
}

TEST(rank_that_returns_early)
{
    try_absence(STOPS, UINT32_MAX, false);
    try_absence(STOPS, 0, false);
    try_absence(STOPS, 2, false);
    try_absence(STOPS, 2, true);
}

TEST(rank_that_fails)
{
    try_absence(RETURNS_ERROR, UINT32_MAX, false);
    try_absence(RETURNS_ERROR, 2, false);
    try_absence(RETURNS_ERROR, 2, true);
}

TEST(rank_that_sleeps)
{
    try_absence(SLEEPS, UINT32_MAX, false);
    try_absence(SLEEPS, 2, false);
    try_absence(SLEEPS, 2, true);
}

/* ---- the n-th event fails ---- */

#define FAULT_DEADLINE_MS 60000
#define FAULTS_MAX 3000

/* Threads of this process now. */
static uint32_t thread_count(void)
{
    uint32_t count = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL) {
        return 1;
    }
    for (const struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks)) {
        count += entry->d_name[0] != '.';
    }
    (void)closedir(tasks);
    return count;
}

/* threads: what this process had before, a sanitizer's own among them. */
static void check_no_threads_left(uint32_t threads)
{
    /* A joined thread's entry may outlive the join by a moment. */
    for (int i = 0; i < 200 && thread_count() > threads; i++) {
        sleep_ms(1);
    }
    CHECK(thread_count() <= threads);
}

typedef struct fault_run {
    toy_run run;
    atomic_uint failures;
    atomic_uint timeouts;
} fault_run;

/* Threads of this process after a world that went well. */
static uint32_t threads_at_rest(uint32_t ranks, zero_rank_fn fn, const toy_run *run)
{
    fault_run f = {.run = *run};
    CHECK_OK(zero_world_run(ranks, FAULT_DEADLINE_MS, fn, &f));
    sleep_ms(50);
    return thread_count();
}

static zero_status create_only(zero_world *world, void *user)
{
    const fault_run *f = user;
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, &f->run, world));
    toy_close(&trainer);
    return ZERO_OK;
}

/* Three steps and an evaluation, which sees whatever was still under way. */
static zero_status run_until_fault(zero_world *world, void *user)
{
    fault_run *f = user;
    toy_trainer trainer;
    zero_status status = toy_open(&trainer, &f->run, world);
    const bool made = status == ZERO_OK;
    for (uint32_t s = 0; s < 3 && status == ZERO_OK; s++) {
        status = toy_step_or_skip(&trainer, false);
    }
    status = status == ZERO_OK ? toy_evaluate(&trainer) : status;
    if (status != ZERO_OK) {
        char message[sizeof zero_last_error()->message];
        (void)snprintf(message, sizeof message, "%.200s", zero_last_error()->message);
        CHECK(message[0] != 0);
        atomic_fetch_add(&f->failures, 1);
        atomic_fetch_add(&f->timeouts, status == ZERO_ERR_TIMEOUT);
        if (made) {
            check_poisoned(trainer.engine, message);
        }
    }
    if (made) {
        toy_close(&trainer);
    }
    return ZERO_OK;
}

/* The events that fail: every stride-th one of a kind while ranks do `fn`. */
typedef struct sweep {
    zi_fault_kind kind;
    zero_status expected; /* of the rank where it fails; a collective's ranks count their own */
    zero_rank_fn fn;
    uint32_t ranks;
    uint64_t stride;
} sweep;

/* The failing rank says what failed; its peers, who may be heard first, that they could not go on
 * without it, or that it refused what they did not. The first collectives make the world itself. */
static bool is_told(const sweep *of, zero_status status, const fault_run *f)
{
    const bool named =
        status == of->expected || status == ZERO_ERR_COMM || status == ZERO_ERR_MISMATCH;
    return of->kind == ZI_FAULT_COLLECTIVE
               ? atomic_load(&f->failures) != 0 || status == ZERO_ERR_COMM
               : named;
}

static void fail_every(const sweep *of, const toy_run *run)
{
    const uint32_t threads = threads_at_rest(of->ranks, of->fn, run);
    uint64_t nth = 1;
    for (; nth < FAULTS_MAX; nth += of->stride) {
        fault_run f = {.run = *run};
        const uint64_t start = zi_clock_ns();
        zi_fault_arm(of->kind, nth);
        const zero_status status = zero_world_run(of->ranks, FAULT_DEADLINE_MS, of->fn, &f);
        const bool hit = zi_fault_count(of->kind) >= nth;
        zi_fault_arm(of->kind, 0);
        if (!hit) {
            CHECK_OK(status);
            CHECK_EQ(atomic_load(&f.failures), 0);
            break;
        }
        if (!is_told(of, status, &f) || atomic_load(&f.timeouts) != 0 ||
            !in_time(start, FAULT_DEADLINE_MS / 2)) {
            TEST_FAIL("event %" PRIu64 ": %s, %u failures, %u of them timeouts, after %" PRIu64
                      " ms: %s",
                      nth, zero_status_name(status), atomic_load(&f.failures),
                      atomic_load(&f.timeouts), elapsed_ms(start), zero_last_error()->message);
        }
        check_no_threads_left(threads);
    }
    printf("  %" PRIu64 " events\n", nth - 1);
    CHECK(nth > 1 && nth < FAULTS_MAX);
}

TEST(every_allocation_of_create_may_fail)
{
    static const sweep allocations = {ZI_FAULT_ALLOC, ZERO_ERR_OUT_OF_MEMORY, create_only, 2, 1};
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    fail_every(&allocations, &run);
    run.options.stage = ZERO_STAGE_1;
    run.options.threads = 2;
    fail_every(&allocations, &run);
}

TEST(every_thread_of_create_may_fail)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    run.options.threads = 3;
    fail_every(&(sweep){ZI_FAULT_THREAD, ZERO_ERR_DEVICE, create_only, 2, 1}, &run);
}

TEST(every_allocation_of_a_plan_may_fail)
{
    const toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        zero_plan *plan = NULL;
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
        const zero_status status = zero_plan_create(run.model->model, NULL, 4, &plan);
        done = zi_fault_count(ZI_FAULT_ALLOC) < nth;
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        CHECK_EQ(status, done ? ZERO_OK : ZERO_ERR_OUT_OF_MEMORY);
        CHECK_EQ(plan != NULL, done);
        zero_plan_destroy(plan);
    }
}

static zero_status try_model(zero_model **model)
{
    TOY_TRY(zero_model_create(model));
    for (uint32_t u = 0; u < 40; u++) {
        char name[TOY_NAME_BYTES];
        uint32_t unit = 0;
        uint32_t tensor = 0;
        (void)snprintf(name, sizeof name, "unit%u", u);
        TOY_TRY(zero_unit_add(*model, &(zero_unit_desc){.name = name}, &unit, NULL));
        const zero_tensor_desc desc = {.name = name};
        TOY_TRY(zero_tensor_add(*model, unit, &desc, &tensor));
        if (u > 0) {
            TOY_TRY(zero_tensor_tie(*model, unit, 0));
        }
    }
    return ZERO_OK;
}

TEST(every_allocation_of_a_model_may_fail)
{
    bool done = false;
    for (uint64_t nth = 1; !done; nth++) {
        zero_model *model = NULL;
        zi_fault_arm(ZI_FAULT_ALLOC, nth);
        const zero_status status = try_model(&model);
        done = zi_fault_count(ZI_FAULT_ALLOC) < nth;
        zi_fault_arm(ZI_FAULT_ALLOC, 0);
        CHECK_EQ(status, done ? ZERO_OK : ZERO_ERR_OUT_OF_MEMORY);
        zero_model_destroy(model);
    }
}

TEST(every_collective_may_fail)
{
    toy_run run = toy_run_equal(3, 70, ZERO_DTYPE_F32);
    run.tuning.bucket_bytes = 1;
    for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
        run.options.stage = (zero_stage)stage;
        fail_every(&(sweep){ZI_FAULT_COLLECTIVE, ZERO_ERR_COMM, run_until_fault, 2, 1}, &run);
    }
}

TEST(every_collective_of_a_hybrid_may_fail)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.options.shard_group = 2;
    run.tuning.optimizer_group = 4;
    run.tuning.bucket_bytes = 1;
    fail_every(&(sweep){ZI_FAULT_COLLECTIVE, ZERO_ERR_COMM, run_until_fault, 4, 5}, &run);
}
