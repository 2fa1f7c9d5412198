/* Owns the tests of a step that is due: its norm told ahead is the step's own, and a step that is
 * dropped leaves nothing behind. */
#include "harness.h"
#include "reads.h"

#include "folders.h"
#include "sanitizer.h"
#include "toy.h"

#define STEPS 7
#define BAD_STEP 3 /* its gradients are not finite */

/* State, and sometimes gradients and parameters, on disk in small ranges; the `turn` picks which.
 * Odd ones predict their steps. */
static void let_disk(toy_run *run, uint32_t turn)
{
    for (int role = ZERO_ROLE_PARAM; role < ZERO_SHARD_ROLES; role++) {
        const bool state = role >= ZERO_ROLE_MASTER;
        const bool far = (turn / 2 % 2 != 0 && role == ZERO_ROLE_GRAD) ||
                         (turn / 4 % 2 != 0 && role == ZERO_ROLE_PARAM);
        run->options.tier[role] = state || far ? ZERO_TIER_DISK : ZERO_TIER_DEVICE;
    }
    toy_run_disk(run, rig_paths, 1);
    run->tuning.speculative_step = turn % 2 != 0;
    run->predicted = turn % 2 != 0;
}

/* ---- a way to take steps ---- */

typedef struct course course;
typedef zero_status (*extra_fn)(toy_trainer *trainer, const course *c);

struct course {
    toy_run run;
    extra_fn extra; /* before each step; NULL: none */
    bool asks;      /* for the norm, twice a step */
    double norms[STEPS];
    float scales[STEPS];
};

static zero_status ask(const toy_trainer *trainer, double *norm)
{
    double again = 0;
    TOY_TRY(zero_grad_norm(trainer->engine, NULL, toy_stream(), norm));
    TOY_TRY(zero_grad_norm(trainer->engine, NULL, toy_stream(), &again));
    CHECK_BYTES(norm, &again, sizeof again);
    return ZERO_OK;
}

static zero_status whole_step(toy_trainer *trainer, const course *c)
{
    const zero_step_result *result = &trainer->result;
    double norm = 0;
    TOY_TRY(zero_loss_scale(trainer->engine, &trainer->loss_scale));
    trainer->loss_scale = trainer->step == BAD_STEP ? (float)INFINITY : trainer->loss_scale;
    TOY_TRY(toy_micros(trainer));
    if (c->asks) {
        TOY_TRY(ask(trainer, &norm));
    }
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    if (c->asks && isfinite(result->norm)) { /* what is in a NaN is nobody's business */
        CHECK_BYTES(&norm, &result->norm, sizeof norm);
    }
    CHECK(isfinite(norm) || !isfinite(result->norm));
    return ZERO_OK;
}

static zero_status take(zero_world *world, course *c, toy_state *state)
{
    toy_trainer trainer;
    const zero_step_result *result = &trainer.result;
    TOY_TRY(toy_open(&trainer, &c->run, world));
    for (int s = 0; s < STEPS; s++) {
        if (c->extra != NULL) {
            TOY_TRY(c->extra(&trainer, c));
        }
        TOY_TRY(whole_step(&trainer, c));
        CHECK_EQ(result->step, s + 1);
        CHECK_EQ(result->updates, s + (s < BAD_STEP));
        CHECK_EQ(result->skipped, s == BAD_STEP);
        c->norms[s] = isfinite(result->norm) ? result->norm : 0;
        c->scales[s] = result->loss_scale;
    }
    const zero_stats stats = engine_stats(trainer.engine);
    CHECK_EQ(stats.steps, STEPS);
    CHECK_EQ(stats.steps_skipped, 1);
    CHECK_EQ(stats.steps_discarded, c->extra != NULL ? STEPS : 0);
    TOY_TRY(toy_collect(&trainer, state));
    toy_close(&trainer);
    return ZERO_OK;
}

/* The run as it is, and with something more in each step: to the same bits. */
static zero_status compare(zero_world *world, void *user)
{
    const course *given = user;
    course plain = *given;
    course other = *given;
    toy_state left;
    toy_state right;
    plain.extra = NULL;
    plain.asks = false;
    TOY_TRY(take(world, &plain, &left));
    TOY_TRY(take(world, &other, &right));
    toy_state_same(given->run.model, &left, &right, "a run with more in its steps");
    CHECK_BYTES(plain.norms, other.norms, sizeof plain.norms);
    CHECK_BYTES(plain.scales, other.scales, sizeof plain.scales);
    toy_state_free(&left);
    toy_state_free(&right);
    return ZERO_OK;
}

static void over_ways(course *c, zero_dtype dtype, zero_dtype master)
{
    uint32_t turn = 0;
    rig_folders(1, 0);
    c->run = toy_run_mixed(dtype);
    c->run.options.master_dtype = master;
    c->run.options.loss_scale = 8;
    c->run.tuning.loss_scale_window = 2;
    c->run.params.max_norm = 1;
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        for (uint32_t i = 0; toy_split(&c->run, ranks, i) != NULL; i++) {
            turn++;
            if (!IN_SAMPLE(turn)) {
                continue;
            }
            c->run.micro_steps = 1 + turn / 2 % 2;
            let_disk(&c->run, turn);
            if (turn % 3 == 0) { /* all on the device */
                memset(c->run.options.tier, 0, sizeof c->run.options.tier);
                c->run.tuning.speculative_step = 0;
                c->run.predicted = false;
            }
            CHECK_OK(zero_world_run(ranks, TOY_DEADLINE_MS, compare, c));
        }
    }
}

/* ---- the norm ---- */

TEST(norms_told_ahead_in_f32)
{
    course c = {.asks = true};
    over_ways(&c, ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT);
}

TEST(norms_told_ahead_in_f16)
{
    course c = {.asks = true};
    over_ways(&c, ZERO_DTYPE_F16, ZERO_DTYPE_F32);
}

/* ---- steps that are dropped ---- */

/* Gradients that no step has, in other micro-steps, sometimes not finite, sometimes of some units
 * only, and dropped; sometimes after they were looked at. */
static zero_status drop_step(toy_trainer *trainer, const course *c)
{
    const uint64_t step = trainer->step;
    const float scale = trainer->loss_scale;
    trainer->step = step + 1000;
    trainer->loss_scale = step % 3 == 1 ? (float)INFINITY : 1.0f;
    if (step % 2 != 0) {
        TOY_TRY(toy_micro(trainer, false));
    }
    TOY_TRY(toy_micro_begin(trainer, true));
    for (uint32_t u = 0; u < c->run.model->unit_count; u++) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = c->run.model->unit_count; u-- > step % 4;) {
        TOY_TRY(toy_backward(trainer, u));
    }
    TOY_TRY(toy_micro_end(trainer));
    if (step % 2 != 0) {
        double norm = 0;
        TOY_TRY(zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm));
    }
    TOY_TRY(zero_step_discard(trainer->engine));
    trainer->step = step;
    trainer->micro = 0;
    trainer->loss_scale = scale;
    return ZERO_OK;
}

TEST(dropped_steps_never_were_in_f32)
{
    course c = {.extra = drop_step};
    over_ways(&c, ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT);
}

TEST(dropped_steps_never_were_in_f16)
{
    course c = {.extra = drop_step, .asks = true};
    over_ways(&c, ZERO_DTYPE_F16, ZERO_DTYPE_F32);
}

TEST(dropped_steps_never_were_where_rounded_by_chance)
{
    course c = {.extra = drop_step};
    over_ways(&c, ZERO_DTYPE_BF16, ZERO_DTYPE_NONE);
}

/* ---- steps that are abandoned ---- */

/* Go `calls` calls into a micro-step, and leave open what is open then. Units are held twice, and
 * gradients beside their units. */
static zero_status go_into(toy_trainer *trainer, uint32_t calls)
{
    const uint32_t units = trainer->run->model->unit_count;
    for (uint32_t u = 0; u < units && calls > 0; u++, calls--) {
        TOY_TRY(toy_forward(trainer, u));
    }
    for (uint32_t u = units; u-- > 0 && calls > 0; calls--) {
        TOY_TRY(toy_backward(trainer, u));
        if (calls == 1 && u > 0) {
            const bool trained = toy_unit_trained(trainer->run->model, u - 1);
            zero_engine *engine = trainer->engine;
            TOY_TRY(trained ? zero_unit_grads_acquire(engine, u - 1, toy_stream()) : ZERO_OK);
            TOY_TRY(zero_unit_acquire(engine, u - 1, ZERO_PASS_BACKWARD, toy_stream(), NULL));
            TOY_TRY(zero_unit_params_acquire(engine, u - 1, ZERO_PASS_BACKWARD, toy_stream()));
            TOY_TRY(trained ? toy_add_gradient(trainer, u - 1) : ZERO_OK);
        }
    }
    return ZERO_OK;
}

/* Nothing is held any more, and no view is given. */
static void expect_released(const toy_trainer *trainer)
{
    const toy_model *model = trainer->run->model;
    zero_pass pass = ZERO_PASS_EVAL;
    zero_view view;
    for (uint32_t u = 0; u < model->unit_count; u++) {
        CHECK_OK(zero_unit_pass(trainer->engine, u, &pass));
        CHECK_EQ(pass, ZERO_PASS_NONE);
        CHECK_FAILS(zero_unit_release(trainer->engine, u, toy_stream()), ZERO_STATE, "release");
    }
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        CHECK_FAILS(zero_tensor_data(trainer->engine, t, &view), ZERO_STATE, "not acquired");
        CHECK(zero_tensor_grad(trainer->engine, t, &view) != ZERO_OK);
    }
}

/* Each rank gives up at another place of the micro-step, some after its end; before it there may be
 * a micro-step that is over. Gradients are not finite now and then. */
static zero_status abandon_step(toy_trainer *trainer, const course *c)
{
    const uint64_t step = trainer->step;
    const float scale = trainer->loss_scale;
    const bool last = step % 4 >= 2;
    trainer->step = step + 1000;
    trainer->loss_scale = step % 3 == 1 ? (float)INFINITY : 1.0f;
    if (step % 2 != 0) {
        TOY_TRY(toy_micro(trainer, false));
    }
    TOY_TRY(toy_micro_begin(trainer, last));
    if (trainer->rank == 1 && step % 3 == 0) {
        TOY_TRY(toy_passes(trainer));
        TOY_TRY(toy_micro_end(trainer));
    } else {
        TOY_TRY(go_into(trainer, (uint32_t)(step * 5 + trainer->rank * 3) % 14));
    }
    TOY_TRY(zero_micro_abandon(trainer->engine, toy_stream()));
    expect_released(trainer);
    CHECK_FAILS(zero_micro_abandon(trainer->engine, toy_stream()), ZERO_STATE, "no step is under");
    CHECK(c->extra == abandon_step);
    trainer->step = step;
    trainer->micro = 0;
    trainer->loss_scale = scale;
    return ZERO_OK;
}

TEST(abandoned_steps_never_were_in_f32)
{
    course c = {.extra = abandon_step};
    over_ways(&c, ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT);
}

TEST(abandoned_steps_never_were_in_f16)
{
    course c = {.extra = abandon_step, .asks = true};
    over_ways(&c, ZERO_DTYPE_F16, ZERO_DTYPE_F32);
}

TEST(abandoned_steps_never_were_where_rounded_by_chance)
{
    course c = {.extra = abandon_step};
    over_ways(&c, ZERO_DTYPE_BF16, ZERO_DTYPE_NONE);
}

/* ---- around it ---- */

/* Both calls, where neither is legal. */
static void expect_none_due(const toy_trainer *trainer, const char *text)
{
    double norm = -1;
    CHECK_FAILS(zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm), ZERO_STATE, text);
    CHECK_SAME(norm, -1.0);
    CHECK_FAILS(zero_step_discard(trainer->engine), ZERO_STATE, text);
}

/* Everything that is refused, and what may come between a dropped step and the next. */
static zero_status misuse(toy_trainer *trainer, const course *c)
{
    (void)c;
    expect_none_due(trainer, "zero_micro_begin(engine, 1)");
    TOY_TRY(toy_micro_begin(trainer, false));
    expect_none_due(trainer, "a micro-step is open");
    TOY_TRY(toy_micro_end(trainer));
    expect_none_due(trainer, "zero_micro_begin(engine, 1)");
    TOY_TRY(toy_micro(trainer, true));
    CHECK_FAILS(zero_grad_norm(trainer->engine, NULL, toy_stream(), NULL), ZERO_INVALID_ARGUMENT,
                "norm is NULL");
    CHECK_FAILS(zero_micro_begin(trainer->engine, 0), ZERO_STATE, "zero_step_discard");
    TOY_TRY(zero_step_discard(trainer->engine));
    trainer->micro = 0;
    expect_none_due(trainer, "zero_micro_begin(engine, 1)");
    for (uint32_t t = 0; t < trainer->run->model->tensor_count; t++) { /* at rest */
        zero_shard shard;
        float values[4096];
        TOY_TRY(zero_shard_range(trainer->engine, t, ZERO_ROLE_GRAD, &shard));
        CHECK(shard.count <= 4096);
        TOY_TRY(
            zero_shard_read(trainer->engine, t, ZERO_ROLE_GRAD, shard.first, shard.count, values));
    }
    TOY_TRY(zero_engine_evict(trainer->engine, ZERO_ROLE_BIT(ZERO_ROLE_MOMENT1), ZERO_TIER_DISK));
    TOY_TRY(zero_engine_restore(trainer->engine));
    return toy_evaluate(trainer);
}

TEST(what_is_refused_changes_nothing)
{
    course c = {.extra = misuse};
    over_ways(&c, ZERO_DTYPE_BF16, ZERO_DTYPE_F32);
    double norm = 0;
    CHECK_FAILS(zero_grad_norm(NULL, NULL, toy_stream(), &norm), ZERO_INVALID_ARGUMENT,
                "engine is NULL");
    CHECK_FAILS(zero_step_discard(NULL), ZERO_INVALID_ARGUMENT, "engine is NULL");
}

#ifndef TOY_CUDA

/* One rank asks for the norm where the other takes the step: their squares are not mixed up. */
static zero_status part_ways(toy_trainer *trainer)
{
    double norm = 0;
    TOY_TRY(toy_micro(trainer, true));
    zero_status status = trainer->rank == 0
                             ? zero_grad_norm(trainer->engine, NULL, toy_stream(), &norm)
                             : toy_update(trainer);
    if (status == ZERO_OK && trainer->rank == 1) {
        status = toy_wait(trainer);
    }
    CHECK(status != ZERO_OK);
    return status;
}

TEST(a_norm_meets_no_step)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    CHECK_FAILS(toy_on_ranks(2, &run, part_ways, NULL), ZERO_MISMATCH, "rank");
}

#endif
