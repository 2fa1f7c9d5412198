/* Launches of the GPU's kernels: all that is not a matrix product.
 *
 * Pointers are device memory, activations are row-major of `dtype` (F32 or BF16), arithmetic and
 * sums are in fp32. Every row starts at a multiple of 16 bytes and its width is a multiple of 8.
 * Nothing is added atomically: the same launch gives the same bits. Each function only enqueues on
 * `stream` and returns what the launch came to. */
#ifndef GPT2_CUDA_KERNELS_H
#define GPT2_CUDA_KERNELS_H

#include "zero/dtype.h"
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[t] = wte[tokens[t]] + wpe[t % positions] */
typedef struct gpt2_embed_job {
    zero_dtype dtype;
    uint32_t rows; /* samples x positions */
    uint32_t positions;
    uint32_t width;
    const void *wte;
    const void *wpe;
    const int32_t *tokens; /* rows */
    void *out;
} gpt2_embed_job;
cudaError_t gpt2_launch_embed(cudaStream_t stream, const gpt2_embed_job *job);

/* dwte[ids[s]] += sum of grad[order[i]] for i in [starts[s], starts[s + 1]): each token that occurs
 * is one segment, whose rows are added in ascending order. dwpe[p] += sum over samples. */
typedef struct gpt2_embed_grad_job {
    zero_dtype dtype;
    zero_dtype grad_dtype; /* of dwte and dwpe, F32 or BF16 */
    uint32_t samples;
    uint32_t positions;
    uint32_t width;
    uint32_t segments;
    const int32_t *order;  /* samples x positions */
    const int32_t *starts; /* segments + 1 */
    const int32_t *ids;    /* segments */
    const void *grad;
    void *dwte;
    void *dwpe;
} gpt2_embed_grad_job;
cudaError_t gpt2_launch_embed_grad(cudaStream_t stream, const gpt2_embed_grad_job *job);

/* Layer normalisation; backward adds to dx. */
typedef struct gpt2_norm_job {
    zero_dtype dtype;
    uint32_t rows;
    uint32_t width;
    const void *x;
    const void *weight;
    const void *bias; /* forward only */
    void *y;          /* forward only */
    float *mean;      /* rows; written by forward, read by backward */
    float *rstd;      /* likewise */
    const void *dy;   /* backward only */
    void *dx;         /* backward only */
} gpt2_norm_job;
cudaError_t gpt2_launch_norm(cudaStream_t stream, const gpt2_norm_job *job);
cudaError_t gpt2_launch_norm_grad(cudaStream_t stream, const gpt2_norm_job *job);

/* sums[c] += sum over rows of dy[r][c]; where x is given, products[c] += sum of dy (x - mean) rstd.
 * In two steps: groups of rows to `partials`, then these in ascending order. */
enum { GPT2_SUM_GROUPS_MAX = 128 };
typedef struct gpt2_sums_job {
    zero_dtype dtype;
    zero_dtype grad_dtype; /* of sums and products */
    uint32_t rows;
    uint32_t width;
    const void *dy;
    const void *x; /* NULL: sums only */
    const float *mean;
    const float *rstd;
    float *partials; /* 2 x GPT2_SUM_GROUPS_MAX x width */
    void *sums;
    void *products;
} gpt2_sums_job;
cudaError_t gpt2_launch_sums(cudaStream_t stream, const gpt2_sums_job *job);

/* y = gelu(x), tanh form; dy *= gelu'(x). count: a multiple of 8. */
cudaError_t gpt2_launch_gelu(cudaStream_t stream, zero_dtype dtype, void *y, const void *x,
                             uint64_t count);
cudaError_t gpt2_launch_gelu_grad(cudaStream_t stream, zero_dtype dtype, void *dy, const void *x,
                                  uint64_t count);

/* Causal attention. qkv: samples x positions rows of queries, keys, values, heads side by side. */
typedef struct gpt2_attention_job {
    zero_dtype dtype;
    uint32_t samples;
    uint32_t positions;
    uint32_t heads;
    uint32_t depth; /* of a head: a multiple of 8, at most 128 */
    const void *qkv;
    void *mixed;     /* rows of heads x depth; written by forward, read by backward */
    float *log_sums; /* samples x heads x positions: log2 of the sum of 2^score, score in base 2 */
    const void *dmixed; /* backward only */
    void *dqkv;         /* backward only; assigned */
    float *deltas;      /* samples x heads x positions; backward's scratch */
} gpt2_attention_job;
cudaError_t gpt2_launch_attention(cudaStream_t stream, const gpt2_attention_job *job);
cudaError_t gpt2_launch_attention_grad(cudaStream_t stream, const gpt2_attention_job *job);

/* losses[r] = -log softmax(logits[r])[targets[r]]; with `trains`, logits[r] becomes
 * (softmax - one hot of the target) * scale and its padding 0. */
typedef struct gpt2_loss_job {
    zero_dtype dtype;
    uint32_t rows;
    uint32_t vocab;
    uint32_t stride; /* elements from row to row: vocab padded to a multiple of 8 */
    int32_t trains;
    float scale;
    void *logits;
    const int32_t *targets;
    float *losses;
} gpt2_loss_job;
cudaError_t gpt2_launch_loss(cudaStream_t stream, const gpt2_loss_job *job);

/* Bring a batch, `count` numbers of pinned host memory, by the GPU's own loads. A copy would wait
 * in the copy engine behind all that the engine brings of its state: 12 to 35 ms a step on an H200.
 */
cudaError_t gpt2_launch_upload(cudaStream_t stream, int32_t *target, const int32_t *source,
                               uint64_t count);

/* *mean = mean of `count` losses, added in double in a fixed order. */
cudaError_t gpt2_launch_mean(cudaStream_t stream, double *mean, const float *losses,
                             uint32_t count);

/* target += source, rounded once. Types: both F32, both BF16, or F32 to BF16. count: a multiple of
 * 8. */
cudaError_t gpt2_launch_add(cudaStream_t stream, zero_dtype target_dtype, void *target,
                            zero_dtype source_dtype, const void *source, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif
