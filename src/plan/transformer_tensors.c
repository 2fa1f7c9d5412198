/* Owns the tensors of a transformer: those of each unit, and what is counted over them. Invariant:
 * parameters and products are counted over the very descriptions that a model is made of. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sizes.h"
#include "plan/transformer.h"

/* As many as a model may have. */
#define ELEMENTS_MAX (UINT64_C(1) << 50)
/* Tensors of a unit. */
#define TENSORS_MAX 40

static bool tensors_have(const zero_transformer *t, uint32_t flags)
{
    return (t->flags & flags) != 0;
}

/* ---- tensors of a unit ---- */

/* Which extent of a matrix its ranks split. */
typedef enum cut {
    CUT_COLUMNS = 1, /* the last one */
    CUT_ROWS = 2     /* the one before, and the bias */
} cut;

/* The tensors of a unit, as they are listed. */
typedef struct tensor_list {
    zero_tensor_desc descs[TENSORS_MAX];
    uint32_t count;
    uint32_t ffn_first; /* the first behind attention's */
    zero_dtype dtype;
} tensor_list;

/* shape: up to three extents, outermost first; those of 0 in front are left out. */
static void add_tensor(tensor_list *list, const char *name, uint64_t depth, uint64_t rows,
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
    add_tensor(list, l->names[0], l->shape[0], l->shape[1], l->shape[2]);
    keep_part(list, l->cut, l->parts);
    if (l->bias) {
        zero_tensor_desc *desc = &list->descs[list->count];
        add_tensor(list, l->names[1], 0, l->shape[0], l->shape[1]);
        desc->flags = ZERO_TENSOR_NO_DECAY;
        keep_part(list, 1, l->cut == CUT_ROWS ? l->parts : 1);
    }
}

/* A norm of the residual stream. */
static void add_norm(tensor_list *list, const zero_transformer *t, const char *const names[2])
{
    add_tensor(list, names[0], 0, 0, t->width);
    if (tensors_have(t, ZERO_TRANSFORMER_BIASES | ZERO_TRANSFORMER_NORM_BIASES)) {
        add_tensor(list, names[1], 0, 0, t->width);
    }
}

/* Queries, keys and values, each by a matrix of its own. */
static void list_heads(const zero_transformer *t, tensor_list *list)
{
    const bool biases = tensors_have(t, ZERO_TRANSFORMER_BIASES | ZERO_TRANSFORMER_QKV_BIASES);
    const uint64_t queries = t->heads * t->head_width;
    const uint64_t keys = t->kv_heads * t->head_width;
    const uint64_t values = t->kv_heads * t->value_width;
    const uint64_t parts = t->tensor_parallel;
    const uint64_t key_parts = zi_min_u64(parts, t->kv_heads);
    const linear all[] = {
        {{"query.weight", "query.bias"}, {0, queries, t->width}, CUT_ROWS, parts, biases},
        {{"key.weight", "key.bias"}, {0, keys, t->width}, CUT_ROWS, key_parts, biases},
        {{"value.weight", "value.bias"}, {0, values, t->width}, CUT_ROWS, key_parts, biases},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        add_linear(list, &all[i]);
    }
    if (tensors_have(t, ZERO_TRANSFORMER_HEAD_NORMS)) {
        add_tensor(list, "query_norm.weight", 0, 0, t->head_width);
        add_tensor(list, "key_norm.weight", 0, 0, t->head_width);
    }
}

/* Queries, keys and values of multi-head latent attention. Matrices that make latents are whole on
 * each rank of tensor parallelism, those that make heads of them are split by heads. */
static void list_latents(const zero_transformer *t, tensor_list *list)
{
    const uint64_t parts = t->tensor_parallel;
    const uint64_t queries = t->heads * t->head_width;
    const uint64_t made = t->heads * (t->head_width - t->rope_width + t->value_width);
    if (t->query_rank != 0) {
        add_tensor(list, "query_down.weight", 0, t->query_rank, t->width);
        add_tensor(list, "query_latent_norm.weight", 0, 0, t->query_rank);
    }
    add_tensor(list, t->query_rank != 0 ? "query_up.weight" : "query.weight", 0, queries,
               t->query_rank != 0 ? t->query_rank : t->width);
    keep_part(list, CUT_ROWS, parts);
    add_tensor(list, "kv_down.weight", 0, t->kv_rank + t->rope_width, t->width);
    add_tensor(list, "kv_latent_norm.weight", 0, 0, t->kv_rank);
    add_tensor(list, "kv_up.weight", 0, made, t->kv_rank);
    keep_part(list, CUT_ROWS, parts);
}

static void list_attention(const zero_transformer *t, tensor_list *list)
{
    const uint64_t parts = t->tensor_parallel;
    add_norm(list, t, (const char *const[]){"attention_norm.weight", "attention_norm.bias"});
    if (t->kv_rank != 0) {
        list_latents(t, list);
    } else {
        list_heads(t, list);
    }
    if (tensors_have(t, ZERO_TRANSFORMER_SINKS)) {
        add_tensor(list, "sinks", 0, 0, t->heads);
        keep_part(list, 1, parts);
    }
    add_linear(
        list, &(linear){{"output.weight", "output.bias"},
                        {0, t->width, t->heads * t->value_width},
                        CUT_COLUMNS,
                        parts,
                        tensors_have(t, ZERO_TRANSFORMER_BIASES | ZERO_TRANSFORMER_OUTPUT_BIASES)});
    if (tensors_have(t, ZERO_TRANSFORMER_POST_NORMS)) {
        add_norm(list, t,
                 (const char *const[]){"attention_post_norm.weight", "attention_post_norm.bias"});
    }
}

/* The matrices of a feed-forward layer, of all experts' where there are some. names: gate, up,
 * down; of each the weight and the bias. */
static void add_ffn(const zero_transformer *t, tensor_list *list, const char *const names[3][2],
                    uint64_t experts, uint64_t inner)
{
    const bool biases = tensors_have(t, ZERO_TRANSFORMER_BIASES | ZERO_TRANSFORMER_FFN_BIASES);
    const uint64_t parts = t->tensor_parallel;
    for (int i = tensors_have(t, ZERO_TRANSFORMER_GATED) ? 0 : 1; i < 3; i++) {
        const bool down = i == 2;
        add_linear(list, &(linear){{names[i][0], names[i][1]},
                                   {experts, down ? t->width : inner, down ? inner : t->width},
                                   down ? CUT_COLUMNS : CUT_ROWS,
                                   parts,
                                   biases});
    }
}

static const char *const own[3][2] = {
    {"gate.weight", "gate.bias"}, {"up.weight", "up.bias"}, {"down.weight", "down.bias"}};

static void list_ffn(const zero_transformer *t, tensor_list *list)
{
    static const char *const shared[3][2] = {{"shared_gate.weight", "shared_gate.bias"},
                                             {"shared_up.weight", "shared_up.bias"},
                                             {"shared_down.weight", "shared_down.bias"}};
    if (!tensors_have(t, ZERO_TRANSFORMER_ONE_NORM)) {
        add_norm(list, t, (const char *const[]){"ffn_norm.weight", "ffn_norm.bias"});
    }
    if (t->experts != 0) {
        add_tensor(list, "router.weight", 0, t->experts, t->width);
        if (tensors_have(t, ZERO_TRANSFORMER_ROUTER_BIASES)) {
            add_tensor(list, "router.bias", 0, 0, t->experts);
        }
    }
    if (t->experts == 0 || t->expert_parallel == 1) {
        add_ffn(t, list, own, t->experts, t->ffn_width);
    }
    if (t->shared_ffn_width != 0) {
        add_ffn(t, list, shared, 0, t->shared_ffn_width);
    }
    if (tensors_have(t, ZERO_TRANSFORMER_POST_NORMS)) {
        add_norm(list, t, (const char *const[]){"ffn_post_norm.weight", "ffn_post_norm.bias"});
    }
}

/* The experts of a block that a rank of expert parallelism has. */
static void list_experts(const zero_transformer *t, tensor_list *list)
{
    *list = (tensor_list){.dtype = t->dtype};
    add_ffn(t, list, own, t->experts, t->ffn_width);
    for (uint32_t i = 0; i < list->count; i++) {
        zero_tensor_desc *desc = &list->descs[i];
        if (desc->global_shape[0] == 0) {
            memcpy(desc->global_shape, desc->shape, sizeof desc->global_shape);
        }
        desc->shape[0] /= t->expert_parallel;
    }
}

static void list_block(const zero_transformer *t, zi_block_kind kind, tensor_list *list)
{
    const zero_transformer alike = zi_transformer_kind(t, kind);
    *list = (tensor_list){.dtype = t->dtype};
    list_attention(&alike, list);
    list->ffn_first = list->count;
    list_ffn(&alike, list);
}

static void list_embedding(const zero_transformer *t, tensor_list *list)
{
    *list = (tensor_list){.dtype = t->dtype};
    add_tensor(list, "embedding.token", 0, t->vocab, t->width);
    keep_part(list, CUT_ROWS, t->tensor_parallel);
    if (t->positions != 0) {
        add_tensor(list, "embedding.position", 0, t->positions, t->width);
    }
}

static void list_head(const zero_transformer *t, tensor_list *list)
{
    *list = (tensor_list){.dtype = t->dtype};
    add_norm(list, t, (const char *const[]){"head.norm.weight", "head.norm.bias"});
    if (!tensors_have(t, ZERO_TRANSFORMER_TIED_HEAD)) {
        add_tensor(list, "head.weight", 0, t->vocab, t->width);
        keep_part(list, CUT_ROWS, t->tensor_parallel);
    }
}

/* ---- units ---- */

/* The end of the unit that begins with tensor `first` of a block. */
static uint32_t unit_end(const zero_transformer *t, const tensor_list *list, uint32_t first)
{
    bool matrix = false;
    for (uint32_t i = first; i < list->count && t->units != ZERO_TRANSFORMER_UNITS_BLOCK; i++) {
        const bool is_matrix = list->descs[i].flags == ZERO_TENSOR_PLAIN;
        const bool cut_here = i > first && i == list->ffn_first;
        if (cut_here || (t->units == ZERO_TRANSFORMER_UNITS_MATRIX && matrix && is_matrix)) {
            return i;
        }
        matrix = matrix || is_matrix;
    }
    return list->count;
}

/* One block by itself: "block.3", or where its parts are units "block.3.1", with the tensors
 * "block.3.key.weight" and so on. */
static zero_status add_one_block(const zero_transformer *t, zero_model *model, uint64_t block,
                                 const tensor_list *list)
{
    char names[TENSORS_MAX][48];
    char unit[48];
    const bool parts = t->units != ZERO_TRANSFORMER_UNITS_BLOCK;
    for (uint32_t i = 0; i < list->count; i++) {
        (void)snprintf(names[i], sizeof names[i], "block.%" PRIu64 ".%s", block,
                       list->descs[i].name);
    }
    uint32_t part = 0;
    for (uint32_t first = 0, end = 0; first < list->count; first = end) {
        end = unit_end(t, list, first);
        zero_tensor_desc descs[TENSORS_MAX];
        for (uint32_t i = first; i < end; i++) {
            descs[i - first] = list->descs[i];
            descs[i - first].name = names[i];
        }
        const int length = snprintf(unit, sizeof unit, "block.%" PRIu64, block);
        if (parts) {
            (void)snprintf(unit + length, sizeof unit - (size_t)length, ".%" PRIu32, part++);
        }
        ZI_TRY(zero_unit_add(
            model, &(zero_unit_desc){.name = unit, .tensors = descs, .tensor_count = end - first},
            NULL, NULL));
    }
    return ZERO_OK;
}

static zero_status add_blocks(const zero_transformer *t, zero_model *model)
{
    const zi_stage stage = zi_transformer_fullest(t);
    tensor_list list;
    if (t->units == ZERO_TRANSFORMER_UNITS_BLOCK && stage.first == 0 &&
        (stage.dense == 0 || stage.dense == stage.layers)) {
        list_block(t, zi_transformer_kind_at(t, 0), &list);
        return zero_unit_add(model,
                             &(zero_unit_desc){.name = "block",
                                               .layers = (uint32_t)stage.layers,
                                               .tensors = list.descs,
                                               .tensor_count = list.count},
                             NULL, NULL);
    }
    for (uint64_t block = stage.first; block < stage.first + stage.layers; block++) {
        list_block(t, zi_transformer_kind_at(t, block), &list);
        ZI_TRY(add_one_block(t, model, block, &list));
    }
    return ZERO_OK;
}

zero_status zi_transformer_add_experts(const zero_transformer *t, zero_model *model)
{
    const zi_stage stage = zi_transformer_fullest(t);
    tensor_list list;
    list_experts(t, &list);
    for (uint64_t block = stage.first; block < stage.first + stage.layers; block++) {
        if (zi_transformer_kind_at(t, block) == ZI_BLOCK_MAIN) {
            ZI_TRY(add_one_block(t, model, block, &list));
        }
    }
    return ZERO_OK;
}

zero_status zi_transformer_add_units(const zero_transformer *t, zero_model *model)
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
        return ZERO_OK; /* a stage */
    }
    list_head(t, &list);
    ZI_TRY(zero_unit_add(
        model, &(zero_unit_desc){.name = "head", .tensors = list.descs, .tensor_count = list.count},
        &head, NULL));
    return tensors_have(t, ZERO_TRANSFORMER_TIED_HEAD) ? zero_tensor_tie(model, head, token)
                                                       : ZERO_OK;
}

/* ---- counts ---- */

static uint64_t elements_of_list(const tensor_list *list)
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

/* Of a block of a kind; used: with the experts that a token passes through alone. */
static uint64_t block_elements(const zero_transformer *t, zi_block_kind kind, bool used)
{
    tensor_list list;
    zero_transformer some = zi_transformer_whole(t);
    uint64_t routers = 0; /* of the experts left out: a token passes through all of a router */
    if (used && kind == ZI_BLOCK_MAIN && t->experts != 0) {
        const bool bias = tensors_have(t, ZERO_TRANSFORMER_ROUTER_BIASES);
        routers = (t->experts - t->experts_used) * (t->width + (bias ? 1 : 0));
        some.experts = t->experts_used;
    }
    list_block(&some, kind, &list);
    return elements_of_list(&list) + routers;
}

/* Within the bounds of the fields the three largest tensors of a block have 2^60 elements each, and
 * all others together fewer than one of them, so that no sum overflows before it is compared with
 * its bound. */
zero_status zi_transformer_count(const zero_transformer *t, zi_transformer_counts *counts)
{
    tensor_list list;
    const zero_transformer whole = zi_transformer_whole(t);
    list_embedding(&whole, &list);
    counts->embedding = elements_of_list(&list);
    list_head(&whole, &list);
    counts->head = elements_of_list(&list);
    uint64_t most = 0;
    for (int kind = 0; kind < ZI_BLOCK_KINDS; kind++) {
        counts->block[kind] = block_elements(t, (zi_block_kind)kind, false);
        counts->block_used[kind] = block_elements(t, (zi_block_kind)kind, true);
        most = zi_max_u64(most, counts->block[kind]);
    }
    if (most > ELEMENTS_MAX / t->layers ||
        most * t->layers + counts->embedding + counts->head > ELEMENTS_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the transformer has more than 2^50 parameters: layers %" PRIu64 ", width %" PRIu64
                ", ffn_width %" PRIu64 ", experts %" PRIu64,
                t->layers, t->width, t->ffn_width, t->experts);
    }
    return ZERO_OK;
}

zi_stage zi_transformer_fullest(const zero_transformer *t)
{
    zi_stage fullest = zi_transformer_stage(t, 0);
    const zi_stage all = zi_transformer_all(t);
    if (all.dense == 0 || all.dense == all.layers) {
        return fullest;
    }
    const uint64_t main = block_elements(t, ZI_BLOCK_MAIN, false);
    const uint64_t dense = block_elements(t, ZI_BLOCK_DENSE, false);
    uint64_t most = 0;
    for (uint64_t i = 0; i < t->pipeline_parallel; i++) {
        const zi_stage stage = zi_transformer_stage(t, i);
        const uint64_t elements = (stage.layers - stage.dense) * main + stage.dense * dense;
        fullest = elements > most ? stage : fullest;
        most = zi_max_u64(most, elements);
    }
    return fullest;
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

static zi_transformer_products products_between(const zero_transformer *t, const tensor_list *list,
                                                uint32_t first, uint32_t end)
{
    zi_transformer_products products = {0};
    for (uint32_t i = first; i < end; i++) {
        products.elements += used_by_token(t, &list->descs[i]);
        if (strcmp(list->descs[i].name, "output.weight") == 0) {
            products.pair = t->heads * (t->head_width + t->value_width);
        }
    }
    return products;
}

zi_transformer_products zi_transformer_block(const zero_transformer *t, zi_block_kind kind)
{
    tensor_list list;
    const zero_transformer whole = zi_transformer_whole(t);
    list_block(&whole, kind, &list);
    return products_between(&whole, &list, 0, list.count);
}

uint64_t zi_transformer_last(const zero_transformer *t, zi_block_kind kind)
{
    const zero_transformer alike = zi_transformer_kind(t, kind);
    const uint64_t used = alike.experts != 0 ? alike.experts_used : 1;
    const uint64_t down = (alike.ffn_width * used + alike.shared_ffn_width) * t->width;
    const uint64_t output = t->heads * t->value_width * t->width;
    if (tensors_have(t, ZERO_TRANSFORMER_POST_NORMS)) {
        return 0; /* a norm's backward needs what they give */
    }
    return down + (tensors_have(t, ZERO_TRANSFORMER_PARALLEL) ? output : 0);
}

/* Units of a block of a kind. ends: out, of their tensors. */
static uint32_t cut_block(const zero_transformer *t, const tensor_list *list,
                          uint32_t ends[TENSORS_MAX])
{
    uint32_t parts = 0;
    for (uint32_t first = 0; first < list->count; first = ends[parts++]) {
        ends[parts] = unit_end(t, list, first);
    }
    return parts;
}

zero_status zi_transformer_unit(const zero_transformer *t, uint64_t unit,
                                zi_transformer_products *products)
{
    tensor_list lists[ZI_BLOCK_KINDS];
    uint32_t ends[ZI_BLOCK_KINDS][TENSORS_MAX];
    uint32_t parts[ZI_BLOCK_KINDS];
    const zi_stage all = zi_transformer_all(t);
    for (int kind = 0; kind < ZI_BLOCK_KINDS; kind++) {
        list_block(t, (zi_block_kind)kind, &lists[kind]);
        parts[kind] = cut_block(t, &lists[kind], ends[kind]);
    }
    const uint64_t head = 1 + zi_stage_count(&all, ZI_BLOCK_MAIN) * parts[ZI_BLOCK_MAIN] +
                          zi_stage_count(&all, ZI_BLOCK_DENSE) * parts[ZI_BLOCK_DENSE];
    *products = (zi_transformer_products){0};
    if (unit > head) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "the transformer has no unit %" PRIu64 "; the last one is %" PRIu64, unit, head);
    }
    if (unit == head) {
        products->elements = t->vocab * t->width; /* its own matrix, or the embedding's */
    }
    if (unit == 0 || unit == head) { /* an embedding is looked up */
        return ZERO_OK;
    }
    uint64_t block = 0;
    uint64_t part = unit - 1;
    if (all.dense == 0 || parts[ZI_BLOCK_MAIN] == parts[ZI_BLOCK_DENSE]) {
        block = part / parts[ZI_BLOCK_MAIN];
        part %= parts[ZI_BLOCK_MAIN];
    }
    for (; part >= parts[zi_transformer_kind_at(t, block)]; block++) {
        part -= parts[zi_transformer_kind_at(t, block)];
    }
    const zi_block_kind kind = zi_transformer_kind_at(t, block);
    *products =
        products_between(t, &lists[kind], part == 0 ? 0 : ends[kind][part - 1], ends[kind][part]);
    products->windowed = products->pair != 0 && zi_transformer_windowed_at(t, block);
    return ZERO_OK;
}
