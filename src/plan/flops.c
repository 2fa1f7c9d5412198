/* Owns the count of operations: products over the very descriptions that a model is made of; and
 * what moves between products. */
#include "plan/flops.h"

#include <inttypes.h>

#include "core/error.h"
#include "plan/activations.h"
#include "plan/batch.h"
#include "plan/transformer.h"

zero_status zi_transformer_flops(const zero_transformer *transformer, const zero_batch *batch,
                                 uint64_t unit, uint64_t *forward_flops)
{
    zero_transformer t;
    zero_batch b;
    zi_transformer_counts counts;
    zi_transformer_products products;
    uint64_t token = 0; /* multiply-adds of one token */
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    t = zi_transformer_whole(&t);
    ZI_TRY(zi_batch_resolve(batch, &t, &b));
    ZI_TRY(zi_transformer_unit(&t, unit, &products));
    /* A token's queries meet the keys of its sample; the scores then weigh as many values. */
    const uint64_t attention = products.attends ? 2 * t.heads * t.head_width : 0;
    if (__builtin_mul_overflow(attention, b.sequence, &token) ||
        __builtin_add_overflow(token, products.elements, &token) ||
        __builtin_mul_overflow(token, 2 * b.samples * b.sequence, forward_flops) ||
        *forward_flops > INT64_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "unit %" PRIu64 " takes 2^63 operations or more for %" PRIu64 " samples of %" PRIu64
                " tokens; make the batch smaller",
                unit, b.samples, b.sequence);
    }
    return ZERO_OK;
}

zi_micro_flops zi_micro_flops_of(const zero_transformer *t, const zero_batch *b, zi_stage stage)
{
    const double tokens = (double)zi_batch_tokens(b) / (double)t->tensor_parallel;
    const double layers = (double)stage.layers;
    const double again = b->recompute != 0 ? 1 : 0;
    zero_transformer whole = zi_transformer_whole(t);
    zi_transformer_products block = {0};
    whole.units = ZERO_TRANSFORMER_UNITS_BLOCK;
    (void)zi_transformer_unit(&whole, 1, &block); /* there is a block */
    const uint64_t inner = t->ffn_width * (t->experts != 0 ? t->experts_used : 1);
    const double matrices = 2 * tokens * layers * (double)block.elements;
    const double last = 2 * tokens * layers * (double)(inner * t->width);
    const double head = stage.head ? 2 * tokens * (double)(t->vocab * t->width) : 0;
    const double attention =
        4 * tokens * layers * (double)b->sequence * (double)(t->heads * t->head_width);
    return (zi_micro_flops){.model = 3 * (matrices + head + attention),
                            .products = 3 * (matrices + head) + again * (matrices - last),
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
