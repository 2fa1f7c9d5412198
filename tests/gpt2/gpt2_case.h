/* A small GPT-2 whose weights and tokens come from integer hashes, so that make_reference.py has
 * the same ones, and its loss and gradients by the plain-pointer mathematics. Include after
 * defining GPT2_DOUBLE or not. */
#ifndef TESTS_GPT2_CASE_H
#define TESTS_GPT2_CASE_H

#include "gpt2_model.h"
#include "harness.h"
#include <cblas.h>

#define CASE_TENSORS_MAX 64

typedef struct gpt2_case {
    gpt2_config config;
    uint32_t tensor_count;
    gpt2_tensor tensors[CASE_TENSORS_MAX];
    size_t first[CASE_TENSORS_MAX + 1]; /* of each tensor in params and grads */
    gpt2_real *params;
    gpt2_real *grads;
    int32_t *tokens;
    int32_t *targets;
    gpt2_batch batch;
    gpt2_space *space;
} gpt2_case;

static inline uint32_t case_hash(uint32_t value)
{
    value ^= value >> 16;
    value *= 0x7feb352du;
    value ^= value >> 15;
    value *= 0x846ca68bu;
    return value ^ (value >> 16);
}

/* A multiple of 2^-16 in [-0.5, 0.5). */
static inline double case_uniform(uint32_t tensor, uint32_t index)
{
    const uint32_t hash = case_hash((tensor + 1) * 0x9e3779b9u + index);
    return (double)(hash >> 16) / 65536.0 - 0.5;
}

/* Exact in fp32: norms in 1 +- 1/8, other tensors within +- 1/8. */
static inline double case_weight(const gpt2_tensor *tensor, uint32_t index_of_tensor,
                                 uint32_t index)
{
    return (double)tensor->init_mean + 0.25 * case_uniform(index_of_tensor, index);
}

static inline size_t case_count(const gpt2_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * (tensor->dims == 2 ? tensor->shape[1] : 1));
}

/* Tokens of step `step`: a hash too, but with structure (a token often repeats the last but one).
 */
static inline void case_tokens(gpt2_case *model, uint32_t step)
{
    const uint32_t length = model->batch.positions + 1;
    for (uint32_t s = 0; s < model->batch.samples; s++) {
        int32_t row[2048];
        CHECK(length <= 2048);
        for (uint32_t t = 0; t < length; t++) {
            const uint32_t hash = case_hash(((step * 64 + s) * 1024 + t) * 2654435761u + 12345u);
            row[t] =
                t >= 2 && hash % 4 != 0 ? row[t - 2] : (int32_t)(hash / 4 % model->config.vocab);
        }
        memcpy(model->tokens + s * (length - 1), row, (length - 1) * sizeof *row);
        memcpy(model->targets + s * (length - 1), row + 1, (length - 1) * sizeof *row);
    }
}

static inline void case_create(gpt2_case *model, const gpt2_config *config, uint32_t samples,
                               bool recompute)
{
    openblas_set_num_threads(1); /* its own threads would be unknown to race checkers */
    memset(model, 0, sizeof *model);
    model->config = *config;
    model->tensor_count = gpt2_tensor_count(config);
    CHECK(model->tensor_count <= CASE_TENSORS_MAX);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        gpt2_tensor_describe(config, i, &model->tensors[i]);
        model->first[i + 1] = model->first[i] + case_count(&model->tensors[i]);
    }
    const size_t count = model->first[model->tensor_count];
    const size_t tokens = (size_t)samples * config->seq;
    model->params = calloc(count, sizeof *model->params);
    model->grads = calloc(count, sizeof *model->grads);
    model->tokens = calloc(tokens, sizeof *model->tokens);
    model->targets = calloc(tokens, sizeof *model->targets);
    model->space = gpt2_space_create(config, samples, recompute);
    CHECK(model->params != NULL && model->grads != NULL && model->tokens != NULL);
    CHECK(model->targets != NULL && model->space != NULL);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        for (size_t j = model->first[i]; j < model->first[i + 1]; j++) {
            const uint32_t index = (uint32_t)(j - model->first[i]);
            model->params[j] = (gpt2_real)case_weight(&model->tensors[i], i, index);
        }
    }
    model->batch = (gpt2_batch){model->tokens, model->targets, samples, config->seq};
    case_tokens(model, 0);
}

static inline void case_destroy(gpt2_case *model)
{
    gpt2_space_destroy(model->space);
    free(model->params);
    free(model->grads);
    free(model->tokens);
    free(model->targets);
}

/* Pointers to `count` gradients from tensor `first`. */
static inline void case_grads(const gpt2_case *model, uint32_t first, uint32_t count,
                              gpt2_real **grads)
{
    for (uint32_t i = 0; i < count; i++) {
        grads[i] = model->grads + model->first[first + i];
    }
}

/* Likewise parameters. */
static inline void case_params(const gpt2_case *model, uint32_t first, uint32_t count,
                               gpt2_param *params)
{
    for (uint32_t i = 0; i < count; i++) {
        const gpt2_real *values = model->params + model->first[first + i];
        params[i] = (gpt2_param){values, values};
    }
}

/* The head's: ln_f.weight, ln_f.bias, wte. */
static inline void case_head_params(const gpt2_case *model, gpt2_param *params)
{
    case_params(model, model->tensor_count - 2, 2, params + GPT2_LNF_W);
    case_params(model, GPT2_WTE, 1, params + GPT2_HEAD_WTE);
}

static inline double case_forward(gpt2_case *model)
{
    gpt2_param p[GPT2_BLOCK_TENSORS];
    case_params(model, 0, GPT2_EMBED_TENSORS, p);
    gpt2_embed_forward(model->space, p, &model->batch);
    for (uint32_t layer = 0; layer < model->config.layers; layer++) {
        const uint32_t first = GPT2_EMBED_TENSORS + layer * GPT2_BLOCK_TENSORS;
        case_params(model, first, GPT2_BLOCK_TENSORS, p);
        gpt2_block_forward(model->space, layer, p, &model->batch);
    }
    case_head_params(model, p);
    return gpt2_head_forward(model->space, p, &model->batch);
}

/* Adds to grads; call after case_forward. */
static inline void case_backward(gpt2_case *model, gpt2_real scale)
{
    gpt2_param p[GPT2_BLOCK_TENSORS];
    gpt2_real *g[GPT2_BLOCK_TENSORS];
    case_head_params(model, p);
    case_grads(model, model->tensor_count - 2, 2, g + GPT2_LNF_W);
    case_grads(model, GPT2_WTE, 1, g + GPT2_HEAD_WTE);
    gpt2_head_backward(model->space, p, g, &model->batch, scale);
    for (uint32_t layer = model->config.layers; layer-- > 0;) {
        const uint32_t first = GPT2_EMBED_TENSORS + layer * GPT2_BLOCK_TENSORS;
        case_params(model, first, GPT2_BLOCK_TENSORS, p);
        case_grads(model, first, GPT2_BLOCK_TENSORS, g);
        gpt2_block_backward(model->space, layer, p, g, &model->batch);
    }
    case_grads(model, 0, GPT2_EMBED_TENSORS, g);
    gpt2_embed_backward(model->space, g, &model->batch);
}

#endif
