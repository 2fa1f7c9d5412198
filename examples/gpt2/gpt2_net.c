/* The hooks around each unit's mathematics, in one fixed order that every rank follows. */
#include "gpt2_net.h"

#include <string.h>

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
                              &(zero_unit_desc){.name = tensor.unit == 0 ? "embed"
                                                        : head           ? "head"
                                                                         : name},
                              &unit_index, NULL));
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

static zero_status create_engine(gpt2_net *net, zero_world *world, const gpt2_net_setup *setup)
{
    zero_model *model = NULL;
    TRY(gpt2_net_describe(&setup->config, setup->dtype, &model));
    zero_engine_options options = setup->options;
    options.tuning = &setup->tuning;
    const zero_status status = zero_engine_create(world, model, &options, &net->engine);
    zero_model_destroy(model);
    return status;
}

zero_status gpt2_net_create(gpt2_net *net, zero_world *world, const gpt2_net_setup *setup)
{
    memset(net, 0, sizeof *net);
    net->config = setup->config;
    net->dtype = setup->dtype;
    const bool cuda = setup->options.device == ZERO_DEVICE_CUDA;
    net->backend = setup->backend != NULL ? setup->backend
                   : cuda                 ? gpt2_cuda_backend(&net->error)
                                          : gpt2_cpu_backend(&net->error);
    if (net->backend == NULL) {
        return ZERO_ERR_UNSUPPORTED;
    }
    const uint32_t local_rank = zero_world_rank(world) % zero_world_local_size(world);
    TRY(net->backend->prepare(local_rank, &net->error));
    TRY(create_engine(net, world, setup));
    initial how = {setup->config, setup->seed};
    TRY(zero_engine_fill(net->engine, fill, &how));
    const gpt2_backend_setup space = {.config = setup->config,
                                      .dtype = setup->dtype,
                                      .grad_dtype = setup->options.grad_dtype,
                                      .samples = setup->samples,
                                      .recompute = setup->recompute,
                                      .products = setup->products,
                                      .threads = setup->options.threads,
                                      .tf32 = setup->tf32,
                                      .error = &net->error};
    TRY(net->backend->create(&space, &net->space));
    net->stream = cuda ? net->backend->stream(net->space) : zero_stream_host();
    net->bytes = net->backend->bytes(net->space);
    return ZERO_OK;
}

/* The engine first: it waits for its work on the space's stream. */
void gpt2_net_destroy(gpt2_net *net)
{
    zero_engine_destroy(net->engine);
    if (net->backend != NULL) {
        net->backend->destroy(net->space);
    }
    memset(net, 0, sizeof *net);
}

/* --- passes ----------------------------------------------------------------------------------- */

/* Units: the embedding is 0, block l is 1 + l, then comes the head. */
static uint32_t unit_of_head(const gpt2_net *net)
{
    return 1 + net->config.layers;
}

/* Everything below the head. */
static zero_status run_body(gpt2_net *net, const gpt2_batch *batch, zero_pass pass)
{
    const gpt2_backend *backend = net->backend;
    const zero_unit_view *view = NULL;
    TRY(backend->begin(net->space, batch));
    TRY(zero_unit_acquire(net->engine, 0, pass, net->stream, &view));
    TRY(backend->embed_forward(net->space, view->params));
    TRY(zero_unit_release(net->engine, 0, net->stream));
    for (uint32_t layer = 0; layer < net->config.layers; layer++) {
        TRY(zero_unit_acquire(net->engine, 1 + layer, pass, net->stream, &view));
        TRY(backend->block_forward(net->space, layer, view->params));
        TRY(zero_unit_release(net->engine, 1 + layer, net->stream));
    }
    return ZERO_OK;
}

zero_status gpt2_net_forward(gpt2_net *net, const gpt2_batch *batch, zero_pass pass)
{
    const uint32_t head = unit_of_head(net);
    const zero_unit_view *view = NULL;
    TRY(run_body(net, batch, pass));
    TRY(zero_unit_acquire(net->engine, head, pass, net->stream, &view));
    TRY(net->backend->head_forward(net->space, view->params, pass == ZERO_PASS_FORWARD));
    return zero_unit_release(net->engine, head, net->stream);
}

zero_status gpt2_net_loss(gpt2_net *net, double *loss)
{
    return net->backend->loss(net->space, loss);
}

zero_status gpt2_net_logits(gpt2_net *net, const gpt2_batch *batch, float *logits)
{
    const uint32_t head = unit_of_head(net);
    const zero_unit_view *view = NULL;
    TRY(run_body(net, batch, ZERO_PASS_EVAL));
    TRY(zero_unit_acquire(net->engine, head, ZERO_PASS_EVAL, net->stream, &view));
    TRY(net->backend->head_logits(net->space, view->params, logits));
    return zero_unit_release(net->engine, head, net->stream);
}

/* Gradients only: they need no parameters of the embedding, so nothing is gathered. */
static zero_status embed_backward(gpt2_net *net)
{
    zero_view grads[GPT2_EMBED_TENSORS];
    TRY(zero_unit_grads_acquire(net->engine, 0, net->stream));
    for (uint32_t i = 0; i < GPT2_EMBED_TENSORS; i++) {
        TRY(zero_tensor_grad(net->engine, i, &grads[i]));
    }
    TRY(net->backend->embed_backward(net->space, grads));
    return zero_unit_grads_ready(net->engine, 0, net->stream);
}

zero_status gpt2_net_backward(gpt2_net *net, float scale)
{
    const gpt2_backend *backend = net->backend;
    const uint32_t head = unit_of_head(net);
    const zero_unit_view *view = NULL;
    TRY(zero_unit_acquire(net->engine, head, ZERO_PASS_BACKWARD, net->stream, &view));
    TRY(backend->head_backward(net->space, view->params, view->grads, scale));
    TRY(zero_unit_release(net->engine, head, net->stream));
    for (uint32_t layer = net->config.layers; layer-- > 0;) {
        TRY(zero_unit_acquire(net->engine, 1 + layer, ZERO_PASS_BACKWARD, net->stream, &view));
        TRY(backend->block_backward(net->space, layer, view->params, view->grads));
        TRY(zero_unit_release(net->engine, 1 + layer, net->stream));
    }
    return embed_backward(net);
}
