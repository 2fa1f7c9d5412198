/* Causal attention, a block of rows of one head at a time: scores right of the block's last row are
 * never computed, and backward makes the probabilities again instead of keeping positions x
 * positions of them. */
#include "gpt2_attention.h"
#include "gpt2_linear.h"

#include <math.h>

/* One block: rows [first, first + rows) of a head, which see `columns` columns. */
typedef struct block {
    size_t first;
    size_t rows;
    size_t columns;
    gpt2_real beta; /* backward goes from the last block, which sees all columns and assigns (0), to
                       the first; the others add (1) */
} block;

/* The place of one head of one sample in a tokens x 3 width matrix. */
typedef struct head {
    size_t query;
    size_t key;
    size_t value;
    size_t out; /* in a tokens x width matrix */
} head;

static head head_of(const gpt2_space *space, const gpt2_batch *batch, uint32_t pair)
{
    const size_t width = space->config.width;
    const size_t token = (size_t)(pair / space->config.heads) * batch->positions;
    const size_t offset = (pair % space->config.heads) * (width / space->config.heads);
    const size_t query = token * 3 * width + offset;
    return (head){query, query + width, query + 2 * width, token * width + offset};
}

static gpt2_real score_scale(const gpt2_space *space)
{
    return (gpt2_real)(1.0 / sqrt((double)(space->config.width / space->config.heads)));
}

/* Probabilities of a block into space->scores. */
static void probabilities(gpt2_space *space, const gpt2_saved *saved, head at, block part)
{
    const size_t stride = 3 * (size_t)space->config.width;
    const gpt2_product shape = {part.rows, part.columns, space->config.width / space->config.heads,
                                score_scale(space), 0};
    const gpt2_matrix query = {saved->qkv + at.query + part.first * stride, stride, false};
    const gpt2_matrix key = {saved->qkv + at.key, stride, true};
    gpt2_multiply(space->scores, part.columns, query, key, &shape);
    const gpt2_scores scores = {space->scores, part.rows, part.columns, part.first};
    space->ops->softmax_forward(&scores);
}

static block block_of(size_t positions, size_t index)
{
    block part = {index * GPT2_ATTENTION_ROWS, GPT2_ATTENTION_ROWS, 0, 0};
    if (positions - part.first < part.rows) {
        part.rows = positions - part.first;
    }
    part.columns = part.first + part.rows;
    part.beta = part.columns == positions ? 0 : 1;
    return part;
}

static size_t block_count(size_t positions)
{
    return (positions + GPT2_ATTENTION_ROWS - 1) / GPT2_ATTENTION_ROWS;
}

void gpt2_attention_forward(gpt2_space *space, const gpt2_saved *saved, const gpt2_batch *batch)
{
    const size_t width = space->config.width;
    const size_t depth = width / space->config.heads;
    for (uint32_t pair = 0; pair < batch->samples * space->config.heads; pair++) {
        const head at = head_of(space, batch, pair);
        for (size_t i = 0; i < block_count(batch->positions); i++) {
            const block part = block_of(batch->positions, i);
            probabilities(space, saved, at, part);
            const gpt2_product shape = {part.rows, depth, part.columns, 1, 0};
            const gpt2_matrix prob = {space->scores, part.columns, false};
            const gpt2_matrix value = {saved->qkv + at.value, 3 * width, false};
            gpt2_multiply(saved->mixed + at.out + part.first * width, width, prob, value, &shape);
        }
    }
}

/* One block's share of dqkv. */
static void block_backward(gpt2_space *space, const gpt2_saved *saved, head at, block part,
                           const gpt2_real *dmixed, gpt2_real *dqkv)
{
    const size_t width = space->config.width;
    const size_t stride = 3 * width;
    const size_t depth = width / space->config.heads;
    gpt2_real *dscores = space->scores + GPT2_ATTENTION_ROWS * (size_t)space->config.seq;
    const gpt2_matrix dout = {dmixed + at.out + part.first * width, width, false};
    const gpt2_matrix query = {saved->qkv + at.query + part.first * stride, stride, false};
    const gpt2_matrix key = {saved->qkv + at.key, stride, false};
    const gpt2_matrix value = {saved->qkv + at.value, stride, true};

    probabilities(space, saved, at, part);
    const gpt2_product to_prob = {part.rows, part.columns, depth, 1, 0};
    gpt2_multiply(dscores, part.columns, dout, value, &to_prob);
    const gpt2_matrix prob = {space->scores, part.columns, true};
    const gpt2_product to_value = {part.columns, depth, part.rows, 1, part.beta};
    gpt2_multiply(dqkv + at.value, stride, prob, dout, &to_value);

    const gpt2_scores scores = {dscores, part.rows, part.columns, part.first};
    space->ops->softmax_backward(&scores, space->scores);
    const gpt2_matrix across = {dscores, part.columns, false};
    const gpt2_matrix along = {dscores, part.columns, true};
    const gpt2_product to_query = {part.rows, depth, part.columns, score_scale(space), 0};
    gpt2_multiply(dqkv + at.query + part.first * stride, stride, across, key, &to_query);
    const gpt2_product to_key = {part.columns, depth, part.rows, score_scale(space), part.beta};
    gpt2_multiply(dqkv + at.key, stride, along, query, &to_key);
}

void gpt2_attention_backward(gpt2_space *space, const gpt2_saved *saved, const gpt2_batch *batch,
                             const gpt2_real *dmixed, gpt2_real *dqkv)
{
    for (uint32_t pair = 0; pair < batch->samples * space->config.heads; pair++) {
        const head at = head_of(space, batch, pair);
        for (size_t i = block_count(batch->positions); i-- > 0;) {
            block_backward(space, saved, at, block_of(batch->positions, i), dmixed, dqkv);
        }
    }
}
