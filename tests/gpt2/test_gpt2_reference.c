/* Losses and gradient norms over AdamW steps against PyTorch's, which make_reference.py wrote to
 * the file that the build names in GPT2_REFERENCE. Compiled in float and, with GPT2_DOUBLE, in
 * double. */
#include "gpt2_reference.h"

static const double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, max_norm = 1.0;

#ifdef GPT2_DOUBLE
static const double bound = 1e-10;
#else
static const double bound = 1e-5;
#endif

static double grad_norm(const gpt2_case *model)
{
    double square = 0;
    for (size_t j = 0; j < model->first[model->tensor_count]; j++) {
        square += (double)model->grads[j] * (double)model->grads[j];
    }
    return sqrt(square);
}

/* AdamW in double on every tensor; moments hold two values a parameter. */
static void update(gpt2_case *model, double (*moments)[2], int step, double clip)
{
    const double c1 = 1 - pow(beta1, step + 1);
    const double c2 = 1 - pow(beta2, step + 1);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const double keep = model->tensors[i].decays ? 1 - lr * decay : 1;
        for (size_t j = model->first[i]; j < model->first[i + 1]; j++) {
            const double g = (double)model->grads[j] * clip;
            double *m = moments[j];
            m[0] = beta1 * m[0] + (1 - beta1) * g;
            m[1] = beta2 * m[1] + (1 - beta2) * g * g;
            const double change = lr * (m[0] / c1) / (sqrt(m[1] / c2) + eps);
            model->params[j] = (gpt2_real)(keep * (double)model->params[j] - change);
        }
    }
}

static void check_training(bool recompute)
{
    const reference expected = read_reference();
    gpt2_case model;
    case_create(&model, &reference_shape, SAMPLES, recompute);
    const size_t count = model.first[model.tensor_count];
    double(*moments)[2] = calloc(count, sizeof *moments);
    CHECK(moments != NULL);
    for (int step = 0; step < STEPS; step++) {
        case_tokens(&model, (uint32_t)step);
        memset(model.grads, 0, count * sizeof *model.grads);
        const double loss = case_forward(&model);
        case_backward(&model, 1);
        const double norm = grad_norm(&model);
        CHECK_NEAR(loss, expected.loss[step], bound);
        CHECK_NEAR(norm, expected.norm[step], bound);
        update(&model, moments, step, fmin(1, max_norm / norm));
    }
    free(moments);
    case_destroy(&model);
}

TEST_CALL(training_follows_pytorch, check_training(false));
TEST_CALL(training_with_recomputation_follows_pytorch, check_training(true));
