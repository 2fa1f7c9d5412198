/* Owns the tests of steps that are predicted: they are updated while backward runs, which of them
 * are is the documented rule, and nobody sees it before the step is decided. That they come to the
 * bits of steps that were not predicted random programs show. */
#include "harness.h"
#include "reads.h"

#include <time.h>

#include "core/clock.h"
#include "folders.h"
#include "sanitizer.h"
#include "toy.h"

/* ---- which steps are updated during backward ---- */

#define BEHIND 4     /* steps after which a step's outcome counts */
#define REMEMBERED 8 /* outcomes that say whether a step is speculative */

typedef enum outcome { KEPT, CLIPPED, SKIPPED } outcome;

/* The rule as it is documented, to hold the engine against. */
typedef struct rule {
    outcome outcomes[BEHIND]; /* of the last steps taken */
    bool unknown[BEHIND];     /* and not counted yet */
    bool begun;               /* the step under way */
    uint32_t turn;
    uint32_t count;
    bool clipped[REMEMBERED]; /* the last ones that count, in a circle */
    uint64_t kept;
    uint64_t redone;
    uint64_t held_back;
} rule;

static void rule_learn(rule *r)
{
    if (r->unknown[r->turn] && r->outcomes[r->turn] != SKIPPED) {
        r->clipped[r->count++ % REMEMBERED] = r->outcomes[r->turn] == CLIPPED;
    }
    r->unknown[r->turn] = false;
}

/* The last micro-step of a predicted step begins. */
static void rule_begin(rule *r)
{
    uint32_t clipped = 0;
    rule_learn(r);
    const uint32_t known = r->count < REMEMBERED ? r->count : REMEMBERED;
    for (uint32_t i = 0; i < REMEMBERED; i++) {
        clipped += r->clipped[i];
    }
    r->begun = clipped == 0 || 2 * clipped < known;
    r->held_back += !r->begun;
}

/* The step is taken, and came to this. */
static void rule_step(rule *r, outcome came_to)
{
    rule_learn(r);
    r->unknown[r->turn] = true;
    r->outcomes[r->turn] = came_to;
    r->kept += r->begun && came_to == KEPT;
    r->redone += r->begun && came_to == CLIPPED;
    r->begun = false;
    r->turn = (r->turn + 1) % BEHIND;
}

/* Check that the engine counts what the rule says; its last step is over. */
static void rule_check(const rule *r, const toy_trainer *trainer)
{
    const zero_stats stats = engine_stats(trainer->engine);
    CHECK_EQ(stats.steps_speculative, r->kept);
    CHECK_EQ(stats.steps_redone, r->redone);
    CHECK_EQ(stats.steps_held_back, r->held_back);
}

/* ---- steps that are clipped all the time ---- */

#define LONG_STEPS 80

enum { ALWAYS, BARELY, FOR_A_WHILE, NOW_AND_THEN, SOME_PREDICTED, SOME_DISCARDED, WEATHERS };

/* How the steps of a long run go, by an index that all ranks know. */
typedef struct weather {
    toy_run run;
    uint32_t turn;
    float limits[LONG_STEPS];   /* max_norm of each; 0: nothing is clipped */
    uint64_t bytes[LONG_STEPS]; /* that rank 0 moved to and from disk in each */
} weather;

/* So small that the first units' gradients are beyond it. */
#define SMALL_NORM 1e-3f

static float limit_of(const weather *w, uint32_t step)
{
    const uint64_t draw = (step + 1) * UINT64_C(0x9e3779b97f4a7c15) * (w->turn + 1);
    switch (w->turn) {
    case ALWAYS:
        return SMALL_NORM;
    case BARELY: /* always, by so little that only the last unit's gradients show it */
        return w->limits[step];
    case FOR_A_WHILE: /* then never, then again */
        return step < 20 || step > 50 ? SMALL_NORM : 0;
    default:
        return (draw >> 40) % 8 < 3 ? SMALL_NORM : 0;
    }
}

/* Of a run that is not predicted: a little less than the norm of the step that is due. */
static zero_status set_limit(toy_trainer *trainer, weather *w, uint32_t step)
{
    double norm = 0;
    TOY_TRY(zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm));
    w->limits[step] = (float)norm * (1 - 1e-4f);
    return ZERO_OK;
}

/* One step, predicted unless it is one that is not, after one that is predicted and dropped. */
static zero_status weather_step(toy_trainer *trainer, weather *w, rule *r, uint32_t step)
{
    const toy_run *given = trainer->run;
    const bool predicted = given->predicted && (w->turn < SOME_PREDICTED || step % 7 != 3);
    toy_run run = *given;
    run.params.max_norm = limit_of(w, step);
    run.predicted = predicted;
    trainer->run = &run;
    if (w->turn == SOME_DISCARDED && step % 5 == 2) {
        TOY_TRY(toy_micro(trainer, true));
        TOY_TRY(zero_step_discard(trainer->engine));
        trainer->micro = 0;
        if (predicted) {
            rule_begin(r);
        }
        r->begun = false;
    }
    if (predicted) {
        rule_begin(r);
    }
    trainer->loss_scale = w->turn >= NOW_AND_THEN && step % 11 == 4 ? (float)INFINITY : 1;
    TOY_TRY(toy_micro(trainer, true));
    if (w->turn == BARELY && !given->predicted) {
        TOY_TRY(set_limit(trainer, w, step));
        run.params.max_norm = limit_of(w, step);
    }
    TOY_TRY(toy_update(trainer));
    trainer->run = given;
    if (step % 3 == 0) { /* a wait for an outcome changes nothing */
        TOY_TRY(toy_wait(trainer));
        CHECK_EQ(trainer->result.clip<1, limit_of(w, step)> 0 && !trainer->result.skipped);
    }
    rule_step(r, isinf(trainer->loss_scale) ? SKIPPED : limit_of(w, step) > 0 ? CLIPPED : KEPT);
    return ZERO_OK;
}

/* Wait for the step under way, all its moves included. */
static zero_status settle(const toy_trainer *trainer)
{
    TOY_TRY(zero_shard_read(trainer->engine, 0, ZERO_ROLE_PARAM, 0, 0, NULL));
    return zero_shard_read(trainer->engine, 0, ZERO_ROLE_MASTER, 0, 0, NULL);
}

static zero_status sail(zero_world *world, weather *w, toy_state *state)
{
    toy_trainer trainer;
    rule r = {0};
    uint64_t moved = 0;
    TOY_TRY(toy_open(&trainer, &w->run, world));
    for (uint32_t s = 0; s < LONG_STEPS; s++) {
        TOY_TRY(weather_step(&trainer, w, &r, s));
        TOY_TRY(settle(&trainer));
        rule_check(&r, &trainer);
        const zero_stats stats = engine_stats(trainer.engine);
        w->bytes[s] = stats.disk_read_bytes + stats.disk_write_bytes - moved;
        moved += w->bytes[s];
    }
    TOY_TRY(toy_collect(&trainer, state));
    toy_close(&trainer);
    return ZERO_OK;
}

/* Not predicted and predicted: the same bits. Of steps that are always clipped only those may move
 * their state twice that are clipped by little and come before the engine has noticed. */
static zero_status sail_twice(zero_world *world, void *user)
{
    weather plain = *(const weather *)user;
    plain.run.predicted = false;
    toy_state left;
    toy_state right;
    TOY_TRY(sail(world, &plain, &left));
    weather predicted = plain;
    predicted.run.predicted = true;
    TOY_TRY(sail(world, &predicted, &right));
    toy_state_same(plain.run.model, &left, &right, "predicted");
    for (uint32_t s = 0; s < LONG_STEPS && plain.turn <= BARELY; s++) {
        /* Bytes that are still in the I/O window are not read again, and how many these are depends
         * on the disk. */
        const uint64_t ring = UINT64_C(3) * 4096;
        const uint64_t times = plain.turn == BARELY && s < BEHIND ? 2 : 1;
        CHECK(predicted.bytes[s] <= times * plain.bytes[s] + ring);
    }
    toy_state_free(&left);
    toy_state_free(&right);
    return ZERO_OK;
}

TEST(steps_that_are_clipped_do_not_move_their_state_twice)
{
    rig_folders(1, 0);
    weather w = {.run = toy_run_wide(ZERO_DTYPE_BF16)};
    toy_run_overlap(&w.run, rig_paths);
    for (w.turn = 0; w.turn < WEATHERS; w.turn++) {
        for (uint32_t ranks = 1; ranks <= 2; ranks++) {
            if (IN_SAMPLE(w.turn + ranks)) {
                CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, sail_twice, &w));
            }
        }
    }
}

/* ---- plain steps, and memory given back, between speculative ones ---- */

static zero_status now_and_then(toy_trainer *trainer)
{
    const toy_run *given = trainer->run;
    toy_run run = *given;
    run.predicted = given->predicted && trainer->step % 3 != 1;
    trainer->run = &run;
    TOY_TRY(toy_step(trainer));
    trainer->run = given;
    if (given->predicted && trainer->step % 3 == 0) {
        TOY_TRY(zero_engine_evict(
            trainer->engine, ZERO_ROLE_BIT(ZERO_ROLE_IO_WINDOW) | ZERO_ROLE_BIT(ZERO_ROLE_GRAD),
            ZERO_TIER_DISK));
        TOY_TRY(zero_engine_restore(trainer->engine));
    }
    return ZERO_OK;
}

/* A run, and how its steps are taken. */
typedef struct course {
    toy_run run;
    toy_step_fn step;
} course;

/* Once without disks and once with, where steps may be predicted. */
static zero_status take_twice(zero_world *world, void *user)
{
    course c = *(const course *)user;
    toy_state plain;
    TOY_TRY(toy_train_by(&c.run, world, c.step, &plain));
    toy_run_overlap(&c.run, rig_paths);
    TOY_TRY(toy_train_same(&c.run, world, c.step, &plain, "predicted"));
    toy_state_free(&plain);
    return ZERO_OK;
}

TEST(some_steps_predicted_and_the_ring_offloaded)
{
    rig_folders(1, 0);
    course c = {toy_run_mixed(ZERO_DTYPE_BF16), now_and_then};
    c.run.steps = 8;
    c.run.params.max_norm = 1;
    CHECK_OK(zero_world_run(1, TOY_DEADLINE_MS, take_twice, &c));
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, take_twice, &c));
}

/* ---- it does overlap ---- */

#define UNITS 10
#define UNIT_ELEMENTS 2048 /* many ranges */
/* The last unit's gradients have a larger norm, those of all others together a smaller one. */
#define LAST_NORM 1000.0f

static toy_run long_run(void)
{
    toy_run run = toy_run_equal(UNITS, UNIT_ELEMENTS, ZERO_DTYPE_BF16);
    rig_folders(1, 0);
    toy_run_overlap(&run, rig_paths);
    run.tuning.bucket_bytes = 1;
    return run;
}

/* Until as many bytes were written to disk. */
static void await_writes(const toy_trainer *trainer, uint64_t bytes)
{
    const uint64_t end_ns = zi_clock_ns() + UINT64_C(20000000000);
    const struct timespec pause = {0, 1000000};
    while (engine_stats(trainer->engine).disk_write_bytes < bytes) {
        CHECK(zi_clock_ns() < end_ns);
        (void)nanosleep(&pause, NULL);
    }
}

/* With a micro-step still open, what backward has left behind is on disk, but for what the I/O
 * window has at hand; and yet the parameters are what they were. */
static zero_status step_and_watch(toy_trainer *trainer)
{
    const uint64_t before = engine_stats(trainer->engine).disk_write_bytes;
    const uint64_t unit_bytes =
        trainer->run->predicted ? UINT64_C(12) * UNIT_ELEMENTS / trainer->ranks : 0;
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
    trainer->loss_scale = trainer->run->params.max_norm > 0 ? 2 * LAST_NORM : 1;
    TOY_TRY(toy_backward(trainer, 0));
    trainer->loss_scale = 1;
    TOY_TRY(toy_micro_end(trainer));
    await_writes(trainer, before + (UNITS - 1) * unit_bytes);
    CHECK_EQ(engine_stats(trainer->engine).steps, trainer->step);
    return toy_update(trainer);
}

static zero_status clipped_step(toy_trainer *trainer)
{
    TOY_TRY(step_and_watch(trainer));
    TOY_TRY(toy_wait(trainer));
    const zero_stats stats = engine_stats(trainer->engine);
    CHECK_EQ(stats.steps_speculative, 0);
    CHECK_EQ(stats.steps_redone, trainer->run->predicted ? stats.steps : 0);
    return ZERO_OK;
}

static zero_status clip_twice(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_state plain;
    run.predicted = false;
    TOY_TRY(toy_train_by(&run, world, clipped_step, &plain));
    run.predicted = true;
    TOY_TRY(toy_train_same(&run, world, clipped_step, &plain, "redone"));
    toy_state_free(&plain);
    return ZERO_OK;
}

TEST(steps_that_the_last_gradient_clips_are_redone)
{
    toy_run run = long_run();
    run.params.max_norm = LAST_NORM;
    run.steps = 3;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, clip_twice, &run));
    }
}

static zero_status watch(toy_trainer *trainer)
{
    for (uint32_t s = 0; s < 3; s++) {
        TOY_TRY(step_and_watch(trainer));
        TOY_TRY(toy_evaluate(trainer)); /* of all units the updated parameters */
    }
    const zero_stats stats = engine_stats(trainer->engine);
    CHECK_EQ(stats.steps_speculative, 3);
    CHECK_EQ(stats.steps_redone, 0);
    return ZERO_OK;
}

TEST(updates_run_during_backward)
{
    toy_run run = long_run();
    for (run.options.stage = ZERO_STAGE_0; run.options.stage <= ZERO_STAGE_3; run.options.stage++) {
        CHECK_OK(toy_on_ranks(1, &run, watch, NULL));
    }
    for (run.options.stage = ZERO_STAGE_1; run.options.stage <= ZERO_STAGE_3; run.options.stage++) {
        CHECK_OK(toy_on_ranks(2, &run, watch, NULL));
    }
}

/* ---- what is read ---- */

#define COUNTED 3

/* A run, and what some of its steps read from disk. */
typedef struct reading {
    toy_run run;
    uint64_t bytes; /* by rank 0 */
    uint64_t sums;  /* of gradients on disk */
} reading;

static zero_status count_reads(toy_trainer *trainer)
{
    reading *r = trainer->user;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(settle(trainer));
    const uint64_t before = engine_stats(trainer->engine).disk_read_bytes;
    for (uint64_t s = 1; s <= COUNTED; s++) {
        TOY_TRY(toy_step_or_skip(trainer, false));
        CHECK_EQ(engine_stats(trainer->engine).steps_speculative, 2 + s);
    }
    TOY_TRY(settle(trainer));
    const zero_stats after = engine_stats(trainer->engine);
    if (trainer->rank == 0) {
        r->bytes = after.disk_read_bytes - before;
        r->sums = plan_memory(zero_engine_plan(trainer->engine)).bytes[ZERO_ROLE_GRAD];
    }
    return ZERO_OK;
}

static reading read_with(const toy_run *run, zero_tier grads, uint32_t ranks)
{
    reading r = {.run = *run};
    r.run.options.tier[ZERO_ROLE_GRAD] = grads;
    CHECK_OK(toy_on_ranks(ranks, &r.run, count_reads, &r));
    return r;
}

/* A step that is kept reads sums once at most where the window has slots for them and the
 * reductions: for speculative updates, or for those that had not begun when the step was due. What
 * is read ahead may have to be read again. */
TEST(kept_steps_read_sums_once)
{
    toy_run run = long_run();
    const uint64_t ahead = COUNTED * UINT64_C(3) * 4096;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        run.micro_steps = 1;
        const uint64_t state = read_with(&run, ZERO_TIER_DEVICE, ranks).bytes;
        CHECK(state != 0);
        reading r = read_with(&run, ZERO_TIER_DISK, ranks);
        CHECK(r.bytes <= state + COUNTED * r.sums + ahead);
        run.micro_steps = 2; /* the second adds to what the first has stored */
        r = read_with(&run, ZERO_TIER_DISK, ranks);
        CHECK(r.bytes <= state + 2 * COUNTED * r.sums + ahead);
    }
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
TEST(predicted_without_any_state)
{
    rig_folders(1, 0);
    course c = {toy_run_mixed(ZERO_DTYPE_F32), now_and_then};
    c.run.steps = 4;
    c.run.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
    c.run.options.update = by_slope;
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, take_twice, &c));
}

#endif

/* ---- a job that ends in the middle ---- */

static zero_status leave_early(toy_trainer *trainer)
{
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_micro_begin(trainer, true));
    for (uint32_t u = 0; u < UNITS; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = UNITS; u-- > UNITS / 2;) {
        TOY_TRY(toy_backward(trainer, u));
    }
    return ZERO_OK;
}

TEST(destroy_in_the_middle_of_a_speculative_step)
{
    toy_run run = long_run();
    CHECK_FAILS(toy_on_ranks(1, &run, leave_early, NULL), ZERO_ERR_COMM, "middle of a step");
}

/* ---- what is refused ---- */

/* Every refusal leaves the engine as it was: the bits are those of a run without them. */
static zero_status step_with_refusals(toy_trainer *trainer)
{
    toy_run run = *trainer->run;
    const toy_run *given = trainer->run;
    zero_step_params other = run.params;
    if (!given->predicted) {
        CHECK_FAILS(zero_step_predict(trainer->engine, &run.params), ZERO_ERR_STATE,
                    "speculative_step is 0");
        return toy_step(trainer);
    }
    other.hyper.adamw.lr = NAN;
    CHECK_FAILS(zero_step_predict(trainer->engine, &other), ZERO_ERR_INVALID_ARGUMENT, "lr");
    other = run.params;
    other.hyper.adamw.lr = 0.5f;
    TOY_TRY(zero_step_predict(trainer->engine, &other)); /* replaced by the toy's own */
    TOY_TRY(toy_micro_begin(trainer, true));
    CHECK_FAILS(zero_step_predict(trainer->engine, &run.params), ZERO_ERR_STATE,
                "last micro-step begins");
    TOY_TRY(toy_passes(trainer));
    TOY_TRY(toy_micro_end(trainer));
    CHECK_FAILS(zero_step_predict(trainer->engine, &run.params), ZERO_ERR_STATE,
                "last micro-step begins");
    CHECK_FAILS(zero_step(trainer->engine, &other, toy_stream()), ZERO_ERR_INVALID_ARGUMENT,
                "lr 0.5");
    other = run.params;
    other.max_norm = 3;
    CHECK_FAILS(zero_step(trainer->engine, &other, toy_stream()), ZERO_ERR_INVALID_ARGUMENT,
                "max_norm 3 was predicted as 1");
    return toy_update(trainer);
}

TEST(what_is_predicted_is_what_is_taken)
{
    rig_folders(1, 0);
    course c = {toy_run_mixed(ZERO_DTYPE_BF16), step_with_refusals};
    c.run.params.max_norm = 1;
    c.run.steps = 3;
    CHECK_OK(zero_world_run(1, TOY_DEADLINE_MS, take_twice, &c));
    CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, take_twice, &c));
}

TEST(options_that_exclude_it)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    zero_plan *plan = NULL;
    toy_run_overlap(&run, rig_paths);
    for (int role = ZERO_ROLE_MASTER; role < ZI_TIER_ROLES; role++) {
        zero_engine_options options = toy_options(&run);
        options.tier[role] = ZERO_TIER_HOST;
        CHECK_FAILS(zero_plan_create(run.model->model, &options, 2, &plan),
                    ZERO_ERR_INVALID_ARGUMENT, zero_role_name((zero_role)role));
    }
    run.tuning.speculative_step = 2;
    CHECK_FAILS(zero_plan_create(run.model->model, TOY_OPTIONS(&run), 2, &plan),
                ZERO_ERR_INVALID_ARGUMENT, "speculative_step");
}

/* ---- what it costs ---- */

TEST(the_plan_counts_speculative_updates)
{
    toy_run run = toy_run_equal(UNITS, UNIT_ELEMENTS, ZERO_DTYPE_BF16);
    toy_run_overlap(&run, rig_paths);
    const zero_memory with = toy_planned(&run, 2);
    run.tuning.speculative_step = 0;
    const zero_memory without = toy_planned(&run, 2);
    CHECK_EQ(with.tier_bytes[ZERO_TIER_DISK], 2 * without.tier_bytes[ZERO_TIER_DISK]);
    CHECK_EQ(with.bytes[ZERO_ROLE_MASTER], 2 * without.bytes[ZERO_ROLE_MASTER]);
    CHECK_EQ(with.bytes[ZERO_ROLE_IO_WINDOW] - without.bytes[ZERO_ROLE_IO_WINDOW],
             2 * UNITS * UNIT_ELEMENTS / 2); /* a bf16 half of each unit */
    CHECK_EQ(with.bytes[ZERO_ROLE_PARAM], without.bytes[ZERO_ROLE_PARAM]);
}
