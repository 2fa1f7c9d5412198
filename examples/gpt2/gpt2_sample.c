/* One token a forward, over the last positions the model can see. */
#include "gpt2_sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The seed's stream of random numbers for sampling; tensors use the low numbers. */
#define SAMPLE_STREAM ((uint64_t)1 << 40)

static int32_t likeliest(const float *logits, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return (int32_t)best;
}

/* The k-th largest logit, or the smallest when every token may be drawn. Goes down from the largest
 * value, so it needs no memory; k is small. */
static float threshold_of(const float *logits, uint32_t count, uint32_t top_k)
{
    float threshold = INFINITY;
    uint32_t taken = 0;
    while (top_k != 0 && taken < top_k && taken < count) {
        float next = -INFINITY;
        uint32_t equal = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (logits[i] < threshold && logits[i] >= next) {
                equal = logits[i] > next ? 1 : equal + 1;
                next = logits[i];
            }
        }
        if (equal == 0) {
            return -INFINITY; /* the rest is NaN */
        }
        taken += equal;
        threshold = next;
    }
    return top_k == 0 ? -INFINITY : threshold;
}

int32_t gpt2_choose(float *logits, uint32_t count, const gpt2_sampling *how, float uniform)
{
    const int32_t best = likeliest(logits, count);
    if (how->temperature <= 0) {
        return best;
    }
    const float threshold = threshold_of(logits, count, how->top_k);
    const double most = (double)logits[best];
    double total = 0;
    for (uint32_t i = 0; i < count; i++) {
        const double over = ((double)logits[i] - most) / how->temperature;
        logits[i] = logits[i] >= threshold ? (float)exp(over) : 0.0f;
        total += (double)logits[i];
    }
    double left = (double)uniform * total;
    for (uint32_t i = 0; i < count; i++) {
        left -= (double)logits[i];
        if (left < 0) {
            return (int32_t)i;
        }
    }
    return best;
}

static void print_token(const gpt2_sampling *how, int32_t token)
{
    if (how->file == NULL) {
        return;
    }
    if (!how->text) {
        (void)fprintf(how->file, "%d ", token);
    } else if (token == '\n' || token == '\t' || token >= 0x20) {
        (void)fputc(token, how->file);
    } else {
        (void)fputc('?', how->file);
    }
    (void)fflush(how->file);
}

/* Appends to the window, which forgets its first token when it is full. */
static void append(int32_t *window, uint32_t *length, uint32_t most, int32_t token)
{
    if (*length == most) {
        memmove(window, window + 1, (most - 1) * sizeof *window);
        (*length)--;
    }
    window[(*length)++] = token;
}

static zero_status generate(gpt2_net *net, const gpt2_sampling *how, int32_t *window, float *logits)
{
    uint32_t length = 0;
    for (const char *at = how->prompt; *at != '\0'; at++) {
        const int32_t token = (unsigned char)*at;
        append(window, &length, net->config.seq, (uint32_t)token < net->config.vocab ? token : 0);
        print_token(how, token);
    }
    for (uint32_t i = 0; i < how->count; i++) {
        const gpt2_batch batch = {window, NULL, 1, length};
        bool over = false;
        zero_status status = how->is_over != NULL ? how->is_over(how->user, &over) : ZERO_OK;
        if (status != ZERO_OK || over) {
            return status;
        }
        status = gpt2_net_logits(net, &batch, logits);
        if (status != ZERO_OK) {
            return status;
        }
        float uniform = 0;
        zero_random_uniform(how->seed, SAMPLE_STREAM, i, 1, 0.0f, 1.0f, &uniform);
        const int32_t token = gpt2_choose(logits, net->config.vocab, how, uniform);
        print_token(how, token);
        append(window, &length, net->config.seq, token);
    }
    return ZERO_OK;
}

zero_status gpt2_sample(gpt2_net *net, const gpt2_sampling *how, gpt2_error *error)
{
    int32_t *window = malloc(net->config.seq * sizeof *window);
    float *logits = malloc(net->config.vocab * sizeof *logits);
    zero_status status = ZERO_ERR_OUT_OF_MEMORY;
    if (window != NULL && logits != NULL) {
        status = generate(net, how, window, logits);
    } else {
        (void)gpt2_fail(error, "no memory for the sample's window");
    }
    free(window);
    free(logits);
    return status;
}
