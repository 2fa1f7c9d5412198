/* The reference's training over ranks that are threads, and what it came to. */
#ifndef TESTS_GPT2_TRAINING_H
#define TESTS_GPT2_TRAINING_H

#include "gpt2_net.h"
#include "gpt2_reference.h"

enum { RANKS_MAX = 4 };

/* How it is trained; what is 0 is the default. */
typedef struct setting {
    uint32_t ranks;
    zero_stage stage;
    uint32_t shard_group;
    zero_dtype dtype;
    zero_dtype grad_dtype;
    bool recompute;
    uint32_t micro_steps;
    const gpt2_backend *backend;
    zero_device device;
    gpt2_library products;
} setting;

typedef struct history {
    setting plan;
    double loss[STEPS][RANKS_MAX]; /* mean over micro-steps, by rank */
    double norm[STEPS];
} history;

static inline void formula(void *user, uint32_t tensor, uint64_t first, uint64_t count,
                           float *values)
{
    (void)user;
    gpt2_tensor about;
    gpt2_tensor_describe(&reference_shape, tensor, &about);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)case_weight(&about, tensor, (uint32_t)(first + i));
    }
}

/* One step of one rank; samples go by micro-step, then by rank. */
static inline void train_step(gpt2_net *net, gpt2_case *tokens, history *past, uint32_t step,
                              uint32_t rank)
{
    const uint32_t micro_steps = past->plan.micro_steps;
    const uint32_t samples = SAMPLES / (past->plan.ranks * micro_steps);
    zero_step_params params = zero_step_params_init();
    zero_step_result result = zero_step_result_init();
    params.hyper.adamw = (zero_adamw){1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f};
    params.max_norm = 1;
    case_tokens(tokens, step);
    for (uint32_t micro = 0; micro < micro_steps; micro++) {
        const size_t first =
            (size_t)(micro * past->plan.ranks + rank) * samples * reference_shape.seq;
        const gpt2_batch batch = {tokens->tokens + first, tokens->targets + first, samples,
                                  reference_shape.seq};
        float scale = 0;
        double loss = 0;
        CHECK_OK(zero_micro_begin(net->engine,
                                  micro + 1 == micro_steps ? ZERO_MICRO_LAST : ZERO_MICRO_EARLIER));
        CHECK_OK(gpt2_net_forward(net, &batch, ZERO_PASS_FORWARD));
        CHECK_OK(zero_loss_scale(net->engine, &scale));
        CHECK_OK(gpt2_net_backward(net, scale));
        CHECK_OK(zero_micro_end(net->engine));
        CHECK_OK(gpt2_net_loss(net, &loss));
        past->loss[step][rank] += loss / micro_steps;
    }
    CHECK_OK(zero_step(net->engine, &params, net->stream));
    CHECK_OK(zero_step_wait(net->engine, &result));
    CHECK_EQ(result.skipped, 0);
    if (rank == 0) {
        past->norm[step] = result.norm;
    }
}

static inline zero_status train_rank(zero_world *world, void *user)
{
    history *past = user;
    const setting *plan = &past->plan;
    gpt2_net_setup setup = {.config = reference_shape,
                            .options = zero_engine_options_init(),
                            .tuning = zero_tuning_init(),
                            .backend = plan->backend,
                            .dtype = plan->dtype,
                            .samples = SAMPLES / (plan->ranks * plan->micro_steps),
                            .recompute = plan->recompute,
                            .products = plan->products,
                            .seed = 1};
    setup.options.stage = plan->stage;
    setup.options.shard_group = plan->shard_group;
    setup.options.grad_dtype = plan->grad_dtype;
    setup.options.device = plan->device;
    gpt2_net net;
    gpt2_case tokens;
    case_create(&tokens, &reference_shape, SAMPLES, true);
    if (gpt2_net_create(&net, world, &setup) != ZERO_OK) {
        TEST_FAIL("%s: %s", net.error.text, zero_last_error()->message);
    }
    CHECK_OK(zero_engine_fill(net.engine, formula, NULL));
    for (uint32_t step = 0; step < STEPS; step++) {
        train_step(&net, &tokens, past, step, zero_world_rank(world));
    }
    gpt2_net_destroy(&net);
    case_destroy(&tokens);
    return ZERO_OK;
}

static inline history train(setting plan)
{
    plan.micro_steps = plan.micro_steps == 0 ? 1 : plan.micro_steps;
    history past = {.plan = plan};
    CHECK_OK(zero_world_run(plan.ranks, 60000, train_rank, &past));
    return past;
}

static inline void check_reference(const history *past, double loss_bound, double norm_bound)
{
    const reference expected = read_reference();
    for (int step = 0; step < STEPS; step++) {
        double total = 0;
        for (uint32_t r = 0; r < past->plan.ranks; r++) {
            total += past->loss[step][r];
        }
        CHECK_NEAR(total / past->plan.ranks, expected.loss[step], loss_bound);
        CHECK_NEAR(past->norm[step], expected.norm[step], norm_bound);
    }
}

static inline void check_same(const history *left, const history *right)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_SAME(left->norm[step], right->norm[step]);
        for (uint32_t r = 0; r < left->plan.ranks; r++) {
            CHECK_SAME(left->loss[step][r], right->loss[step][r]);
        }
    }
}

#endif
