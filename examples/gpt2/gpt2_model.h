/* GPT-2's mathematics on plain pointers: no ranks, no engine.
 *
 * The model is cut into the units the trainer gathers: "embed" (wte, wpe), one block a layer, and
 * "head" (ln_f, with wte tied). Each has a forward and a backward that work on a gpt2_space, which
 * holds the activations of one micro-batch. Weights are those of the public GPT-2 checkpoints in
 * name, shape and layout: a linear layer's weight is in x out, y = x W + b. */
#ifndef GPT2_MODEL_H
#define GPT2_MODEL_H

#include "gpt2_ops.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gpt2_config {
    uint32_t layers;
    uint32_t heads; /* divides width */
    uint32_t width;
    uint32_t seq; /* most positions */
    uint32_t vocab;
} gpt2_config;

/* Tensors of a block, in order. */
enum {
    GPT2_LN1_W,    /* width */
    GPT2_LN1_B,    /* width */
    GPT2_QKV_W,    /* width x 3 width: queries, keys, values */
    GPT2_QKV_B,    /* 3 width */
    GPT2_MIX_W,    /* width x width */
    GPT2_MIX_B,    /* width */
    GPT2_LN2_W,    /* width */
    GPT2_LN2_B,    /* width */
    GPT2_EXPAND_W, /* width x 4 width */
    GPT2_EXPAND_B, /* 4 width */
    GPT2_SHRINK_W, /* 4 width x width */
    GPT2_SHRINK_B, /* width */
    GPT2_BLOCK_TENSORS
};

/* Tensors of the embedding, and of the head: its own, then the one it ties to. */
enum { GPT2_WTE, GPT2_WPE, GPT2_EMBED_TENSORS };
enum { GPT2_LNF_W, GPT2_LNF_B, GPT2_HEAD_WTE, GPT2_HEAD_TENSORS };

/* One tensor of the whole model, which are numbered in the order embed, blocks, ln_f. */
typedef struct gpt2_tensor {
    char name[48]; /* as in the public checkpoints */
    uint64_t shape[2];
    uint32_t dims;
    uint32_t unit;    /* 0 embed, 1 + layer, 1 + layers head */
    bool decays;      /* false: a norm or a bias */
    float init_mean;  /* GPT-2's initial values */
    float init_sigma; /* 0: constant */
} gpt2_tensor;

uint32_t gpt2_tensor_count(const gpt2_config *config);
void gpt2_tensor_describe(const gpt2_config *config, uint32_t index, gpt2_tensor *tensor);

/* Elements of all tensors. */
uint64_t gpt2_parameter_count(const gpt2_config *config);

/* samples x positions tokens, and after each the one that follows. */
typedef struct gpt2_batch {
    const int32_t *tokens;
    const int32_t *targets; /* NULL where only logits are wanted */
    uint32_t samples;
    uint32_t positions; /* at most config.seq */
} gpt2_batch;

/* A parameter: `values`, and the same as the space's multiplier reads it. */
typedef struct gpt2_param {
    const gpt2_real *values; /* not read of a weight of products, but of the embedding */
    const void *operand;     /* read of weights of products only */
} gpt2_param;

/* The results of a block's forward that its backward needs. Token-major: tokens x width unless
 * said. */
typedef struct gpt2_saved {
    gpt2_real *norm1;
    gpt2_real *mean1; /* tokens */
    gpt2_real *rstd1; /* tokens */
    gpt2_real *qkv;   /* tokens x 3 width */
    gpt2_real *mixed; /* heads' outputs side by side */
    gpt2_real *middle;
    gpt2_real *norm2;
    gpt2_real *mean2;  /* tokens */
    gpt2_real *rstd2;  /* tokens */
    gpt2_real *expand; /* tokens x 4 width, before GELU */
    gpt2_real *active; /* tokens x 4 width, after GELU */
} gpt2_saved;

/* Activations and scratch of one micro-batch. */
typedef struct gpt2_space {
    gpt2_config config;
    const gpt2_ops *ops;
    struct gpt2_multiplier
        *multiplier; /* of linear layers; BLAS's unless the caller sets another */
    size_t tokens_max;
    bool recompute;    /* blocks keep their input only; backward runs their forward again */
    gpt2_real *memory; /* the one allocation */
    size_t bytes;
    gpt2_real *stream;  /* layers + 1 residual streams, tokens_max x width each */
    gpt2_saved *saved;  /* one a layer, or a single one when recomputing */
    gpt2_saved kept;    /* the head's norm: norm1, mean1, rstd1 */
    gpt2_real *grad;    /* d loss / d residual stream */
    gpt2_real *wide;    /* tokens x 4 width */
    gpt2_real *narrow;  /* tokens x width */
    gpt2_real *scores;  /* 2 x attention rows x seq */
    gpt2_real *logits;  /* logits_rows x vocab */
    size_t logits_rows; /* rows of the head done at once */
} gpt2_space;

/* Memory for micro-batches of up to `samples` x config.seq tokens. NULL when there is none. */
gpt2_space *gpt2_space_create(const gpt2_config *config, uint32_t samples, bool recompute);
void gpt2_space_destroy(gpt2_space *space);

/* Forward. Parameters and gradients are in the order of the enums above. */
void gpt2_embed_forward(gpt2_space *space, const gpt2_param *params, const gpt2_batch *batch);
void gpt2_block_forward(gpt2_space *space, uint32_t layer, const gpt2_param *params,
                        const gpt2_batch *batch);
/* Mean cross-entropy over the batch, in nats. */
double gpt2_head_forward(gpt2_space *space, const gpt2_param *params, const gpt2_batch *batch);
/* Logits of sample 0's last position: config.vocab values. */
void gpt2_head_logits(gpt2_space *space, const gpt2_param *params, const gpt2_batch *batch,
                      gpt2_real *logits);

/* Backward, in the opposite order, after a forward of the same batch. Gradients are added to.
 * scale multiplies the loss. */
void gpt2_head_backward(gpt2_space *space, const gpt2_param *params, gpt2_real *const *grads,
                        const gpt2_batch *batch, gpt2_real scale);
void gpt2_block_backward(gpt2_space *space, uint32_t layer, const gpt2_param *params,
                         gpt2_real *const *grads, const gpt2_batch *batch);
void gpt2_embed_backward(gpt2_space *space, gpt2_real *const *grads, const gpt2_batch *batch);

#endif
