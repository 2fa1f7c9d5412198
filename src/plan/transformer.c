/* Owns transformers by their dimensions: bounds, presets, tensors. Invariant: parameters are
 * counted over the very descriptions that a model is made of. */
#include "zero/transformer.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "plan/transformer.h"

#define LAYERS_MAX (UINT64_C(1) << 16)
#define WIDTH_MAX (UINT64_C(1) << 20)
#define ROWS_MAX (UINT64_C(1) << 24)
/* As many as a model may have. */
#define ELEMENTS_MAX (UINT64_C(1) << 50)
/* Tensors of a unit. */
#define TENSORS_MAX 24

void zero_transformer_init_sized(zero_transformer *transformer, size_t struct_bytes)
{
    const zero_transformer known = {.struct_bytes = sizeof known};
    zi_sized_init(transformer, struct_bytes, &known, sizeof known);
}

/* ---- presets ---- */

typedef struct preset {
    const char *name;
    zero_transformer dimensions;
} preset;

#define GPT(layers_, width_, heads_, vocab_, positions_)                              \
    {                                                                                 \
        .layers = (layers_), .width = (width_), .heads = (heads_), .vocab = (vocab_), \
        .positions = (positions_), .sequence = (positions_),                          \
        .flags = ZERO_TRANSFORMER_TIED_HEAD | ZERO_TRANSFORMER_BIASES                 \
    }
#define LLAMA(layers_, width_, heads_, kv_heads_, ffn_width_, vocab_, sequence_)            \
    {                                                                                       \
        .layers = (layers_), .width = (width_), .heads = (heads_), .kv_heads = (kv_heads_), \
        .ffn_width = (ffn_width_), .vocab = (vocab_), .sequence = (sequence_),              \
        .flags = ZERO_TRANSFORMER_GATED                                                     \
    }

static const preset presets[] = {
    {"gpt2", GPT(12, 768, 12, 50257, 1024)},
    {"gpt2-medium", GPT(24, 1024, 16, 50257, 1024)},
    {"gpt2-large", GPT(36, 1280, 20, 50257, 1024)},
    {"gpt2-xl", GPT(48, 1600, 25, 50257, 1024)},
    {"llama-7b", LLAMA(32, 4096, 32, 32, 11008, 32000, 4096)},
    {"llama-13b", LLAMA(40, 5120, 40, 40, 13824, 32000, 4096)},
    {"llama-70b", LLAMA(80, 8192, 64, 8, 28672, 32000, 4096)},
    {"llama-405b", LLAMA(126, 16384, 128, 8, 53248, 128256, 8192)},
    {"gpt3-175b", GPT(96, 12288, 96, 50257, 2048)},
    {"1t", GPT(128, 25600, 160, 51200, 2048)},
    {"mixtral-8x7b",
     {.layers = 32,
      .width = 4096,
      .heads = 32,
      .kv_heads = 8,
      .ffn_width = 14336,
      .vocab = 32000,
      .sequence = 32768,
      .experts = 8,
      .experts_used = 2,
      .flags = ZERO_TRANSFORMER_GATED}},
    {"qwen3-235b",
     {.layers = 94,
      .width = 4096,
      .heads = 64,
      .kv_heads = 4,
      .head_width = 128,
      .ffn_width = 1536,
      .vocab = 151936,
      .sequence = 32768,
      .experts = 128,
      .experts_used = 8,
      .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_HEAD_NORMS}},
};
#define PRESET_COUNT (sizeof presets / sizeof presets[0])

const char *zero_transformer_preset_name(uint32_t index)
{
    return index < PRESET_COUNT ? presets[index].name : NULL;
}

/* All names, with commas between. */
static const char *preset_names(char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < PRESET_COUNT && used < text_bytes; i++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", i == 0 ? "" : ", ",
                                 presets[i].name);
    }
    return text;
}

zero_status zero_transformer_preset(const char *name, zero_transformer *transformer)
{
    char names[256];
    if (name == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "name is NULL; there are %s",
                preset_names(names, sizeof names));
    }
    for (size_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            zero_transformer found = presets[i].dimensions;
            found.struct_bytes = sizeof found;
            found.dtype = ZERO_DTYPE_BF16;
            return ZI_SIZED_OUT(zero_transformer, transformer, &found);
        }
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "no preset is called \"%.64s\"; there are %s", name,
            preset_names(names, sizeof names));
}

/* ---- bounds ---- */

static bool transformer_has(const zero_transformer *t, uint32_t flag)
{
    return (t->flags & flag) != 0;
}

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
    if (t->dtype != ZERO_DTYPE_DEFAULT && zero_dtype_bytes(t->dtype) == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "dtype %d (%s) is no type of parameters", (int)t->dtype,
                zero_dtype_name(t->dtype));
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

/* ---- parts ---- */

zero_transformer zi_transformer_whole(const zero_transformer *t)
{
    zero_transformer whole = *t;
    whole.tensor_parallel = 1;
    whole.pipeline_parallel = 1;
    return whole;
}

zi_stage zi_transformer_all(const zero_transformer *t)
{
    return (zi_stage){.layers = t->layers, .head = true};
}

uint64_t zi_transformer_blocks(const zero_transformer *t)
{
    return zi_div_up(t->layers, t->pipeline_parallel);
}

uint64_t zi_tensor_part(const zero_transformer *t, uint64_t extent)
{
    return zi_div_up(extent, t->tensor_parallel);
}

uint64_t zi_tensor_kv_heads(const zero_transformer *t)
{
    return zi_tensor_part(t, t->kv_heads);
}

/* ---- tensors ---- */

/* Which extent of a matrix its ranks split. */
typedef enum cut {
    CUT_COLUMNS = 1, /* the last one */
    CUT_ROWS = 2     /* the one before, and the bias */
} cut;

/* The tensors of a unit, as they are listed. */
typedef struct tensor_list {
    zero_tensor_desc descs[TENSORS_MAX];
    uint32_t count;
    zero_dtype dtype;
} tensor_list;

/* shape: up to three extents, outermost first; those of 0 in front are left out. */
static void transformer_add(tensor_list *list, const char *name, uint64_t depth, uint64_t rows,
                            uint64_t columns)
{
    zero_tensor_desc *desc = &list->descs[list->count++];
    const uint64_t shape[3] = {depth, rows, columns};
    *desc = (zero_tensor_desc){.name = name, .dtype = list->dtype};
    for (int i = 0; i < 3; i++) {
        if (shape[i] != 0) {
            desc->shape[desc->dims++] = shape[i];
        }
    }
    desc->flags = desc->dims == 1 ? ZERO_TENSOR_NO_DECAY : ZERO_TENSOR_PLAIN;
}

/* Leave of the tensor added last the first of `parts`; from_end: which extent is split, 1: the
 * last.
 */
static void keep_part(tensor_list *list, uint32_t from_end, uint64_t parts)
{
    zero_tensor_desc *desc = &list->descs[list->count - 1];
    const uint32_t split = desc->dims - from_end;
    if (parts > 1) {
        memcpy(desc->global_shape, desc->shape, sizeof desc->global_shape);
        desc->shape[split] = zi_div_up(desc->shape[split], parts);
    }
}

/* A matrix and its bias. */
typedef struct linear {
    const char *names[2];
    uint64_t shape[3]; /* experts, or 0; rows; columns */
    cut cut;
    uint64_t parts;
    bool bias;
} linear;

static void add_linear(tensor_list *list, const linear *l)
{
    transformer_add(list, l->names[0], l->shape[0], l->shape[1], l->shape[2]);
    keep_part(list, l->cut, l->parts);
    if (l->bias) {
        zero_tensor_desc *desc = &list->descs[list->count];
        transformer_add(list, l->names[1], 0, l->shape[0], l->shape[1]);
        desc->flags = ZERO_TENSOR_NO_DECAY;
        keep_part(list, 1, l->cut == CUT_ROWS ? l->parts : 1);
    }
}

static void add_norm(tensor_list *list, const zero_transformer *t, const char *const names[2])
{
    transformer_add(list, names[0], 0, 0, t->width);
    if (transformer_has(t, ZERO_TRANSFORMER_BIASES)) {
        transformer_add(list, names[1], 0, 0, t->width);
    }
}

static void list_attention(const zero_transformer *t, tensor_list *list)
{
    const bool biases = transformer_has(t, ZERO_TRANSFORMER_BIASES);
    const bool inner = biases || transformer_has(t, ZERO_TRANSFORMER_QKV_BIASES);
    const uint64_t queries = t->heads * t->head_width;
    const uint64_t keys = t->kv_heads * t->head_width;
    add_norm(list, t, (const char *const[]){"attention_norm.weight", "attention_norm.bias"});
    const uint64_t parts = t->tensor_parallel;
    const uint64_t key_parts = zi_min_u64(parts, t->kv_heads);
    add_linear(
        list,
        &(linear){{"query.weight", "query.bias"}, {0, queries, t->width}, CUT_ROWS, parts, inner});
    add_linear(
        list,
        &(linear){{"key.weight", "key.bias"}, {0, keys, t->width}, CUT_ROWS, key_parts, inner});
    add_linear(
        list,
        &(linear){{"value.weight", "value.bias"}, {0, keys, t->width}, CUT_ROWS, key_parts, inner});
    if (transformer_has(t, ZERO_TRANSFORMER_HEAD_NORMS)) {
        transformer_add(list, "query_norm.weight", 0, 0, t->head_width);
        transformer_add(list, "key_norm.weight", 0, 0, t->head_width);
    }
    add_linear(
        list,
        &(linear){
            {"output.weight", "output.bias"}, {0, t->width, queries}, CUT_COLUMNS, parts, biases});
}

static void list_ffn(const zero_transformer *t, tensor_list *list)
{
    const bool biases = transformer_has(t, ZERO_TRANSFORMER_BIASES);
    const uint64_t parts = t->tensor_parallel;
    add_norm(list, t, (const char *const[]){"ffn_norm.weight", "ffn_norm.bias"});
    if (t->experts != 0) {
        transformer_add(list, "router.weight", 0, t->experts, t->width);
    }
    if (transformer_has(t, ZERO_TRANSFORMER_GATED)) {
        add_linear(list, &(linear){{"gate.weight", "gate.bias"},
                                   {t->experts, t->ffn_width, t->width},
                                   CUT_ROWS,
                                   parts,
                                   biases});
    }
    add_linear(list, &(linear){{"up.weight", "up.bias"},
                               {t->experts, t->ffn_width, t->width},
                               CUT_ROWS,
                               parts,
                               biases});
    add_linear(list, &(linear){{"down.weight", "down.bias"},
                               {t->experts, t->width, t->ffn_width},
                               CUT_COLUMNS,
                               parts,
                               biases});
}

static void list_block(const zero_transformer *t, tensor_list *list)
{
    *list = (tensor_list){.dtype = t->dtype};
    list_attention(t, list);
    list_ffn(t, list);
}

static void list_embedding(const zero_transformer *t, tensor_list *list)
{
    *list = (tensor_list){.dtype = t->dtype};
    transformer_add(list, "embedding.token", 0, t->vocab, t->width);
    keep_part(list, CUT_ROWS, t->tensor_parallel);
    if (t->positions != 0) {
        transformer_add(list, "embedding.position", 0, t->positions, t->width);
    }
}

static void list_head(const zero_transformer *t, tensor_list *list)
{
    *list = (tensor_list){.dtype = t->dtype};
    add_norm(list, t, (const char *const[]){"head.norm.weight", "head.norm.bias"});
    if (!transformer_has(t, ZERO_TRANSFORMER_TIED_HEAD)) {
        transformer_add(list, "head.weight", 0, t->vocab, t->width);
        keep_part(list, CUT_ROWS, t->tensor_parallel);
    }
}

/* The end of the unit that begins with tensor `first` of a block. */
static uint32_t unit_end(const zero_transformer *t, const tensor_list *list, uint32_t first)
{
    bool matrix = false;
    for (uint32_t i = first; i < list->count; i++) {
        const bool is_matrix = list->descs[i].flags == ZERO_TENSOR_PLAIN;
        const bool begins =
            t->units == ZERO_TRANSFORMER_UNITS_MATRIX
                ? matrix && (is_matrix || strncmp(list->descs[i].name, "ffn_norm", 8) == 0)
                : i > first && strcmp(list->descs[i].name, "ffn_norm.weight") == 0;
        if (begins) {
            return i;
        }
        matrix = matrix || is_matrix;
    }
    return list->count;
}

/* One block whose parts are units: "block.3.1" with the tensors "block.3.key.weight" and so on. */
static zero_status add_parts(const zero_transformer *t, zero_model *model, uint64_t block)
{
    tensor_list list;
    char names[TENSORS_MAX][48];
    char unit[48];
    list_block(t, &list);
    for (uint32_t i = 0; i < list.count; i++) {
        (void)snprintf(names[i], sizeof names[i], "block.%" PRIu64 ".%s", block,
                       list.descs[i].name);
    }
    uint32_t part = 0;
    for (uint32_t first = 0, end = 0; first < list.count; first = end) {
        end = unit_end(t, &list, first);
        zero_tensor_desc descs[TENSORS_MAX];
        for (uint32_t i = first; i < end; i++) {
            descs[i - first] = list.descs[i];
            descs[i - first].name = names[i];
        }
        (void)snprintf(unit, sizeof unit, "block.%" PRIu64 ".%" PRIu32, block, part++);
        ZI_TRY(zero_unit_add(
            model, &(zero_unit_desc){.name = unit, .tensors = descs, .tensor_count = end - first},
            NULL, NULL));
    }
    return ZERO_OK;
}

static zero_status add_blocks(const zero_transformer *t, zero_model *model)
{
    tensor_list list;
    if (t->units == ZERO_TRANSFORMER_UNITS_BLOCK) {
        list_block(t, &list);
        return zero_unit_add(model,
                             &(zero_unit_desc){.name = "block",
                                               .layers = (uint32_t)zi_transformer_blocks(t),
                                               .tensors = list.descs,
                                               .tensor_count = list.count},
                             NULL, NULL);
    }
    for (uint64_t block = 0; block < zi_transformer_blocks(t); block++) {
        ZI_TRY(add_parts(t, model, block));
    }
    return ZERO_OK;
}

static zero_status add_units(const zero_transformer *t, zero_model *model)
{
    tensor_list list;
    uint32_t head = 0;
    uint32_t token = 0;
    list_embedding(t, &list);
    ZI_TRY(zero_unit_add(
        model,
        &(zero_unit_desc){.name = "embedding", .tensors = list.descs, .tensor_count = list.count},
        NULL, &token));
    ZI_TRY(add_blocks(t, model));
    if (t->pipeline_parallel > 1) {
        return ZERO_OK; /* the first stage */
    }
    list_head(t, &list);
    ZI_TRY(zero_unit_add(
        model, &(zero_unit_desc){.name = "head", .tensors = list.descs, .tensor_count = list.count},
        &head, NULL));
    return transformer_has(t, ZERO_TRANSFORMER_TIED_HEAD) ? zero_tensor_tie(model, head, token)
                                                          : ZERO_OK;
}

zero_status zero_transformer_model(const zero_transformer *transformer, zero_model **model)
{
    zero_transformer t;
    zi_transformer_counts counts;
    if (model == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "model is NULL; pass the address of a zero_model pointer");
    }
    *model = NULL;
    ZI_TRY(zi_transformer_resolve(transformer, &t, &counts));
    zero_model *made = NULL;
    ZI_TRY(zero_model_create(&made));
    const zero_status status = add_units(&t, made);
    if (status != ZERO_OK) {
        zero_model_destroy(made);
        return status;
    }
    *model = made;
    return ZERO_OK;
}

/* ---- counts ---- */

static uint64_t transformer_elements_of(const tensor_list *list)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint64_t count = 1;
        for (uint32_t k = 0; k < list->descs[i].dims; k++) {
            count *= list->descs[i].shape[k];
        }
        all += count;
    }
    return all;
}

/* Within the bounds of the fields the three largest tensors of a block have 2^60 elements each, so
 * that no sum overflows before it is compared with its bound. */
static zero_status count_units(const zero_transformer *t, zi_transformer_counts *counts)
{
    tensor_list list;
    const zero_transformer whole = zi_transformer_whole(t);
    zero_transformer dense = whole;
    list_embedding(&whole, &list);
    counts->embedding = transformer_elements_of(&list);
    list_head(&whole, &list);
    counts->head = transformer_elements_of(&list);
    list_block(&whole, &list);
    counts->block = transformer_elements_of(&list);
    dense.experts =
        t->experts_used; /* 0 or 1 list an expert's matrices alike, but for the router */
    list_block(&dense, &list);
    counts->block_used = transformer_elements_of(&list) + (t->experts - t->experts_used) * t->width;
    if (counts->block > ELEMENTS_MAX / t->layers ||
        counts->block * t->layers + counts->embedding + counts->head > ELEMENTS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the transformer has more than 2^50 parameters: layers %" PRIu64 ", width %" PRIu64
                ", ffn_width %" PRIu64 ", experts %" PRIu64,
                t->layers, t->width, t->ffn_width, t->experts);
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
    t->kv_heads = t->kv_heads != 0 ? t->kv_heads : t->heads;
    t->head_width = t->head_width != 0 ? t->head_width : t->width / t->heads;
    t->ffn_width = t->ffn_width != 0 ? t->ffn_width : 4 * t->width;
    t->dtype = t->dtype != ZERO_DTYPE_DEFAULT ? t->dtype : ZERO_DTYPE_F32;
    t->tensor_parallel = zi_max_u64(t->tensor_parallel, 1);
    t->pipeline_parallel = zi_max_u64(t->pipeline_parallel, 1);
    ZI_TRY(check_parts(t));
    return count_units(t, counts);
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
    const uint64_t ends = counts.embedding + counts.head;
    if (total != NULL) {
        *total = counts.block * t.layers + ends;
    }
    if (used != NULL) {
        *used = counts.block_used * t.layers + ends;
    }
    return ZERO_OK;
}

/* ---- products ---- */

/* Norms and biases are no products. A tensor of three dimensions holds all experts' matrices. */
static uint64_t used_by_token(const zero_transformer *t, const zero_tensor_desc *desc)
{
    if (desc->flags != ZERO_TENSOR_PLAIN) {
        return 0;
    }
    return desc->dims == 3 ? t->experts_used * desc->shape[1] * desc->shape[2]
                           : desc->shape[0] * desc->shape[1];
}

zero_status zi_transformer_unit(const zero_transformer *t, uint64_t unit,
                                zi_transformer_products *products)
{
    tensor_list list;
    uint32_t ends[TENSORS_MAX]; /* of the parts of a block */
    uint32_t parts = 0;
    list_block(t, &list);
    for (uint32_t first = 0; first < list.count; first = ends[parts++]) {
        ends[parts] =
            t->units == ZERO_TRANSFORMER_UNITS_BLOCK ? list.count : unit_end(t, &list, first);
    }
    const uint64_t head = 1 + t->layers * parts;
    *products = (zi_transformer_products){0};
    if (unit > head) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the transformer has no unit %" PRIu64 "; the last one is %" PRIu64, unit, head);
    }
    if (unit == head) {
        products->elements = t->vocab * t->width; /* its own matrix, or the embedding's */
    } else if (unit != 0) {                       /* an embedding is looked up */
        const uint64_t part = (unit - 1) % parts;
        for (uint32_t i = part == 0 ? 0 : ends[part - 1]; i < ends[part]; i++) {
            products->elements += used_by_token(t, &list.descs[i]);
            products->attends |= strcmp(list.descs[i].name, "output.weight") == 0;
        }
    }
    return ZERO_OK;
}
