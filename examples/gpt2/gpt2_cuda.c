/* CUDA's table: the units as gpt2_model.c has them, on a GPU.
 *
 * Activations have the parameters' type, sums are in fp32. Everything goes to the space's one
 * stream, in order; only `loss`, `head_logits` and the reuse of a batch's memory wait for it. A
 * product adds straight into the engine's gradient, in fp32 and rounded once. */
#include "gpt2_cuda_kernels.h"
#include "gpt2_cuda_linear.h"
#include "zero/cuda.h"

#include <stdlib.h>
#include <string.h>

typedef gpt2_cuda_space space_type;

/* --- the table's outside ---------------------------------------------------------------------- */

/* CUDA reads it when it starts: with 8 connections, its default, streams share some, and then the
 * next layer's kernels may be behind a collective that waits for other ranks. */
static void start(char **argv)
{
    (void)argv;
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

static zero_status prepare(uint32_t local_rank, gpt2_error *error)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
        (void)gpt2_fail(error,
                        "--device cuda: no NVIDIA GPU can be used here: %s; use --device cpu",
                        code != cudaSuccess ? cudaGetErrorString(code) : "none found");
        return ZERO_ERR_DEVICE;
    }
    const int device = (int)(local_rank % (uint32_t)count);
    code = cudaSetDevice(device);
    if (code != cudaSuccess) {
        (void)gpt2_fail(error, "--device cuda: GPU %d cannot be used: %s", device,
                        cudaGetErrorString(code));
        return ZERO_ERR_DEVICE;
    }
    return ZERO_OK;
}

static uint32_t devices(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? (uint32_t)count : 0;
}

static void use_threads(uint32_t threads)
{
    (void)threads;
}

static void destroy(void *space)
{
    gpt2_cuda_space_destroy(space);
}

static uint64_t bytes(const void *space)
{
    return ((const space_type *)space)->bytes + ((const space_type *)space)->host_bytes;
}

static const char *machine(const void *space)
{
    return ((const space_type *)space)->machine;
}

static const char *products(const void *space)
{
    return ((const space_type *)space)->products_text;
}

static const char *warning(const void *space)
{
    const space_type *self = space;
    return self->warning[0] != 0 ? self->warning : NULL;
}

static zero_stream stream(const void *space)
{
    return zero_stream_cuda(((const space_type *)space)->stream);
}

static zero_status begin(void *space, const gpt2_batch *batch)
{
    return gpt2_cuda_space_begin(space, batch);
}

/* --- parts ------------------------------------------------------------------------------------ */

/* The kernels read and write 16 bytes at a time. */
static zero_status check_views(space_type *self, const zero_view *views, uint32_t count,
                               zero_dtype dtype)
{
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].dtype != dtype || (uintptr_t)views[i].data % 16 != 0) {
            (void)gpt2_fail(self->error,
                            "tensor %u of a unit is %s at %p, not %s at a multiple "
                            "of 16",
                            i, zero_dtype_name(views[i].dtype), views[i].data,
                            zero_dtype_name(dtype));
            return ZERO_ERR_UNSUPPORTED;
        }
    }
    return ZERO_OK;
}

/* Parameters are weight, bias. */
static zero_status norm_forward(space_type *self, gpt2_norm_job norm, const zero_view *params)
{
    norm.dtype = self->dtype;
    norm.width = self->config.width;
    norm.weight = params[0].data;
    norm.bias = params[1].data;
    return gpt2_cuda_check(self, gpt2_launch_norm(self->stream, &norm), "normalisation");
}

/* self->grad += what comes through the norm from norm.dy; gradients of weight and bias. */
static zero_status norm_backward(space_type *self, gpt2_norm_job norm, const zero_view *params,
                                 const zero_view *grads)
{
    norm.dtype = self->dtype;
    norm.width = self->config.width;
    norm.weight = params[0].data;
    norm.dx = self->grad;
    const gpt2_sums_job sums = {.dtype = self->dtype,
                                .grad_dtype = grads[0].dtype,
                                .rows = norm.rows,
                                .width = norm.width,
                                .dy = norm.dy,
                                .x = norm.x,
                                .mean = norm.mean,
                                .rstd = norm.rstd,
                                .partials = self->partials,
                                .sums = grads[1].data,
                                .products = grads[0].data};
    TRY(gpt2_cuda_check(self, gpt2_launch_norm_grad(self->stream, &norm), "normalisation"));
    return gpt2_cuda_check(self, gpt2_launch_sums(self->stream, &sums), "sums of a norm");
}

/* --- embedding -------------------------------------------------------------------------------- */

static void *residual_of(const space_type *self, uint32_t layer)
{
    const size_t rows = (size_t)self->tokens_max * self->config.width;
    return (unsigned char *)self->residual + layer * rows * zero_dtype_bytes(self->dtype);
}

static zero_status embed_forward(void *space, const zero_view *params)
{
    space_type *self = space;
    TRY(check_views(self, params, GPT2_EMBED_TENSORS, self->dtype));
    const gpt2_embed_job job = {.dtype = self->dtype,
                                .rows = self->rows,
                                .positions = self->positions,
                                .width = self->config.width,
                                .wte = params[GPT2_WTE].data,
                                .wpe = params[GPT2_WPE].data,
                                .tokens = self->batch.tokens,
                                .out = residual_of(self, 0)};
    return gpt2_cuda_check(self, gpt2_launch_embed(self->stream, &job), "embedding");
}

static zero_status embed_backward(void *space, const zero_view *grads)
{
    space_type *self = space;
    TRY(check_views(self, grads, GPT2_EMBED_TENSORS, self->grad_dtype));
    const gpt2_embed_grad_job job = {.dtype = self->dtype,
                                     .grad_dtype = self->grad_dtype,
                                     .samples = self->samples,
                                     .positions = self->positions,
                                     .width = self->config.width,
                                     .segments = self->segments,
                                     .order = self->batch.order,
                                     .starts = self->batch.starts,
                                     .ids = self->batch.ids,
                                     .grad = self->grad,
                                     .dwte = grads[GPT2_WTE].data,
                                     .dwpe = grads[GPT2_WPE].data};
    return gpt2_cuda_check(self, gpt2_launch_embed_grad(self->stream, &job),
                           "gradient of the embedding");
}

/* --- block ------------------------------------------------------------------------------------ */

static const gpt2_cuda_saved *saved_of(const space_type *self, uint32_t layer)
{
    return &self->saved[self->recompute ? 0 : layer];
}

static gpt2_norm_job norm1_of(const space_type *self, uint32_t layer)
{
    const gpt2_cuda_saved *saved = saved_of(self, layer);
    return (gpt2_norm_job){.rows = self->rows,
                           .x = residual_of(self, layer),
                           .y = saved->norm1,
                           .mean = saved->mean1,
                           .rstd = saved->rstd1};
}

static gpt2_norm_job norm2_of(const space_type *self, uint32_t layer)
{
    const gpt2_cuda_saved *saved = saved_of(self, layer);
    return (gpt2_norm_job){.rows = self->rows,
                           .x = saved->middle,
                           .y = saved->norm2,
                           .mean = saved->mean2,
                           .rstd = saved->rstd2};
}

static gpt2_attention_job attention_of(const space_type *self, const gpt2_cuda_saved *saved)
{
    return (gpt2_attention_job){.dtype = self->dtype,
                                .samples = self->samples,
                                .positions = self->positions,
                                .heads = self->config.heads,
                                .depth = self->config.width / self->config.heads,
                                .qkv = saved->qkv,
                                .mixed = saved->mixed,
                                .log_sums = saved->log_sums,
                                .dmixed = self->narrow,
                                .dqkv = self->wide,
                                .deltas = self->deltas};
}

/* Everything of a block but its last product. */
static zero_status block_inside(space_type *self, uint32_t layer, const zero_view *params)
{
    const gpt2_cuda_saved *saved = saved_of(self, layer);
    const uint64_t tokens = self->rows;
    const uint64_t width = self->config.width;
    const gpt2_attention_job attention = attention_of(self, saved);
    TRY(norm_forward(self, norm1_of(self, layer), &params[GPT2_LN1_W]));
    TRY(gpt2_linear_forward(self, (gpt2_linear){tokens, width, 3 * width}, saved->qkv, saved->norm1,
                            &params[GPT2_QKV_W], NULL));
    TRY(gpt2_cuda_check(self, gpt2_launch_attention(self->stream, &attention), "attention"));
    TRY(gpt2_linear_forward(self, (gpt2_linear){tokens, width, width}, saved->middle, saved->mixed,
                            &params[GPT2_MIX_W], residual_of(self, layer)));
    TRY(norm_forward(self, norm2_of(self, layer), &params[GPT2_LN2_W]));
    return gpt2_linear_gelu(self, (gpt2_linear){tokens, width, 4 * width}, saved->active,
                            saved->expand, saved->norm2, &params[GPT2_EXPAND_W]);
}

static zero_status block_forward(void *space, uint32_t layer, const zero_view *params)
{
    space_type *self = space;
    const gpt2_cuda_saved *saved = saved_of(self, layer);
    const gpt2_linear shrink = {self->rows, 4 * (uint64_t)self->config.width, self->config.width};
    TRY(check_views(self, params, GPT2_BLOCK_TENSORS, self->dtype));
    TRY(block_inside(self, layer, params));
    return gpt2_linear_forward(self, shrink, residual_of(self, layer + 1), saved->active,
                               &params[GPT2_SHRINK_W], saved->middle);
}

/* The half of a block after the attention: self->grad from the block's output to `middle`. */
static zero_status mlp_backward(space_type *self, uint32_t layer, const zero_view *params,
                                const zero_view *grads)
{
    const gpt2_cuda_saved *saved = saved_of(self, layer);
    const uint64_t tokens = self->rows;
    const uint64_t width = self->config.width;
    const gpt2_linear shrink = {tokens, 4 * width, width};
    const gpt2_linear expand = {tokens, width, 4 * width};
    TRY(gpt2_linear_grads(self, shrink, saved->active, self->grad, &grads[GPT2_SHRINK_W]));
    TRY(gpt2_linear_gelu_grad(self, shrink, self->wide, saved->expand, self->grad,
                              &params[GPT2_SHRINK_W]));
    TRY(gpt2_linear_grads(self, expand, saved->norm2, self->wide, &grads[GPT2_EXPAND_W]));
    TRY(gpt2_linear_input_grad(self, expand, self->narrow, self->wide, &params[GPT2_EXPAND_W]));
    gpt2_norm_job norm = norm2_of(self, layer);
    norm.dy = self->narrow;
    return norm_backward(self, norm, &params[GPT2_LN2_W], &grads[GPT2_LN2_W]);
}

/* The half before: self->grad from `middle` to the block's input. */
static zero_status attention_backward(space_type *self, uint32_t layer, const zero_view *params,
                                      const zero_view *grads)
{
    const gpt2_cuda_saved *saved = saved_of(self, layer);
    const uint64_t width = self->config.width;
    const gpt2_linear mix = {self->rows, width, width};
    const gpt2_linear qkv = {self->rows, width, 3 * width};
    const gpt2_attention_job attention = attention_of(self, saved);
    TRY(gpt2_linear_grads(self, mix, saved->mixed, self->grad, &grads[GPT2_MIX_W]));
    TRY(gpt2_linear_input_grad(self, mix, self->narrow, self->grad, &params[GPT2_MIX_W]));
    TRY(gpt2_cuda_check(self, gpt2_launch_attention_grad(self->stream, &attention),
                        "gradient of attention"));
    TRY(gpt2_linear_grads(self, qkv, saved->norm1, self->wide, &grads[GPT2_QKV_W]));
    TRY(gpt2_linear_input_grad(self, qkv, self->narrow, self->wide, &params[GPT2_QKV_W]));
    gpt2_norm_job norm = norm1_of(self, layer);
    norm.dy = self->narrow;
    return norm_backward(self, norm, &params[GPT2_LN1_W], &grads[GPT2_LN1_W]);
}

static zero_status block_backward(void *space, uint32_t layer, const zero_view *params,
                                  const zero_view *grads)
{
    space_type *self = space;
    TRY(check_views(self, params, GPT2_BLOCK_TENSORS, self->dtype));
    TRY(check_views(self, grads, GPT2_BLOCK_TENSORS, self->grad_dtype));
    if (self->recompute) {
        TRY(block_inside(self, layer, params));
    }
    TRY(mlp_backward(self, layer, params, grads));
    return attention_backward(self, layer, params, grads);
}

/* --- head ------------------------------------------------------------------------------------- */

/* Rows of the head that are done at once. */
typedef struct piece {
    uint32_t first;
    uint32_t rows;
} piece;

static piece piece_of(const space_type *self, uint32_t first)
{
    const uint32_t left = self->rows - first;
    return (piece){first, left < self->logits_rows ? left : self->logits_rows};
}

static const void *normed_rows(const space_type *self, uint32_t first)
{
    return (const unsigned char *)self->kept.norm1 +
           (size_t)first * self->config.width * zero_dtype_bytes(self->dtype);
}

/* The final norm of `rows` rows from row `first` of the residual stream. */
static gpt2_norm_job final_norm_of(const space_type *self, uint32_t first, uint32_t rows)
{
    const size_t row_bytes = self->config.width * zero_dtype_bytes(self->dtype);
    const unsigned char *x = residual_of(self, self->config.layers);
    return (gpt2_norm_job){.rows = rows,
                           .x = x + first * row_bytes,
                           .y = (unsigned char *)self->kept.norm1 + first * row_bytes,
                           .mean = self->kept.mean1 + first,
                           .rstd = self->kept.rstd1 + first};
}

static bool is_padded(const space_type *self)
{
    return self->logits_columns != self->config.vocab;
}

/* The copy of wte that the products of this batch read. Tensor Cores are at their best where rows
 * have a multiple of 16 bytes (cuBLAS's manual, "Tensor Core Usage"), and behind the engine's own
 * tensor there is nothing that may be read. */
static zero_status pad_wte(space_type *self, const zero_view *params)
{
    const zero_view *wte = &params[GPT2_HEAD_WTE];
    return !is_padded(self)
               ? ZERO_OK
               : gpt2_cuda_check(self,
                                 cudaMemcpyAsync(self->padded_wte, wte->data,
                                                 wte->count * zero_dtype_bytes(wte->dtype),
                                                 cudaMemcpyDeviceToDevice, self->stream),
                                 "copying wte");
}

/* wte as a right factor with logits_columns rows. */
static gpt2_factor wte_of(const space_type *self, const zero_view *params, bool turned)
{
    const void *at = is_padded(self) ? self->padded_wte : params[GPT2_HEAD_WTE].data;
    return (gpt2_factor){at, self->config.width, turned};
}

/* logits = norm wte' */
static zero_status make_logits(space_type *self, const zero_view *params, piece part)
{
    const uint64_t width = self->config.width;
    const gpt2_product_job job = {.rows = part.rows,
                                  .columns = self->logits_columns,
                                  .inner = width,
                                  .dtype = self->dtype,
                                  .left = {normed_rows(self, part.first), width, false},
                                  .right = wte_of(self, params, true),
                                  .out_dtype = self->dtype,
                                  .out_stride = self->logits_stride,
                                  .out = self->logits,
                                  .alpha = 1};
    return gpt2_cuda_multiply(self, &job);
}

/* Losses of the piece's logits, which with `trains` become the loss's gradient. */
static zero_status make_losses(space_type *self, piece part, bool trains)
{
    const gpt2_loss_job job = {.dtype = self->dtype,
                               .rows = part.rows,
                               .vocab = self->config.vocab,
                               .stride = self->logits_stride,
                               .trains = trains,
                               .scale = 1.0f / (float)self->rows,
                               .logits = self->logits,
                               .targets = self->batch.targets + part.first,
                               .losses = self->losses + part.first};
    return gpt2_cuda_check(self, gpt2_launch_loss(self->stream, &job), "loss");
}

static zero_status head_forward(void *space, const zero_view *params, bool trains)
{
    space_type *self = space;
    TRY(check_views(self, params, GPT2_HEAD_TENSORS, self->dtype));
    TRY(norm_forward(self, final_norm_of(self, 0, self->rows), &params[GPT2_LNF_W]));
    TRY(pad_wte(self, params));
    const bool whole = self->rows <= self->logits_rows;
    for (uint32_t first = 0; first < self->rows; first += self->logits_rows) {
        const piece part = piece_of(self, first);
        TRY(make_logits(self, params, part));
        TRY(make_losses(self, part, trains && whole));
    }
    TRY(gpt2_cuda_check(self, gpt2_launch_mean(self->stream, self->mean, self->losses, self->rows),
                        "mean loss"));
    TRY(gpt2_cuda_check(self,
                        cudaMemcpyAsync(self->host_mean, self->mean, sizeof *self->mean,
                                        cudaMemcpyDeviceToHost, self->stream),
                        "copying the loss"));
    return gpt2_cuda_check(self, cudaEventRecord(self->measured, self->stream), "copying the loss");
}

static zero_status loss(void *space, double *value)
{
    space_type *self = space;
    TRY(gpt2_cuda_check(self, cudaEventSynchronize(self->measured), "forward"));
    *value = *self->host_mean;
    return ZERO_OK;
}

static void to_floats(const space_type *self, float *logits)
{
    const uint32_t vocab = self->config.vocab;
    if (self->dtype == ZERO_DTYPE_F32) {
        memcpy(logits, self->host_logits, vocab * sizeof *logits);
        return;
    }
    const uint16_t *halves = self->host_logits;
    for (uint32_t i = 0; i < vocab; i++) {
        const uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(&logits[i], &bits, sizeof bits);
    }
}

static zero_status head_logits(void *space, const zero_view *params, float *logits)
{
    space_type *self = space;
    const piece last = {self->positions - 1, 1};
    TRY(check_views(self, params, GPT2_HEAD_TENSORS, self->dtype));
    TRY(norm_forward(self, final_norm_of(self, last.first, 1), &params[GPT2_LNF_W]));
    TRY(pad_wte(self, params));
    TRY(make_logits(self, params, last));
    TRY(gpt2_cuda_check(self,
                        cudaMemcpyAsync(self->host_logits, self->logits,
                                        self->config.vocab * zero_dtype_bytes(self->dtype),
                                        cudaMemcpyDeviceToHost, self->stream),
                        "copying logits"));
    TRY(gpt2_cuda_check(self, cudaStreamSynchronize(self->stream), "forward"));
    to_floats(self, logits);
    return ZERO_OK;
}

/* Rows [first, first + rows) of target = beta target + scale dlogits' norm. */
static zero_status wte_rows_backward(space_type *self, piece part, uint32_t first, uint32_t rows,
                                     float scale, const zero_view *target, float beta)
{
    const uint64_t width = self->config.width;
    const unsigned char *logits = self->logits;
    unsigned char *out =
        (unsigned char *)target->data + first * width * zero_dtype_bytes(target->dtype);
    const gpt2_product_job job = {
        .rows = rows,
        .columns = width,
        .inner = part.rows,
        .dtype = self->dtype,
        .left = {logits + first * zero_dtype_bytes(self->dtype), self->logits_stride, true},
        .right = {normed_rows(self, part.first), width, false},
        .out_dtype = target->dtype,
        .out_stride = width,
        .out = out,
        .added = out,
        .alpha = scale,
        .beta = beta};
    return rows == 0 ? ZERO_OK : gpt2_cuda_multiply(self, &job);
}

/* One piece's share: self->narrow = dlogits wte, and into `target` what dlogits' norm adds to the
 * gradient of wte, which has no place for padded rows: the last few are a product of their own. */
static zero_status piece_backward(space_type *self, const zero_view *params, piece part,
                                  float scale, const zero_view *target, float beta)
{
    const uint32_t vocab = self->config.vocab;
    const uint32_t most = is_padded(self) ? vocab / GPT2_LINE * GPT2_LINE : vocab;
    const uint64_t width = self->config.width;
    unsigned char *narrow = self->narrow;
    const gpt2_product_job to_norm = {.rows = part.rows,
                                      .columns = width,
                                      .inner = self->logits_columns,
                                      .dtype = self->dtype,
                                      .left = {self->logits, self->logits_stride, false},
                                      .right = wte_of(self, params, false),
                                      .out_dtype = self->dtype,
                                      .out_stride = width,
                                      .out = narrow + (size_t)part.first * width *
                                                          zero_dtype_bytes(self->dtype),
                                      .alpha = scale};
    TRY(gpt2_cuda_multiply(self, &to_norm));
    TRY(wte_rows_backward(self, part, 0, most, scale, target, beta));
    return wte_rows_backward(self, part, most, vocab - most, scale, target, beta);
}

/* The head's products. Where logits came in pieces, the gradient of wte is summed over them in fp32
 * and rounded once. */
static zero_status pieces_backward(space_type *self, const zero_view *params,
                                   const zero_view *wte_grad, float scale)
{
    const bool whole = self->rows <= self->logits_rows;
    const bool apart = !whole && wte_grad->dtype != ZERO_DTYPE_F32;
    const uint64_t count = (uint64_t)self->config.vocab * self->config.width;
    const zero_view sums = {.data = self->wte_sums, .count = count, .dtype = ZERO_DTYPE_F32};
    for (uint32_t first = 0; first < self->rows; first += self->logits_rows) {
        const piece part = piece_of(self, first);
        if (!whole) { /* else forward's are still there */
            TRY(make_logits(self, params, part));
            TRY(make_losses(self, part, true));
        }
        TRY(piece_backward(self, params, part, scale, apart ? &sums : wte_grad,
                           apart && first == 0 ? 0.0f : 1.0f));
    }
    return apart ? gpt2_cuda_check(self,
                                   gpt2_launch_add(self->stream, wte_grad->dtype, wte_grad->data,
                                                   ZERO_DTYPE_F32, self->wte_sums, count),
                                   "gradient of wte")
                 : ZERO_OK;
}

static zero_status head_backward(void *space, const zero_view *params, const zero_view *grads,
                                 float scale)
{
    space_type *self = space;
    const size_t grad_bytes =
        (size_t)self->rows * self->config.width * zero_dtype_bytes(self->dtype);
    TRY(check_views(self, params, GPT2_HEAD_TENSORS, self->dtype));
    TRY(check_views(self, grads, GPT2_HEAD_TENSORS, self->grad_dtype));
    TRY(pieces_backward(self, params, &grads[GPT2_HEAD_WTE], scale));
    TRY(gpt2_cuda_check(self, cudaMemsetAsync(self->grad, 0, grad_bytes, self->stream),
                        "clearing a gradient"));
    gpt2_norm_job norm = final_norm_of(self, 0, self->rows);
    norm.dy = self->narrow;
    return norm_backward(self, norm, &params[GPT2_LNF_W], &grads[GPT2_LNF_W]);
}

/* --- before the first step -------------------------------------------------------------------- */

/* CUDA loads a kernel, and cuBLASLt those of a product, when it is first launched. That may wait
 * for all that runs on the GPU, and a collective that runs waits for other ranks, which may wait
 * for this one. So everything runs once, for the largest batch, while no collective does. */

enum { WARM_TENSORS = GPT2_EMBED_TENSORS + GPT2_BLOCK_TENSORS + 2 };

/* The tensors of embedding, first block and final norm, all zero, or gradients of them. */
typedef struct warm_set {
    zero_view views[WARM_TENSORS];
    size_t bytes;
} warm_set;

static void warm_place(const gpt2_config *config, zero_dtype dtype, unsigned char *memory,
                       warm_set *set)
{
    set->bytes = 0;
    for (uint32_t i = 0; i < WARM_TENSORS; i++) {
        const uint32_t last = gpt2_tensor_count(config) - 2;
        const uint32_t index =
            i < WARM_TENSORS - 2 ? i : last + i - (WARM_TENSORS - 2); /* behind all blocks */
        gpt2_tensor tensor;
        gpt2_tensor_describe(config, index, &tensor);
        const uint64_t count = tensor.shape[0] * (tensor.dims == 2 ? tensor.shape[1] : 1);
        set->views[i] = (zero_view){
            .data = memory != NULL ? memory + set->bytes : NULL, .count = count, .dtype = dtype};
        set->bytes += (count * zero_dtype_bytes(dtype) + 255) / 256 * 256;
    }
}

/* A pass over one block; the others' kernels are the same. */
static zero_status warm_pass(space_type *self, const gpt2_batch *batch, const zero_view *params,
                             const zero_view *grads)
{
    const zero_view *block = params + GPT2_EMBED_TENSORS;
    const zero_view *norm = block + GPT2_BLOCK_TENSORS;
    const zero_view *norm_grad = grads + GPT2_EMBED_TENSORS + GPT2_BLOCK_TENSORS;
    const zero_view head[GPT2_HEAD_TENSORS] = {norm[0], norm[1], params[GPT2_WTE]};
    const zero_view head_grad[GPT2_HEAD_TENSORS] = {norm_grad[0], norm_grad[1], grads[GPT2_WTE]};
    double unused = 0;
    TRY(begin(self, batch));
    TRY(embed_forward(self, params));
    TRY(block_forward(self, 0, block));
    TRY(head_forward(self, head, true));
    TRY(loss(self, &unused));
    TRY(head_backward(self, head, head_grad, 1.0f));
    TRY(block_backward(self, 0, block, grads + GPT2_EMBED_TENSORS));
    TRY(embed_backward(self, grads));
    return gpt2_cuda_check(self, cudaStreamSynchronize(self->stream), "the first pass");
}

static void warn_of_loading(space_type *self, size_t bytes)
{
    (void)snprintf(self->warning, sizeof self->warning,
                   "GPU %d has no %.2f GiB left for a pass ahead of the first step: kernels are "
                   "loaded during that step, which may wait for other ranks until --deadline; make "
                   "--batch smaller, or use --recompute",
                   self->device, (double)bytes / (1 << 30));
}

static zero_status warm(space_type *self, const gpt2_backend_setup *setup)
{
    warm_set params;
    warm_set grads;
    void *memory = NULL;
    warm_place(&self->config, self->dtype, NULL, &params);
    warm_place(&self->config, self->grad_dtype, NULL, &grads);
    const size_t all_bytes = params.bytes + grads.bytes;
    const cudaError_t code = cudaMalloc(&memory, all_bytes);
    if (code == cudaErrorMemoryAllocation) { /* a run may be as large as the GPU */
        (void)cudaGetLastError();
        warn_of_loading(self, all_bytes);
        return ZERO_OK;
    }
    TRY(gpt2_cuda_check(self, code, "memory for a first pass"));
    int32_t *tokens = calloc((size_t)setup->samples * self->config.seq, sizeof *tokens);
    if (tokens == NULL) {
        (void)cudaFree(memory);
        (void)gpt2_fail(self->error, "no host memory for a batch of %u samples of %u tokens",
                        setup->samples, self->config.seq);
        return ZERO_ERR_OUT_OF_MEMORY;
    }
    const gpt2_batch batch = {.samples = setup->samples,
                              .positions = self->config.seq,
                              .tokens = tokens,
                              .targets = tokens};
    warm_place(&self->config, self->dtype, memory, &params);
    warm_place(&self->config, self->grad_dtype, (unsigned char *)memory + params.bytes, &grads);
    zero_status status =
        gpt2_cuda_check(self, cudaMemsetAsync(memory, 0, all_bytes, self->stream), "clearing");
    if (status == ZERO_OK) {
        status = warm_pass(self, &batch, params.views, grads.views);
    }
    (void)cudaStreamSynchronize(self->stream);
    (void)cudaFree(memory);
    free(tokens);
    return status;
}

static zero_status create(const gpt2_backend_setup *setup, void **space)
{
    space_type *made = NULL;
    TRY(gpt2_cuda_space_create(setup, &made));
    gpt2_linear_choose(made);
    const zero_status status = warm(made, setup);
    if (status != ZERO_OK) {
        gpt2_cuda_space_destroy(made);
        return status;
    }
    *space = made;
    return ZERO_OK;
}

static const gpt2_backend table = {
    .name = "cuda",
    .start = start,
    .prepare = prepare,
    .devices = devices,
    .use_threads = use_threads,
    .create = create,
    .destroy = destroy,
    .bytes = bytes,
    .machine = machine,
    .products = products,
    .warning = warning,
    .stream = stream,
    .begin = begin,
    .embed_forward = embed_forward,
    .block_forward = block_forward,
    .head_forward = head_forward,
    .loss = loss,
    .head_logits = head_logits,
    .head_backward = head_backward,
    .block_backward = block_backward,
    .embed_backward = embed_backward,
};

const gpt2_backend *gpt2_cuda_backend(gpt2_error *error)
{
    (void)error;
    return &table;
}
