/* Owns the tests of steps that are announced: they are updated while backward runs, nobody sees it
 * before the step is decided, and they come to the bits of steps that were not announced, whether
 * what was presumed of them was right or not. */
#include "harness.h"

#include <time.h>

#include "core/clock.h"
#include "folders.h"
#include "sanitizer.h"
#include "toy.h"

#define DEADLINE_MS 60000
#define STEPS 8
#define BAD_STEP 5 /* its gradients are not finite */

/* All state on disk, in ranges far smaller than it; steps may be announced. */
static void let_overlap(toy_run *run)
{
    for (int role = ZERO_ROLE_MASTER; role < ZERO_SHARD_ROLES; role++) {
        run->options.tier[role] = ZERO_TIER_DISK;
    }
    run->options.disk_directories = rig_paths;
    run->options.disk_directory_count = 1;
    run->options.range_bytes = 4096;
    run->options.ring_depth = 3;
    run->options.overlap_step = 1;
    run->announced = true;
}

static void expect(zero_status status, zero_status wanted, const char *text)
{
    CHECK_EQ(status, wanted);
    if (strstr(zero_last_error()->message, text) == NULL) {
        TEST_FAIL("\"%s\" is not in: %s", text, zero_last_error()->message);
    }
}

/* ---- the same bits ---- */

static zero_status whole_step(toy_trainer *trainer, double *norm)
{
    zero_step_result result;
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    trainer->loss_scale = trainer->step == BAD_STEP ? (float)INFINITY : trainer->loss_scale;
    for (uint32_t m = 0; m < trainer->run->micro_steps; m++) {
        TOY_TRY(toy_micro(trainer, m + 1 == trainer->run->micro_steps));
    }
    TOY_TRY(toy_update(trainer));
    TOY_TRY(zero_step_wait(trainer->engine, &result));
    *norm = result.norm;
    return ZERO_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    const double left = *(const double *)a;
    const double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double middle_of(const double *norms)
{
    double finite[STEPS];
    uint32_t count = 0;
    for (int s = 0; s < STEPS; s++) {
        if (isfinite(norms[s])) {
            finite[count++] = norms[s];
        }
    }
    CHECK(count > 2);
    qsort(finite, count, sizeof finite[0], compare_doubles);
    return (finite[count / 2 - 1] + finite[count / 2]) / 2;
}

/* Takes the course, and counts the steps whose norm is above its limit. */
static zero_status take(zero_world *world, const toy_run *run, double *norms, toy_state *state,
                        zero_stats *stats)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, run, world));
    for (int s = 0; s < STEPS; s++) {
        TOY_TRY(whole_step(&trainer, &norms[s]));
    }
    TOY_TRY(toy_collect(&trainer, state));
    *stats = zero_engine_stats(trainer.engine);
    toy_close(&trainer);
    return ZERO_OK;
}

/* Once to learn the norms, once with a limit between them, and once like that but announced. */
static zero_status follow(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    double norms[STEPS];
    double announced_norms[STEPS];
    toy_state free_run;
    toy_state plain;
    toy_state announced;
    zero_stats stats;
    TOY_TRY(take(world, &run, norms, &free_run, &stats));
    run.params.max_norm = (float)middle_of(norms);
    TOY_TRY(take(world, &run, norms, &plain, &stats));
    let_overlap(&run);
    TOY_TRY(take(world, &run, announced_norms, &announced, &stats));
    uint64_t clipped = 0;
    for (int s = 0; s < STEPS; s++) {
        CHECK_SAME(norms[s], announced_norms[s]);
        clipped += isfinite(norms[s]) && norms[s] > (double)run.params.max_norm;
    }
    CHECK(clipped > 0 && clipped < STEPS - 1);
    CHECK_EQ(stats.steps_redone, clipped);
    CHECK_EQ(stats.steps_overlapped, STEPS - 1 - clipped);
    CHECK_EQ(stats.steps_skipped, 1);
    toy_state_same(run.model, &plain, &announced, "announced");
    CHECK(toy_state_moved(&free_run, &plain) != 0);
    toy_state_free(&free_run);
    toy_state_free(&plain);
    toy_state_free(&announced);
    return ZERO_OK;
}

static void follow_types(zero_dtype dtype, zero_dtype master, zero_dtype moments)
{
    toy_model model;
    rig_folders(1, 0);
    toy_model_mixed(&model, dtype);
    toy_run run = toy_run_init(&model);
    run.micro_steps = 2;
    run.options.master_dtype = master;
    run.options.moment_dtype = moments;
    run.options.disk_directories = rig_paths;
    run.options.disk_directory_count = 1;
    run.options.loss_scale = 8; /* and what moves it */
    run.options.loss_scale_window = 2;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        toy_sharding ways[16];
        const uint32_t count = toy_shardings(ranks, true, ways);
        for (uint32_t i = 0; i < count; i++) {
            if (!IN_SAMPLE(i + ranks)) {
                continue;
            }
            toy_sharding_apply(&ways[i], &run.options);
            run.options.bucket_bytes = i % 2 == 0 ? 1 : 0;
            run.options.tier[ZERO_ROLE_GRAD] = i / 2 % 2 == 0 ? ZERO_TIER_DISK : ZERO_TIER_DEVICE;
            CHECK_OK(zero_world_run(ranks, DEADLINE_MS, follow, &run));
        }
    }
    toy_model_close(&model);
}

TEST(same_bits_in_f32)
{
    follow_types(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_F32);
}

TEST(same_bits_in_bf16_with_masters)
{
    follow_types(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_BF16);
}

TEST(same_bits_in_bf16_rounded_by_chance)
{
    follow_types(ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_BF16);
}

/* ---- plain steps, and memory given back, between announced ones ---- */

static zero_status now_and_then(toy_trainer *trainer)
{
    const toy_run *given = trainer->run;
    toy_run run = *given;
    run.announced = given->announced && trainer->step % 3 != 1;
    trainer->run = &run;
    TOY_TRY(toy_step(trainer));
    trainer->run = given;
    if (given->announced && trainer->step % 3 == 0) {
        TOY_TRY(zero_engine_offload(trainer->engine,
                                    ZERO_ROLE_BIT(ZERO_ROLE_RING) | ZERO_ROLE_BIT(ZERO_ROLE_GRAD),
                                    ZERO_TIER_DISK));
        TOY_TRY(zero_engine_reload(trainer->engine));
    }
    return ZERO_OK;
}

/* A run, and how its steps are taken. */
typedef struct course {
    toy_run run;
    toy_step_fn step;
} course;

/* Once without disks and once with, where steps may be announced. */
static zero_status take_twice(zero_world *world, void *user)
{
    course c = *(const course *)user;
    toy_state plain;
    toy_state announced;
    TOY_TRY(toy_train_by(&c.run, world, c.step, &plain));
    let_overlap(&c.run);
    TOY_TRY(toy_train_by(&c.run, world, c.step, &announced));
    toy_state_same(c.run.model, &plain, &announced, "announced");
    toy_state_free(&plain);
    toy_state_free(&announced);
    return ZERO_OK;
}

TEST(some_steps_announced_and_the_ring_offloaded)
{
    toy_model model;
    rig_folders(1, 0);
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    course c = {toy_run_init(&model), now_and_then};
    c.run.steps = 8;
    c.run.params.max_norm = 1;
    CHECK_OK(zero_world_run(1, DEADLINE_MS, take_twice, &c));
    CHECK_OK(zero_world_run(2, DEADLINE_MS, take_twice, &c));
    toy_model_close(&model);
}

/* ---- it does overlap ---- */

#define UNITS 10
#define UNIT_ELEMENTS 2048 /* many ranges */

/* Until as many bytes were written to disk. */
static void await_writes(const toy_trainer *trainer, uint64_t bytes)
{
    const uint64_t end_ns = zi_clock_ns() + UINT64_C(20000000000);
    const struct timespec pause = {0, 1000000};
    while (zero_engine_stats(trainer->engine).disk_write_bytes < bytes) {
        CHECK(zi_clock_ns() < end_ns);
        (void)nanosleep(&pause, NULL);
    }
}

/* With a micro-step still open, what backward has left behind is on disk, but for what the ring has
 * at hand; and yet the parameters are what they were. */
static zero_status step_and_watch(toy_trainer *trainer)
{
    const uint64_t before = zero_engine_stats(trainer->engine).disk_write_bytes;
    const uint64_t unit_bytes = UINT64_C(12) * UNIT_ELEMENTS / trainer->ranks;
    TOY_TRY(toy_micro_begin(trainer, true));
    for (uint32_t u = 0; u < UNITS; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t done = 1; done < UNITS; done++) {
        TOY_TRY(toy_backward(trainer, UNITS - done));
        TOY_TRY(zero_world_barrier(trainer->world)); /* all ranks reduce what this one waits for */
        await_writes(trainer, before + (done - 1) * unit_bytes);
        TOY_TRY(toy_forward(trainer, UNITS - done)); /* compares what it reads */
    }
    TOY_TRY(toy_backward(trainer, 0));
    TOY_TRY(toy_micro_end(trainer));
    await_writes(trainer, before + (UNITS - 1) * unit_bytes);
    CHECK_EQ(zero_engine_stats(trainer->engine).steps, trainer->step);
    return toy_update(trainer);
}

static zero_status watch(zero_world *world, void *user)
{
    const toy_run *run = user;
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, run, world));
    for (uint32_t s = 0; s < 3; s++) {
        TOY_TRY(step_and_watch(&trainer));
        TOY_TRY(toy_evaluate(&trainer)); /* of all units the updated parameters */
    }
    const zero_stats stats = zero_engine_stats(trainer.engine);
    CHECK_EQ(stats.steps_overlapped, 3);
    CHECK_EQ(stats.steps_redone, 0);
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(updates_run_during_backward)
{
    toy_model model;
    rig_folders(1, 0);
    toy_model_equal(&model, UNITS, UNIT_ELEMENTS, ZERO_DTYPE_BF16);
    toy_run run = toy_run_init(&model);
    let_overlap(&run);
    run.options.bucket_bytes = 1;
    for (run.options.stage = ZERO_STAGE_0; run.options.stage <= ZERO_STAGE_3; run.options.stage++) {
        CHECK_OK(zero_world_run(1, DEADLINE_MS, watch, &run));
    }
    for (run.options.stage = ZERO_STAGE_1; run.options.stage <= ZERO_STAGE_3; run.options.stage++) {
        CHECK_OK(zero_world_run(2, DEADLINE_MS, watch, &run));
    }
    toy_model_close(&model);
}

/* ---- what is read ---- */

#define COUNTED 3

/* Wait for the step under way, all its reads included. */
static zero_status settle(const toy_trainer *trainer)
{
    return zero_shard_read(trainer->engine, 0, ZERO_ROLE_PARAM, 0, 0, NULL);
}

/* A run, and what some of its steps read from disk. */
typedef struct reading {
    toy_run run;
    uint64_t bytes; /* by rank 0 */
} reading;

static zero_status count_reads(zero_world *world, void *user)
{
    reading *r = user;
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, &r->run, world));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(settle(&trainer));
    const uint64_t before = zero_engine_stats(trainer.engine).disk_read_bytes;
    for (uint64_t s = 1; s <= COUNTED; s++) {
        zero_step_result result;
        TOY_TRY(toy_step(&trainer));
        TOY_TRY(zero_step_wait(trainer.engine, &result));
        CHECK_EQ(zero_engine_stats(trainer.engine).steps_overlapped, 2 + s);
    }
    TOY_TRY(settle(&trainer));
    const zero_stats after = zero_engine_stats(trainer.engine);
    if (trainer.rank == 0) {
        r->bytes = after.disk_read_bytes - before;
    }
    toy_close(&trainer);
    return ZERO_OK;
}

static uint64_t bytes_read(const toy_run *run, zero_tier grads, uint32_t ranks)
{
    reading r = {.run = *run};
    r.run.options.tier[ZERO_ROLE_GRAD] = grads;
    CHECK_OK(zero_world_run(ranks, DEADLINE_MS, count_reads, &r));
    return r.bytes;
}

/* A step that is kept needs no sums: the drafts have read them, on the way to disk. */
TEST(kept_steps_read_no_sums)
{
    toy_model model;
    rig_folders(1, 0);
    toy_model_equal(&model, UNITS, UNIT_ELEMENTS, ZERO_DTYPE_BF16);
    toy_run run = toy_run_init(&model);
    let_overlap(&run);
    run.options.bucket_bytes = 1;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        const uint64_t sums = UINT64_C(4) * UNITS * UNIT_ELEMENTS / ranks;
        run.micro_steps = 1;
        const uint64_t state = bytes_read(&run, ZERO_TIER_DEVICE, ranks);
        CHECK(state != 0);
        CHECK_EQ(bytes_read(&run, ZERO_TIER_DISK, ranks), state);
        run.micro_steps = 2; /* the second adds to what the first has stored */
        CHECK(bytes_read(&run, ZERO_TIER_DISK, ranks) <= state + COUNTED * sums);
    }
    toy_model_close(&model);
}

#ifndef TOY_CUDA

/* ---- nothing to overlap ---- */

static void by_slope(void *user, const zero_update_range *range)
{
    (void)user;
    for (size_t i = 0; i < range->count; i++) {
        range->param[i] -= 0.01f * range->grad[i];
    }
}

/* A callback without moments on fp32 parameters has no state at all, so nothing on disk. */
TEST(announced_without_any_state)
{
    toy_model model;
    rig_folders(1, 0);
    toy_model_mixed(&model, ZERO_DTYPE_F32);
    course c = {toy_run_init(&model), now_and_then};
    c.run.steps = 4;
    c.run.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
    c.run.options.update = by_slope;
    CHECK_OK(zero_world_run(2, DEADLINE_MS, take_twice, &c));
    toy_model_close(&model);
}

#endif

/* ---- a job that ends in the middle ---- */

static zero_status leave_early(zero_world *world, void *user)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, user, world));
    TOY_TRY(toy_step(&trainer));
    TOY_TRY(toy_micro_begin(&trainer, true));
    for (uint32_t u = 0; u < UNITS; u++) {
        TOY_TRY(toy_forward(&trainer, u));
    }
    for (uint32_t u = UNITS; u-- > UNITS / 2;) {
        TOY_TRY(toy_backward(&trainer, u));
    }
    toy_close(&trainer);
    return ZERO_OK;
}

TEST(destroy_in_the_middle_of_drafts)
{
    toy_model model;
    rig_folders(1, 0);
    toy_model_equal(&model, UNITS, UNIT_ELEMENTS, ZERO_DTYPE_BF16);
    toy_run run = toy_run_init(&model);
    let_overlap(&run);
    run.options.bucket_bytes = 1;
    expect(zero_world_run(1, DEADLINE_MS, leave_early, &run), ZERO_COMM, "middle of a step");
    toy_model_close(&model);
}

/* ---- what is refused ---- */

/* Every refusal leaves the engine as it was: the bits are those of a run without them. */
static zero_status step_with_refusals(toy_trainer *trainer)
{
    toy_run run = *trainer->run;
    const toy_run *given = trainer->run;
    zero_step_params other = run.params;
    if (!given->announced) {
        expect(zero_step_announce(trainer->engine, &run.params), ZERO_STATE, "overlap_step is 0");
        return toy_step(trainer);
    }
    other.adamw.lr = NAN;
    expect(zero_step_announce(trainer->engine, &other), ZERO_INVALID_ARGUMENT, "lr");
    other = run.params;
    other.adamw.lr = 0.5f;
    TOY_TRY(zero_step_announce(trainer->engine, &other)); /* replaced by the toy's own */
    TOY_TRY(toy_micro_begin(trainer, true));
    expect(zero_step_announce(trainer->engine, &run.params), ZERO_STATE, "has begun");
    for (uint32_t u = 0; u < run.model->unit_count; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = run.model->unit_count; u-- > 0;) {
        TOY_TRY(toy_backward(trainer, u));
    }
    TOY_TRY(toy_micro_end(trainer));
    expect(zero_step_announce(trainer->engine, &run.params), ZERO_STATE, "has begun");
    expect(zero_step(trainer->engine, &other, toy_stream()), ZERO_INVALID_ARGUMENT, "lr 0.5");
    other = run.params;
    other.max_norm = 3;
    expect(zero_step(trainer->engine, &other, toy_stream()), ZERO_INVALID_ARGUMENT,
           "max_norm 3 was announced as 1");
    return toy_update(trainer);
}

TEST(what_is_announced_is_what_is_taken)
{
    toy_model model;
    rig_folders(1, 0);
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    course c = {toy_run_init(&model), step_with_refusals};
    c.run.params.max_norm = 1;
    c.run.steps = 3;
    CHECK_OK(zero_world_run(1, DEADLINE_MS, take_twice, &c));
    CHECK_OK(zero_world_run(2, DEADLINE_MS, take_twice, &c));
    toy_model_close(&model);
}

TEST(options_that_exclude_it)
{
    toy_model model;
    toy_model_mixed(&model, ZERO_DTYPE_BF16);
    toy_run run = toy_run_init(&model);
    zero_plan *plan = NULL;
    let_overlap(&run);
    for (int role = ZERO_ROLE_MASTER; role < ZERO_SHARD_ROLES; role++) {
        zero_engine_options options = run.options;
        options.tier[role] = ZERO_TIER_HOST;
        expect(zero_plan_create(model.model, &options, 2, &plan), ZERO_INVALID_ARGUMENT,
               zero_role_name((zero_role)role));
    }
    zero_engine_options options = run.options;
    options.overlap_step = 2;
    expect(zero_plan_create(model.model, &options, 2, &plan), ZERO_INVALID_ARGUMENT,
           "overlap_step");
    toy_model_close(&model);
}

/* ---- what it costs ---- */

TEST(the_plan_counts_drafts)
{
    toy_model model;
    toy_model_equal(&model, UNITS, UNIT_ELEMENTS, ZERO_DTYPE_BF16);
    toy_run run = toy_run_init(&model);
    zero_plan *plan = NULL;
    let_overlap(&run);
    CHECK_OK(zero_plan_create(model.model, &run.options, 2, &plan));
    const zero_memory with = zero_plan_memory(plan);
    zero_plan_destroy(plan);
    run.options.overlap_step = 0;
    CHECK_OK(zero_plan_create(model.model, &run.options, 2, &plan));
    const zero_memory without = zero_plan_memory(plan);
    zero_plan_destroy(plan);
    CHECK_EQ(with.tier_bytes[ZERO_TIER_DISK], 2 * without.tier_bytes[ZERO_TIER_DISK]);
    CHECK_EQ(with.bytes[ZERO_ROLE_MASTER], 2 * without.bytes[ZERO_ROLE_MASTER]);
    CHECK_EQ(with.bytes[ZERO_ROLE_RING] - without.bytes[ZERO_ROLE_RING],
             2 * UNITS * UNIT_ELEMENTS / 2); /* a bf16 half of each unit */
    CHECK_EQ(with.bytes[ZERO_ROLE_PARAM], without.bytes[ZERO_ROLE_PARAM]);
    toy_model_close(&model);
}

TEST_MAIN()
