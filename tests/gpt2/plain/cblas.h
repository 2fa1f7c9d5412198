/* The two BLAS functions of gpt2_linear.c as plain loops, for a reference that needs no OpenBLAS.
 * Row-major only. */
#ifndef TESTS_GPT2_PLAIN_CBLAS_H
#define TESTS_GPT2_PLAIN_CBLAS_H

#include <stddef.h>

typedef int blasint;
typedef enum { CblasRowMajor = 101 } CBLAS_ORDER;
typedef enum { CblasNoTrans = 111, CblasTrans = 112 } CBLAS_TRANSPOSE;

static inline void openblas_set_num_threads(int threads)
{
    (void)threads;
}

#define PLAIN_GEMM(name, real)                                                                   \
    static inline void name(CBLAS_ORDER order, CBLAS_TRANSPOSE left_turned,                      \
                            CBLAS_TRANSPOSE right_turned, blasint rows, blasint columns,         \
                            blasint inner, real alpha, const real *left, blasint left_stride,    \
                            const real *right, blasint right_stride, real beta, real *out,       \
                            blasint out_stride)                                                  \
    {                                                                                            \
        const size_t l = (size_t)left_stride, r = (size_t)right_stride, o = (size_t)out_stride;  \
        (void)order;                                                                             \
        for (size_t i = 0; i < (size_t)rows; i++) {                                              \
            for (size_t j = 0; j < (size_t)columns; j++) {                                       \
                real total = 0;                                                                  \
                for (size_t k = 0; k < (size_t)inner; k++) {                                     \
                    total += (left_turned == CblasTrans ? left[k * l + i] : left[i * l + k]) *   \
                             (right_turned == CblasTrans ? right[j * r + k] : right[k * r + j]); \
                }                                                                                \
                out[i * o + j] = alpha * total + (beta == (real)0 ? 0 : beta * out[i * o + j]);  \
            }                                                                                    \
        }                                                                                        \
    }

PLAIN_GEMM(cblas_sgemm, float)
PLAIN_GEMM(cblas_dgemm, double)

#endif
