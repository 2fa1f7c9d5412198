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

/* ---- layer-wise rates ---- */

/* A run of two groups of LAMB, one of LARS and one of AdamW. */
typedef struct layerwise_run {
    toy_run run;
    zero_hyper groups[ZERO_STEP_GROUPS];
    toy_state state; /* that it comes to on one rank */
} layerwise_run;

static void layerwise_open(layerwise_run *all, void (*make)(toy_model *model))
{
    *all = (layerwise_run){.run = toy_run_made(make)};
    for (uint32_t g = 0; g < ZERO_STEP_GROUPS; g++) {
        all->groups[g] = zero_hyper_init(ZERO_OPTIMIZER_LAMB);
    }
    all->groups[0].lamb.weight_decay = 0.1f;
    all->groups[0].lamb.lr = 1e-2f;
    all->groups[1] = zero_hyper_init(ZERO_OPTIMIZER_LARS);
    all->groups[1].lars = (zero_lars){2.0f, 0.9f, 0.1f, 1e-2f, 1e-8f, 1.0f};
    all->groups[2].lamb.max_ratio = 0.5f;
    all->groups[2].lamb.min_ratio = 0.4f;
    all->groups[63] = zero_hyper_init(ZERO_OPTIMIZER_ADAMW);
    all->run.flavour = TOY_INTEGER;
    all->run.params.groups = all->groups;
    all->run.params.group_count = ZERO_STEP_GROUPS;
    all->run.options.optimizer = ZERO_OPTIMIZER_LAMB;
    all->run.options.group_optimizer[1] = ZERO_OPTIMIZER_LARS;
    all->run.options.group_optimizer[63] = ZERO_OPTIMIZER_ADAMW;
}

TEST(rates_by_tensor_follow_the_papers)
{
    layerwise_run all;
    layerwise_open(&all, toy_grouped_model);
    all.run.micro_steps = 2;
    all.run.params.max_norm = 3.0f;
    float *expected = calloc(all.run.model->element_count, sizeof *expected);
    CHECK(expected != NULL);
    for (uint32_t ranks = 1; ranks <= (toy_samples_ways ? 2 : 4); ranks++) {
        toy_reference(&all.run, ranks, expected);
        CHECK_OK(toy_run_ways(ranks, TOY_DEADLINE_MS, &all.run, train_groups, expected));
    }
    free(expected);
}

/* Tensors smaller than a block of squares and cut by shards, of both types, frozen and tied, and a
 * unit that every rank holds. */
static void layerwise_model(toy_model *model)
{
    static const uint64_t rows[] = {1, 64, 500, 77};
    toy_model_open(model);
    for (uint32_t u = 0; u < 4; u++) {
        model->shard_group = u == 2 ? 1 : 0;
        (void)toy_model_layer(model, "layer", u);
        (void)toy_model_grouped(model, rows[u], ZERO_DTYPE_BF16, ZERO_TENSOR_PLAIN, u % 3);
        (void)toy_model_grouped(model, rows[3 - u], ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN, 0);
        (void)toy_model_grouped(model, 31, ZERO_DTYPE_BF16, ZERO_TENSOR_NO_DECAY, 1);
        (void)toy_model_grouped(model, 9, ZERO_DTYPE_F32, ZERO_TENSOR_FROZEN, 2);
        (void)toy_model_grouped(model, 65, ZERO_DTYPE_F32, ZERO_TENSOR_PLAIN, 63);
    }
    toy_model_tie(model, toy_model_layer(model, "head", 0), 0);
}

/* A run's samples in a step, whatever its ranks, and the steps of a run; gradients of the second
 * are not finite. */
enum { LAYERWISE_SAMPLES = 24, LAYERWISE_STEPS = 5 };

static zero_status layerwise_steps(toy_trainer *trainer, uint32_t until)
{
    while (trainer->step < until) {
        TOY_TRY(toy_step_or_skip(trainer, trainer->step == 1));
    }
    return ZERO_OK;
}

static zero_status layerwise_first(toy_trainer *trainer)
{
    layerwise_run *all = trainer->user;
    TOY_TRY(layerwise_steps(trainer, LAYERWISE_STEPS));
    return toy_collect(trainer, &all->state);
}

static zero_status layerwise_same(toy_trainer *trainer)
{
    const layerwise_run *all = trainer->user;
    TOY_TRY(layerwise_steps(trainer, LAYERWISE_STEPS));
    return toy_collect_same(trainer, &all->state, "one rank and several");
}

static void layerwise_expect(layerwise_run *all)
{
    all->run.options.loss_scale = 64;
    all->run.params.max_norm = 2;
    all->run.micro_steps = LAYERWISE_SAMPLES;
    CHECK_OK(toy_on_ranks(1, &all->run, layerwise_first, all));
}

TEST(rates_by_tensor_have_the_same_bits_on_any_number_of_ranks)
{
    static const struct {
        zero_dtype master;
        zero_dtype moment;
    } forms[] = {{ZERO_DTYPE_F32, ZERO_DTYPE_F32},
                 {ZERO_DTYPE_NONE, ZERO_DTYPE_BF16},
                 {ZERO_DTYPE_REMAINDER8, ZERO_DTYPE_I8}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        layerwise_run all;
        layerwise_open(&all, layerwise_model);
        all.run.options.master_dtype = forms[i].master;
        all.run.options.moment_dtype = forms[i].moment;
        layerwise_expect(&all);
        const uint32_t most = toy_samples_ways ? 3 : 8;
        for (uint32_t ranks = 2; ranks <= most; ranks += ranks == 4 ? 4 : 1) {
            all.run.micro_steps = LAYERWISE_SAMPLES / ranks;
            all.run.options.threads = ranks == 2 ? 3 : 1;
            toy_run_tiers(&all.run, ZERO_ROLE_MASTER,
                          ranks == 3 ? ZERO_TIER_HOST : ZERO_TIER_DEFAULT);
            CHECK_OK(toy_on_ways(ranks, &all.run, layerwise_same, &all));
        }
        toy_state_free(&all.state);
    }
}

static zero_status layerwise_save(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("one");
    TOY_TRY(layerwise_steps(trainer, 3));
    return zero_save(trainer->engine, &options);
}

static zero_status layerwise_load(toy_trainer *trainer)
{
    const zero_load_options options = run_load_options("one");
    TOY_TRY(zero_load(trainer->engine, &options, NULL));
    trainer->step = 3;
    return layerwise_same(trainer);
}

TEST(rates_by_tensor_go_on_from_a_checkpoint)
{
    layerwise_run all;
    layerwise_open(&all, layerwise_model);
    layerwise_expect(&all);
    run_directory_make();
    all.run.micro_steps = LAYERWISE_SAMPLES / 2;
    CHECK_OK(toy_on_ranks(2, &all.run, layerwise_save, &all));
    all.run.micro_steps = LAYERWISE_SAMPLES / 3;
    CHECK_OK(toy_on_ranks(3, &all.run, layerwise_load, &all));
    toy_state_free(&all.state);
}

static zero_status layerwise_numbers(toy_trainer *trainer)
{
    TOY_TRY(toy_micros(trainer));
    REFUSE_PARAMS(params.hyper = zero_hyper_init(ZERO_OPTIMIZER_LAMB);
                  params.hyper.lamb.max_ratio = -1, "max_ratio -1 of lamb is not finite and >= 0");
    REFUSE_PARAMS(params.hyper = zero_hyper_init(ZERO_OPTIMIZER_LAMB);
                  params.hyper.lamb.adapt_undecayed = 2, "adapt_undecayed 2 of lamb is not 0 or 1");
    REFUSE_PARAMS(params.hyper = zero_hyper_init(ZERO_OPTIMIZER_LAMB);
                  params.hyper.lamb.min_ratio = 2;
                  params.hyper.lamb.max_ratio = 1,
                  "min_ratio 2 of lamb is above its max_ratio 1; raise that, or make it 0");
    return zero_step(trainer->engine, NULL, toy_stream());
}

TEST(numbers_of_rates_by_tensor)
{
    toy_run run = toy_run_mixed(ZERO_DTYPE_F32);
    run.options.optimizer = ZERO_OPTIMIZER_LAMB;
    CHECK_OK(toy_on_ranks(2, &run, layerwise_numbers, NULL));
}

/* `change` is made to `run`, whose plan is refused. */
#define REFUSE_PLAN(change, text)                                                            \
    do {                                                                                     \
        zero_plan *plan = NULL;                                                              \
        layerwise_run all;                                                                   \
        layerwise_open(&all, layerwise_model);                                               \
        change;                                                                              \
        CHECK_FAILS(zero_plan_create(all.run.model->model, TOY_OPTIONS(&all.run), 2, &plan), \
                    ZERO_ERR_UNSUPPORTED, text);                                             \
    } while (0)

static zero_status refuse_parts(toy_trainer *trainer)
{
    REFUSE_PLAN(all.run.options.model_parallel = trainer->world,
                "is updated by lamb, which needs the norm of the whole tensor, and "
                "options.model_parallel has 2 parts");
    return ZERO_OK;
}

TEST(rates_by_tensor_are_refused_where_two_passes_cannot_be_made)
{
    const toy_run plain = toy_run_mixed(ZERO_DTYPE_F32);
    REFUSE_PLAN(all.run.options.tier[ZERO_ROLE_MOMENT2] = ZERO_TIER_DISK,
                "tensor 0 \"layer0.t0\" is updated by lamb, which goes over all tensors twice in a "
                "step, and options.tier of moment2 is disk; use ZERO_TIER_HOST");
    REFUSE_PLAN(all.run.options.tier[ZERO_ROLE_GRAD] = ZERO_TIER_DISK,
                "options.tier of grad is disk; use ZERO_TIER_DEVICE for it, or another optimizer");
    REFUSE_PLAN(all.run.options.device = ZERO_DEVICE_CUDA;
                all.run.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_HOST,
                "options.tier of param is host; use ZERO_TIER_DEVICE");
    REFUSE_PLAN(all.run.options.device = ZERO_DEVICE_CUDA;
                all.run.tuning.updater = ZERO_UPDATER_BOTH,
                "norms are in the GPU's memory, and tuning.updater is 3; use ZERO_UPDATER_GPU");
    CHECK_OK(toy_on_ranks(2, &plain, refuse_parts, NULL));
}
