/* Products by a CBLAS. */
#include "gpt2_linear.h"

#include <cblas.h>

void gpt2_multiply(gpt2_real *c, size_t c_stride, gpt2_matrix a, gpt2_matrix b,
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

static const void *operand(gpt2_multiplier *self, int number, const gpt2_real *values, size_t count)
{
    (void)self;
    (void)number;
    (void)count;
    return values;
}

static void multiply(gpt2_multiplier *self, gpt2_real *c, gpt2_matrix a, gpt2_matrix b,
                     const gpt2_product *shape)
{
    (void)self;
    gpt2_multiply(c, shape->columns, a, b, shape);
}

gpt2_multiplier *gpt2_multiplier_blas(void)
{
    static gpt2_multiplier blas = {operand, multiply};
    return &blas;
}
