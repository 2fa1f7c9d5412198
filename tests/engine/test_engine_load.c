/* Owns the tests of what a load finds and does not find: other types, parameters alone, tensors
 * that are missing, unexpected or of another shape, damage, and failures of any part of it. Nothing
 * changes unless all ranks have found all, and an engine that was changed in part is poisoned. */
#include <math.h>

#include "launched.h"
#include "saved_runs.h"

#include "core/fault.h"
#include "damage_said.h"
#include "reads.h"

/* The state that a test leaves for the ranks that come after. */
typedef struct course {
    toy_run run;
    toy_state state; /* that was saved */
    zero_load_options options;
    zero_status wanted;
    const char *text;
    said_tensor tensor; /* the damaged one, of f32 */
    uint64_t damaged_at;
} course;

static zero_status train_and_save(toy_trainer *trainer)
{
    course *c = trainer->user;
    zero_save_options options = run_save_options("one");
    options.user.data_position = 77;
    options.user.random_seed = 5;
    options.user.random_position = 6;
    options.user.bytes = trainer->rank == 0 ? "mine" : "others";
    options.user.bytes_count = trainer->rank == 0 ? 4 : 6;
    for (uint32_t s = 0; s < c->run.steps; s++) {
        TOY_TRY(run_step(trainer));
    }
    TOY_TRY(toy_collect_first(trainer, &c->state));
    return zero_save(trainer->engine, &options);
}

/* By the run's own numbers in every group. */
static zero_status train_and_save_plainly(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("one");
    TOY_TRY(toy_train(trainer));
    return zero_save(trainer->engine, &options);
}

static course saved_course(const toy_run *run, uint32_t ranks)
{
    course c = {.run = *run, .options = run_load_options("one")};
    CHECK_OK(toy_on_ranks(ranks, run, train_and_save, &c));
    return c;
}

static toy_run mixed_run(zero_dtype dtype, zero_dtype master, zero_dtype moments, uint32_t steps)
{
    toy_run run = run_of(run_model(dtype), master, moments);
    run.steps = steps;
    return run;
}

/* ---- the caller's own, and a run that has not begun ---- */

static zero_status load_user(toy_trainer *trainer)
{
    const course *c = trainer->user;
    char user[3] = "";
    zero_load_report report = zero_load_report_init();
    report.user_bytes = user;
    report.user_room = sizeof user;
    TOY_TRY(zero_load(trainer->engine, &c->options, &report));
    CHECK_EQ(report.data_position, 77);
    CHECK_EQ(report.random_seed, 5);
    CHECK_EQ(report.random_position, 6);
    CHECK_EQ(report.user_bytes_count, 4);
    CHECK_BYTES(user, "min", 3);
    CHECK_EQ(report.world, 2);
    CHECK_EQ(report.step, c->run.steps);
    CHECK(report.read_bytes != 0);
    CHECK(strstr(report.folder, "/one") != NULL);
    return toy_collect_same(trainer, &c->state, "a run that has not begun");
}

TEST(saved_and_loaded_before_the_first_step)
{
    const toy_run run = mixed_run(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 0);
    run_directory_make();
    course c = saved_course(&run, 2);
    CHECK_OK(toy_on_ranks(3, &run, load_user, &c));
    toy_state_free(&c.state);
}

/* ---- other types ---- */

static zero_dtype dtype_of(const toy_run *run, uint32_t tensor, zero_role role)
{
    const zero_tensor_desc *desc = &run->model->tensors[tensor].desc;
    if (role == ZERO_ROLE_PARAM) {
        return desc->dtype;
    }
    if ((desc->flags & ZERO_TENSOR_FROZEN) != 0 || role == ZERO_ROLE_GRAD) {
        return ZERO_DTYPE_NONE;
    }
    if (role != ZERO_ROLE_MASTER) {
        return run->options.moment_dtype;
    }
    return desc->dtype == ZERO_DTYPE_F32 ? ZERO_DTYPE_NONE : run->options.master_dtype;
}

/* The bits of an element of a role, as a load has to come to them from what was saved. */
static uint32_t expected_bits(const course *c, const toy_run *run, uint32_t tensor, uint64_t at,
                              zero_role role)
{
    const zero_dtype own = dtype_of(run, tensor, role);
    zero_role source = role;
    if (role == ZERO_ROLE_PARAM && dtype_of(&c->run, tensor, ZERO_ROLE_PARAM) != own &&
        dtype_of(&c->run, tensor, ZERO_ROLE_MASTER) != ZERO_DTYPE_NONE) {
        source = ZERO_ROLE_MASTER;
    }
    if (role == ZERO_ROLE_MASTER &&
        dtype_of(&c->run, tensor, ZERO_ROLE_MASTER) == ZERO_DTYPE_NONE) {
        source = ZERO_ROLE_PARAM;
    }
    const zero_dtype there = dtype_of(&c->run, tensor, source);
    const uint32_t bits = c->state.bits[source][at];
    return there == own ? bits : toy_encode(toy_decode(bits, there), own);
}

static zero_status load_types(toy_trainer *trainer)
{
    const course *c = trainer->user;
    const toy_run *run = trainer->run;
    toy_state loaded;
    TOY_TRY(zero_load(trainer->engine, &c->options, NULL));
    TOY_TRY(toy_collect(trainer, &loaded));
    for (uint32_t t = 0; t < run->model->tensor_count; t++) {
        const toy_tensor *tensor = &run->model->tensors[t];
        for (int i = 0; i < TOY_ROLES; i++) {
            const zero_role role = (zero_role)i;
            const bool has_role = dtype_of(run, t, role) != ZERO_DTYPE_NONE;
            for (uint64_t e = 0; e < tensor->count && has_role; e++) {
                const uint64_t at = tensor->base + e;
                const uint32_t expected = expected_bits(c, run, t, at, role);
                if (loaded.bits[role][at] != expected) {
                    TEST_FAIL("%s of %s[%" PRIu64 "]: %08x, expected %08x", zero_role_name(role),
                              tensor->name, e, loaded.bits[role][at], expected);
                }
            }
        }
    }
    toy_state_free(&loaded);
    return run_step(trainer);
}

TEST(loads_into_other_types)
{
    static const zero_dtype params[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
    static const zero_dtype masters[] = {ZERO_DTYPE_F32, ZERO_DTYPE_NONE};
    static const zero_dtype moments[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16};
    run_directory_make();
    for (int from = 0; from < 6; from++) {
        const toy_run run = mixed_run(params[from % 3], masters[from / 3], moments[from % 2], 2);
        course c = saved_course(&run, 2);
        for (int to = 0; to < 12; to++) {
            toy_run other = mixed_run(params[to % 3], masters[to / 3 % 2], moments[to / 6], 2);
            other.options.stage = (zero_stage)(ZERO_STAGE_0 + to % 4);
            CHECK_OK(toy_on_ranks(3, &other, load_types, &c));
        }
        toy_state_free(&c.state);
    }
}

/* ---- the loss scale ---- */

/* options.loss_scale 0 is the default: 1 that never changes, or with f16 65536 that does. */
static toy_run scaled_run(zero_dtype dtype, float scale, int32_t is_static)
{
    toy_run run = mixed_run(dtype, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 1);
    run.options.loss_scale = scale;
    run.tuning.loss_scale_static = is_static;
    return run;
}

typedef struct scales {
    course *c;
    float wanted;
    uint32_t good_steps;
} scales;

static zero_status load_scale(toy_trainer *trainer)
{
    const scales *s = trainer->user;
    zero_step_state state = zero_step_state_init();
    TOY_TRY(zero_load(trainer->engine, &s->c->options, NULL));
    TOY_TRY(zero_step_state_get(trainer->engine, &state));
    CHECK_SAME(state.loss_scale, s->wanted);
    CHECK_EQ(state.good_steps, s->good_steps);
    CHECK_EQ(state.overflows, 0);
    CHECK_EQ(state.updates + state.skipped, 1);
    return ZERO_OK;
}

static void check_scale(course *c, const toy_run *run, float wanted, uint32_t good_steps)
{
    scales s = {c, wanted, good_steps};
    CHECK_OK(toy_on_ranks(2, run, load_scale, &s));
}

TEST(a_scale_that_never_changed_is_not_gone_on_with)
{
    const toy_run plain = scaled_run(ZERO_DTYPE_F32, 0, 0);
    const toy_run fixed = scaled_run(ZERO_DTYPE_F16, 32, 1);
    const toy_run changing = scaled_run(ZERO_DTYPE_F16, 128, 0);
    const toy_run other = scaled_run(ZERO_DTYPE_F16, 0, 0);
    run_directory_make();
    course c = saved_course(&plain, 2);
    check_scale(&c, &other, 65536, 0);
    check_scale(&c, &changing, 128, 0);
    check_scale(&c, &fixed, 32, 1);
    toy_state_free(&c.state);
    c = saved_course(&fixed, 2);
    check_scale(&c, &other, 65536, 0);
    toy_state_free(&c.state);
    c = saved_course(&changing, 2);
    check_scale(&c, &other, 128, 1);
    check_scale(&c, &plain, 1, 1);
    toy_state_free(&c.state);
}

/* ---- parameters alone ---- */

/* Parameters and masters as they were saved, and all else as in a new run. */
static zero_status load_params(toy_trainer *trainer)
{
    const course *c = trainer->user;
    toy_state fresh;
    toy_state loaded;
    zero_step_state state = zero_step_state_init();
    TOY_TRY(toy_collect(trainer, &fresh));
    TOY_TRY(run_step(trainer));
    TOY_TRY(zero_load(trainer->engine, &c->options, NULL));
    TOY_TRY(zero_step_state_get(trainer->engine, &state));
    CHECK_EQ(state.updates + state.skipped, 0);
    CHECK_SAME(state.loss_scale, 64);
    TOY_TRY(toy_collect(trainer, &loaded));
    const uint64_t bytes = fresh.element_count * sizeof fresh.bits[0][0];
    for (int role = ZERO_ROLE_MASTER; role < TOY_ROLES; role++) {
        const toy_state *expected = role == ZERO_ROLE_MASTER ? &c->state : &fresh;
        CHECK_BYTES(loaded.bits[role], expected->bits[role], bytes);
    }
    CHECK_BYTES(loaded.bits[ZERO_ROLE_PARAM], c->state.bits[ZERO_ROLE_PARAM], bytes);
    toy_state_free(&fresh);
    toy_state_free(&loaded);
    return ZERO_OK;
}

static zero_status load_refused(toy_trainer *trainer)
{
    const course *c = trainer->user;
    toy_state before;
    zero_load_report report = zero_load_report_init();
    TOY_TRY(toy_collect(trainer, &before));
    CHECK_FAILS(zero_load(trainer->engine, &c->options, &report), c->wanted, c->text);
    CHECK(strstr(report.list, "\n") != NULL || report.missing + report.unexpected == 0);
    TOY_TRY(toy_collect_same(trainer, &before, "after a load that was refused"));
    toy_state_free(&before);
    return run_step(trainer);
}

static void refuse(course *c, const toy_run *run, uint32_t ranks, zero_status wanted,
                   const char *text)
{
    c->wanted = wanted;
    c->text = text;
    CHECK_OK(toy_on_ranks(ranks, run, load_refused, c));
}

TEST(parameters_alone_begin_a_new_run)
{
    const toy_run run = mixed_run(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 3);
    char path[128];
    run_directory_make();
    course c = saved_course(&run, 2);
    c.options.params_only = 1;
    CHECK_OK(toy_on_ranks(1, &run, load_params, &c));
    CHECK_OK(toy_on_ranks(4, &run, load_params, &c));
    /* Its parameter file is one that anybody may have written. */
    (void)snprintf(path, sizeof path, "%s/one/param.safetensors", run_directory);
    c.options.path = path;
    c.options.name = NULL;
    c.options.params_only = 0;
    refuse(&c, &run, 2, ZERO_ERR_INVALID_ARGUMENT, "set params_only");
    c.options.params_only = 1;
    for (uint64_t e = 0; e < c.state.element_count; e++) { /* no masters are there */
        c.state.bits[ZERO_ROLE_MASTER][e] = c.state.bits[ZERO_ROLE_PARAM][e];
    }
    toy_run plain = mixed_run(ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_F32, 3);
    memset(c.state.bits[ZERO_ROLE_MASTER], 0, c.state.element_count * sizeof(uint32_t));
    CHECK_OK(toy_on_ranks(2, &plain, load_params, &c));
    toy_state_free(&c.state);
}

static zero_status train_and_save_params(toy_trainer *trainer)
{
    course *c = trainer->user;
    zero_save_options options = run_save_options("one");
    options.params_only = 1;
    for (uint32_t s = 0; s < c->run.steps; s++) {
        TOY_TRY(run_step(trainer));
    }
    TOY_TRY(toy_collect_first(trainer, &c->state));
    return zero_save(trainer->engine, &options);
}

TEST(parameters_alone_can_be_saved)
{
    const toy_run run = mixed_run(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 3);
    char path[128];
    struct stat about;
    run_directory_make();
    course c = {.run = run, .options = run_load_options("one")};
    CHECK_OK(toy_on_ranks(3, &run, train_and_save_params, &c));
    (void)snprintf(path, sizeof path, "%s/one/master.safetensors", run_directory);
    CHECK(stat(path, &about) != 0);
    refuse(&c, &run, 2, ZERO_ERR_INVALID_ARGUMENT, "missing masters or moments of ");
    for (uint32_t t = 0; t < run.model->tensor_count; t++) { /* masters are made of parameters */
        const uint64_t base = run.model->tensors[t].base;
        const bool has_master = dtype_of(&run, t, ZERO_ROLE_MASTER) == ZERO_DTYPE_F32;
        for (uint64_t e = base; has_master && e < base + run.model->tensors[t].count; e++) {
            const float value = toy_decode(c.state.bits[ZERO_ROLE_PARAM][e], ZERO_DTYPE_BF16);
            c.state.bits[ZERO_ROLE_MASTER][e] = toy_encode(value, ZERO_DTYPE_F32);
        }
    }
    c.options.params_only = 1;
    CHECK_OK(toy_on_ranks(2, &run, load_params, &c));
    toy_state_free(&c.state);
}

/* ---- the seed of stochastic rounding ---- */

static zero_status load_whole(toy_trainer *trainer)
{
    const course *c = trainer->user;
    zero_load_report report = zero_load_report_init();
    TOY_TRY(zero_load(trainer->engine, &c->options, &report));
    CHECK_EQ(report.loaded, trainer->run->model->tensor_count);
    return run_step(trainer);
}

/* Load with seed 6 what was saved with 5, in types that round by chance. */
static void load_with_seed(zero_dtype master, zero_dtype moments)
{
    toy_run run = mixed_run(ZERO_DTYPE_BF16, master, moments, 2);
    run.options.seed = 5;
    course c = saved_course(&run, 2);
    CHECK_OK(toy_on_ranks(3, &run, load_whole, &c));
    run.options.seed = 6;
    refuse(&c, &run, 1, ZERO_ERR_INVALID_ARGUMENT, "options.seed is 6, but ");
    refuse(&c, &run, 3, ZERO_ERR_INVALID_ARGUMENT,
           "rounded with 5; create the engine with that seed");
    static const zero_dtype exact_masters[] = {ZERO_DTYPE_F32, ZERO_DTYPE_REMAINDER16};
    for (int i = 0; i < 2; i++) {
        toy_run exact = mixed_run(ZERO_DTYPE_BF16, exact_masters[i], ZERO_DTYPE_F32, 2);
        exact.options.seed = 6;
        CHECK_OK(toy_on_ranks(2, &exact, load_whole, &c));
    }
    c.options.partial = 1;
    CHECK_OK(toy_on_ranks(2, &run, load_whole, &c));
    c.options.partial = 0;
    c.options.params_only = 1;
    CHECK_OK(toy_on_ranks(2, &run, load_whole, &c));
    toy_state_free(&c.state);
}

TEST(another_seed_is_refused_where_it_matters)
{
    run_directory_make();
    load_with_seed(ZERO_DTYPE_F32, ZERO_DTYPE_BF16);
    load_with_seed(ZERO_DTYPE_REMAINDER16, ZERO_DTYPE_I8);
    load_with_seed(ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_F32);
    load_with_seed(ZERO_DTYPE_NONE, ZERO_DTYPE_F32);
    load_with_seed(ZERO_DTYPE_NONE, ZERO_DTYPE_BF16);
    /* A run that is not rounded by chance has used no seed. */
    toy_run run = mixed_run(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 2);
    toy_run other = mixed_run(ZERO_DTYPE_BF16, ZERO_DTYPE_NONE, ZERO_DTYPE_BF16, 2);
    run.options.seed = 5;
    other.options.seed = 6;
    course c = saved_course(&run, 2);
    CHECK_OK(toy_on_ranks(2, &other, load_whole, &c));
    run.options.seed = 6;
    CHECK_OK(toy_on_ranks(2, &run, load_whole, &c));
    toy_state_free(&c.state);
}

/* ---- tensors that do not match ---- */

/* Tensors that are named by their numbers. */
static const toy_model *numbered_model(uint64_t first_rows, uint32_t count)
{
    toy_model *model = toy_model_new();
    for (uint32_t i = 0; i < count; i++) {
        (void)toy_model_layer(model, "unit", i);
        (void)toy_model_tensor(model, i == 0 ? first_rows : 400, 0, ZERO_DTYPE_F32, 0);
    }
    return model;
}

static zero_status load_partly(toy_trainer *trainer)
{
    const course *c = trainer->user;
    toy_state before;
    toy_state after;
    zero_load_report report = zero_load_report_init();
    zero_load_options options = c->options;
    options.partial = 1;
    TOY_TRY(toy_collect(trainer, &before));
    TOY_TRY(zero_load(trainer->engine, &options, &report));
    TOY_TRY(toy_collect(trainer, &after));
    CHECK_EQ(report.loaded, 1);
    CHECK_EQ(report.mismatching, 1);
    CHECK_EQ(report.missing + report.unexpected, 1);
    const toy_tensor *const tensors = trainer->run->model->tensors;
    const uint32_t count = trainer->run->model->tensor_count;
    for (uint32_t t = 0; t < count; t++) {
        const toy_state *expected = t == 1 ? &c->state : &before;
        const uint64_t from = t == 1 ? c->run.model->tensors[1].base : tensors[t].base;
        for (uint64_t e = 0; e < tensors[t].count; e++) {
            CHECK_EQ(after.bits[ZERO_ROLE_PARAM][tensors[t].base + e],
                     expected->bits[ZERO_ROLE_PARAM][from + e]);
        }
    }
    toy_state_free(&before);
    toy_state_free(&after);
    return ZERO_OK;
}

TEST(tensors_that_do_not_match_are_listed)
{
    toy_run run = toy_run_init(numbered_model(300, 3));
    toy_run fewer = toy_run_init(numbered_model(301, 2));
    run.steps = fewer.steps = 0;
    run_directory_make();
    course c = saved_course(&run, 2);
    refuse(&c, &fewer, 2, ZERO_ERR_INVALID_ARGUMENT,
           "0 missing, 1 unexpected, 1 mismatching; `partial` loads the others: mismatching ");
    refuse(&c, &fewer, 2, ZERO_ERR_INVALID_ARGUMENT, ": [301] here, [300] there;unexpected ");
    CHECK_OK(toy_on_ranks(3, &fewer, load_partly, &c));
    c.options.prefix = "module.";
    refuse(&c, &run, 2, ZERO_ERR_INVALID_ARGUMENT, "3 missing, 3 unexpected, 0 mismatching");
    toy_state_free(&c.state);
    c = saved_course(&fewer, 1);
    refuse(&c, &run, 2, ZERO_ERR_INVALID_ARGUMENT, "1 missing, 0 unexpected, 1 mismatching");
    CHECK_OK(toy_on_ranks(3, &run, load_partly, &c));
    toy_state_free(&c.state);
}

/* ---- the first step after a load of some tensors ---- */

/* Tensors of units: kept, of another shape there, trained there and frozen here, frozen there and
 * trained here, and one that is only here or there. `group`: of what has no saved moments. */
static const toy_model *some_model(bool is_saved, uint32_t group)
{
    toy_model *model = toy_model_new();
    const uint32_t there = is_saved ? ZERO_TENSOR_FROZEN : 0;
    const uint32_t here = is_saved ? 0 : ZERO_TENSOR_FROZEN;
    (void)toy_model_layer(model, "unit", 0);
    (void)toy_model_grouped(model, 300, ZERO_DTYPE_F32, 0, 0);
    (void)toy_model_grouped(model, is_saved ? 300 : 301, ZERO_DTYPE_F32, 0, group);
    (void)toy_model_grouped(model, 300, ZERO_DTYPE_F32, here, 0);
    (void)toy_model_grouped(model, 300, ZERO_DTYPE_F32, there, group);
    (void)toy_model_layer(model, is_saved ? "old" : "new", 1);
    (void)toy_model_grouped(model, 300, ZERO_DTYPE_F32, 0, group);
    return model;
}

static double saved_value(const toy_state *state, zero_role role, uint64_t element)
{
    return (double)toy_decode(state->bits[role][element], ZERO_DTYPE_F32);
}

/* The parameter after AdamW's update number `update` in double, from its gradient. */
static double adamw_in_double(const zero_adamw *a, double update, const double state[3], double g)
{
    const double m = (double)a->beta1 * state[1] + (1 - (double)a->beta1) * g;
    const double v = (double)a->beta2 * state[2] + (1 - (double)a->beta2) * g * g;
    const double m_hat = m / (1 - pow((double)a->beta1, update));
    const double v_hat = v / (1 - pow((double)a->beta2, update));
    const double kept = state[0] * (1 - (double)a->lr * (double)a->weight_decay);
    return kept - (double)a->lr * m_hat / (sqrt(v_hat) + (double)a->eps);
}

/* Two steps after the load, each tensor by the count of its own moments' updates. */
static zero_status load_some(toy_trainer *trainer)
{
    const course *c = trainer->user;
    const toy_model *model = trainer->run->model;
    zero_load_options options = c->options;
    zero_load_report report = zero_load_report_init();
    options.partial = 1;
    TOY_TRY(zero_load(trainer->engine, &options, &report));
    CHECK_EQ(report.loaded, 2);
    for (int step = 0; step < 2; step++) {
        toy_state before;
        toy_state after;
        TOY_TRY(toy_collect(trainer, &before));
        const uint64_t number = trainer->step;
        TOY_TRY(toy_step(trainer));
        TOY_TRY(toy_collect(trainer, &after));
        for (uint32_t t = 0; t < model->tensor_count; t++) {
            const toy_tensor *tensor = &model->tensors[t];
            const bool is_frozen = (tensor->desc.flags & ZERO_TENSOR_FROZEN) != 0;
            for (uint64_t e = 0; e < tensor->count; e++) {
                const uint64_t at = tensor->base + e;
                const double state[] = {saved_value(&before, ZERO_ROLE_PARAM, at),
                                        is_frozen ? 0 : saved_value(&before, ZERO_ROLE_MOMENT1, at),
                                        is_frozen ? 0
                                                  : saved_value(&before, ZERO_ROLE_MOMENT2, at)};
                const double g =
                    (double)toy_gradient(trainer->run->flavour, t, e, number, 0, (float)state[0]);
                const double update = step + 1 + (t == 0 ? (double)c->run.steps : 0);
                const double wanted = is_frozen ? state[0]
                                                : adamw_in_double(&trainer->run->params.hyper.adamw,
                                                                  update, state, g);
                CHECK(fabs(wanted - saved_value(&after, ZERO_ROLE_PARAM, at)) < 1e-6);
            }
        }
        toy_state_free(&before);
        toy_state_free(&after);
    }
    return ZERO_OK;
}

static zero_status load_none(toy_trainer *trainer)
{
    const course *c = trainer->user;
    zero_load_options options = c->options;
    zero_step_state state = zero_step_state_init();
    options.partial = 1;
    options.prefix = "renamed.";
    TOY_TRY(toy_step(trainer));
    TOY_TRY(zero_load(trainer->engine, &options, NULL));
    TOY_TRY(zero_step_state_get(trainer->engine, &state));
    CHECK_EQ(state.updates, 1);
    CHECK(fabs(state.carried[0][0] - (double)trainer->run->params.hyper.adamw.beta1) < 1e-9);
    return ZERO_OK;
}

static zero_status refuse_some(toy_trainer *trainer)
{
    const course *c = trainer->user;
    zero_load_options options = c->options;
    options.partial = 1;
    CHECK_FAILS(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "give the two tensors different groups");
    options.params_only = 1;
    TOY_TRY(zero_load(trainer->engine, &options, NULL));
    return toy_step(trainer);
}

TEST(bias_correction_fits_the_moments_of_each_tensor)
{
    toy_run run = toy_run_init(some_model(true, 0));
    const toy_run apart = toy_run_init(some_model(false, 1));
    const toy_run together = toy_run_init(some_model(false, 0));
    run.steps = 5;
    run_directory_make();
    course c = {.run = run, .options = run_load_options("one")};
    CHECK_OK(toy_on_ranks(2, &run, train_and_save_plainly, &c));
    CHECK_OK(toy_on_ranks(1, &apart, load_some, &c));
    CHECK_OK(toy_on_ranks(2, &together, refuse_some, &c));
    CHECK_OK(toy_on_ranks(2, &together, load_none, &c));
}

/* Moments of tensors that were frozen are missing. */
TEST(moments_that_were_not_saved_are_missing)
{
    toy_model *frozen = toy_model_new();
    toy_model *trained = toy_model_new();
    for (int i = 0; i < 2; i++) {
        toy_model *model = i == 0 ? frozen : trained;
        (void)toy_model_layer(model, "unit", 0);
        (void)toy_model_tensor(model, 100, 0, ZERO_DTYPE_F32, i == 0 ? ZERO_TENSOR_FROZEN : 0);
        (void)toy_model_tensor(model, 100, 0, ZERO_DTYPE_F32, 0);
    }
    toy_run run = toy_run_init(frozen);
    toy_run other = toy_run_init(trained);
    run.steps = other.steps = 0;
    other.options.loss_scale = 64;
    run_directory_make();
    course c = saved_course(&run, 1);
    refuse(&c, &other, 1, ZERO_ERR_INVALID_ARGUMENT, "missing masters or moments of ");
    c.options.params_only = 1;
    CHECK_OK(toy_on_ranks(2, &other, load_params, &c));
    toy_state_free(&c.state);
}

/* ---- damage ---- */

static void flip(const char *file, uint64_t at)
{
    char path[128];
    unsigned char byte = 0;
    (void)snprintf(path, sizeof path, "%s/one/%s", run_directory, file);
    const int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    CHECK_EQ(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    CHECK_EQ(pwrite(fd, &byte, 1, (off_t)at), 1);
    CHECK_EQ(close(fd), 0);
}

static zero_status load_damaged(toy_trainer *trainer)
{
    const course *c = trainer->user;
    const zero_status status = zero_load(trainer->engine, &c->options, NULL);
    CHECK_EQ(status, ZERO_ERR_CORRUPT);
    said_check(zero_last_error()->message, c->text, &c->tensor, 4, c->damaged_at);
    CHECK_FAILS(zero_micro_begin(trainer->engine, ZERO_MICRO_LAST), ZERO_ERR_POISONED, c->text);
    return ZERO_OK;
}

/* One tensor, whose single piece lies in the slices of all ranks that load. */
TEST(a_damaged_byte_is_named_whoever_reads_it)
{
    toy_model *model = toy_model_new();
    (void)toy_model_layer(model, "unit", 0);
    (void)toy_model_tensor(model, 3000, 0, ZERO_DTYPE_F32, 0);
    toy_run run = toy_run_init(model);
    run.steps = 0;
    run.options.stage = ZERO_STAGE_2;
    run_directory_make();
    course c = saved_course(&run, 1);
    c.text = "moment1.safetensors";
    c.tensor = said_find(test_text("%s/one/%s", run_directory, c.text), 4096);
    CHECK(strcmp(c.tensor.name, model->tensors[0].name) == 0);
    for (uint64_t at = 4096; at < 4096 + 12000; at += 1999) {
        flip("moment1.safetensors", at);
        c.damaged_at = at;
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            CHECK_EQ(toy_on_ranks(ranks, &run, load_damaged, &c), ZERO_ERR_CORRUPT);
        }
        flip("moment1.safetensors", at);
    }
    /* Before anything has changed. */
    flip("moment2.safetensors", 20);
    refuse(&c, &run, 1, ZERO_ERR_CORRUPT, "moment2.safetensors");
    flip("moment2.safetensors", 20);
    flip("sums.bin", 3);
    refuse(&c, &run, 1, ZERO_ERR_CORRUPT, "sums.bin");
    flip("sums.bin", 3);
    flip("manifest.json", 30);
    refuse(&c, &run, 1, ZERO_ERR_CORRUPT, "manifest.json");
    toy_state_free(&c.state);
}

/* Only rank 0 compares the list of sums with the manifest; the others have found nothing wrong. */
static zero_status load_bad_sums(toy_trainer *trainer)
{
    const course *c = trainer->user;
    const zero_error *error = zero_last_error();
    const zero_status status = zero_load(trainer->engine, &c->options, NULL);
    CHECK_FAILS(status, ZERO_ERR_CORRUPT, "sums.bin: ");
    CHECK_EQ(strncmp(error->message, "rank 0: ", 8) == 0, trainer->rank != 0);
    CHECK_EQ(error->of_other, trainer->rank != 0);
    return status;
}

#ifndef TOY_CUDA /* whose processes would exchange by the NCCL that is here */
static zero_status check_bad_sums(zero_world *world, void *user)
{
    toy_trainer trainer;
    course *c = user;
    const toy_run run = run_of(run_model(ZERO_DTYPE_F32), ZERO_DTYPE_DEFAULT, ZERO_DTYPE_DEFAULT);
    TOY_TRY(toy_open(&trainer, &run, world));
    trainer.user = c;
    CHECK_EQ(load_bad_sums(&trainer), ZERO_ERR_CORRUPT);
    toy_close(&trainer);
    return ZERO_OK;
}
#endif

/* Whoever ends first, what is reported is what rank 0 has found, in its words and its name. */
REAL_TEST(what_one_rank_finds_is_every_ranks_error)
{
    const toy_run run = run_of(run_model(ZERO_DTYPE_F32), ZERO_DTYPE_DEFAULT, ZERO_DTYPE_DEFAULT);
    run_directory_make();
    course c = saved_course(&run, 2);
    flip("sums.bin", 3);
    for (int again = 0; again < 20; again++) {
        CHECK_FAILS(toy_on_ranks(4, &run, load_bad_sums, &c), ZERO_ERR_CORRUPT, "sums.bin: ");
        CHECK(strncmp(zero_last_error()->message, "rank 0: ", 8) == 0);
        CHECK(strstr(zero_last_error()->message + 8, "rank ") == NULL);
    }
#ifndef TOY_CUDA
    run_launched(4, check_bad_sums, &c);
#endif
    toy_state_free(&c.state);
}

/* ---- failures ---- */

typedef struct failing {
    course *c;
    zi_fault_kind kind;
    uint64_t nth;
    uint64_t early; /* failures that left the engine as it was */
    uint64_t late;
    bool over;
} failing;

/* The n-th event fails: a new engine each time, since some are poisoned. */
static zero_status fail_nth(toy_trainer *trainer)
{
    failing *f = trainer->user;
    toy_state before;
    zero_error error;
    TOY_TRY(toy_collect(trainer, &before));
    TOY_TRY(zero_world_barrier(trainer->world));
    if (trainer->rank == 0) {
        zi_fault_arm(f->kind, f->nth);
    }
    TOY_TRY(zero_world_barrier(trainer->world));
    const zero_status status = zero_load(trainer->engine, &f->c->options, NULL);
    error = *zero_last_error();
    const bool poisoned = zero_save_end(trainer->engine) == ZERO_ERR_POISONED;
    if (trainer->rank == 0) {
        f->over = zi_fault_count(f->kind) < f->nth;
        f->early += status != ZERO_OK && !poisoned;
        f->late += poisoned;
    }
    zi_fault_arm(f->kind, 0);
    CHECK(status != ZERO_OK || !poisoned);
    CHECK(status == ZERO_OK || error.message[0] != '\0');
    if (status != ZERO_OK && !poisoned) {
        TOY_TRY(toy_collect_same(trainer, &before, "the engine before a load that failed early"));
    }
    toy_state_free(&before);
    return ZERO_OK;
}

static void fail_each(zi_fault_kind kind, bool late)
{
    const toy_run run = mixed_run(ZERO_DTYPE_BF16, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 1);
    run_directory_make();
    course c = saved_course(&run, 2);
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        failing f = {.c = &c, .kind = kind};
        while (!f.over) {
            const uint64_t late_before = f.late;
            f.nth++;
            const zero_status status = toy_on_ranks(ranks, &run, fail_nth, &f);
            CHECK(status == ZERO_OK || f.late > late_before); /* the world has its failure */
        }
        CHECK(f.early != 0 || kind == ZI_FAULT_IO); /* the files are read once all ranks agree */
        CHECK(f.late != 0 || !late);
    }
    toy_state_free(&c.state);
}

TEST_CALL(every_allocation_may_fail, fail_each(ZI_FAULT_ALLOC, false));
TEST_CALL(every_thread_may_fail, fail_each(ZI_FAULT_THREAD, false));
TEST_CALL(every_read_may_fail, fail_each(ZI_FAULT_IO, true));

/* ---- what is refused ---- */

static zero_status misuse(toy_trainer *trainer)
{
    const course *c = trainer->user;
    zero_load_options options = c->options;
    options.path = "./no-such-run";
    CHECK_EQ(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT);
    CHECK(strstr(zero_last_error()->message, "no-such-run") != NULL);
    options = c->options;
    options.name = "two";
    CHECK_EQ(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT);
    CHECK(strstr(zero_last_error()->message, "two") != NULL);
    options = c->options;
    options.partial = (int32_t)trainer->rank;
    CHECK_FAILS(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "a different checkpoint to load");
    TOY_TRY(toy_micro(trainer, false));
    CHECK_FAILS(zero_load(trainer->engine, &c->options, NULL), ZERO_ERR_STATE, "zero_load: ");
    TOY_TRY(toy_micro(trainer, true));
    TOY_TRY(toy_update(trainer));
    TOY_TRY(zero_load(trainer->engine, &c->options, NULL));
    return toy_collect_same(trainer, &c->state, "the checkpoint");
}

TEST(what_is_refused_changes_nothing)
{
    const toy_run run = mixed_run(ZERO_DTYPE_F32, ZERO_DTYPE_DEFAULT, ZERO_DTYPE_F32, 2);
    run_directory_make();
    course c = saved_course(&run, 2);
    CHECK_OK(toy_on_ranks(2, &run, misuse, &c));
    toy_state_free(&c.state);
}
