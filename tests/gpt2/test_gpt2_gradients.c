/* The whole model's gradients in double against central differences of its loss. */
#include "gpt2_case.h"

/* Widths that are no multiple of the vectors, two blocks of attention rows, an odd vocabulary. */
static const gpt2_config shape = {.layers = 2, .heads = 3, .width = 24, .seq = 70, .vocab = 37};

static void check_tensor(gpt2_case *model, uint32_t tensor)
{
    const size_t count = model->first[tensor + 1] - model->first[tensor];
    double square = 0;
    for (size_t j = model->first[tensor]; j < model->first[tensor + 1]; j++) {
        square += model->grads[j] * model->grads[j];
    }
    const double typical = sqrt(square / (double)count);
    CHECK(typical > 0);
    for (uint32_t pick = 0; pick < 6; pick++) {
        const size_t at = model->first[tensor] + case_hash(tensor * 100 + pick) % count;
        const double kept = model->params[at];
        const double step = 1e-5;
        model->params[at] = kept + step;
        const double above = case_forward(model);
        model->params[at] = kept - step;
        const double below = case_forward(model);
        model->params[at] = kept;
        const double slope = (above - below) / (2 * step);
        if (fabs(slope - model->grads[at]) > 1e-6 * (fabs(slope) + typical)) {
            TEST_FAIL("%s[%zu]: %.12g by differences, %.12g by backward",
                      model->tensors[tensor].name, at - model->first[tensor], slope,
                      model->grads[at]);
        }
    }
}

static void check_model(bool recompute, size_t logits_rows)
{
    gpt2_case model;
    case_create(&model, &shape, 2, recompute);
    model.space->logits_rows = logits_rows;
    (void)case_forward(&model);
    case_backward(&model, 1);
    for (uint32_t i = 0; i < model.tensor_count; i++) {
        check_tensor(&model, i);
    }
    case_destroy(&model);
}

TEST_CALL(every_tensor_against_finite_differences, check_model(false, 140));
TEST_CALL(recomputed_and_with_the_head_in_pieces, check_model(true, 33));

TEST(the_loss_of_uniform_logits_is_log_vocab)
{
    gpt2_case model;
    case_create(&model, &shape, 1, false);
    memset(model.params, 0, model.first[model.tensor_count] * sizeof *model.params);
    CHECK_NEAR(case_forward(&model), log(37), 1e-14);
    case_destroy(&model);
}

/* Key and value of a later position must not reach an earlier one. */
TEST(the_future_does_not_change_the_past)
{
    gpt2_case model;
    case_create(&model, &shape, 1, false);
    (void)case_forward(&model);
    const size_t seen = (size_t)65 * shape.width;
    double before[65 * 24];
    const double *out = model.space->stream + shape.layers * model.space->tokens_max * shape.width;
    memcpy(before, out, sizeof before);
    const double next = out[seen];
    for (size_t t = 65; t < 70; t++) {
        model.tokens[t] = (model.tokens[t] + 1) % 37;
    }
    (void)case_forward(&model);
    CHECK_BYTES(before, out, sizeof before);
    CHECK(out[seen] != next);
    case_destroy(&model);
}
