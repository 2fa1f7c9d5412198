/* GPT-2 on the library: its description, and forward and backward through the hooks.
 *
 * Units in forward order: "embed" (wte, wpe), "h.0" .. , "head" (ln_f; wte tied). A backend
 * computes between a unit's acquire and release (gpt2_backend.h). */
#ifndef GPT2_NET_H
#define GPT2_NET_H

#include "gpt2_backend.h"
#include "gpt2_error.h"
#include "gpt2_model.h"
#include "zero/zero.h"

/* Must not be moved: the space reports failures to `error`. */
typedef struct gpt2_net {
    gpt2_config config;
    zero_dtype dtype; /* of parameters */
    zero_engine *engine;
    const gpt2_backend *backend;
    void *space;        /* the backend's */
    zero_stream stream; /* that hooks are given */
    uint64_t bytes;     /* of the space: memory that is not the library's */
    gpt2_error error;   /* text of a failure that is not the library's */
} gpt2_net;

/* Describes `config` to the library, parameters of `dtype`. Ownership: the caller's. */
zero_status gpt2_net_describe(const gpt2_config *config, zero_dtype dtype, zero_model **model);

typedef struct gpt2_net_setup {
    gpt2_config config;
    zero_engine_options options;
    zero_tuning tuning;          /* of the options, whose own pointer is not read */
    const gpt2_backend *backend; /* NULL: as options.device says */
    zero_dtype dtype;
    uint32_t samples; /* of the largest micro-batch on this rank */
    bool recompute;
    bool tf32;
    gpt2_library products;
    uint64_t seed;
} gpt2_net_setup;

/* Memory for micro-batches, an engine over `world`, and GPT-2's initial values from setup->seed.
 * net->error gets a text if the failure is not the library's. The caller calls gpt2_net_destroy in
 * any case. Collective. */
zero_status gpt2_net_create(gpt2_net *net, zero_world *world, const gpt2_net_setup *setup);
void gpt2_net_destroy(gpt2_net *net);

/* Forward of `batch`, whose arrays are read until its backward ends. pass: FORWARD in a micro-step,
 * EVAL outside. Collective. */
zero_status gpt2_net_forward(gpt2_net *net, const gpt2_batch *batch, zero_pass pass);

/* Mean loss of the last forward. Waits for that forward only, so call it after the backward is
 * enqueued: a GPU then has work meanwhile. */
zero_status gpt2_net_loss(gpt2_net *net, double *loss);

/* Backward of the last forward's batch. Collective. */
zero_status gpt2_net_backward(gpt2_net *net, float scale);

/* Logits after the last position of sample 0, outside any micro-step. Collective. */
zero_status gpt2_net_logits(gpt2_net *net, const gpt2_batch *batch, float *logits);

#endif
