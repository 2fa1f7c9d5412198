/* The hooks around each unit's mathematics, in one fixed order that every rank follows. */
#include "gpt2_net.h"

#include <stdlib.h>
#include <string.h>

#define TRY(call)                        \
    do {                                 \
        const zero_status try_ = (call); \
        if (try_ != ZERO_OK) {           \
            return try_;                 \
        }                                \
    } while (0)

/* Pointers to a unit's tensors, in the model's order of them. */
typedef struct unit {
    uint32_t index; /* in the engine */
    uint32_t count;
    uint32_t tensors[GPT2_BLOCK_TENSORS];
    const float *params[GPT2_BLOCK_TENSORS];
    float *grads[GPT2_BLOCK_TENSORS];
} unit;

/* --- description ------------------------------------------------------------------------------ */

static zero_status describe_units(const gpt2_config *config, zero_dtype dtype, zero_model *model)
{
    uint32_t unit_index = UINT32_MAX;
    for (uint32_t i = 0; i < gpt2_tensor_count(config); i++) {
        gpt2_tensor tensor;
        gpt2_tensor_describe(config, i, &tensor);
        if (tensor.unit != unit_index) {
            char name[32];
            (void)snprintf(name, sizeof name, "h.%u", tensor.unit - 1);
            const bool head = tensor.unit == config->layers + 1;
            TRY(zero_unit_add(model,
                              tensor.unit == 0 ? "embed"
                              : head           ? "head"
                                               : name,
                              &unit_index));
        }
        const zero_tensor_desc desc = {
            .name = tensor.name,
            .shape = {tensor.shape[0], tensor.shape[1]},
            .dims = tensor.dims,
            .dtype = dtype,
            .flags = tensor.decays ? ZERO_TENSOR_PLAIN : ZERO_TENSOR_NO_DECAY,
        };
        uint32_t index = 0;
        TRY(zero_tensor_add(model, unit_index, &desc, &index));
    }
    return zero_tensor_tie(model, unit_index, GPT2_WTE);
}

zero_status gpt2_net_describe(const gpt2_config *config, zero_dtype dtype, zero_model **model)
{
    TRY(zero_model_create(model));
    const zero_status status = describe_units(config, dtype, *model);
    if (status != ZERO_OK) {
        zero_model_destroy(*model);
        *model = NULL;
    }
    return status;
}

/* --- creation --------------------------------------------------------------------------------- */

typedef struct initial {
    gpt2_config config;
    uint64_t seed;
} initial;

static void fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values)
{
    const initial *how = user;
    gpt2_tensor about;
    gpt2_tensor_describe(&how->config, tensor, &about);
    if (about.init_sigma > 0) {
        zero_random_normal(how->seed, tensor, first, count, about.init_mean, about.init_sigma,
                           values);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        values[i] = about.init_mean;
    }
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

static bool allocate(gpt2_net *net, const gpt2_net_setup *setup, gpt2_error *error)
{
    const uint64_t copy_bytes = largest_unit(&setup->config) * sizeof(float);
    const zero_dtype grad_dtype = setup->options.grad_dtype;
    const bool low = setup->dtype != ZERO_DTYPE_F32;
    const bool low_grads = grad_dtype == ZERO_DTYPE_DEFAULT ? low : grad_dtype != ZERO_DTYPE_F32;
    net->space = gpt2_space_create(&setup->config, setup->samples, setup->recompute);
    net->wide = low ? malloc(copy_bytes) : NULL;
    net->grads = low_grads ? malloc(copy_bytes) : NULL;
    if (net->space == NULL || (low && net->wide == NULL) || (low_grads && net->grads == NULL)) {
        return gpt2_fail(error,
                         "no memory for activations of %u samples of %u tokens a rank; make "
                         "--batch, --seq or --width smaller, --micro-steps larger, or use "
                         "--recompute",
                         setup->samples, setup->config.seq);
    }
    net->bytes = net->space->bytes + (low ? copy_bytes : 0) + (low_grads ? copy_bytes : 0);
    return true;
}

zero_status gpt2_net_create(gpt2_net *net, zero_world *world, const gpt2_net_setup *setup,
                            gpt2_error *error)
{
    memset(net, 0, sizeof *net);
    net->config = setup->config;
    zero_model *model = NULL;
    TRY(gpt2_net_describe(&setup->config, setup->dtype, &model));
    zero_status status = zero_engine_create(world, model, &setup->options, &net->engine);
    zero_model_destroy(model);
    TRY(status);
    initial how = {setup->config, setup->seed};
    TRY(zero_engine_fill(net->engine, fill, &how));
    return allocate(net, setup, error) ? ZERO_OK : ZERO_OUT_OF_MEMORY;
}

void gpt2_net_destroy(gpt2_net *net)
{
    zero_engine_destroy(net->engine);
    gpt2_space_destroy(net->space);
    free(net->wide);
    free(net->grads);
    memset(net, 0, sizeof *net);
}

/* --- units ------------------------------------------------------------------------------------ */

/* Which tensors unit `index` works with. The head's are wte and the last two. */
static unit unit_of(const gpt2_net *net, uint32_t index)
{
    unit it = {.index = index};
    const uint32_t layers = net->config.layers;
    uint32_t first = 0;
    if (index == 0) {
        it.count = GPT2_EMBED_TENSORS;
    } else if (index <= layers) {
        it.count = GPT2_BLOCK_TENSORS;
        first = GPT2_EMBED_TENSORS + (index - 1) * GPT2_BLOCK_TENSORS;
    } else {
        it.count = GPT2_HEAD_TENSORS;
        first = GPT2_EMBED_TENSORS + layers * GPT2_BLOCK_TENSORS - 1;
    }
    for (uint32_t i = 0; i < it.count; i++) {
        it.tensors[i] = first + i;
    }
    if (index > layers) {
        it.tensors[GPT2_HEAD_WTE] = GPT2_WTE;
    }
    return it;
}

/* Acquires the unit and finds its parameters, as fp32. */
static zero_status acquire(gpt2_net *net, unit *it, zero_pass pass)
{
    TRY(zero_unit_acquire(net->engine, it->index, pass, zero_stream_host()));
    float *wide = net->wide;
    for (uint32_t i = 0; i < it->count; i++) {
        zero_view view;
        TRY(zero_tensor_data(net->engine, it->tensors[i], &view));
        if (view.dtype == ZERO_DTYPE_F32) {
            it->params[i] = view.data;
            continue;
        }
        if (view.dtype == ZERO_DTYPE_BF16) {
            net->space->ops->widen_bf16(wide, view.data, view.count);
        } else {
            net->space->ops->widen_f16(wide, view.data, view.count);
        }
        it->params[i] = wide;
        wide += view.count;
    }
    return ZERO_OK;
}

static zero_status release(gpt2_net *net, const unit *it)
{
    return zero_unit_release(net->engine, it->index, zero_stream_host());
}

/* Acquires the unit's gradient; low-precision ones are summed in net->grads first. */
static zero_status acquire_grad(gpt2_net *net, unit *it)
{
    TRY(zero_unit_grad_acquire(net->engine, it->index, zero_stream_host()));
    float *sums = net->grads;
    for (uint32_t i = 0; i < it->count; i++) {
        zero_view view;
        TRY(zero_tensor_grad(net->engine, it->tensors[i], &view));
        if (view.dtype == ZERO_DTYPE_F32) {
            it->grads[i] = view.data;
            continue;
        }
        memset(sums, 0, view.count * sizeof *sums);
        it->grads[i] = sums;
        sums += view.count;
    }
    return ZERO_OK;
}

static zero_status finish_grad(gpt2_net *net, const unit *it)
{
    for (uint32_t i = 0; i < it->count; i++) {
        zero_view view;
        TRY(zero_tensor_grad(net->engine, it->tensors[i], &view));
        if (view.dtype == ZERO_DTYPE_BF16) {
            net->space->ops->add_bf16(view.data, it->grads[i], view.count);
        } else if (view.dtype == ZERO_DTYPE_F16) {
            net->space->ops->add_f16(view.data, it->grads[i], view.count);
        }
    }
    return zero_unit_grad_ready(net->engine, it->index, zero_stream_host());
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Everything below the head. */
static zero_status run_body(gpt2_net *net, const gpt2_batch *batch, zero_pass pass)
{
    unit embed = unit_of(net, 0);
    TRY(acquire(net, &embed, pass));
    gpt2_embed_forward(net->space, embed.params, batch);
    TRY(release(net, &embed));
    for (uint32_t layer = 0; layer < net->config.layers; layer++) {
        unit block = unit_of(net, 1 + layer);
        TRY(acquire(net, &block, pass));
        gpt2_block_forward(net->space, layer, block.params, batch);
        TRY(release(net, &block));
    }
    return ZERO_OK;
}

zero_status gpt2_net_loss(gpt2_net *net, const gpt2_batch *batch, zero_pass pass, double *loss)
{
    TRY(run_body(net, batch, pass));
    unit head = unit_of(net, 1 + net->config.layers);
    TRY(acquire(net, &head, pass));
    *loss = gpt2_head_forward(net->space, head.params, batch);
    return release(net, &head);
}

zero_status gpt2_net_logits(gpt2_net *net, const gpt2_batch *batch, float *logits)
{
    TRY(run_body(net, batch, ZERO_PASS_EVAL));
    unit head = unit_of(net, 1 + net->config.layers);
    TRY(acquire(net, &head, ZERO_PASS_EVAL));
    gpt2_head_logits(net->space, head.params, batch, logits);
    return release(net, &head);
}

zero_status gpt2_net_backward(gpt2_net *net, const gpt2_batch *batch, float scale)
{
    unit head = unit_of(net, 1 + net->config.layers);
    TRY(acquire(net, &head, ZERO_PASS_BACKWARD));
    TRY(acquire_grad(net, &head));
    gpt2_head_backward(net->space, head.params, head.grads, batch, scale);
    TRY(finish_grad(net, &head));
    TRY(release(net, &head));
    for (uint32_t layer = net->config.layers; layer-- > 0;) {
        unit block = unit_of(net, 1 + layer);
        TRY(acquire(net, &block, ZERO_PASS_BACKWARD));
        TRY(acquire_grad(net, &block));
        gpt2_block_backward(net->space, layer, block.params, block.grads, batch);
        TRY(finish_grad(net, &block));
        TRY(release(net, &block));
    }
    /* The embedding's gradient needs none of its parameters: nothing to gather. */
    unit embed = unit_of(net, 0);
    TRY(acquire_grad(net, &embed));
    gpt2_embed_backward(net->space, embed.grads, batch);
    return finish_grad(net, &embed);
}
