/* Linear layers on a GPU: y (tokens x out) = x (tokens x in) W (in x out) + b. Activations are
 * row-major, of the space's type; all is enqueued on the space's stream.
 *
 * GELU, its gradient and the gradient of a bias are part of the product that makes their factors,
 * where space->fuses says so, and otherwise kernels behind it. */
#ifndef GPT2_CUDA_LINEAR_H
#define GPT2_CUDA_LINEAR_H

#include "gpt2_cuda_space.h"

typedef struct gpt2_linear {
    uint64_t tokens;
    uint64_t in;
    uint64_t out;
} gpt2_linear;

/* Asks cuBLASLt once, for the largest batch and addresses at multiples of 16 bytes, which of its
 * epilogues it has, and writes space->fuses and space->products_text. With activations in f32 none
 * is used: how exact its GELU is, cuBLASLt does not say. */
void gpt2_linear_choose(gpt2_cuda_space *space);

/* Any product. DEVICE with a text where cuBLASLt does not take it. */
zero_status gpt2_cuda_multiply(gpt2_cuda_space *space, const gpt2_product_job *job);

/* y = x W + b, and + added where that is not NULL. */
zero_status gpt2_linear_forward(gpt2_cuda_space *space, gpt2_linear sizes, void *y, const void *x,
                                const zero_view *weight_and_bias, const void *added);

/* before = x W + b, y = gelu(before). */
zero_status gpt2_linear_gelu(gpt2_cuda_space *space, gpt2_linear sizes, void *y, void *before,
                             const void *x, const zero_view *weight_and_bias);

/* dx = dy W' */
zero_status gpt2_linear_input_grad(gpt2_cuda_space *space, gpt2_linear sizes, void *dx,
                                   const void *dy, const zero_view *weight);

/* dbefore = dy W' gelu'(before): through the layer behind GELU, and GELU. */
zero_status gpt2_linear_gelu_grad(gpt2_cuda_space *space, gpt2_linear sizes, void *dbefore,
                                  void *before, const void *dy, const zero_view *weight);

/* dW += x' dy, db += sums of dy. As part of the product the sums are rounded to db's type before
 * they are added. */
zero_status gpt2_linear_grads(gpt2_cuda_space *space, gpt2_linear sizes, const void *x,
                              const void *dy, const zero_view *grads);

#endif
