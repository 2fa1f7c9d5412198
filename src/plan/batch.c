/* Owns what a rank computes at once: bounds and defaults. */
#include "plan/batch.h"

#include <inttypes.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "plan/transformer.h"

#define SAMPLES_MAX (UINT64_C(1) << 20)
#define TOKENS_MAX (UINT64_C(1) << 32)
#define MICRO_STEPS_MAX 65536

void zero_batch_init_sized(zero_batch *batch, size_t struct_bytes)
{
    const zero_batch known = {.struct_bytes = sizeof known};
    zi_sized_init(batch, struct_bytes, &known, sizeof known);
}

uint64_t zi_batch_tokens(const zero_batch *b)
{
    return b->samples * b->sequence / b->context_parallel;
}

double zi_batch_again(const zero_batch *b)
{
    static const double parts[] = {0, 1, 0.5};
    return parts[b->recompute];
}

/* Resolve what depends on the mesh around the engine. */
static zero_status resolve_mesh(const zero_transformer *t, zero_batch *b)
{
    b->interleave = zi_max_u64(b->interleave, 1);
    b->context_parallel = zi_max_u64(b->context_parallel, 1);
    if (b->interleave > 1 &&
        (t->pipeline_parallel == 1 || b->interleave > zi_transformer_blocks(t))) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "interleave of the batch is %" PRIu64 "; each of %" PRIu64
                " pipeline stages has at most %" PRIu64 " groups of blocks, and one stage has one",
                b->interleave, t->pipeline_parallel, zi_transformer_blocks(t));
    }
    if (b->interleave > 1 && !zi_transformer_alike(t)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "interleave of the batch is %" PRIu64
                ", and the transformer's blocks differ in experts or windows, whose groups are not "
                "planned; leave interleave 1",
                b->interleave);
    }
    if (b->sequence % b->context_parallel != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "context_parallel of the batch, %" PRIu64
                ", does not divide its sequence, %" PRIu64,
                b->context_parallel, b->sequence);
    }
    if (b->wire == ZERO_WIRE_ZEROPP && t->expert_parallel > 1) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "wire of the batch is that of ZeRO++, which is not planned with expert_parallel "
                "%" PRIu64 "; leave either out",
                t->expert_parallel);
    }
    if (b->sequence_parallel > 1 || b->fp8 > 1 || (uint32_t)b->wire >= ZERO_WIRE_COUNT) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "sequence_parallel %" PRIu32 ", fp8 %" PRIu32
                " and wire %d of the batch; each is 0 or 1",
                b->sequence_parallel, b->fp8, (int)b->wire);
    }
    return ZERO_OK;
}

zero_status zi_mesh_columns(const zero_transformer *t, const zero_batch *b, uint64_t ranks,
                            uint32_t *column)
{
    const uint64_t parts = t->tensor_parallel * t->pipeline_parallel;
    if (ranks % (parts * b->context_parallel) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor_parallel %" PRIu64 " x pipeline_parallel %" PRIu64
                " x context_parallel %" PRIu64 " does not divide the cluster's %" PRIu64 " ranks",
                t->tensor_parallel, t->pipeline_parallel, b->context_parallel, ranks);
    }
    *column = (uint32_t)(ranks / parts);
    if (*column % t->expert_parallel != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "expert_parallel %" PRIu64 " does not divide the %" PRIu32
                " ranks that hold the same part of the model",
                t->expert_parallel, *column);
    }
    return ZERO_OK;
}

zero_status zi_batch_resolve(const zero_batch *given, const zero_transformer *t, zero_batch *b)
{
    *b = (zero_batch){.struct_bytes = sizeof *b};
    if (given != NULL) {
        ZI_TRY(ZI_SIZED_IN(zero_batch, given, b));
    }
    b->samples = b->samples != 0 ? b->samples : 1;
    b->sequence = b->sequence != 0 ? b->sequence : t->sequence;
    b->dtype = b->dtype != ZERO_DTYPE_DEFAULT ? b->dtype : t->dtype;
    if (b->samples > SAMPLES_MAX || b->sequence > t->sequence ||
        b->samples * b->sequence > TOKENS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a batch of %" PRIu64 " samples of %" PRIu64
                " tokens; there are at most 2^20 samples, "
                "of the transformer's %" PRIu64 " tokens, and 2^32 tokens in all",
                b->samples, b->sequence, t->sequence);
    }
    if (!zi_dtype_is_number(b->dtype)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "dtype %d (%s) of the batch is no type of activations",
                (int)b->dtype, zero_dtype_name(b->dtype));
    }
    if (b->recompute > 2) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "recompute of the batch is %" PRIu32 "; it is 0, 1 (all blocks) or 2 (every second "
                "one)",
                b->recompute);
    }
    if (b->fused > 1 || b->stored_attention > 1 || b->mesh_overlap > 1) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "fused %" PRIu32 ", stored_attention %" PRIu32 " and mesh_overlap %" PRIu32
                " of the batch; each is 0 or 1",
                b->fused, b->stored_attention, b->mesh_overlap);
    }
    b->micro_steps = b->micro_steps != 0 ? b->micro_steps : 1;
    if (b->micro_steps > MICRO_STEPS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "micro_steps of the batch is %" PRIu32 "; it is in [1, %d], or 0 for 1",
                b->micro_steps, MICRO_STEPS_MAX);
    }
    ZI_TRY(resolve_mesh(t, b));
    const uint64_t tokens = zi_batch_tokens(b);
    b->logit_rows = b->logit_rows != 0 && b->logit_rows < tokens ? b->logit_rows : tokens;
    return ZERO_OK;
}
