/* Owns the proof that tuning.poison_released finds what it is for: a GPT whose mathematics uses
 * parameters after their unit's release. Without the option such a trainer may have right losses,
 * for as long as nothing else comes to lie there. */
#include "gpt2_case.h"
#include "gpt2_net.h"

static const gpt2_config shape = {.layers = 3, .heads = 2, .width = 16, .seq = 16, .vocab = 32};
enum { SAMPLES = 2 };

typedef enum mistake { NO_MISTAKE, LATE_LAYER, TIE_NOT_ACQUIRED } mistake;

/* A rank's backend with a mistake in it. */
static _Thread_local struct {
    const gpt2_backend *right;
    mistake made;
    zero_view tied;                     /* wte, as the embedding saw it */
    zero_view kept[GPT2_BLOCK_TENSORS]; /* layer 0's views */
} wrong;

static zero_status embed_forward(void *space, const zero_view *params)
{
    wrong.tied = params[GPT2_WTE];
    return wrong.right->embed_forward(space, params);
}

/* A trainer that does not tie its head takes the matrix from where the embedding had it. */
zero_status __real_zero_tensor_tie(zero_model *model, uint32_t unit, uint32_t tensor);
zero_status __wrap_zero_tensor_tie(zero_model *model, uint32_t unit, uint32_t tensor);

zero_status __wrap_zero_tensor_tie(zero_model *model, uint32_t unit, uint32_t tensor)
{
    return wrong.made == TIE_NOT_ACQUIRED ? ZERO_OK : __real_zero_tensor_tie(model, unit, tensor);
}

static zero_status head_forward(void *space, const zero_view *params, bool trains)
{
    zero_view untied[GPT2_HEAD_TENSORS];
    if (wrong.made == TIE_NOT_ACQUIRED) {
        memcpy(untied, params, GPT2_HEAD_WTE * sizeof *untied);
        untied[GPT2_HEAD_WTE] = wrong.tied;
        params = untied;
    }
    return wrong.right->head_forward(space, params, trains);
}

/* Layer 0 is computed when layer 1's turn comes: after its release. */
static zero_status block_forward(void *space, uint32_t layer, const zero_view *params)
{
    if (wrong.made == LATE_LAYER && layer == 0) {
        memcpy(wrong.kept, params, sizeof wrong.kept);
        return ZERO_OK;
    }
    if (wrong.made == LATE_LAYER && layer == 1) {
        const zero_status status = wrong.right->block_forward(space, 0, wrong.kept);
        if (status != ZERO_OK) {
            return status;
        }
    }
    return wrong.right->block_forward(space, layer, params);
}

typedef struct trial {
    mistake made;
    zero_stage stage;
    int32_t checked;
    double loss; /* of rank 0 */
    int32_t skipped;
} trial;

static zero_status one_step(gpt2_net *net, const gpt2_batch *batch, trial *out)
{
    zero_step_result result = zero_step_result_init();
    CHECK_OK(gpt2_net_forward(net, batch, ZERO_PASS_EVAL));
    CHECK_OK(gpt2_net_loss(net, &out->loss));
    if (out->made == TIE_NOT_ACQUIRED) { /* backward would be refused the matrix's gradient */
        return ZERO_OK;
    }
    CHECK_OK(zero_micro_begin(net->engine, ZERO_MICRO_LAST));
    CHECK_OK(gpt2_net_forward(net, batch, ZERO_PASS_FORWARD));
    CHECK_OK(gpt2_net_backward(net, 1));
    CHECK_OK(zero_micro_end(net->engine));
    CHECK_OK(zero_step(net->engine, NULL, net->stream));
    CHECK_OK(zero_step_wait(net->engine, &result));
    out->skipped = result.skipped;
    return ZERO_OK;
}

static zero_status train(zero_world *world, void *user)
{
    trial *shared = user;
    trial mine = *shared;
    gpt2_error error;
    wrong.right = gpt2_cpu_backend(&error);
    wrong.made = mine.made;
    gpt2_backend backend = *wrong.right;
    backend.embed_forward = embed_forward;
    backend.block_forward = block_forward;
    backend.head_forward = head_forward;
    gpt2_net_setup setup = {.config = shape,
                            .options = zero_engine_options_init(),
                            .tuning = zero_tuning_init(),
                            .backend = &backend,
                            .dtype = ZERO_DTYPE_F32,
                            .samples = SAMPLES,
                            .seed = 1};
    setup.options.stage = mine.stage;
    setup.tuning.poison_released = mine.checked;
    gpt2_net net;
    gpt2_case tokens;
    case_create(&tokens, &shape, SAMPLES, true);
    CHECK_OK(gpt2_net_create(&net, world, &setup));
    const gpt2_batch batch = {tokens.tokens, tokens.targets, SAMPLES, shape.seq};
    CHECK_OK(one_step(&net, &batch, &mine));
    gpt2_net_destroy(&net);
    case_destroy(&tokens);
    if (zero_world_rank(world) == 0) {
        shared->loss = mine.loss;
        shared->skipped = mine.skipped;
    }
    return ZERO_OK;
}

static trial try_it(uint32_t ranks, zero_stage stage, mistake made, int32_t checked)
{
    trial t = {.made = made, .stage = stage, .checked = checked};
    CHECK_OK(zero_world_run(ranks, 60000, train, &t));
    return t;
}

static void check_mistake(mistake made)
{
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        for (int stage = ZERO_STAGE_0; stage <= ZERO_STAGE_3; stage++) {
            const trial caught = try_it(ranks, (zero_stage)stage, made, 1);
            CHECK(isnan(caught.loss));
            CHECK_EQ(caught.skipped, made == LATE_LAYER);
        }
    }
}

TEST_CALL(a_layer_released_before_its_last_use, check_mistake(LATE_LAYER));
TEST_CALL(a_tied_matrix_not_acquired_again, check_mistake(TIE_NOT_ACQUIRED));

/* Right losses stay so, to the bit; and wrong ones go unnoticed without the option. */
TEST(right_losses)
{
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        const trial right = try_it(ranks, ZERO_STAGE_3, NO_MISTAKE, 0);
        const trial checked = try_it(ranks, ZERO_STAGE_3, NO_MISTAKE, 1);
        CHECK(isfinite(right.loss));
        CHECK_EQ(right.skipped + checked.skipped, 0);
        CHECK_SAME(checked.loss, right.loss);
        CHECK_SAME(try_it(ranks, ZERO_STAGE_2, LATE_LAYER, 0).loss, right.loss);
        CHECK_SAME(try_it(ranks, ZERO_STAGE_3, TIE_NOT_ACQUIRED, 0).loss, right.loss);
    }
}
