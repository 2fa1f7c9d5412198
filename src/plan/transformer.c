/* Owns transformers by their dimensions: bounds, defaults, and the model that is made of them.
 * Invariant: what the rest of the folder gets is a transformer whose fields agree. */
#include "zero/transformer.h"

#include <inttypes.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "plan/transformer.h"

#define LAYERS_MAX (UINT64_C(1) << 16)
#define WIDTH_MAX (UINT64_C(1) << 20)
#define ROWS_MAX (UINT64_C(1) << 24)

void zero_transformer_init_sized(zero_transformer *transformer, size_t struct_bytes)
{
    const zero_transformer known = {.struct_bytes = sizeof known};
    zi_sized_init(transformer, struct_bytes, &known, sizeof known);
}

const char *zero_transformer_part_name(uint64_t part)
{
    switch (part) {
    case ZERO_TRANSFORMER_PART_TOWERS:
        return "towers of images or sound";
    case ZERO_TRANSFORMER_PART_PREDICTORS:
        return "multi-token prediction blocks";
    case ZERO_TRANSFORMER_PART_QUANTIZED:
        return "the quantised form of its weights";
    default:
        return NULL;
    }
}

/* ---- bounds ---- */

/* A field and what it may be. */
typedef struct bound {
    const char *name;
    uint64_t value;
    uint64_t low;
    uint64_t high;
} bound;

static zero_status check_bounds(const zero_transformer *t)
{
    const bound bounds[] = {
        {"layers", t->layers, 1, LAYERS_MAX},
        {"width", t->width, 1, WIDTH_MAX},
        {"heads", t->heads, 1, LAYERS_MAX},
        {"kv_heads", t->kv_heads, 0, LAYERS_MAX},
        {"head_width", t->head_width, 0, WIDTH_MAX},
        {"ffn_width", t->ffn_width, 0, ROWS_MAX},
        {"vocab", t->vocab, 1, ROWS_MAX},
        {"positions", t->positions, 0, ROWS_MAX},
        {"sequence", t->sequence, 1, ROWS_MAX},
        {"experts", t->experts, 0, LAYERS_MAX},
        {"tensor_parallel", t->tensor_parallel, 0, LAYERS_MAX},
        {"pipeline_parallel", t->pipeline_parallel, 0, t->layers},
        {"dense_layers", t->dense_layers, 0, LAYERS_MAX},
        {"expert_every", t->expert_every, 0, LAYERS_MAX},
        {"dense_ffn_width", t->dense_ffn_width, 0, ROWS_MAX},
        {"shared_ffn_width", t->shared_ffn_width, 0, ROWS_MAX},
        {"kv_rank", t->kv_rank, 0, WIDTH_MAX},
        {"query_rank", t->query_rank, 0, WIDTH_MAX},
        {"rope_width", t->rope_width, 0, WIDTH_MAX},
        {"value_width", t->value_width, 0, WIDTH_MAX},
        {"window", t->window, 0, ROWS_MAX},
        {"full_every", t->full_every, 0, LAYERS_MAX},
        {"expert_parallel", t->expert_parallel, 0, LAYERS_MAX},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        const bound *b = &bounds[i];
        if (b->value < b->low || b->value > b->high) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s of the transformer is %" PRIu64 "; it is in [%" PRIu64 ", %" PRIu64 "]",
                    b->name, b->value, b->low, b->high);
        }
    }
    return ZERO_OK;
}

/* Check fields against one another. */
static zero_status check_shape(const zero_transformer *t)
{
    if (t->head_width == 0 && t->width % t->heads != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "width %" PRIu64 " is no multiple of heads, %" PRIu64 "; set head_width", t->width,
                t->heads);
    }
    if (t->kv_heads != 0 && t->heads % t->kv_heads != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "kv_heads %" PRIu64 " does not divide heads, %" PRIu64,
                t->kv_heads, t->heads);
    }
    if (t->positions != 0 && t->sequence > t->positions) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "sequence %" PRIu64 " is longer than the %" PRIu64 " positions that are embedded",
                t->sequence, t->positions);
    }
    if (t->experts_used > t->experts || (t->experts_used == 0) != (t->experts == 0)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "experts_used %" PRIu64 " is not in [1, experts], of which there are %" PRIu64
                "; without experts it is 0",
                t->experts_used, t->experts);
    }
    if ((t->flags & ~(uint32_t)ZERO_TRANSFORMER_ALL) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "flags 0x%" PRIx32 " has bits that mean nothing",
                t->flags);
    }
    if ((uint32_t)t->units >= ZERO_TRANSFORMER_UNITS_COUNT) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "units is %d; it is 0 (blocks), 1 (layers) or 2 (matrices)", (int)t->units);
    }
    if (t->dtype != ZERO_DTYPE_DEFAULT && !zi_dtype_is_number(t->dtype)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "dtype %d (%s) is no type of parameters", (int)t->dtype,
                zero_dtype_name(t->dtype));
    }
    return ZERO_OK;
}

/* A field that says something of another one. */
typedef struct dependence {
    const char *name;
    uint64_t value;
    const char *needed_name;
    uint64_t needed;
} dependence;

/* Check that nothing is said of what is not there. */
static zero_status check_dependences(const zero_transformer *t)
{
    const uint32_t flags = t->flags;
    const dependence all[] = {
        {"dense_layers", t->dense_layers, "experts", t->experts},
        {"expert_every", t->expert_every, "experts", t->experts},
        {"dense_ffn_width", t->dense_ffn_width, "experts", t->experts},
        {"shared_ffn_width", t->shared_ffn_width, "experts", t->experts},
        {"flag router_biases", flags & ZERO_TRANSFORMER_ROUTER_BIASES, "experts", t->experts},
        {"query_rank", t->query_rank, "kv_rank", t->kv_rank},
        {"rope_width", t->rope_width, "kv_rank", t->kv_rank},
        {"full_every", t->full_every, "window", t->window},
        {"flag chunked", flags & ZERO_TRANSFORMER_CHUNKED, "window", t->window},
        {"flag one_norm", flags & ZERO_TRANSFORMER_ONE_NORM, "the flag parallel",
         flags & ZERO_TRANSFORMER_PARALLEL},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].value != 0 && all[i].needed == 0) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s of the transformer is %" PRIu64 " without %s; set both or neither",
                    all[i].name, all[i].value, all[i].needed_name);
        }
    }
    return ZERO_OK;
}

/* Check multi-head latent attention. t: with its defaults replaced. */
static zero_status check_latents(const zero_transformer *t)
{
    const uint32_t heads_alone =
        ZERO_TRANSFORMER_BIASES | ZERO_TRANSFORMER_QKV_BIASES | ZERO_TRANSFORMER_HEAD_NORMS;
    if (t->kv_rank == 0) {
        return ZERO_OK;
    }
    if (t->kv_heads != t->heads) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "kv_heads %" PRIu64 " is not heads, %" PRIu64
                "; with kv_rank each head has its own keys, so leave kv_heads 0",
                t->kv_heads, t->heads);
    }
    if (t->rope_width == 0 || t->rope_width >= t->head_width) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "rope_width %" PRIu64 " is not in [1, %" PRIu64
                "]: head_width is what has rotary positions and what has none together",
                t->rope_width, t->head_width - 1);
    }
    if ((t->flags & heads_alone) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "flags 0x%" PRIx32 " have biases or norms of heads, which no attention with "
                "kv_rank has; leave biases, qkv_biases and head_norms out",
                t->flags);
    }
    return ZERO_OK;
}

/* Check that the ranks of tensor parallelism have equal parts. t: with its defaults replaced. */
static zero_status check_parts(const zero_transformer *t)
{
    const uint64_t parts = t->tensor_parallel;
    if (t->heads % parts != 0 || t->ffn_width % parts != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor_parallel %" PRIu64 " does not divide heads, %" PRIu64
                ", and ffn_width, %" PRIu64 "; set a divisor of both",
                parts, t->heads, t->ffn_width);
    }
    if (t->expert_parallel > 1 && (t->experts == 0 || t->experts % t->expert_parallel != 0)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "expert_parallel %" PRIu64 " does not divide experts, %" PRIu64
                "; each rank needs as many of them",
                t->expert_parallel, t->experts);
    }
    if (t->shared_ffn_width % parts != 0 || t->dense_ffn_width % parts != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor_parallel %" PRIu64 " does not divide shared_ffn_width, %" PRIu64
                ", and dense_ffn_width, %" PRIu64 "; set a divisor of both",
                parts, t->shared_ffn_width, t->dense_ffn_width);
    }
    if (t->kv_heads % parts != 0 && parts % t->kv_heads != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor_parallel %" PRIu64 " neither divides kv_heads, %" PRIu64
                ", nor is a multiple; each rank needs whole heads",
                parts, t->kv_heads);
    }
    if (t->vocab < parts) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor_parallel %" PRIu64 " is more than vocab, %" PRIu64
                "; each rank needs rows of the embedding",
                parts, t->vocab);
    }
    return ZERO_OK;
}

zero_status zi_transformer_resolve(const zero_transformer *given, zero_transformer *t,
                                   zi_transformer_counts *counts)
{
    *t = (zero_transformer){.struct_bytes = sizeof *t};
    ZI_TRY(ZI_SIZED_IN(zero_transformer, given, t));
    ZI_TRY(check_bounds(t));
    ZI_TRY(check_shape(t));
    ZI_TRY(check_dependences(t));
    t->kv_heads = t->kv_heads != 0 ? t->kv_heads : t->heads;
    t->head_width = t->head_width != 0 ? t->head_width : t->width / t->heads;
    t->ffn_width = t->ffn_width != 0 ? t->ffn_width : 4 * t->width;
    t->value_width = t->value_width != 0 ? t->value_width : t->head_width;
    if (t->experts != 0) {
        t->dense_ffn_width = t->dense_ffn_width != 0 ? t->dense_ffn_width : t->ffn_width;
        t->expert_every = zi_max_u64(t->expert_every, 1);
    }
    t->dtype = t->dtype != ZERO_DTYPE_DEFAULT ? t->dtype : ZERO_DTYPE_F32;
    t->tensor_parallel = zi_max_u64(t->tensor_parallel, 1);
    t->pipeline_parallel = zi_max_u64(t->pipeline_parallel, 1);
    t->expert_parallel = zi_max_u64(t->expert_parallel, 1);
    ZI_TRY(check_latents(t));
    ZI_TRY(check_parts(t));
    return zi_transformer_count(t, counts);
}

zero_status zero_transformer_check(const zero_transformer *transformer)
{
    return zero_transformer_parameters(transformer, NULL, NULL);
}

zero_status zero_transformer_parameters(const zero_transformer *transformer, uint64_t *total,
                                        uint64_t *used)
{
    zero_transformer t;
    zi_transformer_counts counts;
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    const zi_stage all = zi_transformer_all(&t);
    uint64_t sum = counts.embedding + counts.head;
    uint64_t sum_used = sum;
    for (int kind = 0; kind < ZI_BLOCK_KINDS; kind++) {
        const uint64_t layers = zi_stage_count(&all, (zi_block_kind)kind);
        sum += layers * counts.block[kind];
        sum_used += layers * counts.block_used[kind];
    }
    if (total != NULL) {
        *total = sum;
    }
    if (used != NULL) {
        *used = sum_used;
    }
    return ZERO_OK;
}

typedef zero_status (*add_units)(const zero_transformer *t, zero_model *model);

static zero_status make_model(const zero_transformer *t, add_units add, zero_model **model)
{
    zero_model *made = NULL;
    ZI_TRY(zero_model_create(&made));
    const zero_status status = add(t, made);
    if (status != ZERO_OK) {
        zero_model_destroy(made);
        return status;
    }
    *model = made;
    return ZERO_OK;
}

static zero_status resolve_for_model(const zero_transformer *transformer, zero_transformer *t,
                                     zero_model **model)
{
    zi_transformer_counts counts;
    if (model == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "model is NULL; pass the address of a zero_model pointer");
    }
    *model = NULL;
    return zi_transformer_resolve(transformer, t, &counts);
}

zero_status zero_transformer_model(const zero_transformer *transformer, zero_model **model)
{
    zero_transformer t;
    ZI_TRY(resolve_for_model(transformer, &t, model));
    return make_model(&t, zi_transformer_add_units, model);
}

zero_status zero_transformer_experts(const zero_transformer *transformer, zero_model **model)
{
    zero_transformer t;
    ZI_TRY(resolve_for_model(transformer, &t, model));
    const zi_stage stage = zi_transformer_fullest(&t);
    const bool none = t.expert_parallel == 1 || stage.dense == stage.layers;
    return none ? ZERO_OK : make_model(&t, zi_transformer_add_experts, model);
}
