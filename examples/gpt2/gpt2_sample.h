/* Text from a trained model. */
#ifndef GPT2_SAMPLE_H
#define GPT2_SAMPLE_H

#include "gpt2_net.h"
#include <stdio.h>

typedef struct gpt2_sampling {
    const char *prompt; /* its bytes are the first tokens */
    uint32_t count;     /* tokens to make */
    double temperature; /* 0: always the likeliest */
    uint32_t top_k;     /* 0: all */
    uint64_t seed;
    bool text;  /* tokens are bytes */
    FILE *file; /* gets each token at once; NULL: none does */
    /* Called before each token, on every rank; *over ends the text. NULL: it is `count` long. */
    zero_status (*is_over)(void *user, bool *over);
    void *user;
} gpt2_sampling;

/* Every rank makes the same tokens, because at stage 3 a forward needs all ranks; only one should
 * print. Collective. */
zero_status gpt2_sample(gpt2_net *net, const gpt2_sampling *how, gpt2_error *error);

/* Draws from softmax(logits / temperature) over the top_k likeliest; `uniform` in [0, 1) decides.
 * logits are overwritten. */
int32_t gpt2_choose(float *logits, uint32_t count, const gpt2_sampling *how, float uniform);

#endif
