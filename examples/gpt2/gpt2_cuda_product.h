/* Matrix products on a GPU by cuBLASLt, row-major. */
#ifndef GPT2_CUDA_PRODUCT_H
#define GPT2_CUDA_PRODUCT_H

#include "gpt2_error.h"
#include "zero/dtype.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/* A row-major matrix: `stride` elements from row to row. */
typedef struct gpt2_factor {
    const void *at;
    uint64_t stride;
    bool turned; /* its transpose is meant */
} gpt2_factor;

/* The further work of a product, while its result is at hand: an epilogue of cuBLASLt's. */
typedef enum gpt2_product_end {
    GPT2_END_NONE,
    GPT2_END_GELU,      /* out = gelu(result), tanh form, and `before` = result; there is a bias */
    GPT2_END_GELU_GRAD, /* out = result gelu'(before); there is no bias */
    GPT2_END_SUMS,      /* sums = of right's columns; right is not turned, there is no bias */
    GPT2_ENDS
} gpt2_product_end;

/* out (rows x columns) = alpha left right + beta added + bias of each column. Sums are in fp32. */
typedef struct gpt2_product_job {
    uint64_t rows;
    uint64_t columns;
    uint64_t inner;
    zero_dtype dtype; /* of left, right and bias */
    gpt2_factor left;
    gpt2_factor right;
    zero_dtype out_dtype; /* of out and added: dtype or F32; dtype where there is a bias */
    uint64_t out_stride;
    void *out;
    const void *added; /* rows x columns, stride as out; read where beta is not 0; may be out */
    const void *bias;  /* NULL: none */
    float alpha;
    float beta;
    gpt2_product_end end;
    void *before; /* with GELU: of out_dtype, rows x columns, stride as out, a multiple of 8 */
    void *sums;   /* with SUMS: out, `columns` of out_dtype */
} gpt2_product_job;

/* How one kind of product is done: descriptors and the algorithm, found once and kept. */
typedef struct gpt2_product_plan gpt2_product_plan;

/* Enough for every product of a batch's size and those of another, which validation or a sample
 * has; beyond that the oldest make place. */
enum { GPT2_PRODUCT_PLANS = 64 };

typedef struct gpt2_products {
    cublasLtHandle_t handle;
    cublasComputeType_t compute;
    void *workspace; /* device memory */
    size_t workspace_bytes;
    gpt2_product_plan *plans; /* GPT2_PRODUCT_PLANS */
    uint32_t plan_count;      /* ever made */
} gpt2_products;

/* workspace: device memory, the caller's, at a multiple of 256 bytes. */
bool gpt2_products_create(gpt2_products *products, bool tf32, void *workspace,
                          size_t workspace_bytes, gpt2_error *error);
void gpt2_products_destroy(gpt2_products *products);

/* Has cuBLASLt an algorithm for it? Nothing is enqueued, and only alignments of addresses count. */
bool gpt2_product_is_possible(gpt2_products *products, const gpt2_product_job *job);

/* Enqueues the product. */
bool gpt2_product(gpt2_products *products, cudaStream_t stream, const gpt2_product_job *job,
                  gpt2_error *error);

#endif
