/* The model through the hooks: training over in-process ranks follows PyTorch's reference, and
 * every way of sharding it gives the same bits. */
#include "gpt2_case.h"
#include "gpt2_net.h"

/* As in make_reference.py. */
static const gpt2_config shape = {.layers = 2, .heads = 4, .width = 32, .seq = 48, .vocab = 64};
enum { SAMPLES = 4, STEPS = 12 };

typedef struct setting {
    uint32_t ranks;
    zero_stage stage;
    uint32_t shard_group;
    zero_dtype dtype;
    zero_dtype grad_dtype;
    bool recompute;
} setting;

typedef struct history {
    setting plan;
    double loss[STEPS][8]; /* by rank */
    double norm[STEPS];
} history;

static void formula(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)user;
    gpt2_tensor about;
    gpt2_tensor_describe(&shape, tensor, &about);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)case_weight(&about, tensor, (uint32_t)(first + i));
    }
}

/* The rank's part of the tokens of a step. */
static gpt2_batch rank_batch(gpt2_case *tokens, uint32_t step, uint32_t rank, uint32_t ranks)
{
    const uint32_t samples = SAMPLES / ranks;
    const size_t first = (size_t)rank * samples * shape.seq;
    case_tokens(tokens, step);
    return (gpt2_batch){tokens->tokens + first, tokens->targets + first, samples, shape.seq};
}

static zero_status one_step(gpt2_net *net, const gpt2_batch *batch, double *loss, double *norm)
{
    float scale = 0;
    zero_step_result result = zero_step_result_init();
    zero_step_params params = zero_step_params_init();
    params.hyper.adamw = (zero_adamw){1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f};
    params.max_norm = 1;
    CHECK_OK(zero_micro_begin(net->engine, 1));
    CHECK_OK(gpt2_net_forward(net, batch, ZERO_PASS_FORWARD));
    CHECK_OK(zero_loss_scale(net->engine, &scale));
    CHECK_OK(gpt2_net_backward(net, scale));
    CHECK_OK(zero_micro_end(net->engine));
    CHECK_OK(gpt2_net_loss(net, loss));
    CHECK_OK(zero_step(net->engine, &params, net->stream));
    CHECK_OK(zero_step_wait(net->engine, &result));
    CHECK_EQ(result.skipped, 0);
    *norm = result.norm;
    return ZERO_OK;
}

static zero_status train_rank(zero_world *world, void *user)
{
    history *past = user;
    const uint32_t rank = zero_world_rank(world);
    const uint32_t ranks = zero_world_size(world);
    gpt2_net_setup setup = {.config = shape,
                            .options = zero_engine_options_init(),
                            .tuning = zero_tuning_init(),
                            .dtype = past->plan.dtype,
                            .samples = SAMPLES / ranks,
                            .recompute = past->plan.recompute,
                            .seed = 1};
    setup.options.stage = past->plan.stage;
    setup.options.shard_group = past->plan.shard_group;
    setup.options.grad_dtype = past->plan.grad_dtype;
    gpt2_net net;
    gpt2_case tokens;
    case_create(&tokens, &shape, SAMPLES, true);
    CHECK_OK(gpt2_net_create(&net, world, &setup));
    CHECK_OK(zero_engine_fill(net.engine, formula, NULL));
    for (uint32_t step = 0; step < STEPS; step++) {
        const gpt2_batch batch = rank_batch(&tokens, step, rank, ranks);
        double norm = 0;
        CHECK_OK(one_step(&net, &batch, &past->loss[step][rank], &norm));
        if (rank == 0) {
            past->norm[step] = norm;
        }
    }
    gpt2_net_destroy(&net);
    case_destroy(&tokens);
    return ZERO_OK;
}

static history run(setting plan)
{
    history past = {.plan = plan};
    CHECK_OK(zero_world_run(plan.ranks, 60000, train_rank, &past));
    return past;
}

static double mean_loss(const history *past, int step)
{
    double total = 0;
    for (uint32_t r = 0; r < past->plan.ranks; r++) {
        total += past->loss[step][r];
    }
    return total / past->plan.ranks;
}

static void check_reference(const history *past, double bound)
{
    FILE *file = fopen(GPT2_REFERENCE, "r");
    CHECK(file != NULL);
    char line[256];
    int rows = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        char *next = line;
        if (line[0] == '#') {
            continue;
        }
        CHECK_EQ(strtol(next, &next, 10), rows);
        CHECK_NEAR(mean_loss(past, rows), strtod(next, &next), bound);
        CHECK_NEAR(past->norm[rows], strtod(next, &next), bound * 10);
        rows++;
    }
    CHECK_EQ(rows, STEPS);
    fclose(file);
}

TEST(one_two_and_four_ranks_follow_pytorch)
{
    for (uint32_t ranks = 1; ranks <= SAMPLES; ranks *= 2) {
        const history past =
            run((setting){.stage = ZERO_STAGE_3, .ranks = ranks, .dtype = ZERO_DTYPE_F32});
        check_reference(&past, 1e-5);
    }
}

/* Rounding of parameters and gradients moves the losses, but not offloaded. */
TEST(low_precision_stays_near_pytorch)
{
    const history bf16 =
        run((setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_BF16});
    check_reference(&bf16, 0.05);
    const history f16 = run((setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_F16});
    check_reference(&f16, 0.01);
    const history mixed = run((setting){
        .stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_BF16, .grad_dtype = ZERO_DTYPE_F32});
    check_reference(&mixed, 0.05);
}

static void check_same(const history *left, const history *right)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_SAME(left->norm[step], right->norm[step]);
        for (uint32_t r = 0; r < left->plan.ranks; r++) {
            CHECK_SAME(left->loss[step][r], right->loss[step][r]);
        }
    }
}

static void check_stages(uint32_t ranks, zero_dtype dtype)
{
    const history zero = run((setting){.ranks = ranks, .dtype = dtype, .stage = ZERO_STAGE_0});
    for (int stage = ZERO_STAGE_1; stage <= ZERO_STAGE_3; stage++) {
        const history other =
            run((setting){.ranks = ranks, .dtype = dtype, .stage = (zero_stage)stage});
        check_same(&zero, &other);
    }
    const history recomputed =
        run((setting){.ranks = ranks, .dtype = dtype, .stage = ZERO_STAGE_3, .recompute = true});
    check_same(&zero, &recomputed);
}

TEST(every_stage_gives_the_same_bits_with_two_ranks)
{
    check_stages(2, ZERO_DTYPE_F32);
}

TEST(every_stage_gives_the_same_bits_with_four_ranks)
{
    check_stages(4, ZERO_DTYPE_F32);
}

TEST(every_stage_gives_the_same_bits_in_bf16)
{
    check_stages(4, ZERO_DTYPE_BF16);
}

/* Shards of two ranks, two replicas: gradients are added as (0 + 1) + (2 + 3), so the bits may
 * differ from ((0 + 1) + 2) + 3, and nothing else. With replicas of one rank the order is the same.
 */
TEST(hybrid_sharding_follows_too)
{
    const history pairs = run(
        (setting){.stage = ZERO_STAGE_3, .ranks = 4, .dtype = ZERO_DTYPE_F32, .shard_group = 2});
    check_reference(&pairs, 1e-5);
    const history whole =
        run((setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_F32});
    const history single = run(
        (setting){.stage = ZERO_STAGE_3, .ranks = 2, .dtype = ZERO_DTYPE_F32, .shard_group = 1});
    check_same(&whole, &single);
}

TEST(a_run_repeats_itself)
{
    const history once =
        run((setting){.stage = ZERO_STAGE_3, .ranks = 4, .dtype = ZERO_DTYPE_BF16});
    const history twice =
        run((setting){.stage = ZERO_STAGE_3, .ranks = 4, .dtype = ZERO_DTYPE_BF16});
    check_same(&once, &twice);
}

TEST_MAIN()
