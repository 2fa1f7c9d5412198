/* Owns the tests of the step's own state: with it and the shards a run goes on in another engine,
 * of other ranks, stages and tiers, with the bits of one that never ended. */
#include "harness.h"
#include "reads.h"

#include "folders.h"
#include "sanitizer.h"
#include "toy.h"

#define STEPS 8
#define HALF 4
#define SAMPLES 4 /* a step's, over all ranks and micro-steps */
#define GROUPS 3

/* Gradients that are not finite, before and after the half. */
static bool is_bad(uint64_t step)
{
    return step == 1 || step == HALF - 1 || step == HALF || step == HALF + 2;
}

/* Every group has other betas, and other ones in every step. */
static void choose_groups(uint64_t step, zero_hyper *groups)
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g] = (zero_hyper){.adamw = {.lr = 0.01f * (float)(g + 1),
                                           .beta1 = 0.5f + 0.05f * (float)((step + g) % 5),
                                           .beta2 = 0.9f + 0.02f * (float)((step + 2 * g) % 4),
                                           .eps = 1e-6f,
                                           .weight_decay = 0.1f}};
    }
}

static const toy_model *make_model(zero_dtype dtype)
{
    static const uint64_t rows[] = {129, 64, 1, 300, 77};
    toy_model *model = toy_model_new();
    for (uint32_t u = 0; u < 5; u++) {
        (void)toy_model_layer(model, "unit", u);
        (void)toy_model_grouped(model, rows[u], dtype, 0, u % GROUPS);
        (void)toy_model_grouped(model, rows[4 - u], ZERO_DTYPE_F32, 0, (u + 1) % GROUPS);
    }
    return model;
}

/* A run that goes on somewhere else after its half. */
typedef struct course {
    toy_run run;
    toy_state whole;
    toy_state half;
    zero_step_state state;
    zero_step_result results[STEPS]; /* of the whole run */
} course;

static zero_status take_step(toy_trainer *trainer)
{
    zero_hyper groups[GROUPS];
    toy_run run = *trainer->run;
    const toy_run *given = trainer->run;
    choose_groups(trainer->step, groups);
    run.params.groups = groups;
    run.params.group_count = GROUPS;
    run.micro_steps = SAMPLES / trainer->ranks;
    trainer->run = &run;
    const zero_status status = toy_step_or_skip(trainer, is_bad(trainer->step));
    trainer->run = given;
    return status;
}

static zero_status take_whole(toy_trainer *trainer)
{
    course *c = trainer->user;
    for (int s = 0; s < STEPS; s++) {
        const zero_step_result *result = &trainer->result;
        zero_step_state state = zero_step_state_init();
        TOY_TRY(take_step(trainer));
        if (trainer->rank == 0) {
            c->results[s] = *result;
        }
        TOY_TRY(zero_step_state_get(trainer->engine, &state));
        CHECK_EQ(state.updates, result->updates);
        CHECK_EQ(state.updates + state.skipped, result->step);
        CHECK_SAME(state.loss_scale, result->loss_scale);
        if (s + 1 == HALF) {
            TOY_TRY(toy_collect_first(trainer, &c->half));
            c->state = trainer->rank == 0 ? state : c->state;
        }
        TOY_TRY(zero_world_barrier(trainer->world));
    }
    return toy_collect_first(trainer, &c->whole);
}

/* This rank's pieces of one role, from the whole model's. */
UNWATCHED static zero_status write_role(const toy_trainer *trainer, const toy_state *state,
                                        zero_role role)
{
    const toy_model *model = trainer->run->model;
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        zero_shard shard;
        float values[4096];
        TOY_TRY(zero_shard_range(trainer->engine, t, role, &shard));
        CHECK(shard.count <= 4096);
        for (uint64_t e = 0; e < shard.count; e++) {
            toy_store(values, e, shard.dtype,
                      state->bits[role][model->tensors[t].base + shard.first + e]);
        }
        TOY_TRY(zero_shard_write(trainer->engine, t, role, shard.first, shard.count, values));
    }
    return ZERO_OK;
}

static zero_status restore(toy_trainer *trainer, const course *c)
{
    for (int role = ZERO_ROLE_PARAM; role < ZI_SHARD_ROLES; role++) {
        if (role != ZERO_ROLE_GRAD) {
            TOY_TRY(write_role(trainer, &c->half, (zero_role)role));
        }
    }
    TOY_TRY(zero_step_state_set(trainer->engine, &c->state));
    trainer->step = HALF;
    return ZERO_OK;
}

static void check_result(const zero_step_result *result, const zero_step_result *expected)
{
    CHECK_EQ(result->step, expected->step);
    CHECK_EQ(result->updates, expected->updates);
    CHECK_EQ(result->skipped, expected->skipped);
    CHECK_SAME(result->loss_scale, expected->loss_scale);
    if (isfinite(expected->norm)) {
        CHECK_BYTES(&result->norm, &expected->norm, sizeof result->norm);
        CHECK_BYTES(&result->clip, &expected->clip, sizeof result->clip);
    }
}

static zero_status go_on(toy_trainer *trainer, const course *c)
{
    float scale = 0;
    const zero_stats before = engine_stats(trainer->engine);
    CHECK_FAILS(toy_wait(trainer), ZERO_ERR_STATE, "no step was taken yet");
    TOY_TRY(zero_loss_scale(trainer->engine, &scale));
    CHECK_SAME(scale, c->state.loss_scale);
    for (int s = HALF; s < STEPS; s++) {
        TOY_TRY(take_step(trainer));
        check_result(&trainer->result, &c->results[s]);
        const zero_stats stats = engine_stats(trainer->engine);
        CHECK_EQ(stats.steps, before.steps + (uint64_t)(s + 1 - HALF));
        CHECK_EQ(stats.steps_skipped, before.steps_skipped + 1 + (s >= HALF + 2));
    }
    return toy_collect_same(trainer, &c->whole, "a run that went on elsewhere");
}

static zero_status take_rest(toy_trainer *trainer)
{
    TOY_TRY(restore(trainer, trainer->user));
    return go_on(trainer, trainer->user);
}

static course make_course(const toy_model *model, zero_dtype master)
{
    course c;
    memset(&c, 0, sizeof c);
    c.run = toy_run_init(model);
    c.run.flavour = TOY_INTEGER; /* sums are exact, so any number of ranks has the same bits */
    c.run.options.master_dtype = master;
    c.run.options.loss_scale = 64;
    c.run.tuning.loss_scale_window = 2;
    c.run.tuning.loss_scale_hysteresis = 2;
    c.run.params.max_norm = 2;
    return c;
}

static void end_course(course *c)
{
    toy_state_free(&c->whole);
    toy_state_free(&c->half);
}

static void over_ranks(zero_dtype dtype, zero_dtype master)
{
    static const uint32_t worlds[] = {1, 2, 4};
    const toy_model *model = make_model(dtype);
    uint32_t turn = 0;
    rig_folders(1, 0);
    for (int from = 0; from < 3; from++) {
        course c = make_course(model, master);
        CHECK_OK(toy_on_ranks(worlds[from], &c.run, take_whole, &c));
        for (int to = 0; to < 3; to++) {
            toy_run next = c.run;
            for (uint32_t i = 0; toy_split(&next, worlds[to], i) != NULL; i++, next = c.run) {
                if (!IN_SAMPLE(turn++)) {
                    continue;
                }
                if (turn % 2 != 0) {
                    toy_run_overlap(&next, rig_paths);
                }
                CHECK_OK(toy_on_ranks(worlds[to], &next, take_rest, &c));
            }
        }
        end_course(&c);
    }
}

TEST_CALL(goes_on_elsewhere_in_f16, over_ranks(ZERO_DTYPE_F16, ZERO_DTYPE_F32));
TEST_CALL(goes_on_elsewhere_where_rounded_by_chance, over_ranks(ZERO_DTYPE_BF16, ZERO_DTYPE_NONE));

/* ---- back in the same engine ---- */

static zero_status turn_back(toy_trainer *trainer)
{
    const course *c = trainer->user;
    for (int s = 0; s < STEPS - 1; s++) { /* without asking, so outcomes are still to come */
        zero_hyper groups[GROUPS];
        zero_step_params params = c->run.params;
        choose_groups(0, groups);
        params.groups = groups;
        params.group_count = GROUPS;
        TOY_TRY(toy_step_with(trainer, &params));
    }
    TOY_TRY(restore(trainer, c));
    CHECK_EQ(engine_stats(trainer->engine).steps, STEPS - 1);
    TOY_TRY(go_on(trainer, c));
    TOY_TRY(restore(trainer, c)); /* and again, from counts that are now higher */
    return go_on(trainer, c);
}

TEST(goes_back_in_the_same_engine)
{
    course c = make_course(make_model(ZERO_DTYPE_F16), ZERO_DTYPE_F32);
    CHECK_OK(toy_on_ranks(2, &c.run, take_whole, &c));
    CHECK_OK(toy_on_ranks(2, &c.run, turn_back, &c));
    CHECK_OK(toy_on_ranks(1, &c.run, turn_back, &c));
    end_course(&c);
}

/* ---- what is refused ---- */

static void refused(const toy_trainer *trainer, const zero_step_state *state, zero_status wanted,
                    const char *text)
{
    CHECK_FAILS(zero_step_state_set(trainer->engine, state), wanted, text);
}

static void refuse_numbers(const toy_trainer *trainer)
{
    const zero_step_state good = zero_step_state_init();
    static const double products[] = {-0.5, 1.5, (double)NAN};
    static const float scales[] = {0, -1, NAN, INFINITY};
    zero_step_state bad = good;
    bad.struct_bytes = 7;
    refused(trainer, &bad, ZERO_ERR_INVALID_ARGUMENT, "zero_step_state_init()");
    CHECK_FAILS(zero_step_state_get(trainer->engine, &bad), ZERO_ERR_INVALID_ARGUMENT,
                "struct_bytes of the zero_step_state is 7");
    refused(trainer, NULL, ZERO_ERR_INVALID_ARGUMENT, "zero_step_state is NULL");
    CHECK_FAILS(zero_step_state_get(trainer->engine, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "zero_step_state is NULL");
    for (size_t i = 0; i < 4; i++) {
        bad = good;
        bad.loss_scale = scales[i];
        refused(trainer, &bad, ZERO_ERR_INVALID_ARGUMENT, "is not finite and above 0");
    }
    for (size_t i = 0; i < 3; i++) {
        bad = good;
        bad.carried[5][0] = products[i];
        refused(trainer, &bad, ZERO_ERR_INVALID_ARGUMENT, "group 5: carried[0]");
        bad = good;
        bad.carried[63][1] = products[i];
        refused(trainer, &bad, ZERO_ERR_INVALID_ARGUMENT, "group 63: carried[1]");
    }
    bad = good;
    bad.updates = UINT64_MAX;
    refused(trainer, &bad, ZERO_ERR_INVALID_ARGUMENT, "updates 18446744073709551615");
    bad = good;
    bad.reserved = 1;
    refused(trainer, &bad, ZERO_ERR_UNSUPPORTED, "reserved is 1");
    bad = good;
    bad.loss_scale = 2; /* the toy's are not scaled */
    refused(trainer, &bad, ZERO_ERR_INVALID_ARGUMENT, "loss_scale 2 is not the engine's, 1");
}

/* A caller's struct from a newer library: what is unknown may be there, but not be set. */
static void refuse_newer(const toy_trainer *trainer)
{
    struct {
        zero_step_state known;
        uint64_t more;
    } newer = {zero_step_state_init(), 1};
    newer.known.struct_bytes = sizeof newer;
    refused(trainer, &newer.known, ZERO_ERR_UNSUPPORTED, "newer library");
    CHECK_OK(zero_step_state_get(trainer->engine, &newer.known));
    CHECK_EQ(newer.more, 0);
    CHECK_EQ(newer.known.struct_bytes, sizeof newer);
    CHECK_OK(zero_step_state_set(trainer->engine, &newer.known));
}

static zero_status misuse(toy_trainer *trainer)
{
    zero_step_state state = zero_step_state_init();
    refuse_numbers(trainer);
    refuse_newer(trainer);
    TOY_TRY(toy_micro(trainer, false));
    refused(trainer, &state, ZERO_ERR_STATE, "zero_step");
    TOY_TRY(toy_micro(trainer, true));
    refused(trainer, &state, ZERO_ERR_STATE, "zero_step");
    TOY_TRY(zero_step_state_get(trainer->engine, &state)); /* of the step before */
    CHECK_EQ(state.updates, 0);
    TOY_TRY(toy_update(trainer));
    TOY_TRY(zero_unit_acquire(trainer->engine, 0, ZERO_PASS_EVAL, toy_stream(), NULL));
    refused(trainer, &state, ZERO_ERR_STATE, "still acquired");
    TOY_TRY(zero_unit_release(trainer->engine, 0, toy_stream()));
    TOY_TRY(zero_step_state_get(trainer->engine, &state));
    CHECK_EQ(state.updates, 1);
    CHECK_SAME(state.carried[0][0], (double)0.9f);
    /* Ranks that differ, and a rank that refuses: nobody changes anything. */
    zero_step_state other = state;
    other.updates += trainer->rank;
    refused(trainer, &other, ZERO_ERR_INVALID_ARGUMENT,
            "ranks 0 and 1 were given a different step");
    other = state;
    other.updates = 7;
    other.carried[3][1] = trainer->rank == 1 ? 2 : 1;
    refused(trainer, &other, ZERO_ERR_INVALID_ARGUMENT,
            trainer->rank == 1 ? "group 3: carried[1] 2" : "rank 1: group 3: carried[1] 2");
    TOY_TRY(zero_step_state_get(trainer->engine, &other));
    CHECK_BYTES(&state, &other, sizeof state);
    return toy_step(trainer);
}

TEST(what_is_refused_changes_nothing)
{
    const toy_run run = toy_run_init(make_model(ZERO_DTYPE_BF16));
    zero_step_state state = zero_step_state_init();
    CHECK_OK(toy_on_ranks(2, &run, misuse, NULL));
    CHECK_FAILS(zero_step_state_get(NULL, &state), ZERO_ERR_INVALID_ARGUMENT, "engine is NULL");
    CHECK_FAILS(zero_step_state_set(NULL, &state), ZERO_ERR_INVALID_ARGUMENT, "engine is NULL");
}
