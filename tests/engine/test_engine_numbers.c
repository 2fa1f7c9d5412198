/* Owns the tests of the step's arithmetic as seen through the engine: norm and clipping, skipped
 * steps, loss scaling, accumulation, groups of hyper-parameters and the caller's own optimizer. */
#include "folders.h"
#include "harness.h"
#include "reads.h"

#include "grouped.h"
#include "toy.h"

/* A step of one micro-step in which tensor 0 gets the listed gradients from `rank` (UINT32_MAX:
 * from all), and what it came to. */
typedef struct given {
    const float *values;
    uint32_t count;
    uint32_t rank;
} given;

static zero_status give(toy_trainer *trainer, const given *g)
{
    const zero_stream host = toy_stream();
    zero_view grad = {0};
    TOY_TRY(toy_micro_begin(trainer, true));
    TOY_TRY(zero_unit_grads_acquire(trainer->engine, 0, host));
    TOY_TRY(zero_tensor_grad(trainer->engine, 0, &grad));
    const size_t bytes = grad.count * zero_dtype_bytes(grad.dtype);
    void *data = toy_fetch(grad.data, bytes);
    for (uint32_t i = 0; i < g->count && (g->rank == UINT32_MAX || g->rank == trainer->rank); i++) {
        toy_store(data, i, grad.dtype, toy_encode(g->values[i], grad.dtype));
    }
    toy_put(grad.data, data, bytes);
    TOY_TRY(zero_unit_grads_ready(trainer->engine, 0, host));
    TOY_TRY(toy_micro_end(trainer));
    TOY_TRY(toy_update(trainer));
    return toy_wait(trainer);
}

/* ---- plain SGD: clipping and means ---- */

/* The caller's own optimizer is host code, which only an engine on the CPU can run. */
static void needs_host_memory(void)
{
    if (toy_device() != ZERO_DEVICE_CPU) {
        SKIP("the callback optimizer is for the CPU device");
    }
}

static void sgd(void *user, const zero_update_range *range)
{
    const float lr = *(const float *)user;
    CHECK_EQ(range->struct_bytes, sizeof *range);
    for (size_t i = 0; i < range->count; i++) {
        range->param[i] -= lr * range->grad[i];
    }
}

/* Three units of 200 elements, and SGD with a learning rate of 0.5. */
static toy_run sgd_run(void)
{
    static float lr = 0.5f;
    toy_run run = toy_run_equal(3, 200, ZERO_DTYPE_F32);
    run.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
    run.options.update = sgd;
    run.options.update_user = &lr;
    run.params.hyper.kind = ZERO_OPTIMIZER_CALLBACK; /* which has no numbers here */
    return run;
}

static zero_status clip_known_norm(toy_trainer *trainer)
{
    static const float values[4] = {4.3f, 0, 0, 0};
    toy_run loose = *trainer->run;
    toy_state state;
    TOY_TRY(give(trainer, &(given){values, 4, UINT32_MAX}));
    CHECK_NEAR(trainer->result.norm, 4.3, 1e-6);
    CHECK_NEAR(trainer->result.clip, 1 / 4.3, 1e-7);
    TOY_TRY(toy_collect(trainer, &state));
    /* The clipped gradient has length 1, the learning rate is 0.5. */
    CHECK_NEAR(toy_decode(state.gathered[0], ZERO_DTYPE_F32), toy_initial(0, 0) - 0.5f, 1e-6);
    CHECK_SAME(toy_decode(state.gathered[1], ZERO_DTYPE_F32), toy_initial(0, 1));
    toy_state_free(&state);
    loose.params.max_norm = 5;
    trainer->run = &loose;
    TOY_TRY(give(trainer, &(given){values, 4, UINT32_MAX}));
    CHECK_SAME(trainer->result.clip, 1.0);
    return ZERO_OK;
}

TEST(norm_4_3_is_clipped_to_1)
{
    needs_host_memory();
    toy_run run = sgd_run();
    run.params.max_norm = 1;
    CHECK_OK(toy_on_ways(1, &run, clip_known_norm, NULL));
    CHECK_OK(toy_on_ways(3, &run, clip_known_norm, NULL));
    CHECK_OK(toy_on_ways(4, &run, clip_known_norm, NULL));
}

/* Without a divisor of the caller's, the sum over ranks and micro-steps becomes their mean. */
static zero_status take_mean(toy_trainer *trainer)
{
    toy_state state;
    for (uint32_t m = 0; m < 3; m++) {
        /* Rank r adds r in each of three micro-steps: the mean is that of the ranks. */
        zero_view grad = {0};
        TOY_TRY(toy_micro_begin(trainer, m == 2));
        TOY_TRY(zero_unit_grads_acquire(trainer->engine, 1, toy_stream()));
        TOY_TRY(zero_tensor_grad(trainer->engine, 1, &grad));
        float *data = toy_fetch(grad.data, grad.count * sizeof(float));
        data[5] += (float)trainer->rank;
        toy_put(grad.data, data, grad.count * sizeof(float));
        TOY_TRY(zero_unit_grads_ready(trainer->engine, 1, toy_stream()));
        TOY_TRY(toy_micro_end(trainer));
    }
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    const double mean = ((double)trainer->ranks - 1) / 2;
    CHECK_SAME(trainer->result.norm, mean);
    TOY_TRY(toy_collect(trainer, &state));
    CHECK_NEAR(toy_decode(state.gathered[205], ZERO_DTYPE_F32),
               (double)toy_initial(1, 5) - 0.5 * mean, 1e-6);
    toy_state_free(&state);
    return ZERO_OK;
}

TEST(mean_is_over_ranks_and_micro_steps)
{
    needs_host_memory();
    const toy_run run = sgd_run();
    CHECK_OK(toy_on_ways(1, &run, take_mean, NULL));
    CHECK_OK(toy_on_ways(2, &run, take_mean, NULL));
    CHECK_OK(toy_on_ways(4, &run, take_mean, NULL));
}

/* ---- sums that gradients of 16 bits come to ---- */

/* Four elements get the same from every rank: `first` in the first micro-step, `later` in each
 * other. The sum leaves the gradient's type: it has too few digits, or too small a range. */
typedef struct narrow_case {
    zero_dtype dtype;
    zero_dtype wire;
    float first;
    float later;
    uint32_t micro_steps;
    double norm;
    double within; /* 0: exactly */
} narrow_case;

static zero_status add_up(toy_trainer *trainer)
{
    const narrow_case *c = trainer->user;
    for (uint32_t m = 0; m < c->micro_steps; m++) {
        zero_view grad = {0};
        TOY_TRY(toy_micro_begin(trainer, m + 1 == c->micro_steps));
        TOY_TRY(zero_unit_grads_acquire(trainer->engine, 1, toy_stream()));
        TOY_TRY(zero_tensor_grad(trainer->engine, 1, &grad));
        const size_t bytes = grad.count * zero_dtype_bytes(grad.dtype);
        void *data = toy_fetch(grad.data, bytes);
        for (uint64_t i = 0; i < 4; i++) {
            const float before = toy_decode(toy_load(data, i, grad.dtype), grad.dtype);
            const float value = before + (m == 0 ? c->first : c->later);
            toy_store(data, i, grad.dtype, toy_encode(value, grad.dtype));
        }
        toy_put(grad.data, data, bytes);
        TOY_TRY(zero_unit_grads_ready(trainer->engine, 1, toy_stream()));
        TOY_TRY(toy_micro_end(trainer));
    }
    TOY_TRY(toy_update(trainer));
    TOY_TRY(toy_wait(trainer));
    CHECK_EQ(trainer->result.skipped, 0);
    CHECK_NEAR(trainer->result.norm, c->norm, c->within);
    return ZERO_OK;
}

TEST(sums_leave_the_type_of_gradients)
{
    static narrow_case cases[] = {
        {ZERO_DTYPE_BF16, ZERO_DTYPE_DEFAULT, 256, 1, 2, 2 * 128.5, 0},
        {ZERO_DTYPE_F16, ZERO_DTYPE_DEFAULT, 30000, 30000, 3, 2 * 30000.0, 0},
        {ZERO_DTYPE_F16, ZERO_DTYPE_DEFAULT, 60000, 60000, 1, 2 * 60000.0, 0},
        {ZERO_DTYPE_F16, ZERO_DTYPE_F16, 30000, 30000, 3, 2 * 30000.0, 20}, /* rounded once */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        toy_run run = toy_run_equal(3, 200, cases[i].dtype);
        run.options.loss_scale = 1;
        run.tuning.wire_dtype = cases[i].wire;
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            run.tuning.accumulation = ZERO_ACCUMULATION_DEFAULT;
            CHECK_OK(toy_on_ways(ranks, &run, add_up, &cases[i]));
            run.tuning.accumulation = ZERO_ACCUMULATION_LOCAL;
            CHECK_OK(toy_on_stages(ranks, &run, add_up, &cases[i]));
        }
    }
}

/* ---- the norm's bits ---- */

#define NORM_STEPS 3

typedef struct norms {
    double value[NORM_STEPS]; /* bits that everybody must come to; written by the first world */
    bool known;
} norms;

static zero_status compare_norms(toy_trainer *trainer)
{
    norms *n = trainer->user;
    for (uint32_t s = 0; s < NORM_STEPS; s++) {
        TOY_TRY(toy_step_or_skip(trainer, false));
        CHECK(trainer->result.norm > 0);
        CHECK(trainer->result.clip < 1);
        if (!n->known) {
            n->value[s] = trainer->result.norm;
        }
        CHECK_BYTES(&n->value[s], &trainer->result.norm, sizeof trainer->result.norm);
    }
    if (zero_world_size(trainer->world) == 1) {
        n->known = true;
    }
    return ZERO_OK;
}

TEST(norm_has_the_same_bits_over_any_ranks)
{
    static const uint32_t worlds[] = {1, 2, 3, 4, 5, 8};
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_BF16; dtype++) {
        norms n = {.known = false};
        toy_run run = toy_run_mixed((zero_dtype)dtype);
        run.flavour = TOY_INTEGER;
        run.samples = 8;
        run.params.max_norm = 1;
        run.params.grad_divisor = 8;
        for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++) {
            /* The samples over as many micro-steps as it takes. */
            run.micro_steps = (run.samples + worlds[w] - 1) / worlds[w];
            CHECK_OK(toy_on_ways(worlds[w], &run, compare_norms, &n));
        }
    }
}

/* ---- gradients that are not finite ---- */

typedef struct bad_case {
    float values[8];
    uint32_t count;
    double norm;
} bad_case;

/* A good step, a bad one that must change nothing, and a good one that must be as if the bad one
 * had never been. */
static zero_status skip_once(toy_trainer *trainer)
{
    const bad_case *bad = trainer->user;
    static const float good[3] = {1, -2, 0.5f};
    toy_state before;
    toy_state after;
    TOY_TRY(give(trainer, &(given){good, 3, UINT32_MAX}));
    TOY_TRY(toy_collect(trainer, &before));
    TOY_TRY(give(trainer, &(given){bad->values, bad->count, trainer->ranks - 1}));
    CHECK_EQ(trainer->result.skipped, 1);
    CHECK_EQ(trainer->result.step, 2);
    CHECK_EQ(trainer->result.updates, 1);
    CHECK_SAME(trainer->result.norm, bad->norm);
    CHECK_EQ(engine_stats(trainer->engine).steps_skipped, 1);
    TOY_TRY(toy_collect_same(trainer, &before, "before and after a skipped step"));
    TOY_TRY(give(trainer, &(given){good, 3, UINT32_MAX}));
    CHECK_EQ(trainer->result.skipped, 0);
    CHECK_EQ(trainer->result.updates, 2);
    CHECK(isfinite(trainer->result.norm));
    TOY_TRY(toy_collect(trainer, &after));
    CHECK(toy_state_moved(&before, &after) > 0);
    CHECK_EQ(engine_stats(trainer->engine).steps_skipped, 1);
    toy_state_free(&before);
    toy_state_free(&after);
    return ZERO_OK;
}

static void skip_all_cases(uint32_t ranks, toy_run run)
{
    static const bad_case bad_cases[] = {
        {{INFINITY, -INFINITY, NAN, NAN, NAN, NAN, NAN, NAN}, 8, (double)NAN},
        {{INFINITY}, 1, (double)INFINITY},
        {{1, -INFINITY}, 2, (double)INFINITY},
        {{0, 0, 0, 0, 0, 0, 0, NAN}, 8, (double)NAN},
    };
    for (size_t b = 0; b < sizeof bad_cases / sizeof bad_cases[0]; b++) {
        bad_case bad = bad_cases[b];
        run.params.max_norm = b % 2 == 0 ? 1.0f : 0.0f;
        CHECK_OK(toy_on_ways(ranks, &run, skip_once, &bad));
    }
}

TEST(non_finite_gradients_skip_the_step)
{
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_F16; dtype++) {
        toy_run run = toy_run_equal(2, 150, (zero_dtype)dtype);
        run.options.loss_scale = 1.0f;
        skip_all_cases(1, run);
        skip_all_cases(3, run);
        run.options.master_dtype = ZERO_DTYPE_NONE;
        run.options.moment_dtype = ZERO_DTYPE_BF16;
        skip_all_cases(2, run);
    }
}

static void model_with_empty_end(toy_model *model)
{
    toy_model_open(model);
    (void)toy_model_unit(model, "all");
    (void)toy_model_tensor(model, 17, 0, ZERO_DTYPE_BF16, 0);
    (void)toy_model_unit(model, "nothing");
    (void)toy_model_tensor(model, 0, 0, ZERO_DTYPE_BF16, 0);
}

/* State on disk is gone through from one end in the first, from the other end in the second. */
static zero_status skip_twice(toy_trainer *trainer)
{
    static const float bad = INFINITY;
    toy_state before;
    TOY_TRY(toy_collect(trainer, &before));
    for (int s = 0; s < 2; s++) {
        TOY_TRY(give(trainer, &(given){&bad, 1, 0}));
        CHECK_EQ(trainer->result.skipped, 1);
        TOY_TRY(toy_collect_same(trainer, &before, "before and after a skipped step"));
    }
    toy_state_free(&before);
    return ZERO_OK;
}

TEST(steps_that_begin_with_an_empty_unit_are_skipped)
{
    toy_run run = toy_run_made(model_with_empty_end);
    rig_folders(1, 0);
    toy_run_tiers(&run, ZERO_ROLE_PARAM, ZERO_TIER_DISK);
    run.options.tier[ZERO_ROLE_GRAD] = ZERO_TIER_DEFAULT;
    toy_run_disk(&run, rig_paths, 1);
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        CHECK_OK(toy_on_stages(ranks, &run, skip_twice, NULL));
    }
}

/* ---- loss scaling ---- */

/* One step, bad or good, and the scale after it. */
static zero_status scale_after(toy_trainer *trainer, bool bad, float expected)
{
    const float value = bad ? INFINITY : 1.0f;
    float scale = 0;
    TOY_TRY(give(trainer, &(given){&value, 1, 0}));
    CHECK_EQ(trainer->result.skipped, bad);
    CHECK_SAME(trainer->result.loss_scale, expected);
    TOY_TRY(zero_loss_scale(trainer->engine, &scale));
    CHECK_SAME(scale, expected);
    return ZERO_OK;
}

typedef struct scale_script {
    const char *steps;     /* 'g' a good step, 'b' a bad one */
    const float *expected; /* the scale after each */
} scale_script;

static zero_status follow_scale(toy_trainer *trainer)
{
    const scale_script *script = trainer->user;
    for (size_t s = 0; script->steps[s] != 0; s++) {
        TOY_TRY(scale_after(trainer, script->steps[s] == 'b', script->expected[s]));
    }
    return ZERO_OK;
}

static void run_script(const toy_run *run, const char *steps, const float *expected)
{
    scale_script script = {steps, expected};
    CHECK_OK(toy_on_ways(1, run, follow_scale, &script));
    CHECK_OK(toy_on_ways(2, run, follow_scale, &script));
}

TEST(loss_scale_halves_and_doubles)
{
    toy_run run = toy_run_equal(2, 100, ZERO_DTYPE_F16);
    run_script(&run, "bgb", (const float[]){32768, 32768, 16384});
    run.options.loss_scale = 64;
    run.tuning.loss_scale_window = 3;
    /* Three good steps in a row double it; an overflow starts the count again. */
    run_script(&run, "gggggbggg", (const float[]){64, 64, 128, 128, 128, 64, 64, 64, 128});
}

TEST(loss_scale_has_hysteresis_and_a_floor)
{
    toy_run run = toy_run_equal(2, 100, ZERO_DTYPE_F16);
    run.options.loss_scale = 64;
    run.tuning.loss_scale_hysteresis = 2;
    /* Two overflows in a row halve it; a good step between them does not count as a row. */
    run_script(&run, "bgbb", (const float[]){64, 64, 64, 32});
    run.tuning.loss_scale_hysteresis = 1;
    run.tuning.loss_scale_min = 16;
    run_script(&run, "bbbb", (const float[]){32, 16, 16, 16});
    run.tuning.loss_scale_static = 1;
    run_script(&run, "bbgb", (const float[]){64, 64, 64, 64});
}

/* The scale takes part in no result: powers of two are exact. */
static zero_status scale_free(zero_world *world, void *user)
{
    toy_run run = *(const toy_run *)user;
    toy_state state;
    run.options.loss_scale = 1.0f;
    TOY_TRY(toy_train_collect(&run, world, &state));
    run.options.loss_scale = 1024.0f;
    TOY_TRY(toy_train_same(&run, world, toy_step, &state, "scales 1 and 1024"));
    toy_state_free(&state);
    return ZERO_OK;
}

TEST(loss_scale_leaves_results_alone)
{
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_BF16; dtype++) {
        toy_run run = toy_run_mixed((zero_dtype)dtype);
        run.params.max_norm = 0.5f;
        run.tuning.loss_scale_static = 1;
        CHECK_OK(zero_world_run(2, TOY_DEADLINE_MS, scale_free, &run));
    }
}

/* ---- micro-steps ---- */

static zero_status fold_shared(zero_world *world, const toy_run *run, void *user)
{
    return toy_train_same(run, world, toy_step, user, "one micro-step and several");
}

TEST(micro_steps_equal_one_step_on_the_mean)
{
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_F16; dtype++) {
        toy_state state; /* of one micro-step that adds all samples itself */
        toy_run run = toy_run_mixed((zero_dtype)dtype);
        run.flavour = TOY_INTEGER;
        run.steps = 6;
        run.params.grad_divisor = 8;
        run.options.loss_scale = 1;
        run.fold = 8;
        CHECK_OK(toy_train_collect(&run, NULL, &state));
        run.fold = 1;
        for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
            run.micro_steps = 8 / ranks;
            CHECK_OK(toy_run_ways(ranks, TOY_DEADLINE_MS, &run, fold_shared, &state));
        }
        toy_state_free(&state);
    }
}

/* ---- groups ---- */

static zero_status train_groups(zero_world *world, const toy_run *run, void *user)
{
    const float *expected = user;
    const toy_model *model = run->model;
    toy_state state;
    TOY_TRY(toy_train_collect(run, world, &state));
    for (uint32_t t = 0; t < model->tensor_count; t++) {
        const toy_tensor *tensor = &model->tensors[t];
        for (uint64_t e = 0; e < tensor->count; e++) {
            const float value = toy_decode(state.gathered[tensor->base + e], ZERO_DTYPE_F32);
            CHECK_NEAR(value, expected[tensor->base + e], 2e-5);
            if (tensor->desc.group == 2) {
                CHECK_SAME(value, toy_initial(t, e)); /* its learning rate is 0 */
            }
        }
    }
    toy_state_free(&state);
    return ZERO_OK;
}

TEST(groups_and_decay_survive_sharding)
{
    toy_run run = toy_run_made(toy_grouped_model);
    const zero_hyper groups[3] = {{.adamw = {1e-2f, 0.9f, 0.99f, 1e-8f, 0.5f}},
                                  {.adamw = {3e-3f, 0.8f, 0.999f, 1e-6f, 0.5f}},
                                  {.adamw = {0.0f, 0.9f, 0.999f, 1e-8f, 0.5f}}};
    run.flavour = TOY_INTEGER;
    run.params.groups = groups;
    run.params.group_count = 3; /* group 63 takes the common values */
    run.params.hyper.adamw.weight_decay = 0.9f;
    float *expected = calloc(run.model->element_count, sizeof *expected);
    CHECK(expected != NULL);
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        toy_reference(&run, ranks, expected);
        CHECK_OK(toy_run_ways(ranks, TOY_DEADLINE_MS, &run, train_groups, expected));
    }
    free(expected);
}

/* ---- the caller's own optimizer ---- */

typedef struct own_optimizer {
    const toy_model *model;
    uint32_t states;
} own_optimizer;

/* SGD with momentum, decayed unless the flag says no, which also checks what it is handed. */
static void momentum_sgd(void *user, const zero_update_range *range)
{
    const own_optimizer *own = user;
    const toy_tensor *tensor = &own->model->tensors[range->tensor];
    CHECK(range->count >= 1 && range->count <= 4096);
    CHECK(range->first + range->count <= tensor->count);
    CHECK_EQ(range->group, tensor->desc.group);
    CHECK_EQ(range->flags, tensor->desc.flags);
    CHECK((range->flags & ZERO_TENSOR_FROZEN) == 0);
    CHECK_EQ(range->moment1 != NULL, own->states >= 1);
    CHECK_EQ(range->moment2 != NULL, own->states >= 2);
    CHECK(range->step >= 1 && range->step <= 10);
    const float decay = (range->flags & ZERO_TENSOR_NO_DECAY) != 0 ? 0.0f : 0.01f;
    for (size_t i = 0; i < range->count; i++) {
        float move = range->grad[i];
        if (range->moment1 != NULL) {
            range->moment1[i] = 0.9f * range->moment1[i] + range->grad[i];
            move = range->moment1[i];
        }
        if (range->moment2 != NULL) {
            range->moment2[i] += move * move;
        }
        range->param[i] -= 0.01f * (move + decay * range->param[i]) / (float)range->step;
    }
}

static zero_status train_own(zero_world *world, void *user)
{
    const toy_run *given_run = user;
    toy_state first;
    toy_sharding ways[16];
    const bool exact = given_run->flavour == TOY_INTEGER;
    const uint32_t count = toy_shardings(zero_world_size(world), exact, ways);
    for (uint32_t w = 0; w < count; w++) {
        toy_run run = *given_run;
        toy_sharding_apply(&ways[w], &run);
        TOY_TRY(w == 0 ? toy_train_collect(&run, world, &first)
                       : toy_train_same(&run, world, toy_step, &first, ways[w].name));
    }
    toy_state_free(&first);
    return ZERO_OK;
}

TEST(own_optimizer_has_the_same_bits_at_all_stages)
{
    needs_host_memory();
    for (int dtype = ZERO_DTYPE_F32; dtype <= ZERO_DTYPE_BF16; dtype++) {
        toy_run run = toy_run_mixed((zero_dtype)dtype);
        own_optimizer own = {run.model, 0};
        run.steps = 10;
        run.params.max_norm = 1;
        run.options.optimizer = ZERO_OPTIMIZER_CALLBACK;
        run.options.update = momentum_sgd;
        run.options.update_user = &own;
        run.options.threads = 2;
        for (own.states = 0; own.states <= 2; own.states++) {
            run.options.update_states = own.states;
            run.flavour = TOY_REAL;
            CHECK_OK(zero_world_run(3, TOY_DEADLINE_MS, train_own, &run));
            run.flavour = TOY_INTEGER;
            CHECK_OK(zero_world_run(4, TOY_DEADLINE_MS, train_own, &run));
        }
    }
}
