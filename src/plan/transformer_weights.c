/* Owns what the tensors of published weights say of a transformer. Invariant: every tensor is one
 * that the dimensions found account for, and every parameter of the transformer is in a tensor, so
 * that the two have as many elements. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "plan/transformer.h"
#include "plan/transformer_files.h"

/* Extents that several tensors share. */
typedef enum extent {
    NO_EXTENT,
    WIDTH,
    VOCAB,
    POSITIONS,
    QUERIES, /* heads x head_width */
    KEYS,    /* kv_heads x head_width */
    THREE,   /* 3 x width: queries, keys and values in one */
    HEAD_WIDTH,
    FFN,
    EXPERTS,
    EXTENTS
} extent;

/* Tensors that a model has all of, or none. */
typedef enum group {
    OLD,   /* GPT-2's names; its matrices are stored input first */
    NEW,   /* those of all others */
    DENSE, /* one feed-forward layer a block */
    MIXTRAL,
    QWEN_MOE,
    HEAD_NORMS,
    QKV_BIASES,
    HEAD,
    BUFFERS, /* no parameters, of any shape */
    GROUPS
} group;

/* A tensor by its name behind "model." or "transformer.": # is the block, @ the expert. */
typedef struct kind {
    group of;
    const char *name;
    extent shape[2];
} kind;

static const kind kinds[] = {
    {OLD, "wte.weight", {VOCAB, WIDTH}},
    {OLD, "wpe.weight", {POSITIONS, WIDTH}},
    {OLD, "h.#.ln_1.weight", {WIDTH}},
    {OLD, "h.#.ln_1.bias", {WIDTH}},
    {OLD, "h.#.attn.c_attn.weight", {WIDTH, THREE}},
    {OLD, "h.#.attn.c_attn.bias", {THREE}},
    {OLD, "h.#.attn.c_proj.weight", {WIDTH, WIDTH}},
    {OLD, "h.#.attn.c_proj.bias", {WIDTH}},
    {OLD, "h.#.ln_2.weight", {WIDTH}},
    {OLD, "h.#.ln_2.bias", {WIDTH}},
    {OLD, "h.#.mlp.c_fc.weight", {WIDTH, FFN}},
    {OLD, "h.#.mlp.c_fc.bias", {FFN}},
    {OLD, "h.#.mlp.c_proj.weight", {FFN, WIDTH}},
    {OLD, "h.#.mlp.c_proj.bias", {WIDTH}},
    {OLD, "ln_f.weight", {WIDTH}},
    {OLD, "ln_f.bias", {WIDTH}},
    {NEW, "embed_tokens.weight", {VOCAB, WIDTH}},
    {NEW, "layers.#.input_layernorm.weight", {WIDTH}},
    {NEW, "layers.#.self_attn.q_proj.weight", {QUERIES, WIDTH}},
    {NEW, "layers.#.self_attn.k_proj.weight", {KEYS, WIDTH}},
    {NEW, "layers.#.self_attn.v_proj.weight", {KEYS, WIDTH}},
    {NEW, "layers.#.self_attn.o_proj.weight", {WIDTH, QUERIES}},
    {NEW, "layers.#.post_attention_layernorm.weight", {WIDTH}},
    {NEW, "norm.weight", {WIDTH}},
    {DENSE, "layers.#.mlp.gate_proj.weight", {FFN, WIDTH}},
    {DENSE, "layers.#.mlp.up_proj.weight", {FFN, WIDTH}},
    {DENSE, "layers.#.mlp.down_proj.weight", {WIDTH, FFN}},
    {MIXTRAL, "layers.#.block_sparse_moe.gate.weight", {EXPERTS, WIDTH}},
    {MIXTRAL, "layers.#.block_sparse_moe.experts.@.w1.weight", {FFN, WIDTH}},
    {MIXTRAL, "layers.#.block_sparse_moe.experts.@.w2.weight", {WIDTH, FFN}},
    {MIXTRAL, "layers.#.block_sparse_moe.experts.@.w3.weight", {FFN, WIDTH}},
    {QWEN_MOE, "layers.#.mlp.gate.weight", {EXPERTS, WIDTH}},
    {QWEN_MOE, "layers.#.mlp.experts.@.gate_proj.weight", {FFN, WIDTH}},
    {QWEN_MOE, "layers.#.mlp.experts.@.up_proj.weight", {FFN, WIDTH}},
    {QWEN_MOE, "layers.#.mlp.experts.@.down_proj.weight", {WIDTH, FFN}},
    {HEAD_NORMS, "layers.#.self_attn.q_norm.weight", {HEAD_WIDTH}},
    {HEAD_NORMS, "layers.#.self_attn.k_norm.weight", {HEAD_WIDTH}},
    {QKV_BIASES, "layers.#.self_attn.q_proj.bias", {QUERIES}},
    {QKV_BIASES, "layers.#.self_attn.k_proj.bias", {KEYS}},
    {QKV_BIASES, "layers.#.self_attn.v_proj.bias", {KEYS}},
    {HEAD, "lm_head.weight", {VOCAB, WIDTH}},
    {BUFFERS, "h.#.attn.bias", {NO_EXTENT}}, /* the causal mask */
    {BUFFERS, "h.#.attn.masked_bias", {NO_EXTENT}},
    {BUFFERS, "layers.#.self_attn.rotary_emb.inv_freq", {NO_EXTENT}},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* A tally of what has been seen of a model's tensors. */
typedef struct tally {
    const zi_weights *weights;
    uint64_t extents[EXTENTS]; /* 0: not seen */
    uint64_t layers;           /* the last block's number, and 1 */
    uint64_t experts;
    uint64_t seen[KINDS];
    bool has[GROUPS];
    const zi_safetensor *first; /* whose type all have; NULL: none was seen */
    uint64_t elements;
} tally;

/* ---- one tensor ---- */

/* A number as Python prints it, at most so large as a transformer's dimension may be. */
static const char *transformer_weights_read_index(const char *text, uint64_t *index)
{
    const char *at = text;
    *index = 0;
    while (*at >= '0' && *at <= '9' && at - text < 6) {
        *index = *index * 10 + (uint64_t)(*at++ - '0');
    }
    return at == text || (*text == '0' && at - text > 1) ? NULL : at;
}

/* index: out, of the block and the expert. */
static bool matches(const char *pattern, const char *name, uint64_t index[2])
{
    for (; *pattern != '\0'; pattern++) {
        if (*pattern == '#' || *pattern == '@') {
            name = transformer_weights_read_index(name, &index[*pattern == '@']);
            if (name == NULL) {
                return false;
            }
        } else if (*pattern != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

/* KINDS where no transformer has such a tensor. */
static size_t find_kind(const char *name, uint64_t index[2])
{
    static const char *const prefixes[] = {"model.", "transformer."};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        const size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length) == 0) {
            name += length;
            break;
        }
    }
    size_t k = 0;
    while (k < KINDS && !matches(kinds[k].name, name, index)) {
        k++;
    }
    return k;
}

static zero_status take_shape(tally *all, const zi_safetensors *file, const zi_safetensor *tensor,
                              const kind *what)
{
    const uint32_t dims = what->shape[1] == NO_EXTENT ? 1 : 2;
    if (tensor->dims != dims || tensor->count == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: tensor \"%.80s\" has %" PRIu32 " dimensions and %" PRIu64
                " elements; it has %" PRIu32 " dimensions in a transformer, and some elements",
                file->json.path, tensor->name, tensor->dims, tensor->count, dims);
    }
    for (uint32_t i = 0; i < dims; i++) {
        uint64_t *known = &all->extents[what->shape[i]];
        *known = *known == 0 ? tensor->shape[i] : *known;
        if (tensor->shape[i] != *known) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s: tensor \"%.80s\" has the extent %" PRIu64
                    " where the tensors before it have %" PRIu64,
                    file->json.path, tensor->name, tensor->shape[i], *known);
        }
    }
    return ZERO_OK;
}

static zero_status take_type(tally *all, const zi_safetensors *file, const zi_safetensor *tensor)
{
    all->first = all->first == NULL ? tensor : all->first;
    if (tensor->dtype == ZERO_DTYPE_NONE) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: tensor \"%.80s\" is of %s; parameters are of F32, BF16 or F16",
                file->json.path, tensor->name, tensor->type);
    }
    if (tensor->dtype != all->first->dtype) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: tensor \"%.80s\" is of %s and \"%.60s\" of %s; a transformer has one type",
                file->json.path, tensor->name, tensor->type, all->first->name, all->first->type);
    }
    return ZERO_OK;
}

static zero_status take_tensor(tally *all, const zi_safetensors *file, const zi_safetensor *tensor)
{
    uint64_t index[2] = {0, 0};
    const size_t k = find_kind(tensor->name, index);
    if (k == KINDS) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: no transformer that is known has a tensor \"%.80s\"; set the dimensions "
                "instead (zero plan layers=N,width=N,...)",
                file->json.path, tensor->name);
    }
    if (kinds[k].of == BUFFERS) {
        return ZERO_OK;
    }
    ZI_TRY(take_type(all, file, tensor));
    ZI_TRY(take_shape(all, file, tensor, &kinds[k]));
    all->layers = index[0] >= all->layers ? index[0] + 1 : all->layers;
    all->experts = index[1] >= all->experts && strchr(kinds[k].name, '@') != NULL ? index[1] + 1
                                                                                  : all->experts;
    all->has[kinds[k].of] = true;
    all->seen[k]++;
    all->elements += tensor->count;
    return ZERO_OK;
}

/* ---- all of them ---- */

/* Names differ, and a number is written in one way only, so as many as there must be are all. */
static zero_status check_complete(const tally *all)
{
    for (size_t k = 0; k < KINDS; k++) {
        const uint64_t blocks = strchr(kinds[k].name, '#') != NULL ? all->layers : 1;
        const uint64_t wanted = strchr(kinds[k].name, '@') != NULL ? blocks * all->experts : blocks;
        if (all->has[kinds[k].of] && all->seen[k] != wanted) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s: of the tensors \"%s\" there are %" PRIu64 "; %" PRIu64
                    " blocks have %" PRIu64,
                    all->weights->path, kinds[k].name, all->seen[k], all->layers, wanted);
        }
    }
    return ZERO_OK;
}

static zero_status transformer_weights_check_groups(const tally *all)
{
    const int ffns = all->has[DENSE] + all->has[MIXTRAL] + all->has[QWEN_MOE];
    const bool others = ffns != 0 || all->has[HEAD_NORMS] || all->has[QKV_BIASES];
    if (all->has[OLD] == all->has[NEW] || (all->has[OLD] ? others : ffns != 1)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: its tensors are not those of one model of the types gpt2, llama, mistral, "
                "mixtral, qwen2, qwen3 or qwen3_moe",
                all->weights->path);
    }
    if (all->has[OLD] && all->extents[THREE] != 3 * all->extents[WIDTH]) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: \"attn.c_attn\" has %" PRIu64 " columns; 3 x %" PRIu64 " were expected",
                all->weights->path, all->extents[THREE], all->extents[WIDTH]);
    }
    if (all->extents[EXPERTS] != all->experts) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: its routers choose from %" PRIu64 " experts, and there are %" PRIu64,
                all->weights->path, all->extents[EXPERTS], all->experts);
    }
    return ZERO_OK;
}

static uint32_t flags_of(const tally *all)
{
    uint32_t flags = all->has[OLD] ? ZERO_TRANSFORMER_BIASES : ZERO_TRANSFORMER_GATED;
    flags |= all->has[HEAD_NORMS] ? ZERO_TRANSFORMER_HEAD_NORMS : 0;
    flags |= all->has[QKV_BIASES] ? ZERO_TRANSFORMER_QKV_BIASES : 0;
    flags |= all->has[HEAD] ? 0 : ZERO_TRANSFORMER_TIED_HEAD;
    return flags;
}

/* ---- what no shape tells ---- */

/* How wide the heads of all GPT-2 are. */
#define OLD_HEAD_WIDTH 64

/* Heads, the longest sample, and experts that a token passes through. */
static zero_status guess(const tally *all, zero_transformer *t)
{
    if (!all->has[OLD] || t->width % OLD_HEAD_WIDTH != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: no shape tells the number of heads, the length of samples and how many "
                "experts a token passes through; put the model's config.json beside it",
                all->weights->path);
    }
    t->heads = t->width / OLD_HEAD_WIDTH;
    t->sequence = t->positions;
    return ZERO_OK;
}

/* config is a model of these tensors, and not of others. */
static zero_status transformer_weights_compare(const tally *all, const zero_transformer *config,
                                               const zero_transformer *t)
{
    zero_transformer c;
    zi_transformer_counts counts;
    ZI_TRY(zi_transformer_resolve(config, &c, &counts));
    const uint64_t *extents = all->extents;
    const uint64_t queries = all->has[OLD] ? t->width : extents[QUERIES];
    const uint64_t keys = all->has[OLD] ? t->width : extents[KEYS];
    const struct {
        const char *name;
        uint64_t said;
        uint64_t found;
    } pairs[] = {
        {"layers", c.layers, t->layers},
        {"width", c.width, t->width},
        {"vocab", c.vocab, t->vocab},
        {"positions", c.positions, t->positions},
        {"ffn_width", c.ffn_width, t->ffn_width},
        {"experts", c.experts, t->experts},
        {"heads x head_width", c.heads * c.head_width, queries},
        {"kv_heads x head_width", c.kv_heads * c.head_width, keys},
        {"head_width", c.head_width, all->has[HEAD_NORMS] ? extents[HEAD_WIDTH] : c.head_width},
        {"flags (tied head, biases, norms of heads)", c.flags, t->flags},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i].said != pairs[i].found) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s: %s is %" PRIu64 " by its tensors and %" PRIu64
                    " by the config.json beside it",
                    all->weights->path, pairs[i].name, pairs[i].found, pairs[i].said);
        }
    }
    return ZERO_OK;
}

static zero_status transformer_weights_describe(const tally *all, const zero_transformer *config,
                                                zero_transformer *t)
{
    *t = (zero_transformer){.struct_bytes = sizeof *t,
                            .layers = all->layers,
                            .width = all->extents[WIDTH],
                            .ffn_width = all->extents[FFN],
                            .vocab = all->extents[VOCAB],
                            .positions = all->extents[POSITIONS],
                            .experts = all->experts,
                            .flags = flags_of(all),
                            .dtype = all->first->dtype};
    if (config == NULL) {
        return guess(all, t);
    }
    ZI_TRY(transformer_weights_compare(all, config, t));
    t->heads = config->heads;
    t->kv_heads = config->kv_heads;
    t->head_width = config->head_width;
    t->sequence = config->sequence;
    t->experts_used = config->experts_used;
    return ZERO_OK;
}

zero_status zi_transformer_of_weights(const zi_weights *weights, const zero_transformer *config,
                                      zero_transformer *t)
{
    tally all = {.weights = weights};
    uint64_t total = 0;
    for (uint32_t i = 0; i < weights->file_count; i++) {
        const zi_safetensors *file = &weights->files[i];
        for (uint32_t k = 0; k < file->count; k++) {
            ZI_TRY(take_tensor(&all, file, &file->tensors[k]));
        }
    }
    ZI_TRY(transformer_weights_check_groups(&all));
    ZI_TRY(check_complete(&all));
    if (all.has[HEAD] && config != NULL && (config->flags & ZERO_TRANSFORMER_TIED_HEAD) != 0) {
        all.has[HEAD] = false; /* a second copy of the token embedding, as some writers have it */
        all.elements -= all.extents[VOCAB] * all.extents[WIDTH];
    }
    ZI_TRY(transformer_weights_describe(&all, config, t));
    ZI_TRY(zero_transformer_parameters(t, &total, NULL));
    if (total != all.elements) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: its tensors have %" PRIu64 " elements, and a transformer of its dimensions "
                "has %" PRIu64 " parameters",
                weights->path, all.elements, total);
    }
    return ZERO_OK;
}
