/* Owns the tests of optimizers that groups of tensors have of their own: against a reference in
 * double, what is planned for them, what their hyper-parameters may be, and what is loaded. Random
 * programs draw them too (random_case.h), and test_recorded_bits keeps the bits of each. */
#include "harness.h"

#include "folders.h"
#include "grouped.h"
#include "saved_runs.h"
#include "toy.h"

/* ---- numbers ---- */

static zero_status train_groups(zero_world *world, const toy_run *run, void *user)
{
    const float *expected = user;
    const toy_model *model = run->model;
    toy_state state;
    TOY_TRY(toy_train_collect(run, world, &state));
    for (uint64_t e = 0; e < model->element_count; e++) {
        CHECK_NEAR(toy_decode(state.gathered[e], ZERO_DTYPE_F32), expected[e], 2e-5);
    }
    toy_state_free(&state);
    return ZERO_OK;
}

/* Of each unit a flat is updated by one optimizer: AdamW has two moments, the others one. */
TEST(groups_have_optimizers_of_their_own)
{
    toy_run run = toy_run_made(toy_grouped_model);
    zero_hyper groups[64];
    for (uint32_t g = 0; g < 64; g++) {
        groups[g] = zero_hyper_init(ZERO_OPTIMIZER_ADAMW);
    }
    groups[0] = zero_hyper_init(ZERO_OPTIMIZER_LION);
    groups[0].lion = (zero_lion){3e-3f, 0.9f, 0.95f, 0.5f};
    groups[1] = zero_hyper_init(ZERO_OPTIMIZER_SGD);
    groups[1].sgd = (zero_sgd){1e-2f, 0.5f, 0.5f, 1.0f};
    groups[2].adamw.lr = 0.0f;
    run.flavour = TOY_INTEGER;
    run.params.groups = groups;
    run.params.group_count = 64;
    run.options.optimizer = ZERO_OPTIMIZER_SGD; /* of groups that say nothing: none here */
    for (uint32_t g = 0; g < 64; g++) {
        run.options.group_optimizer[g] = groups[g].kind;
    }
    run.options.group_optimizer[1] = ZERO_OPTIMIZER_DEFAULT;
    float *expected = calloc(run.model->element_count, sizeof *expected);
    CHECK(expected != NULL);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        toy_reference(&run, ranks, expected);
        CHECK_OK(toy_run_ways(ranks, TOY_DEADLINE_MS, &run, train_groups, expected));
    }
    free(expected);
}

/* The moments that a plan has: two for AdamW's elements, one for the others', none for frozen. */
TEST(moments_are_planned_by_optimizer)
{
    toy_run run = toy_run_made(toy_grouped_model);
    zero_plan *plan = NULL;
    run.options.optimizer = ZERO_OPTIMIZER_LION;
    for (int adamw = 0; adamw < 2; adamw++) {
        zero_memory memory = zero_memory_init();
        run.options.group_optimizer[2] = adamw != 0 ? ZERO_OPTIMIZER_ADAMW : ZERO_OPTIMIZER_DEFAULT;
        CHECK_OK(zero_plan_create(run.model->model, TOY_OPTIONS(&run), 1, &plan));
        CHECK_OK(zero_plan_memory(plan, &memory));
        CHECK_EQ(memory.bytes[ZERO_ROLE_MOMENT2], adamw != 0 ? 4096 : 0);
        CHECK(memory.bytes[ZERO_ROLE_MOMENT1] >= sizeof(float) * run.model->element_count);
        zero_plan_destroy(plan);
    }
}

/* ---- hyper-parameters ---- */

/* Of groups of Lion and SGD. */
#define REFUSE_GROUPS(change, text)                                            \
    do {                                                                       \
        zero_hyper groups[2] = {zero_hyper_init(ZERO_OPTIMIZER_LION),          \
                                zero_hyper_init(ZERO_OPTIMIZER_SGD)};          \
        change;                                                                \
        REFUSE_PARAMS((params.groups = groups, params.group_count = 2), text); \
    } while (0)

static void model_of_two_groups(toy_model *model)
{
    toy_model_open(model);
    (void)toy_model_layer(model, "layer", 0);
    (void)toy_model_grouped(model, 170, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN, 0);
    (void)toy_model_grouped(model, 31, ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN, 1);
}

static zero_status numbers_of_others(toy_trainer *trainer)
{
    const zero_hyper lion = zero_hyper_init(ZERO_OPTIMIZER_LION);
    TOY_TRY(toy_micros(trainer));
    REFUSE_PARAMS((void)params, "group 0: kind 0 (adamw) is not the group's optimizer, which is 3");
    REFUSE_PARAMS(params.hyper = lion, "group 1: kind 3 (lion) is not the group's optimizer");
    REFUSE_GROUPS(groups[0].lion = (zero_lion){.lr = 1}, "all numbers of this zero_lion but lr 1");
    REFUSE_GROUPS(groups[0].lion.beta2 = 1, "group 0: beta2 1 of lion is not in [0, 1)");
    REFUSE_GROUPS(groups[1].sgd.momentum = -1, "group 1: momentum -1 of sgd");
    REFUSE_GROUPS(groups[1].sgd.nesterov = 0.5f, "group 1: nesterov 0.5 of sgd is not 0 or 1");
    /* Defaults of each; then numbers of each, of which those of SGD may be 0. */
    TOY_TRY(zero_step(trainer->engine, NULL, toy_stream()));
    trainer->micro = 0;
    trainer->step++;
    const zero_hyper groups[2] = {lion, {.kind = ZERO_OPTIMIZER_SGD, .sgd = {.lr = 0.5f}}};
    zero_step_params params = zero_step_params_init();
    params.groups = groups;
    params.group_count = 2;
    return toy_step_with(trainer, &params);
}

TEST(hyper_parameters_of_other_optimizers)
{
    toy_run run = toy_run_made(model_of_two_groups);
    run.options.optimizer = ZERO_OPTIMIZER_LION;
    run.options.group_optimizer[1] = ZERO_OPTIMIZER_SGD;
    CHECK_OK(toy_on_ranks(2, &run, numbers_of_others, NULL));
}

/* ---- checkpoints ---- */

static zero_status train_and_save(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("one");
    TOY_TRY(toy_train(trainer));
    return zero_save(trainer->engine, &options);
}

/* Parameters are everybody's. */
static zero_status refuse_moments(toy_trainer *trainer)
{
    zero_load_options options = run_load_options("one");
    CHECK_FAILS(zero_load(trainer->engine, &options, NULL), ZERO_ERR_INVALID_ARGUMENT,
                "has moments of adamw in the checkpoint and is updated by lion here; set "
                "params_only, or options.group_optimizer of group 0 to adamw");
    options.params_only = 1;
    TOY_TRY(zero_load(trainer->engine, &options, NULL));
    return toy_step(trainer);
}

TEST(moments_of_another_optimizer_are_refused)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    run.steps = 3;
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &run, train_and_save, NULL));
    toy_run other = run;
    other.options.optimizer = ZERO_OPTIMIZER_LION;
    other.params.hyper = zero_hyper_init(ZERO_OPTIMIZER_LION);
    CHECK_OK(toy_on_ranks(2, &other, refuse_moments, NULL));
}
