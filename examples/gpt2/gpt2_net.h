/* GPT-2 on the library: its description, and forward and backward through the hooks.
 *
 * Units in forward order: "embed" (wte, wpe), "h.0" .. , "head" (ln_f; wte tied). Low-precision
 * parameters are widened to fp32 a unit at a time, where the unit is acquired; gradients of a unit
 * are summed in fp32 and added to the engine's buffers rounded to their type. */
#ifndef GPT2_NET_H
#define GPT2_NET_H

#include "gpt2_error.h"
#include "gpt2_model.h"
#include "zero/zero.h"

typedef struct gpt2_net {
    gpt2_config config;
    zero_engine *engine;
    gpt2_space *space;
    float *wide;    /* fp32 copy of the unit in use; unused where parameters are fp32 */
    float *grads;   /* fp32 gradient of the unit in use; unused where gradients are fp32 */
    uint64_t bytes; /* of the space and both copies: memory that is not the library's */
} gpt2_net;

/* Describes `config` to the library, parameters of `dtype`. Ownership: the caller's. */
zero_status gpt2_net_describe(const gpt2_config *config, zero_dtype dtype, zero_model **model);

typedef struct gpt2_net_setup {
    gpt2_config config;
    zero_engine_options options;
    zero_dtype dtype;
    uint32_t samples; /* of the largest micro-batch on this rank */
    bool recompute;
    uint64_t seed;
} gpt2_net_setup;

/* Memory for micro-batches, an engine over `world`, and GPT-2's initial values from setup->seed.
 * `error` gets a text where the failure is not the library's. Whatever came of it, the caller calls
 * gpt2_net_destroy. Collective. */
zero_status gpt2_net_create(gpt2_net *net, zero_world *world, const gpt2_net_setup *setup,
                            gpt2_error *error);
void gpt2_net_destroy(gpt2_net *net);

/* Forward of `batch`; its mean loss. pass: FORWARD in a micro-step, EVAL outside. Collective. */
zero_status gpt2_net_loss(gpt2_net *net, const gpt2_batch *batch, zero_pass pass, double *loss);

/* Backward of the batch whose forward was last. Collective. */
zero_status gpt2_net_backward(gpt2_net *net, const gpt2_batch *batch, float scale);

/* Logits after the last position of sample 0, outside any micro-step. Collective. */
zero_status gpt2_net_logits(gpt2_net *net, const gpt2_batch *batch, float *logits);

#endif
