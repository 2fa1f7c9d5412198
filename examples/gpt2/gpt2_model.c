/* The units' forward and backward over a gpt2_space.
 *
 * The residual stream of layer l is kept whole; everything else of a block lies in its gpt2_saved,
 * one a layer or, when recomputing, one that backward fills again by the same calls, so that both
 * ways give the same bits. */
#include "gpt2_model.h"
#include "gpt2_attention.h"
#include "gpt2_linear.h"

#include <stdlib.h>
#include <string.h>

/* The head's logits are made for so many rows at once that they hold about this many values. */
enum { LOGITS_MAX = 1 << 20 };

/* --- memory ----------------------------------------------------------------------------------- */

/* Pieces are multiples of 16 elements, so vectors of one row stay in one cache line or two. */
static gpt2_real *carve(gpt2_real *memory, size_t *used, size_t count)
{
    gpt2_real *piece = memory == NULL ? NULL : memory + *used;
    *used += (count + 15) / 16 * 16;
    return piece;
}

static void carve_saved(gpt2_saved *saved, gpt2_real *memory, size_t *used, size_t tokens,
                        size_t width)
{
    saved->norm1 = carve(memory, used, tokens * width);
    saved->mean1 = carve(memory, used, tokens);
    saved->rstd1 = carve(memory, used, tokens);
    saved->qkv = carve(memory, used, tokens * width * 3);
    saved->mixed = carve(memory, used, tokens * width);
    saved->middle = carve(memory, used, tokens * width);
    saved->norm2 = carve(memory, used, tokens * width);
    saved->mean2 = carve(memory, used, tokens);
    saved->rstd2 = carve(memory, used, tokens);
    saved->expand = carve(memory, used, tokens * width * 4);
    saved->active = carve(memory, used, tokens * width * 4);
}

/* Lays the space out over space->memory, or only counts when that is NULL. */
static size_t carve_space(gpt2_space *space)
{
    const gpt2_config *config = &space->config;
    const size_t tokens = space->tokens_max;
    const size_t width = config->width;
    size_t used = 0;
    space->stream = carve(space->memory, &used, (config->layers + 1) * tokens * width);
    for (uint32_t i = 0; i < (space->recompute ? 1 : config->layers); i++) {
        carve_saved(&space->saved[i], space->memory, &used, tokens, width);
    }
    space->kept.norm1 = carve(space->memory, &used, tokens * width);
    space->kept.mean1 = carve(space->memory, &used, tokens);
    space->kept.rstd1 = carve(space->memory, &used, tokens);
    space->grad = carve(space->memory, &used, tokens * width);
    space->wide = carve(space->memory, &used, tokens * width * 4);
    space->narrow = carve(space->memory, &used, tokens * width);
    space->scores = carve(space->memory, &used, 2 * GPT2_ATTENTION_ROWS * (size_t)config->seq);
    space->logits = carve(space->memory, &used, space->logits_rows * config->vocab);
    return used;
}

/* Could sizes overflow, or exceed what a BLAS of 32-bit integers can count? */
static bool absurd(const gpt2_config *config, uint32_t samples)
{
    const double tokens = (double)samples * config->seq;
    const double residual = tokens * config->width;
    return tokens * 2 > INT32_MAX || residual * 18 * (config->layers + 2.0) > 0x1p48 ||
           tokens * config->vocab > 0x1p48;
}

gpt2_space *gpt2_space_create(const gpt2_config *config, uint32_t samples, bool recompute)
{
    if (absurd(config, samples)) {
        return NULL;
    }
    gpt2_space *space = calloc(1, sizeof *space);
    if (space == NULL) {
        return NULL;
    }
    space->config = *config;
    space->ops = gpt2_ops_best();
    space->multiplier = gpt2_multiplier_blas();
    space->tokens_max = (size_t)samples * config->seq;
    space->recompute = recompute;
    space->logits_rows = LOGITS_MAX / config->vocab + 1;
    if (space->logits_rows > space->tokens_max) {
        space->logits_rows = space->tokens_max;
    }
    space->saved = calloc(config->layers, sizeof *space->saved);
    if (space->saved != NULL) {
        space->bytes = carve_space(space) * sizeof *space->memory;
        space->bytes = (space->bytes + 63) / 64 * 64;
        space->memory = aligned_alloc(64, space->bytes);
    }
    if (space->memory == NULL) {
        gpt2_space_destroy(space);
        return NULL;
    }
    memset(space->memory, 0, space->bytes);
    (void)carve_space(space);
    return space;
}

void gpt2_space_destroy(gpt2_space *space)
{
    if (space != NULL) {
        free(space->memory);
        free(space->saved);
        free(space);
    }
}

/* --- linear layers ---------------------------------------------------------------------------- */

/* A linear layer of `rows` rows: x (rows x in) to y (rows x out). */
typedef struct linear {
    gpt2_multiplier *multiplier;
    const gpt2_param *weight; /* in x out */
    size_t rows;
    size_t in;
    size_t out;
    bool turned; /* the weight is out x in */
} linear;

static linear layer_of(const gpt2_space *space, const gpt2_param *weight, size_t rows, size_t in,
                       size_t out)
{
    return (linear){space->multiplier, weight, rows, in, out, false};
}

/* y = x W + beta y */
static void linear_forward(const linear *layer, gpt2_real *y, const gpt2_real *x, gpt2_real beta)
{
    gpt2_multiplier *by = layer->multiplier;
    const size_t in = layer->in;
    const size_t out = layer->out;
    const gpt2_product shape = {layer->rows, out, in, 1, beta};
    const gpt2_matrix left = {by->operand(by, 0, x, layer->rows * in), in, false};
    const gpt2_matrix right = {layer->weight->operand, layer->turned ? in : out, layer->turned};
    by->multiply(by, y, left, right, &shape);
}

/* dx = dy W' and dW += x' dy */
static void linear_backward(const linear *layer, gpt2_real *dx, gpt2_real *dweight,
                            const gpt2_real *x, const gpt2_real *dy)
{
    gpt2_multiplier *by = layer->multiplier;
    const size_t in = layer->in;
    const size_t out = layer->out;
    gpt2_matrix from_x = {by->operand(by, 0, x, layer->rows * in), in, !layer->turned};
    gpt2_matrix from_dy = {by->operand(by, 1, dy, layer->rows * out), out, layer->turned};
    if (layer->turned) {
        by->multiply(by, dweight, from_dy, from_x, &(gpt2_product){out, in, layer->rows, 1, 1});
    } else {
        by->multiply(by, dweight, from_x, from_dy, &(gpt2_product){in, out, layer->rows, 1, 1});
    }
    from_dy.transposed = false;
    const gpt2_matrix weight = {layer->weight->operand, layer->turned ? in : out, !layer->turned};
    by->multiply(by, dx, from_dy, weight, &(gpt2_product){layer->rows, in, out, 1, 0});
}

/* --- embedding -------------------------------------------------------------------------------- */

static size_t token_count(const gpt2_batch *batch)
{
    return (size_t)batch->samples * batch->positions;
}

void gpt2_embed_forward(gpt2_space *space, const gpt2_param *params, const gpt2_batch *batch)
{
    const size_t width = space->config.width;
    for (size_t t = 0; t < token_count(batch); t++) {
        const gpt2_real *token = params[GPT2_WTE].values + (size_t)batch->tokens[t] * width;
        const gpt2_real *position = params[GPT2_WPE].values + t % batch->positions * width;
        space->ops->bias_rows(space->stream + t * width, token, position, 1, width);
    }
}

void gpt2_embed_backward(gpt2_space *space, gpt2_real *const *grads, const gpt2_batch *batch)
{
    const size_t width = space->config.width;
    for (size_t t = 0; t < token_count(batch); t++) {
        const gpt2_real *grad = space->grad + t * width;
        gpt2_real *token = grads[GPT2_WTE] + (size_t)batch->tokens[t] * width;
        gpt2_real *position = grads[GPT2_WPE] + t % batch->positions * width;
        space->ops->bias_rows(token, token, grad, 1, width);
        space->ops->bias_rows(position, position, grad, 1, width);
    }
}

/* --- block ------------------------------------------------------------------------------------ */

static gpt2_real *stream_of(const gpt2_space *space, uint32_t layer)
{
    return space->stream + layer * space->tokens_max * space->config.width;
}

/* Everything of a block but its last product. */
static void block_inside(gpt2_space *space, uint32_t layer, const gpt2_param *params,
                         const gpt2_batch *batch)
{
    const gpt2_ops *ops = space->ops;
    const size_t tokens = token_count(batch);
    const size_t width = space->config.width;
    const gpt2_saved *saved = &space->saved[space->recompute ? 0 : layer];
    const gpt2_real *x = stream_of(space, layer);

    const gpt2_norm norm1 = {x,
                             params[GPT2_LN1_W].values,
                             params[GPT2_LN1_B].values,
                             saved->norm1,
                             saved->mean1,
                             saved->rstd1,
                             tokens,
                             width};
    ops->norm_forward(&norm1);
    ops->bias_rows(saved->qkv, NULL, params[GPT2_QKV_B].values, tokens, 3 * width);
    const linear qkv = layer_of(space, &params[GPT2_QKV_W], tokens, width, 3 * width);
    linear_forward(&qkv, saved->qkv, saved->norm1, 1);
    gpt2_attention_forward(space, saved, batch);
    ops->bias_rows(saved->middle, x, params[GPT2_MIX_B].values, tokens, width);
    const linear mix = layer_of(space, &params[GPT2_MIX_W], tokens, width, width);
    linear_forward(&mix, saved->middle, saved->mixed, 1);

    const gpt2_norm norm2 = {saved->middle,
                             params[GPT2_LN2_W].values,
                             params[GPT2_LN2_B].values,
                             saved->norm2,
                             saved->mean2,
                             saved->rstd2,
                             tokens,
                             width};
    ops->norm_forward(&norm2);
    const linear expand = layer_of(space, &params[GPT2_EXPAND_W], tokens, width, 4 * width);
    linear_forward(&expand, saved->expand, saved->norm2, 0);
    ops->gelu_forward(saved->active, saved->expand, params[GPT2_EXPAND_B].values, tokens,
                      4 * width);
}

void gpt2_block_forward(gpt2_space *space, uint32_t layer, const gpt2_param *params,
                        const gpt2_batch *batch)
{
    const size_t tokens = token_count(batch);
    const size_t width = space->config.width;
    const gpt2_saved *saved = &space->saved[space->recompute ? 0 : layer];
    gpt2_real *out = stream_of(space, layer + 1);
    block_inside(space, layer, params, batch);
    space->ops->bias_rows(out, saved->middle, params[GPT2_SHRINK_B].values, tokens, width);
    const linear shrink = layer_of(space, &params[GPT2_SHRINK_W], tokens, 4 * width, width);
    linear_forward(&shrink, out, saved->active, 1);
}

/* The half of a block after the attention: space->grad from the block's output to `middle`. */
static void mlp_backward(gpt2_space *space, const gpt2_saved *saved, const gpt2_param *params,
                         gpt2_real *const *grads, size_t tokens)
{
    const gpt2_ops *ops = space->ops;
    const size_t width = space->config.width;
    const linear shrink = layer_of(space, &params[GPT2_SHRINK_W], tokens, 4 * width, width);
    const linear expand = layer_of(space, &params[GPT2_EXPAND_W], tokens, width, 4 * width);

    ops->column_sums(grads[GPT2_SHRINK_B], space->grad, tokens, width);
    linear_backward(&shrink, space->wide, grads[GPT2_SHRINK_W], saved->active, space->grad);
    ops->gelu_backward(space->wide, saved->expand, tokens * 4 * width);
    ops->column_sums(grads[GPT2_EXPAND_B], space->wide, tokens, 4 * width);
    linear_backward(&expand, space->narrow, grads[GPT2_EXPAND_W], saved->norm2, space->wide);

    const gpt2_norm norm = {
        saved->middle, params[GPT2_LN2_W].values, NULL, NULL, saved->mean2, saved->rstd2, tokens,
        width};
    const gpt2_norm_grad grad = {space->narrow, space->grad, grads[GPT2_LN2_W], grads[GPT2_LN2_B]};
    ops->norm_backward(&norm, &grad);
}

void gpt2_block_backward(gpt2_space *space, uint32_t layer, const gpt2_param *params,
                         gpt2_real *const *grads, const gpt2_batch *batch)
{
    const gpt2_ops *ops = space->ops;
    const size_t tokens = token_count(batch);
    const size_t width = space->config.width;
    const gpt2_saved *saved = &space->saved[space->recompute ? 0 : layer];
    const linear mix = layer_of(space, &params[GPT2_MIX_W], tokens, width, width);
    const linear qkv = layer_of(space, &params[GPT2_QKV_W], tokens, width, 3 * width);
    if (space->recompute) {
        block_inside(space, layer, params, batch);
    }
    mlp_backward(space, saved, params, grads, tokens);

    ops->column_sums(grads[GPT2_MIX_B], space->grad, tokens, width);
    linear_backward(&mix, space->narrow, grads[GPT2_MIX_W], saved->mixed, space->grad);
    gpt2_attention_backward(space, saved, batch, space->narrow, space->wide);
    ops->column_sums(grads[GPT2_QKV_B], space->wide, tokens, 3 * width);
    linear_backward(&qkv, space->narrow, grads[GPT2_QKV_W], saved->norm1, space->wide);

    const gpt2_norm norm = {stream_of(space, layer),
                            params[GPT2_LN1_W].values,
                            NULL,
                            NULL,
                            saved->mean1,
                            saved->rstd1,
                            tokens,
                            width};
    const gpt2_norm_grad grad = {space->narrow, space->grad, grads[GPT2_LN1_W], grads[GPT2_LN1_B]};
    ops->norm_backward(&norm, &grad);
}

/* --- head ------------------------------------------------------------------------------------- */

/* Final norm of `rows` rows from row `first` of the residual stream. */
static void final_norm(gpt2_space *space, const gpt2_param *params, size_t first, size_t rows)
{
    const size_t width = space->config.width;
    const gpt2_norm norm = {stream_of(space, space->config.layers) + first * width,
                            params[GPT2_LNF_W].values,
                            params[GPT2_LNF_B].values,
                            space->kept.norm1 + first * width,
                            space->kept.mean1 + first,
                            space->kept.rstd1 + first,
                            rows,
                            width};
    space->ops->norm_forward(&norm);
}

/* The tied embedding as a linear layer without a bias, from the final norm to logits. */
static linear logits_layer(const gpt2_space *space, const gpt2_param *params, size_t rows)
{
    linear layer =
        layer_of(space, &params[GPT2_HEAD_WTE], rows, space->config.width, space->config.vocab);
    layer.turned = true;
    return layer;
}

double gpt2_head_forward(gpt2_space *space, const gpt2_param *params, const gpt2_batch *batch)
{
    const size_t tokens = token_count(batch);
    double total = 0;
    final_norm(space, params, 0, tokens);
    for (size_t first = 0; first < tokens; first += space->logits_rows) {
        const size_t left = tokens - first;
        const size_t rows = left < space->logits_rows ? left : space->logits_rows;
        const linear head = logits_layer(space, params, rows);
        linear_forward(&head, space->logits, space->kept.norm1 + first * space->config.width, 0);
        const gpt2_logits logits = {space->logits, batch->targets + first, rows,
                                    space->config.vocab};
        total += space->ops->loss_forward(&logits);
    }
    return total / (double)tokens;
}

void gpt2_head_logits(gpt2_space *space, const gpt2_param *params, const gpt2_batch *batch,
                      gpt2_real *logits)
{
    const size_t last = (size_t)batch->positions - 1;
    final_norm(space, params, last, 1);
    const linear head = logits_layer(space, params, 1);
    linear_forward(&head, logits, space->kept.norm1 + last * space->config.width, 0);
}

void gpt2_head_backward(gpt2_space *space, const gpt2_param *params, gpt2_real *const *grads,
                        const gpt2_batch *batch, gpt2_real scale)
{
    const size_t tokens = token_count(batch);
    const size_t width = space->config.width;
    for (size_t first = 0; first < tokens; first += space->logits_rows) {
        const size_t left = tokens - first;
        const size_t rows = left < space->logits_rows ? left : space->logits_rows;
        const linear head = logits_layer(space, params, rows);
        const gpt2_real *x = space->kept.norm1 + first * width;
        if (tokens > space->logits_rows) { /* else forward's logits are still there */
            linear_forward(&head, space->logits, x, 0);
        }
        const gpt2_logits logits = {space->logits, batch->targets + first, rows,
                                    space->config.vocab};
        space->ops->loss_backward(&logits, scale / (gpt2_real)tokens);
        linear_backward(&head, space->narrow + first * width, grads[GPT2_HEAD_WTE], x,
                        space->logits);
    }
    const gpt2_norm norm = {stream_of(space, space->config.layers),
                            params[GPT2_LNF_W].values,
                            NULL,
                            NULL,
                            space->kept.mean1,
                            space->kept.rstd1,
                            tokens,
                            width};
    const gpt2_norm_grad grad = {space->narrow, space->grad, grads[GPT2_LNF_W], grads[GPT2_LNF_B]};
    memset(space->grad, 0, tokens * width * sizeof *space->grad);
    space->ops->norm_backward(&norm, &grad);
}
