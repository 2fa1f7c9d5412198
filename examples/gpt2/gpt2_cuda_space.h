/* A rank's working memory on its GPU: activations, scratch, a stream, and the batch. */
#ifndef GPT2_CUDA_SPACE_H
#define GPT2_CUDA_SPACE_H

#include "gpt2_backend.h"
#include "gpt2_cuda_product.h"

/* Elements that the rows of logits are padded to a multiple of: one line of memory, or two. */
enum { GPT2_LINE = 64 };

/* The results of a block's forward that its backward needs: tokens x width of the model's type
 * unless said. */
typedef struct gpt2_cuda_saved {
    void *norm1;
    float *mean1; /* tokens */
    float *rstd1; /* tokens */
    void *qkv;    /* tokens x 3 width */
    void *mixed;
    float *log_sums; /* heads x tokens, see gpt2_attention_job */
    void *middle;
    void *norm2;
    float *mean2;
    float *rstd2;
    void *expand; /* tokens x 4 width, before GELU */
    void *active; /* tokens x 4 width, after GELU */
} gpt2_cuda_saved;

/* The batch as kernels read it; on the GPU, and the same behind a host pointer where it is made.
 * order, starts and ids: see gpt2_embed_grad_job. */
typedef struct gpt2_cuda_batch {
    int32_t *tokens;  /* tokens_max */
    int32_t *targets; /* tokens_max */
    int32_t *order;   /* tokens_max */
    int32_t *starts;  /* tokens_max + 1 */
    int32_t *ids;     /* tokens_max */
} gpt2_cuda_batch;

/* One allocation of device memory and one of pinned host memory hold everything. */
typedef struct gpt2_cuda_space {
    gpt2_config config;
    zero_dtype dtype;      /* of parameters and activations */
    zero_dtype grad_dtype; /* of the engine's gradients */
    uint32_t tokens_max;
    bool recompute;
    int device;
    char machine[256];
    gpt2_error *error;
    cudaStream_t stream;
    cudaEvent_t uploaded; /* recorded after the batch's copy; the host waits before it refills */
    cudaEvent_t measured; /* recorded after the loss's copy; the host waits before it reads */
    gpt2_products products;
    bool fuses[GPT2_ENDS];   /* see gpt2_linear_choose */
    char products_text[256]; /* code that multiplies matrices, for the log */
    char warning[256];       /* "": none */

    unsigned char *memory; /* device */
    size_t bytes;
    unsigned char *host; /* pinned */
    size_t host_bytes;

    uint32_t samples; /* of the batch at hand */
    uint32_t positions;
    uint32_t rows; /* samples x positions */
    uint32_t segments;
    gpt2_cuda_batch batch;
    gpt2_cuda_batch staged; /* pinned */
    size_t batch_bytes;
    int32_t *counts; /* vocab + 1, host */

    void *residual;         /* layers + 1 residual streams, tokens_max x width each */
    gpt2_cuda_saved *saved; /* one a layer, or a single one when recomputing */
    gpt2_cuda_saved kept;   /* the head's norm: norm1, mean1, rstd1 */
    void *grad;             /* d loss / d residual stream */
    void *wide;             /* tokens x 4 width */
    void *narrow;           /* tokens x width */
    void *logits;           /* logits_rows x logits_stride */
    uint32_t logits_rows;   /* rows of the head done at once */
    uint32_t logits_stride; /* the vocabulary padded to whole lines of memory */
    /* Columns of logits that products make: the vocabulary, or where its rows would not be a
     * multiple of 16 bytes, logits_stride. wte then stands here too, behind it rows of 0. */
    uint32_t logits_columns;
    void *padded_wte;  /* logits_columns x width */
    float *losses;     /* tokens */
    float *deltas;     /* heads x tokens */
    float *partials;   /* see gpt2_sums_job, for 4 width */
    float *wte_sums;   /* vocab x width; only where low gradients are summed over pieces */
    double *mean;      /* device */
    double *host_mean; /* pinned */
    void *host_logits; /* pinned, a row */
    void *workspace;   /* of products */
} gpt2_cuda_space;

zero_status gpt2_cuda_space_create(const gpt2_backend_setup *setup, gpt2_cuda_space **space);
void gpt2_cuda_space_destroy(gpt2_cuda_space *space);

/* The batch onto the GPU, with its tokens sorted for the embedding's gradient. */
zero_status gpt2_cuda_space_begin(gpt2_cuda_space *space, const gpt2_batch *batch);

/* OK, or DEVICE with a text that says what failed. */
zero_status gpt2_cuda_check(gpt2_cuda_space *space, cudaError_t code, const char *what);

#endif
