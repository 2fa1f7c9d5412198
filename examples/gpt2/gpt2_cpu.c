/* The CPU's table: gpt2_model.c's mathematics in fp32.
 *
 * Low-precision parameters are widened to fp32 a unit at a time, but for weights whose products
 * oneDNN makes, which it reads as they are. Low-precision gradients of a unit are summed in fp32
 * and then added to the engine's buffers, rounded to their type. */
#include "gpt2_backend.h"
#include "gpt2_blas.h"
#include "gpt2_dnnl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu {
    gpt2_space *space;
    gpt2_batch batch;
    double loss;
    float *wide;     /* fp32 copy of the unit in use; unused where parameters are fp32 */
    float *grads;    /* fp32 gradient of the unit in use; unused where gradients are fp32 */
    gpt2_dnnl *dnnl; /* NULL: products are BLAS's */
    gpt2_error *error;
    uint64_t bytes;
} cpu;

/* --- creation --------------------------------------------------------------------------------- */

static zero_status prepare(uint32_t local_rank, gpt2_error *error)
{
    (void)local_rank;
    (void)error;
    return ZERO_OK;
}

static uint32_t devices(void)
{
    return 0;
}

static void use_threads(uint32_t threads)
{
    gpt2_blas_use_threads(threads);
}

/* Elements of the largest unit, a tied tensor included. */
static uint64_t largest_unit(const gpt2_config *config)
{
    const uint64_t width = config->width;
    const uint64_t embed = ((uint64_t)config->vocab + config->seq) * width;
    const uint64_t head = ((uint64_t)config->vocab + 2) * width;
    const uint64_t block = (12 * width + 13) * width;
    const uint64_t ends = embed > head ? embed : head;
    return block > ends ? block : ends;
}

/* Elements of the largest operands of a linear layer's products: activations, and gradients. */
static void largest_operands(const gpt2_space *space, size_t counts[2])
{
    const size_t hidden = space->tokens_max * 4 * space->config.width;
    const size_t logits = space->logits_rows * space->config.vocab;
    counts[0] = hidden;
    counts[1] = hidden > logits ? hidden : logits;
}

/* Set whose products linear layers have: BLAS's unless oneDNN is to multiply. */
static zero_status create_products(cpu *self, const gpt2_backend_setup *setup)
{
    size_t counts[2];
    if (setup->products == GPT2_LIBRARY_BLAS || setup->dtype != ZERO_DTYPE_BF16 ||
        (setup->products == GPT2_LIBRARY_AUTO && !gpt2_dnnl_is_fast())) {
        return ZERO_OK;
    }
    largest_operands(self->space, counts);
    TRY(gpt2_dnnl_create(self->space->ops, counts, setup->threads, setup->error, &self->dnnl));
    self->space->multiplier = gpt2_dnnl_multiplier(self->dnnl);
    self->bytes += (counts[0] + counts[1]) * sizeof(uint16_t);
    return ZERO_OK;
}

static void destroy(void *space)
{
    cpu *self = space;
    if (self != NULL) {
        gpt2_dnnl_destroy(self->dnnl);
        gpt2_space_destroy(self->space);
        free(self->wide);
        free(self->grads);
        free(self);
    }
}

static zero_status create(const gpt2_backend_setup *setup, void **space)
{
    const uint64_t copy_bytes = largest_unit(&setup->config) * sizeof(float);
    const zero_dtype grad_dtype = setup->grad_dtype;
    const bool low = setup->dtype != ZERO_DTYPE_F32;
    const bool low_grads = grad_dtype == ZERO_DTYPE_DEFAULT ? low : grad_dtype != ZERO_DTYPE_F32;
    cpu *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->space = gpt2_space_create(&setup->config, setup->samples, setup->recompute);
        self->wide = low ? malloc(copy_bytes) : NULL;
        self->grads = low_grads ? malloc(copy_bytes) : NULL;
    }
    if (self == NULL || self->space == NULL || (low && self->wide == NULL) ||
        (low_grads && self->grads == NULL)) {
        destroy(self);
        (void)gpt2_fail(setup->error,
                        "no memory for activations of %u samples of %u tokens a rank; make "
                        "--batch, --seq or --width smaller, --micro-steps larger, or use "
                        "--recompute",
                        setup->samples, setup->config.seq);
        return ZERO_ERR_OUT_OF_MEMORY;
    }
    self->error = setup->error;
    self->bytes = self->space->bytes + (low ? copy_bytes : 0) + (low_grads ? copy_bytes : 0);
    const zero_status status = create_products(self, setup);
    if (status != ZERO_OK) {
        destroy(self);
        return status;
    }
    *space = self;
    return ZERO_OK;
}

static uint64_t bytes(const void *space)
{
    return ((const cpu *)space)->bytes;
}

static const char *machine(const void *space)
{
    return ((const cpu *)space)->space->ops->isa;
}

static zero_stream stream(const void *space)
{
    (void)space;
    return zero_stream_host();
}

/* Parameters that are factors of products, a bit each. */
enum {
    BLOCK_FACTORS = 1 << GPT2_QKV_W | 1 << GPT2_MIX_W | 1 << GPT2_EXPAND_W | 1 << GPT2_SHRINK_W,
    HEAD_FACTORS = 1 << GPT2_HEAD_WTE
};

/* --- views ------------------------------------------------------------------------------------ */

/* `count` parameters as the mathematics reads them. factors: bit i is set if products read
 * parameter i, and nothing else does. */
static void widen(cpu *self, const zero_view *views, uint32_t count, uint32_t factors,
                  gpt2_param *params)
{
    float *wide = self->wide;
    for (uint32_t i = 0; i < count; i++) {
        if (self->dnnl != NULL && (factors >> i & 1) != 0) {
            params[i] = (gpt2_param){NULL, views[i].data};
            continue;
        }
        if (views[i].dtype == ZERO_DTYPE_F32) {
            params[i] = (gpt2_param){views[i].data, views[i].data};
            continue;
        }
        if (views[i].dtype == ZERO_DTYPE_BF16) {
            self->space->ops->widen_bf16(wide, views[i].data, views[i].count);
        } else {
            self->space->ops->widen_f16(wide, views[i].data, views[i].count);
        }
        params[i] = (gpt2_param){wide, wide};
        wide += views[i].count;
    }
}

/* Find where `count` gradients are to be summed: in place, or in zeroed sums. */
static void open_grads(cpu *self, const zero_view *views, uint32_t count, float **grads)
{
    float *sums = self->grads;
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].dtype == ZERO_DTYPE_F32) {
            grads[i] = views[i].data;
            continue;
        }
        memset(sums, 0, views[i].count * sizeof *sums);
        grads[i] = sums;
        sums += views[i].count;
    }
}

static void close_grads(cpu *self, const zero_view *views, uint32_t count, float *const *grads)
{
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].dtype == ZERO_DTYPE_BF16) {
            self->space->ops->add_bf16(views[i].data, grads[i], views[i].count);
        } else if (views[i].dtype == ZERO_DTYPE_F16) {
            self->space->ops->add_f16(views[i].data, grads[i], views[i].count);
        }
    }
}

/* The end of a pass: how its products went. */
static zero_status done(const cpu *self)
{
    return self->dnnl == NULL ? ZERO_OK : gpt2_dnnl_status(self->dnnl, self->error);
}

/* --- passes ----------------------------------------------------------------------------------- */

static zero_status begin(void *space, const gpt2_batch *batch)
{
    ((cpu *)space)->batch = *batch;
    return ZERO_OK;
}

static zero_status embed_forward(void *space, const zero_view *params)
{
    cpu *self = space;
    gpt2_param p[GPT2_EMBED_TENSORS];
    widen(self, params, GPT2_EMBED_TENSORS, 0, p);
    gpt2_embed_forward(self->space, p, &self->batch);
    return ZERO_OK;
}

static zero_status block_forward(void *space, uint32_t layer, const zero_view *params)
{
    cpu *self = space;
    gpt2_param p[GPT2_BLOCK_TENSORS];
    widen(self, params, GPT2_BLOCK_TENSORS, BLOCK_FACTORS, p);
    gpt2_block_forward(self->space, layer, p, &self->batch);
    return done(self);
}

static zero_status head_forward(void *space, const zero_view *params, bool trains)
{
    (void)trains;
    cpu *self = space;
    gpt2_param p[GPT2_HEAD_TENSORS];
    widen(self, params, GPT2_HEAD_TENSORS, HEAD_FACTORS, p);
    self->loss = gpt2_head_forward(self->space, p, &self->batch);
    return done(self);
}

static zero_status loss(void *space, double *value)
{
    *value = ((const cpu *)space)->loss;
    return ZERO_OK;
}

static zero_status head_logits(void *space, const zero_view *params, float *logits)
{
    cpu *self = space;
    gpt2_param p[GPT2_HEAD_TENSORS];
    widen(self, params, GPT2_HEAD_TENSORS, HEAD_FACTORS, p);
    gpt2_head_logits(self->space, p, &self->batch, logits);
    return done(self);
}

static zero_status head_backward(void *space, const zero_view *params, const zero_view *grads,
                                 float scale)
{
    cpu *self = space;
    gpt2_param p[GPT2_HEAD_TENSORS];
    float *g[GPT2_HEAD_TENSORS];
    widen(self, params, GPT2_HEAD_TENSORS, HEAD_FACTORS, p);
    open_grads(self, grads, GPT2_HEAD_TENSORS, g);
    gpt2_head_backward(self->space, p, g, &self->batch, scale);
    close_grads(self, grads, GPT2_HEAD_TENSORS, g);
    return done(self);
}

static zero_status block_backward(void *space, uint32_t layer, const zero_view *params,
                                  const zero_view *grads)
{
    cpu *self = space;
    gpt2_param p[GPT2_BLOCK_TENSORS];
    float *g[GPT2_BLOCK_TENSORS];
    widen(self, params, GPT2_BLOCK_TENSORS, BLOCK_FACTORS, p);
    open_grads(self, grads, GPT2_BLOCK_TENSORS, g);
    gpt2_block_backward(self->space, layer, p, g, &self->batch);
    close_grads(self, grads, GPT2_BLOCK_TENSORS, g);
    return done(self);
}

static zero_status embed_backward(void *space, const zero_view *grads)
{
    cpu *self = space;
    float *g[GPT2_EMBED_TENSORS];
    open_grads(self, grads, GPT2_EMBED_TENSORS, g);
    gpt2_embed_backward(self->space, g, &self->batch);
    close_grads(self, grads, GPT2_EMBED_TENSORS, g);
    return ZERO_OK;
}

static const char *products(const void *space)
{
    static char text[400];
    char library[80];
    if (((const cpu *)space)->dnnl == NULL) {
        return gpt2_blas_text();
    }
    (void)snprintf(text, sizeof text, "%s; attention: %s", gpt2_dnnl_text(library, sizeof library),
                   gpt2_blas_text());
    return text;
}

static const char *warning(const void *space)
{
    (void)space;
    return NULL;
}

static const gpt2_backend table = {
    .name = "cpu",
    .start = gpt2_blas_start,
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

const gpt2_backend *gpt2_cpu_backend(gpt2_error *error)
{
    (void)error;
    return &table;
}
