/* Owns the count of operations: products over the very descriptions that a model is made of; and
 * what moves between products. */
#include "plan/flops.h"

#include <inttypes.h>

#include "core/error.h"
#include "plan/activations.h"
#include "plan/batch.h"
#include "plan/transformer.h"

/* Pairs of a query and a key in a sample. */
static uint64_t pairs_of(const zero_transformer *t, const zero_batch *b, bool windowed)
{
    const uint64_t all = b->sequence;
    if (!windowed || t->window >= all) {
        return all * all;
    }
    if ((t->flags & ZERO_TRANSFORMER_CHUNKED) != 0) {
        const uint64_t last = all % t->window;
        return all / t->window * t->window * t->window + last * last;
    }
    return 2 * t->window * all - t->window * t->window;
}

double zi_keys_of(const zero_transformer *t, const zero_batch *b, bool windowed)
{
    return (double)pairs_of(t, b, windowed) / (double)b->sequence;
}

zero_status zi_transformer_flops(const zero_transformer *transformer, const zero_batch *batch,
                                 uint64_t unit, uint64_t *forward_flops)
{
    zero_transformer t;
    zero_batch b;
    zi_transformer_counts counts;
    zi_transformer_products products;
    uint64_t matrices = 0; /* multiply-adds of a sample */
    uint64_t attention = 0;
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    t = zi_transformer_whole(&t);
    ZI_TRY(zi_batch_resolve(batch, &t, &b));
    ZI_TRY(zi_transformer_unit(&t, unit, &products));
    if (__builtin_mul_overflow(products.elements, b.sequence, &matrices) ||
        __builtin_mul_overflow(products.pair, pairs_of(&t, &b, products.windowed), &attention) ||
        __builtin_add_overflow(matrices, attention, &matrices) ||
        __builtin_mul_overflow(matrices, 2 * b.samples, forward_flops) ||
        *forward_flops > INT64_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit %" PRIu64 " takes 2^63 operations or more for %" PRIu64 " samples of %" PRIu64
                " tokens; make the batch smaller",
                unit, b.samples, b.sequence);
    }
    return ZERO_OK;
}

/* Add the blocks of a kind. */
static void add_products(const zero_transformer *t, zi_stage stage, zi_block_kind kind,
                         double tokens, double sums[2])
{
    const double layers = (double)zi_stage_count(&stage, kind);
    sums[0] += 2 * tokens * layers * (double)zi_transformer_block(t, kind).elements;
    sums[1] += 2 * tokens * layers * (double)zi_transformer_last(t, kind);
}

zi_micro_flops zi_micro_flops_of(const zero_transformer *t, const zero_batch *b, zi_stage stage)
{
    const double tokens = (double)zi_batch_tokens(b) / (double)t->tensor_parallel;
    const double again = b->recompute != 0 ? 1 : 0;
    const double pair = (double)zi_transformer_block(t, ZI_BLOCK_MAIN).pair;
    const double windowed = (double)stage.windowed;
    /* Matrices that make latents are computed by each rank of tensor parallelism. */
    const uint64_t latents =
        t->kv_rank != 0 ? (t->query_rank + t->kv_rank + t->rope_width) * t->width : 0;
    const double copies =
        2 * tokens * ((double)t->tensor_parallel - 1) * (double)stage.layers * (double)latents;
    double sums[2] = {0, 0}; /* of all matrices, of those that end a block */
    for (int kind = 0; kind < ZI_BLOCK_KINDS; kind++) {
        add_products(t, stage, (zi_block_kind)kind, tokens, sums);
    }
    const double head = stage.head ? 2 * tokens * (double)(t->vocab * t->width) : 0;
    const double attention =
        2 * tokens * ((double)stage.layers - windowed) * zi_keys_of(t, b, false) * pair +
        2 * tokens * windowed * zi_keys_of(t, b, true) * pair;
    return (zi_micro_flops){.model = 3 * (sums[0] + head + attention),
                            .products = 3 * (sums[0] + head) + again * (sums[0] - sums[1]) +
                                        (3 + again) * copies,
                            .attention = (3.5 + again) * attention,
                            .head = 3 * head};
}

/* How often kernels between products move a byte that forward keeps for backward. Fused kernels
 * write and read it, and where it is recomputed again; backward reads it, and writes and reads its
 * gradient. Trainers move twice as much, with casts, bias sums and residual sums of their own
 * (docs/feasibility.md: one figure for all clusters). */
#define FORWARD_MOVES 4
#define BACKWARD_MOVES 6

zero_status zi_micro_elements_of(const zero_transformer *t, const zero_batch *b, zi_stage stage,
                                 zi_micro_elements *elements)
{
    zero_batch all = *b;
    uint64_t kept = 0;
    all.recompute = 0;
    all.logit_rows = zi_batch_tokens(b); /* each is computed, however few exist at once */
    ZI_TRY(zi_activation_bytes(t, &all, stage, &kept));
    const double again = b->recompute != 0 ? FORWARD_MOVES : 0;
    *elements = (zi_micro_elements){.forward = FORWARD_MOVES * (double)kept,
                                    .backward = (BACKWARD_MOVES + again) * (double)kept};
    return ZERO_OK;
}
