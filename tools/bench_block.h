/* A network with the matrix products of GPT blocks and no more: per block a scale, a projection to
 * three times the width, one back, one to four times the width with a rectifier, one back, and two
 * residual sums. Attention itself is left out (the three parts are averaged), so that what is timed
 * is the shape of a training step and not a kernel of ours. Loss: half the mean squared distance to
 * a target. Gradients are exact. One rank's network; matrix products by one BLAS thread. */
#ifndef TOOLS_BENCH_BLOCK_H
#define TOOLS_BENCH_BLOCK_H

#include <stdint.h>

#include "zero/zero.h"

typedef struct block_shape {
    uint32_t blocks;
    uint32_t width;
    uint32_t tokens; /* per rank and micro-step */
} block_shape;

/* Activations of one rank. */
typedef struct block_net block_net;

/* Append the units, one per block, to the model. 0, or 1 after bench_fail. */
int block_describe(const block_shape *shape, zero_model *model);

/* Initial values: scales one, matrices normal with a deviation of 0.02. A zero_fill_fn; user: the
 * shape. */
void block_fill(void *user, uint32_t tensor, uint64_t first, uint64_t count, float *values);

/* Memory for one rank's activations and its batch, which depends on the rank only. NULL when memory
 * is out. */
block_net *block_net_create(const block_shape *shape, uint32_t rank);

/* Accepts NULL. */
void block_net_destroy(block_net *net);

/* Forward and backward of one micro-step through the hooks. loss: out, of this rank's batch. 0, or
 * 1 after bench_fail. */
int block_micro_step(block_net *net, zero_engine *engine, float *loss);

/* Let every matrix product run on its caller alone. */
void block_single_thread(void);

#endif
