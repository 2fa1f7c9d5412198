/* The loops of GPT-2 that are not matrix products, on plain pointers.
 *
 * One source, gpt2_ops.c, is compiled once per instruction set into a table of functions; the best
 * one the machine has is chosen at run time. Sums run over 16 fixed lanes, so every table gives the
 * same bits. With GPT2_DOUBLE the same source computes in double, for gradient checks. */
#ifndef GPT2_OPS_H
#define GPT2_OPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef GPT2_DOUBLE
typedef double gpt2_real;
#else
typedef float gpt2_real;
#endif

/* Layer normalisation of `rows` rows of `width`. */
typedef struct gpt2_norm {
    const gpt2_real *x;      /* rows x width */
    const gpt2_real *weight; /* width */
    const gpt2_real *bias;   /* width */
    gpt2_real *y;            /* rows x width; forward only */
    gpt2_real *mean;         /* rows; written by forward, read by backward */
    gpt2_real *rstd;         /* rows; likewise */
    size_t rows;
    size_t width;
} gpt2_norm;

/* The arrays of its backward, which adds to the gradients. */
typedef struct gpt2_norm_grad {
    const gpt2_real *dy; /* rows x width */
    gpt2_real *dx;       /* rows x width */
    gpt2_real *dweight;  /* width */
    gpt2_real *dbias;    /* width */
} gpt2_norm_grad;

/* A block of rows of a head's attention: row r sees columns 0 .. first + r. */
typedef struct gpt2_scores {
    gpt2_real *values; /* rows x columns, contiguous */
    size_t rows;
    size_t columns;
    size_t first;
} gpt2_scores;

/* Rows of logits and what should have been predicted. */
typedef struct gpt2_logits {
    gpt2_real *values; /* rows x vocab */
    const int32_t *targets;
    size_t rows;
    size_t vocab;
} gpt2_logits;

typedef struct gpt2_ops {
    const char *isa;

    /* y = exp(x), x held to [-87, 88] in float. */
    void (*exponential)(gpt2_real *y, const gpt2_real *x, size_t count);
    /* y[r] = x[r] + bias for each row; x may be NULL (zeros) or y. */
    void (*bias_rows)(gpt2_real *y, const gpt2_real *x, const gpt2_real *bias, size_t rows,
                      size_t width);
    /* sums[c] += sum over rows of x[r][c]. */
    void (*column_sums)(gpt2_real *sums, const gpt2_real *x, size_t rows, size_t width);
    void (*norm_forward)(const gpt2_norm *norm);
    void (*norm_backward)(const gpt2_norm *norm, const gpt2_norm_grad *grad);
    /* x[r] += bias, then y = gelu(x) (tanh form). */
    void (*gelu_forward)(gpt2_real *y, gpt2_real *x, const gpt2_real *bias, size_t rows,
                         size_t width);
    /* dy *= gelu'(x). */
    void (*gelu_backward)(gpt2_real *dy, const gpt2_real *x, size_t count);
    /* Softmax of the columns each row sees, 0 in the others. */
    void (*softmax_forward)(const gpt2_scores *scores);
    /* dprob holds d loss / d probability on entry, d loss / d score on return. */
    void (*softmax_backward)(const gpt2_scores *dprob, const gpt2_real *prob);
    /* Sum over rows of -log softmax(logits)[target]. */
    double (*loss_forward)(const gpt2_logits *logits);
    /* logits = (softmax(logits) - one hot of target) * scale. */
    void (*loss_backward)(const gpt2_logits *logits, gpt2_real scale);

    /* bfloat16 and binary16 as bit patterns; `narrow` rounds to nearest even, and `add` after
     * adding. */
    void (*widen_bf16)(gpt2_real *y, const uint16_t *x, size_t count);
    void (*widen_f16)(gpt2_real *y, const uint16_t *x, size_t count);
    void (*narrow_bf16)(uint16_t *y, const gpt2_real *x, size_t count);
    void (*add_bf16)(uint16_t *y, const gpt2_real *x, size_t count);
    void (*add_f16)(uint16_t *y, const gpt2_real *x, size_t count);
} gpt2_ops;

/* The best table this machine can run. */
const gpt2_ops *gpt2_ops_best(void);

/* Every table of this build, NULL where the machine lacks the instructions; for tests. */
#define GPT2_OPS_TABLES 3
const gpt2_ops *gpt2_ops_table(size_t index);

#endif
