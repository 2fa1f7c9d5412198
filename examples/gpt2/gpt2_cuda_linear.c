/* Linear layers as products of cuBLASLt, with its epilogues or with kernels behind. */
#include "gpt2_cuda_linear.h"

#include "gpt2_cuda_kernels.h"

#include <string.h>

/* --- products --------------------------------------------------------------------------------- */

static gpt2_product_job forward_job(const gpt2_cuda_space *space, gpt2_linear sizes, void *y,
                                    const void *x, const void *weight, const void *bias)
{
    return (gpt2_product_job){.rows = sizes.tokens,
                              .columns = sizes.out,
                              .inner = sizes.in,
                              .dtype = space->dtype,
                              .left = {x, sizes.in, false},
                              .right = {weight, sizes.out, false},
                              .out_dtype = space->dtype,
                              .out_stride = sizes.out,
                              .out = y,
                              .bias = bias,
                              .alpha = 1};
}

static gpt2_product_job input_grad_job(const gpt2_cuda_space *space, gpt2_linear sizes, void *dx,
                                       const void *dy, const void *weight)
{
    return (gpt2_product_job){.rows = sizes.tokens,
                              .columns = sizes.in,
                              .inner = sizes.out,
                              .dtype = space->dtype,
                              .left = {dy, sizes.out, false},
                              .right = {weight, sizes.out, true},
                              .out_dtype = space->dtype,
                              .out_stride = sizes.in,
                              .out = dx,
                              .alpha = 1};
}

static gpt2_product_job weight_grad_job(const gpt2_cuda_space *space, gpt2_linear sizes,
                                        void *dweight, const void *x, const void *dy)
{
    return (gpt2_product_job){.rows = sizes.in,
                              .columns = sizes.out,
                              .inner = sizes.tokens,
                              .dtype = space->dtype,
                              .left = {x, sizes.in, true},
                              .right = {dy, sizes.out, false},
                              .out_dtype = space->grad_dtype,
                              .out_stride = sizes.out,
                              .out = dweight,
                              .added = dweight,
                              .alpha = 1,
                              .beta = 1};
}

/* The same, with what cuBLASLt has to do beside; see gpt2_product_end. */
static gpt2_product_job with_end(gpt2_product_job job, gpt2_product_end end, void *at)
{
    job.end = end;
    job.before = end == GPT2_END_SUMS ? NULL : at;
    job.sums = end == GPT2_END_SUMS ? at : NULL;
    return job;
}

zero_status gpt2_cuda_multiply(gpt2_cuda_space *space, const gpt2_product_job *job)
{
    return gpt2_product(&space->products, space->stream, job, space->error) ? ZERO_OK
                                                                            : ZERO_ERR_DEVICE;
}

/* --- what cuBLASLt does beside ---------------------------------------------------------------- */

static void describe_products(gpt2_cuda_space *space)
{
    static const char *const names[GPT2_ENDS] = {"", "GELU", "GELU's gradient",
                                                 "gradients of biases"};
    char text[2][sizeof space->products_text / 4] = {"", ""};
    for (int end = GPT2_END_NONE + 1; end < GPT2_ENDS; end++) {
        char *list = text[space->fuses[end]];
        const size_t used = strlen(list);
        (void)snprintf(list + used, sizeof text[0] - used, "%s%s", used != 0 ? ", " : "",
                       names[end]);
    }
    const uint32_t vocab = space->config.vocab;
    char padding[64] = "";
    if (space->logits_columns != vocab) {
        (void)snprintf(padding, sizeof padding, "; vocabulary %u padded to %u", vocab,
                       space->logits_columns);
    }
    (void)snprintf(space->products_text, sizeof space->products_text, "cuBLASLt %zu%s%s%s%s%s",
                   cublasLtGetVersion(), text[1][0] != 0 ? " with " : "", text[1],
                   text[0][0] != 0 ? "; kernels of their own: " : "", text[0], padding);
}

/* For the weights of all four layers of a block. */
static bool sums_are_possible(gpt2_cuda_space *space, void *tensor)
{
    const uint64_t width = space->config.width;
    const uint64_t sizes[][2] = {
        {width, 3 * width}, {width, width}, {width, 4 * width}, {4 * width, width}};
    bool possible = true;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && possible; i++) {
        const gpt2_linear layer = {space->tokens_max, sizes[i][0], sizes[i][1]};
        const gpt2_product_job job =
            with_end(weight_grad_job(space, layer, tensor, space->saved->active, space->wide),
                     GPT2_END_SUMS, space->partials);
        possible = gpt2_product_is_possible(&space->products, &job);
    }
    return possible;
}

void gpt2_linear_choose(gpt2_cuda_space *space)
{
    const uint64_t width = space->config.width;
    const gpt2_linear expand = {space->tokens_max, width, 4 * width};
    const gpt2_linear shrink = {space->tokens_max, 4 * width, width};
    const gpt2_cuda_saved *saved = space->saved;
    unsigned char *tensor = space->memory + 16; /* wherever the engine has it: nothing is read */
    const gpt2_product_job jobs[] = {
        [GPT2_END_GELU] =
            with_end(forward_job(space, expand, saved->active, saved->norm2, tensor, tensor),
                     GPT2_END_GELU, saved->expand),
        [GPT2_END_GELU_GRAD] =
            with_end(input_grad_job(space, shrink, space->wide, space->grad, tensor),
                     GPT2_END_GELU_GRAD, saved->expand),
    };
    const bool low = space->dtype == ZERO_DTYPE_BF16;
    for (int end = GPT2_END_GELU; end <= GPT2_END_GELU_GRAD; end++) {
        space->fuses[end] = low && gpt2_product_is_possible(&space->products, &jobs[end]);
    }
    space->fuses[GPT2_END_SUMS] = low && sums_are_possible(space, tensor);
    describe_products(space);
}

/* --- layers ----------------------------------------------------------------------------------- */

zero_status gpt2_linear_forward(gpt2_cuda_space *space, gpt2_linear sizes, void *y, const void *x,
                                const zero_view *weight_and_bias, const void *added)
{
    gpt2_product_job job =
        forward_job(space, sizes, y, x, weight_and_bias[0].data, weight_and_bias[1].data);
    job.added = added;
    job.beta = added != NULL ? 1.0f : 0.0f;
    return gpt2_cuda_multiply(space, &job);
}

zero_status gpt2_linear_gelu(gpt2_cuda_space *space, gpt2_linear sizes, void *y, void *before,
                             const void *x, const zero_view *weight_and_bias)
{
    if (space->fuses[GPT2_END_GELU]) {
        const gpt2_product_job job = with_end(
            forward_job(space, sizes, y, x, weight_and_bias[0].data, weight_and_bias[1].data),
            GPT2_END_GELU, before);
        return gpt2_cuda_multiply(space, &job);
    }
    TRY(gpt2_linear_forward(space, sizes, before, x, weight_and_bias, NULL));
    return gpt2_cuda_check(
        space, gpt2_launch_gelu(space->stream, space->dtype, y, before, sizes.tokens * sizes.out),
        "GELU");
}

zero_status gpt2_linear_input_grad(gpt2_cuda_space *space, gpt2_linear sizes, void *dx,
                                   const void *dy, const zero_view *weight)
{
    const gpt2_product_job job = input_grad_job(space, sizes, dx, dy, weight->data);
    return gpt2_cuda_multiply(space, &job);
}

zero_status gpt2_linear_gelu_grad(gpt2_cuda_space *space, gpt2_linear sizes, void *dbefore,
                                  void *before, const void *dy, const zero_view *weight)
{
    if (space->fuses[GPT2_END_GELU_GRAD]) {
        const gpt2_product_job job = with_end(
            input_grad_job(space, sizes, dbefore, dy, weight->data), GPT2_END_GELU_GRAD, before);
        return gpt2_cuda_multiply(space, &job);
    }
    TRY(gpt2_linear_input_grad(space, sizes, dbefore, dy, weight));
    return gpt2_cuda_check(space,
                           gpt2_launch_gelu_grad(space->stream, space->dtype, dbefore, before,
                                                 sizes.tokens * sizes.in),
                           "gradient of GELU");
}

/* A bias' gradient from the sums that a product left in the scratch. */
static zero_status add_sums(gpt2_cuda_space *space, const zero_view *bias_grad)
{
    return gpt2_cuda_check(space,
                           gpt2_launch_add(space->stream, bias_grad->dtype, bias_grad->data,
                                           bias_grad->dtype, space->partials, bias_grad->count),
                           "gradient of a bias");
}

zero_status gpt2_linear_grads(gpt2_cuda_space *space, gpt2_linear sizes, const void *x,
                              const void *dy, const zero_view *grads)
{
    const gpt2_product_job job = weight_grad_job(space, sizes, grads[0].data, x, dy);
    if (space->fuses[GPT2_END_SUMS]) {
        const gpt2_product_job summing = with_end(job, GPT2_END_SUMS, space->partials);
        TRY(gpt2_cuda_multiply(space, &summing));
        return add_sums(space, &grads[1]);
    }
    const gpt2_sums_job sums = {.dtype = space->dtype,
                                .grad_dtype = grads[1].dtype,
                                .rows = (uint32_t)sizes.tokens,
                                .width = (uint32_t)sizes.out,
                                .dy = dy,
                                .partials = space->partials,
                                .sums = grads[1].data};
    TRY(gpt2_cuda_multiply(space, &job));
    return gpt2_cuda_check(space, gpt2_launch_sums(space->stream, &sums), "sums of a bias");
}
