/* Owns the tests of what an engine runs on: a backend that no option names is injected, the bits
 * stay as they were, and what differs follows from its capabilities. The linker hands
 * zero_engine_create to injected.c (--wrap). tests/parity runs the recorded bits over two of these
 * backends too. */
#include "harness.h"

#include "injected.h"
#include "reads.h"
#include "toy.h"

/* A folder that is not there: whoever opens it fails. */
static const char *const nowhere[] = {"there/is/no/such/folder"};

static toy_run on_tier(toy_run run, zero_tier tier)
{
    toy_run_tiers(&run, ZERO_ROLE_PARAM, tier);
    toy_run_disk(&run, nowhere, 1);
    run.options.stage = ZERO_STAGE_3;
    run.params.max_norm = 0.5f;
    run.steps = 4;
    return run;
}

/* Trains on what is in use; the bytes and accesses counted are those of the statistics. */
static zero_status train(const toy_run *run, zero_world *world, toy_state *state)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, run, world));
    TOY_TRY(toy_train(&trainer));
    TOY_TRY(toy_collect(&trainer, state));
    if (zero_world_size(world) == 1) {
        const zero_stats stats = engine_stats(trainer.engine);
        CHECK_EQ(atomic_load(&injected_counted.read_bytes), stats.disk_read_bytes);
        CHECK_EQ(atomic_load(&injected_counted.write_bytes), stats.disk_write_bytes);
    }
    toy_close(&trainer);
    return zero_world_barrier(world);
}

/* ---- the same bits ---- */

typedef struct job {
    injected backend;
    zero_tier tier;
    zero_updater updater;
} job;

static zero_status compare(zero_world *world, void *user)
{
    const job *j = user;
    toy_state plain;
    toy_state state;
    const toy_run usual = on_tier(toy_run_mixed(ZERO_DTYPE_BF16), ZERO_TIER_DEVICE);
    toy_run run = on_tier(usual, j->tier);
    run.tuning.updater = j->updater;
    CHECK_OK(zero_world_barrier(world));
    injected_use(INJECTED_NONE);
    CHECK_OK(zero_world_barrier(world));
    TOY_TRY(toy_train_collect(&usual, world, &plain));
    CHECK_EQ(atomic_load(&injected_counted.groups), 0);
    CHECK_OK(zero_world_barrier(world));
    injected_use(j->backend);
    CHECK_OK(zero_world_barrier(world));
    TOY_TRY(train(&run, world, &state));
    toy_state_same(run.model, &plain, &state, "the injected backend");
    toy_state_free(&plain);
    toy_state_free(&state);
    return ZERO_OK;
}

static void check_job(job j, uint32_t ranks)
{
    const uint64_t updates = j.backend == INJECTED_OWN_MEMORY && j.updater == ZERO_UPDATER_CPU;
    memset(&injected_counted, 0, sizeof injected_counted);
    CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, compare, &j));
    /* One reduces and has the norm, one of a single rank has the updated parameters. */
    CHECK_EQ(atomic_load(&injected_counted.groups), 4 * ranks);
    CHECK_EQ(atomic_load(&injected_counted.device_bytes), 0);
    CHECK_EQ(atomic_load(&injected_counted.host_bytes), 0);
    CHECK(atomic_load(updates ? &injected_counted.host_updates : &injected_counted.updates) != 0);
    CHECK_EQ(atomic_load(&injected_counted.read_bytes) != 0, j.tier == ZERO_TIER_DISK);
}

TEST(a_counted_cpu)
{
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        check_job((job){.backend = INJECTED_COUNTED, .tier = ZERO_TIER_DEVICE}, ranks);
        check_job((job){.backend = INJECTED_COUNTED, .tier = ZERO_TIER_DISK}, ranks);
    }
    CHECK_EQ(atomic_load(&injected_counted.host_updates), 0);
}

TEST(a_device_with_memory_of_its_own)
{
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        check_job((job){.backend = INJECTED_OWN_MEMORY, .tier = ZERO_TIER_DEVICE}, ranks);
        for (zero_updater by = ZERO_UPDATER_GPU; by <= ZERO_UPDATER_CPU; by++) {
            check_job((job){INJECTED_OWN_MEMORY, ZERO_TIER_HOST, by}, ranks);
        }
        check_job((job){INJECTED_OWN_MEMORY, ZERO_TIER_DISK, ZERO_UPDATER_CPU}, ranks);
    }
}

/* ---- what follows from capabilities ---- */

TEST(refusals_follow_capabilities)
{
    toy_trainer trainer;
    toy_run run = on_tier(toy_run_equal(2, 1000, ZERO_DTYPE_F32), ZERO_TIER_DEVICE);
    run.tuning.updater = ZERO_UPDATER_CPU;
    injected_use(INJECTED_COUNTED);
    CHECK_FAILS(toy_open(&trainer, &run, NULL), ZERO_ERR_INVALID_ARGUMENT, "updater is 2");
    injected_use(INJECTED_OWN_MEMORY);
    CHECK_OK(toy_open(&trainer, &run, NULL));
    CHECK_FAILS(zero_capture_prepare(trainer.engine), ZERO_ERR_UNSUPPORTED, "the host has a part");
    toy_close(&trainer);
    run.tuning.updater = ZERO_UPDATER_DEFAULT;
    run.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
    run.options.update = (zero_update_fn)abort;
    CHECK_FAILS(toy_open(&trainer, &run, NULL), ZERO_ERR_UNSUPPORTED, "ZERO_OPTIMIZER_CALLBACK");
}

/* ---- a simulated device: a model that no machine holds ---- */

#define LAYERS 50
#define LAYER_ELEMENTS UINT64_C(20000000000)

static zero_status pass(zero_engine *engine, uint32_t unit, zero_pass which)
{
    TOY_TRY(zero_unit_acquire(engine, unit, which, zero_stream_host(), NULL));
    return zero_unit_release(engine, unit, zero_stream_host());
}

static zero_status take_steps(zero_engine *engine, uint32_t steps)
{
    for (uint32_t step = 0; step < steps; step++) {
        const zero_step_params params = zero_step_params_init();
        TOY_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
        for (uint32_t unit = 0; unit < LAYERS; unit++) {
            TOY_TRY(pass(engine, unit, ZERO_PASS_FORWARD));
        }
        for (uint32_t unit = LAYERS; unit-- > 0;) {
            TOY_TRY(pass(engine, unit, ZERO_PASS_BACKWARD));
        }
        TOY_TRY(zero_micro_end(engine));
        TOY_TRY(zero_step(engine, &params, zero_stream_host()));
    }
    return ZERO_OK;
}

/* A trillion parameters on one rank, with all shards in memory of the host: the plan's bytes are
 * taken, and the process has none of them. */
static zero_status simulate(zero_world *world, void *user)
{
    (void)user;
    zero_engine *engine = NULL;
    toy_run run = on_tier(toy_run_equal(LAYERS, LAYER_ELEMENTS, ZERO_DTYPE_BF16), ZERO_TIER_HOST);
    run.tuning.extent_bytes = UINT64_C(3) << 30; /* 2^28 elements are updated at once */
    injected_use(INJECTED_SIMULATED);
    const uint64_t resident = toy_device_bytes();
    TOY_TRY(zero_engine_create(world, run.model->model, TOY_OPTIONS(&run), &engine));
    const zero_memory planned = plan_memory(zero_engine_plan(engine));
    CHECK(planned.total_bytes > UINT64_C(16) * LAYERS * LAYER_ELEMENTS);
    CHECK_EQ(atomic_load(&injected_counted.device_bytes), planned.tier_bytes[ZERO_TIER_DEVICE]);
    CHECK(atomic_load(&injected_counted.host_bytes) >= planned.tier_bytes[ZERO_TIER_HOST]);
    TOY_TRY(take_steps(engine, 2));
    CHECK(toy_device_bytes() < resident + (UINT64_C(64) << 20));
    zero_engine_destroy(engine); /* once the steps are over */
    CHECK_EQ(atomic_load(&injected_counted.updates),
             2 * LAYERS * (LAYER_ELEMENTS / (1 << 28) + (LAYER_ELEMENTS % (1 << 28) != 0)));
    return ZERO_OK;
}

TEST(a_simulated_device)
{
    if (UNDER_SANITIZER) {
        SKIP("a sanitizer keeps books of memory that is only reserved");
    }
    CHECK_OK(zero_world_run(1, TOY_DEADLINE_MS, simulate, NULL));
    CHECK_EQ(atomic_load(&injected_counted.device_bytes), 0);
    CHECK_EQ(atomic_load(&injected_counted.host_bytes), 0);
}
