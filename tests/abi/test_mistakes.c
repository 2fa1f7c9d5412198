/* A beginner's mistakes in C, and the message of each: docs/embedding.md shows some of them. The
 * engine trains on after every one. */
#include "../harness.h"
#include "zero/zero.h"

enum { WIDTH = 4, WEIGHTS = WIDTH * WIDTH, UNITS = 3 };

typedef struct rig {
    zero_world *world;
    zero_engine *engine;
    zero_stream here;
} rig;

static const zero_tensor_desc weight = {.name = "weight", .shape = {WIDTH, WIDTH}, .dims = 2};

static zero_model *layers(void)
{
    zero_model *model = NULL;
    CHECK_OK(zero_model_create(&model));
    CHECK_OK(zero_unit_add(
        model,
        &(zero_unit_desc){.name = "layer", .tensors = &weight, .tensor_count = 1, .layers = UNITS},
        NULL, NULL));
    return model;
}

static zero_status create(const rig *r, const zero_engine_options *options, zero_engine **engine)
{
    zero_model *model = layers();
    const zero_status status = zero_engine_create(r->world, model, options, engine);
    zero_model_destroy(model);
    return status;
}

static zero_status use(const rig *r, uint32_t unit, zero_pass pass)
{
    const zero_unit_view *view = NULL;
    const zero_status status = zero_unit_acquire(r->engine, unit, pass, r->here, &view);
    if (status != ZERO_OK) {
        return status;
    }
    for (uint32_t i = 0; pass == ZERO_PASS_BACKWARD && i < WEIGHTS; i++) {
        float *grad = view->grads[0].data;
        grad[i] += 1;
    }
    return zero_unit_release(r->engine, unit, r->here);
}

static void micro_step(const rig *r, zero_micro micro)
{
    CHECK_OK(zero_micro_begin(r->engine, micro));
    for (uint32_t u = 0; u < UNITS; u++) {
        CHECK_OK(use(r, u, ZERO_PASS_FORWARD));
    }
    for (uint32_t u = UNITS; u-- > 0;) {
        CHECK_OK(use(r, u, ZERO_PASS_BACKWARD));
    }
    CHECK_OK(zero_micro_end(r->engine));
}

/* The record of the mistake stays: a call that succeeds leaves it alone. */
static zero_status and_abandon(const rig *r, zero_status status)
{
    CHECK_OK(zero_micro_abandon(r->engine, r->here));
    return status;
}

/* ---- the mistakes ---- */

static zero_status misspelt_option(const rig *r)
{
    (void)r;
    zero_engine_options options = zero_engine_options_init();
    zero_tuning tuning = zero_tuning_init();
    return zero_option_set(&options, &tuning, "look_ahed", "2");
}

static zero_status stage_there_is_not(const rig *r)
{
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    options.stage = (zero_stage)7;
    return create(r, &options, &engine);
}

static zero_status group_that_does_not_divide(const rig *r)
{
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    options.shard_group = 7;
    return create(r, &options, &engine);
}

static zero_status disk_without_directory(const rig *r)
{
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    options.tier[ZERO_ROLE_MOMENT1] = ZERO_TIER_DISK;
    return create(r, &options, &engine);
}

static zero_status budget_too_small(const rig *r)
{
    zero_engine *engine = NULL;
    zero_engine_options options = zero_engine_options_init();
    options.device_budget_bytes = 100;
    return create(r, &options, &engine);
}

static zero_status two_tensors_of_one_name(const rig *r)
{
    (void)r;
    const zero_tensor_desc both[] = {weight, weight};
    zero_model *model = layers();
    const zero_status status = zero_unit_add(
        model, &(zero_unit_desc){.name = "twice", .tensors = both, .tensor_count = 2}, NULL, NULL);
    zero_model_destroy(model);
    return status;
}

static zero_status dims_forgotten(const rig *r)
{
    (void)r;
    const zero_tensor_desc tensor = {.name = "bias", .shape = {WIDTH}};
    zero_model *model = layers();
    const zero_status status = zero_unit_add(
        model, &(zero_unit_desc){.name = "more", .tensors = &tensor, .tensor_count = 1}, NULL,
        NULL);
    zero_model_destroy(model);
    return status;
}

static zero_status tensor_for_unit(const rig *r)
{
    return use(r, UNITS, ZERO_PASS_EVAL);
}

static zero_status forward_before_micro_begin(const rig *r)
{
    return use(r, 0, ZERO_PASS_FORWARD);
}

static zero_status validation_inside(const rig *r)
{
    CHECK_OK(zero_micro_begin(r->engine, ZERO_MICRO_LAST));
    return and_abandon(r, use(r, 0, ZERO_PASS_EVAL));
}

static zero_status release_twice(const rig *r)
{
    CHECK_OK(zero_micro_begin(r->engine, ZERO_MICRO_LAST));
    CHECK_OK(use(r, 0, ZERO_PASS_FORWARD));
    return and_abandon(r, zero_unit_release(r->engine, 0, r->here));
}

static zero_status release_forgotten(const rig *r)
{
    const zero_unit_view *view = NULL;
    CHECK_OK(zero_micro_begin(r->engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_unit_acquire(r->engine, 1, ZERO_PASS_FORWARD, r->here, &view));
    return and_abandon(r, zero_micro_end(r->engine));
}

static zero_status gradients_in_forward(const rig *r)
{
    zero_view grad;
    const zero_unit_view *view = NULL;
    CHECK_OK(zero_micro_begin(r->engine, ZERO_MICRO_LAST));
    CHECK_OK(zero_unit_acquire(r->engine, 0, ZERO_PASS_FORWARD, r->here, &view));
    return and_abandon(r, zero_tensor_grad(r->engine, 0, &grad));
}

static zero_status step_without_micro_step(const rig *r)
{
    return zero_step(r->engine, NULL, r->here);
}

static zero_status last_micro_step_not_marked(const rig *r)
{
    micro_step(r, ZERO_MICRO_EARLIER);
    return and_abandon(r, zero_step(r->engine, NULL, r->here));
}

static zero_status betas_forgotten(const rig *r)
{
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw = (zero_adamw){.lr = 1e-3F};
    micro_step(r, ZERO_MICRO_LAST);
    return and_abandon(r, zero_step(r->engine, &params, r->here));
}

static zero_status export_inside(const rig *r)
{
    float values[WEIGHTS];
    CHECK_OK(zero_micro_begin(r->engine, ZERO_MICRO_LAST));
    return and_abandon(
        r, zero_tensor_export(r->engine, 0, ZERO_ROLE_PARAM, &(zero_array){.data = values}));
}

static zero_status load_of_what_is_not_there(const rig *r)
{
    zero_load_options load = zero_load_options_init();
    load.path = "no-such-run";
    return zero_load(r->engine, &load, NULL);
}

typedef struct mistake {
    const char *what;
    zero_status (*make)(const rig *r);
    zero_status status;
    const char *says;
} mistake;

static const mistake mistakes[] = {
    {"an option that does not exist", misspelt_option, ZERO_ERR_INVALID_ARGUMENT, "look_ahed"},
    {"a stage that there is not", stage_there_is_not, ZERO_ERR_INVALID_ARGUMENT, "stage 7"},
    {"a group that does not divide the world", group_that_does_not_divide,
     ZERO_ERR_INVALID_ARGUMENT, "shard_group 7 does not divide the world of 1 ranks"},
    {"state on disk without a directory", disk_without_directory, ZERO_ERR_INVALID_ARGUMENT,
     "disk_directories"},
    {"a budget that is too small", budget_too_small, ZERO_ERR_OUT_OF_MEMORY,
     "device_budget_bytes is 100: short by"},
    {"two tensors of one name", two_tensors_of_one_name, ZERO_ERR_INVALID_ARGUMENT,
     "tensor name \"weight\" is taken"},
    {"dims that were forgotten", dims_forgotten, ZERO_ERR_INVALID_ARGUMENT, "dims"},
    {"a tensor's number for a unit's", tensor_for_unit, ZERO_ERR_INVALID_ARGUMENT, "unit 3"},
    {"forward before zero_micro_begin", forward_before_micro_begin, ZERO_ERR_STATE,
     "call zero_micro_begin first"},
    {"validation inside a micro-step", validation_inside, ZERO_ERR_STATE, "eval"},
    {"a unit that is released twice", release_twice, ZERO_ERR_STATE, "layer.0"},
    {"a unit that is never released", release_forgotten, ZERO_ERR_STATE, "layer.1"},
    {"gradients in forward", gradients_in_forward, ZERO_ERR_STATE, "ZERO_PASS_BACKWARD"},
    {"a step without a micro-step", step_without_micro_step, ZERO_ERR_STATE,
     "zero_micro_begin(engine, ZERO_MICRO_LAST)"},
    {"a step whose last micro-step was not marked", last_micro_step_not_marked, ZERO_ERR_STATE,
     "ZERO_MICRO_LAST"},
    {"betas and eps that were forgotten", betas_forgotten, ZERO_ERR_INVALID_ARGUMENT,
     "all numbers of this zero_adamw but lr"},
    {"an export inside a micro-step", export_inside, ZERO_ERR_STATE, "micro"},
    {"a load from a folder that is not there", load_of_what_is_not_there, ZERO_ERR_INVALID_ARGUMENT,
     "no-such-run"},
};

TEST(each_says_what_is_wrong_and_the_engine_goes_on)
{
    rig r = {.here = zero_stream_host()};
    CHECK_OK(zero_world_create_self(&r.world));
    CHECK_OK(create(&r, NULL, &r.engine));
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        const mistake *m = &mistakes[i];
        const zero_status status = m->make(&r);
        const char *said = status == ZERO_OK ? "nothing" : zero_last_error()->message;
        if (status != m->status || strstr(said, m->says) == NULL) {
            TEST_FAIL("%s: %s, without \"%s\": %s", m->what, zero_status_name(status), m->says,
                      said);
        }
        (void)printf("%s\n    %s\n", m->what, said);
    }
    micro_step(&r, ZERO_MICRO_LAST);
    CHECK_OK(zero_step(r.engine, NULL, r.here));
    CHECK_OK(
        zero_step_wait(r.engine, &(zero_step_result){.struct_bytes = sizeof(zero_step_result)}));
    zero_engine_destroy(r.engine);
    zero_world_destroy(r.world);
}
