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
    QUERIES,   /* heads x head_width */
    KEYS,      /* kv_heads x head_width */
    THREE,     /* 3 x width: queries, keys and values in one */
    ALL_HEADS, /* (heads + 2 x kv_heads) x head_width: likewise */
    HEAD_WIDTH,
    FFN,
    TWO_FFN, /* gate and up in one */
    EXPERTS,
    EXTENTS
} extent;

/* Tensors that a model has all of, or none. */
typedef enum group {
    OLD,  /* GPT-2's names; its matrices are stored input first */
    NEOX, /* GPT-NeoX's */
    OPT,
    NEW,      /* those of all others */
    SEPARATE, /* queries, keys and values each by a matrix of its own */
    FUSED,    /* they in one matrix, and gate and up in another one */
    DENSE,    /* one feed-forward layer a block */
    DOWN,     /* of it, or of a fused one */
    MIXTRAL,
    QWEN_MOE,
    HEAD_NORMS,
    POST_NORMS,
    QKV_BIASES,
    OUTPUT_BIASES,
    NEOX_BIASES, /* of attention */
    OPT_BIASES,  /* of matrices */
    HEAD,
    NEOX_HEAD,
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
    {NEW, "layers.#.self_attn.o_proj.weight", {WIDTH, QUERIES}},
    {NEW, "layers.#.post_attention_layernorm.weight", {WIDTH}},
    {NEW, "norm.weight", {WIDTH}},
    {SEPARATE, "layers.#.self_attn.q_proj.weight", {QUERIES, WIDTH}},
    {SEPARATE, "layers.#.self_attn.k_proj.weight", {KEYS, WIDTH}},
    {SEPARATE, "layers.#.self_attn.v_proj.weight", {KEYS, WIDTH}},
    {FUSED, "layers.#.self_attn.qkv_proj.weight", {ALL_HEADS, WIDTH}},
    {FUSED, "layers.#.mlp.gate_up_proj.weight", {TWO_FFN, WIDTH}},
    {DENSE, "layers.#.mlp.gate_proj.weight", {FFN, WIDTH}},
    {DENSE, "layers.#.mlp.up_proj.weight", {FFN, WIDTH}},
    {DOWN, "layers.#.mlp.down_proj.weight", {WIDTH, FFN}},
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
    {POST_NORMS, "layers.#.pre_feedforward_layernorm.weight", {WIDTH}},
    {POST_NORMS, "layers.#.post_feedforward_layernorm.weight", {WIDTH}},
    {QKV_BIASES, "layers.#.self_attn.q_proj.bias", {QUERIES}},
    {QKV_BIASES, "layers.#.self_attn.k_proj.bias", {KEYS}},
    {QKV_BIASES, "layers.#.self_attn.v_proj.bias", {KEYS}},
    {OUTPUT_BIASES, "layers.#.self_attn.o_proj.bias", {WIDTH}},
    {NEOX, "gpt_neox.embed_in.weight", {VOCAB, WIDTH}},
    {NEOX, "gpt_neox.layers.#.input_layernorm.weight", {WIDTH}},
    {NEOX, "gpt_neox.layers.#.input_layernorm.bias", {WIDTH}},
    {NEOX, "gpt_neox.layers.#.post_attention_layernorm.weight", {WIDTH}},
    {NEOX, "gpt_neox.layers.#.post_attention_layernorm.bias", {WIDTH}},
    {NEOX, "gpt_neox.layers.#.attention.query_key_value.weight", {THREE, WIDTH}},
    {NEOX, "gpt_neox.layers.#.attention.dense.weight", {WIDTH, WIDTH}},
    {NEOX, "gpt_neox.layers.#.mlp.dense_h_to_4h.weight", {FFN, WIDTH}},
    {NEOX, "gpt_neox.layers.#.mlp.dense_h_to_4h.bias", {FFN}},
    {NEOX, "gpt_neox.layers.#.mlp.dense_4h_to_h.weight", {WIDTH, FFN}},
    {NEOX, "gpt_neox.layers.#.mlp.dense_4h_to_h.bias", {WIDTH}},
    {NEOX, "gpt_neox.final_layer_norm.weight", {WIDTH}},
    {NEOX, "gpt_neox.final_layer_norm.bias", {WIDTH}},
    {NEOX_BIASES, "gpt_neox.layers.#.attention.query_key_value.bias", {THREE}},
    {NEOX_BIASES, "gpt_neox.layers.#.attention.dense.bias", {WIDTH}},
    {NEOX_HEAD, "embed_out.weight", {VOCAB, WIDTH}},
    {OPT, "decoder.embed_tokens.weight", {VOCAB, WIDTH}},
    {OPT, "decoder.embed_positions.weight", {POSITIONS, WIDTH}},
    {OPT, "decoder.layers.#.self_attn_layer_norm.weight", {WIDTH}},
    {OPT, "decoder.layers.#.self_attn_layer_norm.bias", {WIDTH}},
    {OPT, "decoder.layers.#.final_layer_norm.weight", {WIDTH}},
    {OPT, "decoder.layers.#.final_layer_norm.bias", {WIDTH}},
    {OPT, "decoder.layers.#.self_attn.q_proj.weight", {QUERIES, WIDTH}},
    {OPT, "decoder.layers.#.self_attn.k_proj.weight", {KEYS, WIDTH}},
    {OPT, "decoder.layers.#.self_attn.v_proj.weight", {KEYS, WIDTH}},
    {OPT, "decoder.layers.#.self_attn.out_proj.weight", {WIDTH, QUERIES}},
    {OPT, "decoder.layers.#.fc1.weight", {FFN, WIDTH}},
    {OPT, "decoder.layers.#.fc2.weight", {WIDTH, FFN}},
    {OPT, "decoder.final_layer_norm.weight", {WIDTH}},
    {OPT, "decoder.final_layer_norm.bias", {WIDTH}},
    {OPT_BIASES, "decoder.layers.#.self_attn.q_proj.bias", {QUERIES}},
    {OPT_BIASES, "decoder.layers.#.self_attn.k_proj.bias", {KEYS}},
    {OPT_BIASES, "decoder.layers.#.self_attn.v_proj.bias", {KEYS}},
    {OPT_BIASES, "decoder.layers.#.self_attn.out_proj.bias", {WIDTH}},
    {OPT_BIASES, "decoder.layers.#.fc1.bias", {FFN}},
    {OPT_BIASES, "decoder.layers.#.fc2.bias", {WIDTH}},
    {HEAD, "lm_head.weight", {VOCAB, WIDTH}},
    {BUFFERS, "h.#.attn.bias", {NO_EXTENT}}, /* the causal mask */
    {BUFFERS, "h.#.attn.masked_bias", {NO_EXTENT}},
    {BUFFERS, "layers.#.self_attn.rotary_emb.inv_freq", {NO_EXTENT}},
    {BUFFERS, "gpt_neox.layers.#.attention.bias", {NO_EXTENT}},
    {BUFFERS, "gpt_neox.layers.#.attention.masked_bias", {NO_EXTENT}},
    {BUFFERS, "gpt_neox.layers.#.attention.rotary_emb.inv_freq", {NO_EXTENT}},
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

/* Ways to name a model's tensors, as bits. */
enum { BY_OLD = 1, BY_NEOX = 2, BY_OPT = 4, BY_NEW = 8, BY_ALL = 15 };

/* The ways whose models may have tensors of a group. */
static const uint32_t named_by[GROUPS] = {
    [OLD] = BY_OLD,        [NEOX] = BY_NEOX,         [OPT] = BY_OPT,
    [NEW] = BY_NEW,        [SEPARATE] = BY_NEW,      [FUSED] = BY_NEW,
    [DENSE] = BY_NEW,      [DOWN] = BY_NEW,          [MIXTRAL] = BY_NEW,
    [QWEN_MOE] = BY_NEW,   [HEAD_NORMS] = BY_NEW,    [POST_NORMS] = BY_NEW,
    [QKV_BIASES] = BY_NEW, [OUTPUT_BIASES] = BY_NEW, [NEOX_BIASES] = BY_NEOX,
    [OPT_BIASES] = BY_OPT, [NEOX_HEAD] = BY_NEOX,    [HEAD] = BY_OLD | BY_OPT | BY_NEW,
    [BUFFERS] = BY_ALL};

/* True for the tensors of one model, as far as groups tell. */
static bool is_one_model(const tally *all)
{
    const bool *has = all->has;
    uint32_t ways = BY_ALL;
    for (int of = 0; of < GROUPS; of++) {
        ways &= has[of] ? named_by[of] : BY_ALL;
    }
    const bool joined = has[DENSE] || has[FUSED];
    return (ways == BY_OLD && has[OLD]) || (ways == BY_NEOX && has[NEOX]) ||
           (ways == BY_OPT && has[OPT]) ||
           (ways == BY_NEW && has[NEW] && has[SEPARATE] != has[FUSED] && has[DOWN] == joined &&
            has[DENSE] + has[FUSED] + has[MIXTRAL] + has[QWEN_MOE] == 1);
}

/* Find the extents of matrices that are stored as one. */
static zero_status split_joined(tally *all)
{
    uint64_t *extents = all->extents;
    if (all->has[OLD] || all->has[NEOX]) {
        if (extents[THREE] != 3 * extents[WIDTH]) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s: \"%s\" has %" PRIu64 " outputs; 3 x %" PRIu64 " were expected",
                    all->weights->path, all->has[OLD] ? "attn.c_attn" : "attention.query_key_value",
                    extents[THREE], extents[WIDTH]);
        }
        extents[QUERIES] = extents[WIDTH];
        extents[KEYS] = extents[WIDTH];
    }
    if (all->has[FUSED]) {
        const uint64_t others = extents[ALL_HEADS] - extents[QUERIES];
        if (extents[ALL_HEADS] <= extents[QUERIES] || others % 2 != 0 ||
            extents[TWO_FFN] != 2 * extents[FFN]) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s: \"qkv_proj\" has %" PRIu64 " outputs, of which %" PRIu64
                    " are queries, and \"gate_up_proj\" %" PRIu64
                    "; keys as many as values and 2 x %" PRIu64 " were expected",
                    all->weights->path, extents[ALL_HEADS], extents[QUERIES], extents[TWO_FFN],
                    extents[FFN]);
        }
        extents[KEYS] = others / 2;
    }
    return ZERO_OK;
}

static zero_status transformer_weights_check_groups(const tally *all)
{
    if (!is_one_model(all)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: its tensors are not those of one model of the types gpt2, gpt_neox, opt, "
                "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma2, gemma3_text or phi3",
                all->weights->path);
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
    static const struct {
        group of;
        uint32_t flags;
    } told[] = {
        {OLD, ZERO_TRANSFORMER_BIASES},
        {NEOX, ZERO_TRANSFORMER_NORM_BIASES | ZERO_TRANSFORMER_FFN_BIASES},
        {NEOX_BIASES, ZERO_TRANSFORMER_QKV_BIASES | ZERO_TRANSFORMER_OUTPUT_BIASES},
        {OPT_BIASES, ZERO_TRANSFORMER_BIASES},
        {NEW, ZERO_TRANSFORMER_GATED},
        {HEAD_NORMS, ZERO_TRANSFORMER_HEAD_NORMS},
        {POST_NORMS, ZERO_TRANSFORMER_POST_NORMS},
        {QKV_BIASES, ZERO_TRANSFORMER_QKV_BIASES},
        {OUTPUT_BIASES, ZERO_TRANSFORMER_OUTPUT_BIASES},
    };
    uint32_t flags = all->has[HEAD] || all->has[NEOX_HEAD] ? 0 : ZERO_TRANSFORMER_TIED_HEAD;
    flags |= all->has[OPT] && !all->has[OPT_BIASES] ? ZERO_TRANSFORMER_NORM_BIASES : 0;
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        flags |= all->has[told[i].of] ? told[i].flags : 0;
    }
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
        {"heads x head_width", c.heads * c.head_width, extents[QUERIES]},
        {"kv_heads x head_width", c.kv_heads * c.head_width, extents[KEYS]},
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
    /* No tensor tells if both halves read one stream. */
    t->flags |= all->has[NEOX] ? config->flags & ZERO_TRANSFORMER_PARALLEL : 0;
    ZI_TRY(transformer_weights_compare(all, config, t));
    t->heads = config->heads;
    t->kv_heads = config->kv_heads;
    t->head_width = config->head_width;
    t->sequence = config->sequence;
    t->experts_used = config->experts_used;
    t->window = config->window;
    t->full_every = config->full_every;
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
    ZI_TRY(split_joined(&all));
    const group head = all.has[NEOX] ? NEOX_HEAD : HEAD;
    if (all.has[head] && config != NULL && (config->flags & ZERO_TRANSFORMER_TIED_HEAD) != 0) {
        all.has[head] = false; /* a second copy of the token embedding, as some writers have it */
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
