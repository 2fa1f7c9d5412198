/* oneDNN's products of linear layers: operands are bf16, sums and results fp32. */
#ifndef GPT2_DNNL_H
#define GPT2_DNNL_H

#include "gpt2_error.h"
#include "gpt2_linear.h"

#include <stdint.h>

typedef struct gpt2_dnnl gpt2_dnnl;

/* True if this build has oneDNN and the CPU has instructions for products of bf16 that it uses. */
bool gpt2_dnnl_is_fast(void);

/* "oneDNN 2.6.3, AMX": the library, and how it multiplies here. Returns `text`. */
const char *gpt2_dnnl_text(char *text, size_t bytes);

/* counts: elements of the largest operands 0 and 1. threads: of each product; 0: one. To be called,
 * and its products made, on one thread, that of a rank. */
zero_status gpt2_dnnl_create(const gpt2_ops *ops, const size_t counts[2], uint32_t threads,
                             gpt2_error *error, gpt2_dnnl **dnnl);
void gpt2_dnnl_destroy(gpt2_dnnl *dnnl); /* NULL is fine */

/* Reads weights that are bf16 as they lie, and rounds activations to bf16. */
gpt2_multiplier *gpt2_dnnl_multiplier(gpt2_dnnl *dnnl);

/* How its products went so far: once one fails, the later ones are not made. */
zero_status gpt2_dnnl_status(const gpt2_dnnl *dnnl, gpt2_error *error);

#endif
