/* Matrix products, row-major, by BLAS. */
#ifndef GPT2_LINEAR_H
#define GPT2_LINEAR_H

#include "gpt2_ops.h"
#include <cblas.h>
#include <stdbool.h>

/* A matrix inside a larger one: `stride` elements from row to row. */
typedef struct gpt2_matrix {
    const gpt2_real *at;
    size_t stride;
    bool transposed; /* as an operand, its transpose is meant */
} gpt2_matrix;

/* c (rows x columns, stride c_stride) = alpha a b + beta c, summed over `inner`. */
typedef struct gpt2_product {
    size_t rows;
    size_t columns;
    size_t inner;
    gpt2_real alpha;
    gpt2_real beta;
} gpt2_product;

static inline void gpt2_multiply(gpt2_real *c, size_t c_stride, gpt2_matrix a, gpt2_matrix b,
                                 const gpt2_product *shape)
{
    const CBLAS_TRANSPOSE first = a.transposed ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE second = b.transposed ? CblasTrans : CblasNoTrans;
#ifdef GPT2_DOUBLE
    cblas_dgemm(
#else
    cblas_sgemm(
#endif
        CblasRowMajor, first, second, (blasint)shape->rows, (blasint)shape->columns,
        (blasint)shape->inner, shape->alpha, a.at, (blasint)a.stride, b.at, (blasint)b.stride,
        shape->beta, c, (blasint)c_stride);
}

#endif
