/* Matrix products, row-major. */
#ifndef GPT2_LINEAR_H
#define GPT2_LINEAR_H

#include "gpt2_ops.h"
#include <stdbool.h>

/* A matrix inside a larger one: `stride` elements from row to row. */
typedef struct gpt2_matrix {
    const void *at; /* elements of the type that the product reads */
    size_t stride;
    bool transposed; /* as an operand, its transpose is meant */
} gpt2_matrix;

/* c (rows x columns) = alpha a b + beta c, summed over `inner`. */
typedef struct gpt2_product {
    size_t rows;
    size_t columns;
    size_t inner;
    gpt2_real alpha;
    gpt2_real beta;
} gpt2_product;

/* The product by BLAS of operands of gpt2_real; c has c_stride elements from row to row. */
void gpt2_multiply(gpt2_real *c, size_t c_stride, gpt2_matrix a, gpt2_matrix b,
                   const gpt2_product *shape);

/* The products of linear layers. Weights lie as `multiply` reads them; activations are brought to
 * that form by `operand`. */
typedef struct gpt2_multiplier {
    /* `count` activations as operand `number`, 0 or 1, of products: they stay until the next of
     * that number. */
    const void *(*operand)(struct gpt2_multiplier *self, int number, const gpt2_real *values,
                           size_t count);
    /* alpha is 1, beta is 0 or 1, and c is contiguous. */
    void (*multiply)(struct gpt2_multiplier *self, gpt2_real *c, gpt2_matrix a, gpt2_matrix b,
                     const gpt2_product *shape);
} gpt2_multiplier;

/* BLAS's, of gpt2_real. */
gpt2_multiplier *gpt2_multiplier_blas(void);

#endif
