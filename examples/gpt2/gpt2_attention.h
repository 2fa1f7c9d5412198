/* Causal multi-head attention. */
#ifndef GPT2_ATTENTION_H
#define GPT2_ATTENTION_H

#include "gpt2_model.h"

/* Rows of one head's score matrix that are held at once. */
enum { GPT2_ATTENTION_ROWS = 64 };

/* mixed (tokens x width) from qkv (tokens x 3 width), which may be saved activations. */
void gpt2_attention_forward(gpt2_space *space, const gpt2_saved *saved, const gpt2_batch *batch);

/* dqkv (tokens x 3 width, assigned) from dmixed (tokens x width). */
void gpt2_attention_backward(gpt2_space *space, const gpt2_saved *saved, const gpt2_batch *batch,
                             const gpt2_real *dmixed, gpt2_real *dqkv);

#endif
