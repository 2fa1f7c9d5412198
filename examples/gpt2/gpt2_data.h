/* Tokens from a file, and which of them each sample is made of.
 *
 * Any file is text whose bytes are tokens, unless it starts like llm.c's token files: 256 int32 of
 * header (magic 20240520, version 1, count), then uint16 tokens. Sample s of a run depends on the
 * seed and s alone, so the number of ranks changes nothing about what a global batch contains. */
#ifndef GPT2_DATA_H
#define GPT2_DATA_H

#include "gpt2_error.h"
#include <stddef.h>
#include <stdint.h>

/* Tokens of the public GPT-2 models, and so of llm.c's files. */
enum { GPT2_VOCAB = 50257 };

/* Consecutive tokens in a file, read on demand through the page cache. */
typedef struct gpt2_tokens {
    int file;
    const char *path;
    uint64_t offset; /* of the first one's bytes */
    uint64_t count;
    uint32_t bytes; /* of one token: 1 or 2, little-endian */
    uint32_t vocab; /* all are below it */
} gpt2_tokens;

typedef struct gpt2_data {
    gpt2_tokens train;
    gpt2_tokens validation;
    uint64_t train_hash; /* XXH3 of the training tokens, each an int32 */
    uint32_t vocab;
    bool text;    /* tokens are bytes */
    int files[2]; /* -1: none */
} gpt2_data;

/* Opens `path`, and `val_path` or, when that is NULL, keeps the last tenth of `path` for
 * validation. Both are files on disk that stay there: pipes are refused. vocab 0: 256 for text,
 * 50257 for token files. Every token is checked against it, here and again when it is read: files
 * can change. The training part is read once, for its hash. */
bool gpt2_data_open(gpt2_data *data, const char *path, const char *val_path, uint32_t vocab,
                    gpt2_error *error);
void gpt2_data_close(gpt2_data *data);

/* Are both parts long enough for samples of `positions` tokens? */
bool gpt2_data_check(const gpt2_data *data, uint32_t positions, gpt2_error *error);

/* Samples in one pass over the training data; needs gpt2_data_check. */
uint64_t gpt2_data_epoch(const gpt2_data *data, uint32_t positions);

/* The run's training sample number `sample`: each pass over the data starts the samples at another
 * offset and visits them in another order. tokens and targets: out, `positions` each. */
bool gpt2_data_sample(const gpt2_data *data, uint64_t seed, uint64_t sample, uint32_t positions,
                      int32_t *tokens, int32_t *targets, gpt2_error *error);

/* Validation sample `index` of `count` that are spread evenly. */
bool gpt2_data_validation(const gpt2_data *data, uint64_t index, uint64_t count, uint32_t positions,
                          int32_t *tokens, int32_t *targets, gpt2_error *error);

/* Mean -log p of the validation part under a smoothed bigram model of the training part, in nats a
 * token; NaN if the vocabulary is above 1024 or there is no memory. */
bool gpt2_data_bigram(const gpt2_data *data, double *nats, gpt2_error *error);

#endif
