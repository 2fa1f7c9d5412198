/* The backend of the model: a table of the units' forward and backward over a space of activations.
 *
 * gpt2_net.c calls the engine's hooks and passes the views to one of two tables, the CPU's
 * (gpt2_cpu.c) or CUDA's (gpt2_cuda.c). Both have the same units in the same order. A table that a
 * build lacks is a stub that says what to install (gpt2_cpu_none.c, gpt2_cuda_none.c). */
#ifndef GPT2_BACKEND_H
#define GPT2_BACKEND_H

#include "gpt2_error.h"
#include "gpt2_model.h"
#include "zero/zero.h"

/* Whose products linear layers of bf16 parameters have on the CPU. */
typedef enum gpt2_library {
    GPT2_LIBRARY_AUTO, /* oneDNN's where the CPU has instructions for them, else BLAS's */
    GPT2_LIBRARY_BLAS,
    GPT2_LIBRARY_DNNL,
    GPT2_LIBRARY_COUNT
} gpt2_library;

typedef struct gpt2_backend_setup {
    gpt2_config config;
    zero_dtype dtype;      /* of parameters */
    zero_dtype grad_dtype; /* of gradients; DEFAULT: as parameters */
    uint32_t samples;      /* of the largest micro-batch */
    bool recompute;
    gpt2_library products; /* CPU: of bf16 parameters */
    uint32_t threads;      /* CPU: of a rank's products by oneDNN; 0: one */
    bool tf32;             /* CUDA: fp32 products may round their factors to TF32 */
    gpt2_error *error;     /* gets the text of every failure; outlives the space */
} gpt2_backend_setup;

/* Views are the engine's, in the order of gpt2_model.h's enums; gradients are added to. All calls
 * but `loss` and `head_logits` may return once the work is enqueued on the space's stream. */
typedef struct gpt2_backend {
    const char *name;

    /* Called first, on the first thread; may restart the program (gpt2_blas_start). NULL: nothing
     * to do. */
    void (*start)(char **argv);
    /* On the thread of a rank, before its engine is created: binds the thread to a device. */
    zero_status (*prepare)(uint32_t local_rank, gpt2_error *error);
    /* Devices of this host that ranks are spread over; 0: ranks compute on the host. */
    uint32_t (*devices)(void);
    /* Set the threads of a rank, for tables that use threads. */
    void (*use_threads)(uint32_t threads);

    /* Everything a rank computes with. Memory: no later call allocates, but oneDNN for the first
     * product of a shape. */
    zero_status (*create)(const gpt2_backend_setup *setup, void **space);
    void (*destroy)(void *space); /* NULL is fine */
    uint64_t (*bytes)(const void *space);
    const char *(*machine)(const void *space);  /* processor that computes, for the log */
    const char *(*products)(const void *space); /* code that multiplies matrices, for the log */
    /* A warning to a rank's user before the first step; NULL: none. */
    const char *(*warning)(const void *space);
    zero_stream (*stream)(const void *space); /* the stream that hooks are given */

    /* The batch of the passes that follow; its arrays are read until its backward is over. */
    zero_status (*begin)(void *space, const gpt2_batch *batch);

    zero_status (*embed_forward)(void *space, const zero_view *params);
    zero_status (*block_forward)(void *space, uint32_t layer, const zero_view *params);
    /* trains: a backward follows. */
    zero_status (*head_forward)(void *space, const zero_view *params, bool trains);
    /* Mean loss of the last head_forward; waits for that only. */
    zero_status (*loss)(void *space, double *loss);
    /* Logits of sample 0's last position, to host memory. */
    zero_status (*head_logits)(void *space, const zero_view *params, float *logits);

    /* scale multiplies the loss. */
    zero_status (*head_backward)(void *space, const zero_view *params, const zero_view *grads,
                                 float scale);
    zero_status (*block_backward)(void *space, uint32_t layer, const zero_view *params,
                                  const zero_view *grads);
    zero_status (*embed_backward)(void *space, const zero_view *grads);
} gpt2_backend;

/* The tables; NULL, with the reason in `error`, if this build or machine has none. */
const gpt2_backend *gpt2_cpu_backend(gpt2_error *error);
const gpt2_backend *gpt2_cuda_backend(gpt2_error *error);

#endif
