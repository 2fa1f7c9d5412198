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
    const double again = zi_batch_again(b);
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
    const double scores = b->stored_attention != 0 ? 2 : 2.5;
    return (zi_micro_flops){
        .model = 3 * (sums[0] + head + attention),
        .forward = {.products = sums[0] + head + copies, .attention = attention, .head = head},
        .backward = {.products =
                         2 * (sums[0] + head) + again * (sums[0] - sums[1]) + (2 + again) * copies,
                     .attention = (scores + again) * attention,
                     .head = 2 * head}};
}

/* How often kernels between products move a byte that forward keeps for backward. Fused kernels
 * write and read it, and where it is recomputed again; backward reads it, and writes and reads its
 * gradient. Trainers that do not fuse them move twice as much, with casts, bias sums and residual
 * sums of their own (docs/feasibility.md: one figure for all clusters). */
#define FORWARD_MOVES 2
#define BACKWARD_MOVES 3

/* Bytes of casts to fp8 for each element that a product of a block reads, or that its gradient has:
 * read in 16 bits, written in 8 as it is and once more transposed. */
#define CAST_BYTES 4

static double cast_bytes(const zero_transformer *t, const zero_batch *b, zi_stage stage)
{
    const double heads = (double)zi_tensor_part(t, t->heads);
    const double keys = (double)(zi_tensor_kv_heads(t) * (t->head_width + t->value_width));
    const double latents = t->kv_rank != 0 ? (double)(t->query_rank + t->kv_rank) : 0;
    const double gated = (t->flags & ZERO_TRANSFORMER_GATED) != 0;
    double elements = 0;
    for (int kind = 0; kind < ZI_BLOCK_KINDS && b->fp8 != 0; kind++) {
        const zero_transformer alike = zi_transformer_kind(t, (zi_block_kind)kind);
        const double inner = (double)(zi_tensor_part(t, alike.ffn_width) *
                                          (alike.experts != 0 ? alike.experts_used : 1) +
                                      zi_tensor_part(t, alike.shared_ffn_width));
        const double read = 2 * (double)t->width + heads * (double)t->value_width + inner + latents;
        const double gradients = 2 * (double)t->width + heads * (double)t->head_width + keys +
                                 (1 + gated) * inner + latents;
        elements += (read + gradients) * (double)zi_stage_count(&stage, (zi_block_kind)kind);
    }
    return CAST_BYTES * elements * (double)zi_batch_tokens(b);
}

zero_status zi_micro_elements_of(const zero_transformer *t, const zero_batch *b, zi_stage stage,
                                 zi_micro_elements *elements)
{
    zero_batch all = *b;
    uint64_t kept = 0;
    all.recompute = 0;
    all.fused = 1;
    all.logit_rows = zi_batch_tokens(b); /* each is computed, however few exist at once */
    ZI_TRY(zi_activation_bytes(t, &all, stage, &kept));
    const double moved = (b->fused != 0 ? 1 : 2) * (double)kept;
    const double casts = cast_bytes(t, b, stage);
    *elements = (zi_micro_elements){
        .forward = FORWARD_MOVES * moved + casts / 3,
        .backward = (BACKWARD_MOVES + zi_batch_again(b) * FORWARD_MOVES) * moved + casts * 2 / 3};
    return ZERO_OK;
}
