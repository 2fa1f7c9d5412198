/* engine on a checked device (toy_checked.c): forward and backward are put on the caller's stream
 * and the host waits for nothing, so that streams and events alone must order every read and write,
 * on every tier. And each wait is needed: without one there is a race. */
#include "harness.h"

#include "checked_device.h"
#include "comm/process_ranks.h"
#include "folders.h"
#include "toy_kernel.h"

#define DEADLINE_MS 60000
#define RANKS 2
#define STEPS 3

/* The tiers of shards, and other differences. */
typedef struct setup {
    zero_tier param;
    zero_tier grad;
    zero_tier state;
    bool predicted; /* every step is */
    bool sparse;    /* units are left out; what is released is poisoned */
    bool equal;     /* units are alike and take slots in turn */
} setup;

static const setup setups[] = {
    {ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, false, false, false},
    {ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, false, true, false},
    {ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, false, false, true},
    {ZERO_TIER_HOST, ZERO_TIER_HOST, ZERO_TIER_HOST, false, true, false},
    {ZERO_TIER_DEVICE, ZERO_TIER_DEVICE, ZERO_TIER_DISK, true, false, false},
    {ZERO_TIER_DISK, ZERO_TIER_DISK, ZERO_TIER_DISK, false, true, false},
    {ZERO_TIER_HOST, ZERO_TIER_DISK, ZERO_TIER_DISK, true, false, false},
};
#define SETUPS (sizeof setups / sizeof setups[0])

static const setup *here; /* of all ranks */

/* As experts do: each rank leaves out other units in every step, and some are left out by all. */
static bool uses(const toy_trainer *trainer, uint32_t unit)
{
    return !here->sparse ||
           ((unit + trainer->step + trainer->rank) % 3 != 0 && (unit + trainer->step) % 5 != 0);
}

static zero_status forward(toy_trainer *trainer, zero_pass pass)
{
    for (uint32_t u = 0; u < trainer->run->model->unit_count; u++) {
        TOY_TRY(uses(trainer, u) ? toy_kernel_forward(trainer, u, pass) : ZERO_OK);
    }
    return ZERO_OK;
}

static zero_status step(toy_trainer *trainer)
{
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(toy_micro_begin(trainer, m + 1 == trainer->run->micro_steps));
        TOY_TRY(forward(trainer, ZERO_PASS_FORWARD));
        for (uint32_t u = trainer->run->model->unit_count; u-- > 0;) {
            TOY_TRY(uses(trainer, u) ? toy_kernel_backward(trainer, u) : ZERO_OK);
        }
        TOY_TRY(toy_micro_end(trainer));
    }
    /* Readings that no gradient follows, right before the parameters change. */
    TOY_TRY(forward(trainer, ZERO_PASS_EVAL));
    return toy_update(trainer);
}

static zero_status train(zero_world *world, const toy_run *run, void *user)
{
    toy_trainer trainer;
    (void)user;
    TOY_TRY(toy_open(&trainer, run, world));
    for (uint32_t s = 0; s < run->steps; s++) {
        TOY_TRY(step(&trainer));
    }
    toy_close(&trainer);
    return ZERO_OK;
}

static toy_run run_of(const toy_model *model, const setup *at)
{
    toy_run run = toy_run_init(model);
    run.steps = STEPS;
    run.micro_steps = 2;
    run.predicted = at->predicted;
    run.options.loss_scale = 1;
    run.options.tier[ZERO_ROLE_PARAM] = at->param;
    run.options.tier[ZERO_ROLE_GRAD] = at->grad;
    for (int role = ZERO_ROLE_MASTER; role < ZI_SHARD_ROLES; role++) {
        run.options.tier[role] = at->state;
    }
    run.options.disk_directories = rig_paths;
    run.options.disk_directory_count = 1;
    run.tuning.bucket_bytes = 1;
    run.tuning.extent_bytes = 4096;
    run.tuning.poison_released = at->sparse;
    run.tuning.speculative_step = at->predicted;
    return run;
}

/* In every sharding. world NULL: by ranks that are threads. */
static void train_at(const setup *at, zero_world *world)
{
    toy_model model;
    here = at;
    if (here->equal) {
        toy_model_equal(&model, 6, 1000, ZERO_DTYPE_F32);
    } else {
        toy_model_mixed(&model, ZERO_DTYPE_BF16);
    }
    const toy_run run = run_of(&model, here);
    CHECK_OK(world != NULL ? toy_each_way(world, &run, train, NULL)
                           : toy_run_ways(RANKS, DEADLINE_MS, &run, train, NULL));
    toy_model_close(&model);
}

/* In every setup, until something is wrong. */
static void train_all(void)
{
    toy_samples_ways = false; /* some waits are needed in one way alone */
    for (size_t p = 0; p < SETUPS && race_faults() == 0; p++) {
        train_at(&setups[p], NULL);
    }
}

static const checked_wait needed[] = {
    {"the caller", "zero gather"},
    {"the caller", "zero reduce"},
    {"the caller", "zero step"},
    {"zero gather", "the caller"},
    {"zero gather", "zero gather"},
    {"zero gather", "zero step"},
    {"zero reduce", "the caller"},
    {"zero reduce", "zero reduce"},
    {"zero reduce", "zero step"},
    {"zero step", "the caller"},
    {"zero step", "zero gather"},
    {"zero step", "zero reduce"},
    {"zero step", "zero step"},
    /* State in host memory is copied to a device with memory of its own, and back. */
    {"zero state in", "zero step"},
    {"zero step", "zero state in"},
    {"zero state out", "zero step"},
    {"zero step", "zero state out"},
    {"zero state in", "zero state out"},
};
#define NEEDED_OF_OWN_MEMORY 5

static size_t needed_count(void)
{
    return sizeof needed / sizeof needed[0] -
           (getenv("CHECKED_OWN_MEMORY") != NULL ? 0 : NEEDED_OF_OWN_MEMORY);
}

static bool is_needed(const checked_wait *wait)
{
    for (size_t w = 0; w < needed_count(); w++) {
        if (memcmp(&needed[w], wait, sizeof *wait) == 0) {
            return true;
        }
    }
    return false;
}

TEST(all_is_in_order)
{
    checked_wait waits[CHECKED_WAITS_MAX];
    rig_folders(0, 1);
    train_all();
    CHECK(race_check());
    const uint32_t count = checked_waits(waits);
    for (uint32_t w = 0; w < count; w++) {
        /* The host waits for what it reads itself, and for what it gives back. */
        if (strcmp(waits[w].waiter, "the host") != 0 && !is_needed(&waits[w])) {
            TEST_FAIL("%s waits for %s, and no test says why", waits[w].waiter, waits[w].awaited);
        }
    }
}

TEST(each_wait_is_needed)
{
    rig_folders(0, 1);
    for (size_t w = 0; w < needed_count(); w++) {
        checked_start(&needed[w]);
        train_all();
        if (race_races() == 0) {
            TEST_FAIL("%s need not wait for %s", needed[w].waiter, needed[w].awaited);
        }
    }
    checked_start(NULL);
}

/* Each sees its own streams only, and what they do to its own memory. */
static void train_in_process(uint32_t rank, void *user)
{
    static const checked_wait unseen = {"zero reduce", "the caller"};
    zero_world *world = NULL;
    (void)rank;
    (void)user;
    CHECK_OK(zero_world_create_launched(DEADLINE_MS, &world));
    for (size_t p = 0; p < SETUPS; p++) {
        train_at(&setups[p], world);
    }
    CHECK(race_check());
    checked_start(&unseen);
    train_at(&setups[0], world);
    CHECK(race_races() != 0);
    zero_world_destroy(world);
    fflush(NULL);
    _exit(0); /* the folders are the test's */
}

REAL_TEST(ranks_are_processes)
{
    rig_folders(0, 1);
    run_ranks(RANKS, train_in_process, NULL);
}

/* ---- a unit that two of the caller's streams use, where what is released is poisoned ---- */

static zero_status run_nothing(void *argument)
{
    (void)argument;
    return ZERO_OK;
}

/* Acquire unit 0 on a stream and read its tensor there. */
static zero_status use_on(zero_engine *engine, zero_stream stream)
{
    zero_view view;
    TOY_TRY(zero_unit_acquire(engine, 0, ZERO_PASS_EVAL, stream, NULL));
    TOY_TRY(zero_tensor_data(engine, 0, &view));
    const race_range range = {view.data, view.count * sizeof(float), false};
    checked_caller_put(stream, run_nothing, &view, sizeof view, &range, 1);
    return ZERO_OK;
}

static zero_status use_on_two_streams(zero_world *world, void *user)
{
    toy_trainer trainer;
    const zero_stream streams[] = {checked_caller_open(), checked_caller_open()};
    TOY_TRY(toy_open(&trainer, user, world));
    for (int i = 0; i < 4; i++) {
        TOY_TRY(use_on(trainer.engine, streams[0]));
        TOY_TRY(use_on(trainer.engine, streams[1]));
        TOY_TRY(zero_unit_release(trainer.engine, 0, streams[0]));
        TOY_TRY(zero_unit_release(trainer.engine, 0, streams[1]));
    }
    checked_caller_wait(streams[1]);
    toy_close(&trainer);
    checked_caller_close(streams[0]);
    checked_caller_close(streams[1]);
    return ZERO_OK;
}

TEST(views_on_two_streams)
{
    static const checked_wait between = {"the caller", "the caller"};
    toy_model model;
    toy_model_equal(&model, 2, 1000, ZERO_DTYPE_F32);
    toy_run run = toy_run_init(&model);
    run.tuning.poison_released = 1;
    CHECK_OK(zero_world_run(1, DEADLINE_MS, use_on_two_streams, &run));
    CHECK(race_check());
    checked_start(&between);
    CHECK_OK(zero_world_run(1, DEADLINE_MS, use_on_two_streams, &run));
    CHECK(race_races() != 0);
    checked_start(NULL);
    toy_model_close(&model);
}
