/* Owns the model types of config.json: which keys have their dimensions, what they are without a
 * key, and what each type has whatever its file says. Defaults are those of the types'
 * configurations in transformers 5; scripts/check_configs.py compares. Invariant: what a
 * zero_transformer cannot describe is refused by its key. */
#include "plan/transformer_families.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sizes.h"

/* ---- keys ---- */

/* A dimension and its key. */
typedef struct dimension {
    const char *name;
    size_t offset;
    bool required;
    uint64_t otherwise; /* if the key is missing, not if it is null */
} dimension;

#define FIELD(field) offsetof(zero_transformer, field)
#define KEYS_MAX 16

/* A 0 would be a field's default, and in a file it is none. */
static zero_status read_number(const zi_json *json, const char *name, bool required,
                               uint64_t *value)
{
    return zi_json_number(json, (zi_json_key){name, required, 1, INT64_MAX}, value);
}

/* A number of things that there may be none of. */
static zero_status read_count(const zi_json *json, const char *name, uint64_t otherwise,
                              uint64_t *value)
{
    const bool there = json_object_get(json->root, name) != NULL;
    *value = there ? 0 : otherwise;
    return zi_json_number(json, (zi_json_key){name, false, 0, INT64_MAX}, value);
}

static zero_status read_flag(const zi_json *json, const char *name, bool otherwise, bool *value)
{
    *value = otherwise;
    return zi_json_flag(json, (zi_json_key){.name = name}, value);
}

static zero_status refuse_key(const zi_json *json, const char *name, const char *why)
{
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s %s, which no zero_transformer describes", name,
            json->path, why);
}

static zero_status read_keys(const zi_json *json, const dimension keys[KEYS_MAX],
                             zero_transformer *t)
{
    for (size_t i = 0; i < KEYS_MAX && keys[i].name != NULL; i++) {
        uint64_t *value = (uint64_t *)(void *)((unsigned char *)t + keys[i].offset);
        const bool there = json_object_get(json->root, keys[i].name) != NULL;
        ZI_TRY(read_number(json, keys[i].name, keys[i].required, value));
        *value = there ? *value : keys[i].otherwise;
    }
    return ZERO_OK;
}

/* ---- experts ---- */

/* Their number has two names: newer files of a type have the other one. */
static zero_status read_experts(const zi_json *json, const char *name, zero_transformer *t)
{
    uint64_t local = 0;
    ZI_TRY(read_number(json, name, false, &t->experts));
    ZI_TRY(read_number(json, "num_local_experts", false, &local));
    if (t->experts == 0 && local == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s has no \"%s\" or \"num_local_experts\"", json->path,
                name);
    }
    if (t->experts != 0 && local != 0 && t->experts != local) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s has \"%s\" %" PRIu64 " and \"num_local_experts\" %" PRIu64
                "; leave the one out that is wrong",
                json->path, name, t->experts, local);
    }
    t->experts = t->experts != 0 ? t->experts : local;
    return read_number(json, "num_experts_per_tok", true, &t->experts_used);
}

static zero_status read_mixtral(const zi_json *json, zero_transformer *t)
{
    return read_experts(json, "num_experts", t);
}

static zero_status read_qwen3_moe(const zi_json *json, zero_transformer *t)
{
    ZI_TRY(read_experts(json, "num_experts", t));
    return read_number(json, "moe_intermediate_size", true, &t->ffn_width);
}

/* Experts behind a few blocks without, and shared ones. */
static zero_status read_shared_experts(const zi_json *json, uint64_t dense_layers,
                                       zero_transformer *t)
{
    uint64_t shared = 0;
    uint64_t every = 1;
    ZI_TRY(read_experts(json, "n_routed_experts", t));
    t->dense_ffn_width = t->ffn_width;
    ZI_TRY(read_number(json, "moe_intermediate_size", true, &t->ffn_width));
    ZI_TRY(read_count(json, "n_shared_experts", 1, &shared));
    ZI_TRY(read_count(json, "first_k_dense_replace", dense_layers, &t->dense_layers));
    ZI_TRY(read_number(json, "moe_layer_freq", false, &every));
    if (every != 1) {
        return refuse_key(json, "moe_layer_freq", "is not 1");
    }
    if (__builtin_mul_overflow(shared, t->ffn_width, &t->shared_ffn_width)) {
        return refuse_key(json, "n_shared_experts", "is too large a number");
    }
    return ZERO_OK;
}

static zero_status read_deepseek(const zi_json *json, zero_transformer *t)
{
    uint64_t plain = 0; /* elements of a head without rotary positions */
    ZI_TRY(read_shared_experts(json, 3, t));
    ZI_TRY(read_number(json, "kv_lora_rank", true, &t->kv_rank));
    ZI_TRY(read_count(json, "q_lora_rank", 1536, &t->query_rank));
    ZI_TRY(read_number(json, "qk_rope_head_dim", true, &t->rope_width));
    ZI_TRY(read_number(json, "qk_nope_head_dim", true, &plain));
    ZI_TRY(read_number(json, "v_head_dim", true, &t->value_width));
    if (__builtin_add_overflow(plain, t->rope_width, &t->head_width)) {
        return refuse_key(json, "qk_nope_head_dim", "is too large a number");
    }
    return ZERO_OK;
}

static zero_status read_glm(const zi_json *json, zero_transformer *t)
{
    bool norms = false;
    ZI_TRY(read_shared_experts(json, 1, t));
    ZI_TRY(read_flag(json, "use_qk_norm", false, &norms));
    t->flags |= norms ? (uint32_t)ZERO_TRANSFORMER_HEAD_NORMS : 0;
    return ZERO_OK;
}

/* ---- windows ---- */

/* True if block `i` attends to all, by an entry of a list: the name of its attention, or 0 where it
 * has no rotary positions. */
static zero_status is_full(const zi_json *json, const char *name, const json_t *entry, bool *full)
{
    const char *text = json_string_value(entry);
    *full = text != NULL ? strcmp(text, "full_attention") == 0 : json_integer_value(entry) == 0;
    if (text == NULL ? !json_is_integer(entry)
                     : !*full && strcmp(text, "sliding_attention") != 0 &&
                           strcmp(text, "chunked_attention") != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "\"%s\" of %s has \"%.64s\"; full_attention, sliding_attention and "
                "chunked_attention are known",
                name, json->path, text != NULL ? text : "something else");
    }
    return ZERO_OK;
}

/* Find after how many blocks one attends to all. */
static zero_status read_pattern(const zi_json *json, const char *name, zero_transformer *t)
{
    const json_t *list = json_object_get(json->root, name);
    const size_t count = json_array_size(list);
    uint64_t every = 0;
    if (count != t->layers) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s has %zu entries for %" PRIu64 " blocks",
                name, json->path, count, t->layers);
    }
    for (size_t i = 0; i < count; i++) {
        bool full = false;
        ZI_TRY(is_full(json, name, json_array_get(list, i), &full));
        every = full && every == 0 ? i + 1 : every;
        if (full != (every != 0 && (i + 1) % every == 0)) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "\"%s\" of %s: block %zu breaks the pattern of those before, and a "
                    "zero_transformer attends to all in every n-th block alone",
                    name, json->path, i);
        }
    }
    t->full_every = every;
    return ZERO_OK;
}

static bool has_entries(const zi_json *json, const char *name)
{
    return json_array_size(json_object_get(json->root, name)) != 0;
}

/* - key: of the window; it is `otherwise` where the key is missing.
 * - every: of the blocks, if no list says so. */
static zero_status read_window(const zi_json *json, const char *key, uint64_t otherwise,
                               uint64_t every, zero_transformer *t)
{
    const bool there = json_object_get(json->root, key) != NULL;
    ZI_TRY(read_number(json, key, false, &t->window));
    t->window = there ? t->window : otherwise;
    t->full_every = every;
    if (has_entries(json, "layer_types")) {
        ZI_TRY(read_pattern(json, "layer_types", t));
    } else if (has_entries(json, "no_rope_layers")) {
        ZI_TRY(read_pattern(json, "no_rope_layers", t));
    }
    if (t->window == 0 || t->full_every == 1) {
        t->window = 0;
        t->full_every = 0;
    }
    return ZERO_OK;
}

static zero_status read_gemma2(const zi_json *json, zero_transformer *t)
{
    return read_window(json, "sliding_window", 4096, 2, t);
}

static zero_status read_gemma3(const zi_json *json, zero_transformer *t)
{
    uint64_t every = 6;
    ZI_TRY(read_number(json, "sliding_window_pattern", false, &every));
    return read_window(json, "sliding_window", 4096, every, t);
}

static zero_status read_gpt_oss(const zi_json *json, zero_transformer *t)
{
    ZI_TRY(read_experts(json, "num_experts", t));
    return read_window(json, "sliding_window", 128, 2, t);
}

static zero_status read_phi3(const zi_json *json, zero_transformer *t)
{
    return read_window(json, "sliding_window", 0, 0, t);
}

/* Experts are in each n-th block, or in those of a list, which must be the same. */
static zero_status read_expert_blocks(const zi_json *json, zero_transformer *t)
{
    const json_t *list = json_object_get(json->root, "moe_layers");
    uint64_t every = 1;
    ZI_TRY(read_number(json, "interleave_moe_layer_step", false, &every));
    t->expert_every = every;
    bool alike = !json_is_array(list) || json_array_size(list) == t->layers / every;
    for (size_t i = 0; i < json_array_size(list) && alike; i++) {
        const json_int_t block = json_integer_value(json_array_get(list, i));
        alike = block >= 0 && (uint64_t)block == (i + 1) * every - 1;
    }
    return alike ? ZERO_OK
                 : refuse_key(json, "moe_layers",
                              "is not each n-th block, with n of "
                              "\"interleave_moe_layer_step\"");
}

static zero_status read_llama4(const zi_json *json, zero_transformer *t)
{
    uint64_t every = 4;
    ZI_TRY(read_number(json, "num_local_experts", true, &t->experts));
    ZI_TRY(read_number(json, "num_experts_per_tok", true, &t->experts_used));
    ZI_TRY(read_number(json, "intermediate_size_mlp", true, &t->dense_ffn_width));
    ZI_TRY(read_expert_blocks(json, t));
    t->shared_ffn_width = t->ffn_width;
    ZI_TRY(read_number(json, "no_rope_layer_interval", false, &every));
    ZI_TRY(read_window(json, "attention_chunk_size", 8192, every, t));
    t->flags |= t->window != 0 ? (uint32_t)ZERO_TRANSFORMER_CHUNKED : 0;
    return ZERO_OK;
}

/* ---- older decoders ---- */

static zero_status read_gpt_neox(const zi_json *json, zero_transformer *t)
{
    bool parallel = true;
    ZI_TRY(read_flag(json, "use_parallel_residual", true, &parallel));
    t->flags |= parallel ? (uint32_t)ZERO_TRANSFORMER_PARALLEL : 0;
    return ZERO_OK;
}

/* Two rows of its position embedding are never looked up. */
#define OPT_MORE_POSITIONS 2

static zero_status read_opt(const zi_json *json, zero_transformer *t)
{
    bool biases = true;
    bool before = true;
    bool affine = true;
    bool headless = false;
    uint64_t embedded = t->width;
    ZI_TRY(read_flag(json, "enable_bias", true, &biases));
    ZI_TRY(read_flag(json, "do_layer_norm_before", true, &before));
    ZI_TRY(read_flag(json, "layer_norm_elementwise_affine", true, &affine));
    ZI_TRY(read_flag(json, "_remove_final_layer_norm", false, &headless));
    ZI_TRY(read_number(json, "word_embed_proj_dim", false, &embedded));
    if (!before) {
        return refuse_key(json, "do_layer_norm_before", "is false");
    }
    if (!affine) {
        return refuse_key(json, "layer_norm_elementwise_affine", "is false");
    }
    if (headless) {
        return refuse_key(json, "_remove_final_layer_norm", "is true");
    }
    if (embedded != t->width) {
        return refuse_key(json, "word_embed_proj_dim", "differs from \"hidden_size\"");
    }
    t->flags = biases ? ZERO_TRANSFORMER_BIASES : ZERO_TRANSFORMER_NORM_BIASES;
    t->positions = t->sequence + OPT_MORE_POSITIONS;
    return ZERO_OK;
}

static zero_status read_falcon(const zi_json *json, zero_transformer *t)
{
    bool newer = false;
    bool one_key = true;
    bool parallel = true;
    bool biases = false;
    uint64_t norms = 0;
    ZI_TRY(read_flag(json, "new_decoder_architecture", false, &newer));
    ZI_TRY(read_flag(json, "multi_query", true, &one_key));
    ZI_TRY(read_flag(json, "parallel_attn", true, &parallel));
    ZI_TRY(read_flag(json, "bias", false, &biases));
    ZI_TRY(read_number(json, "num_ln_in_parallel_attn", false, &norms));
    if (newer) {
        ZI_TRY(read_number(json, "num_kv_heads", false, &t->kv_heads));
        norms = norms != 0 ? norms : 2;
    } else {
        t->kv_heads = one_key ? 1 : 0;
    }
    t->flags = biases ? ZERO_TRANSFORMER_BIASES : ZERO_TRANSFORMER_NORM_BIASES;
    t->flags |= parallel ? (uint32_t)ZERO_TRANSFORMER_PARALLEL : 0;
    t->flags |= parallel && norms != 2 ? (uint32_t)ZERO_TRANSFORMER_ONE_NORM : 0;
    return ZERO_OK;
}

/* ---- types ---- */

#define LAYERS                                      \
    {                                               \
        "num_hidden_layers", FIELD(layers), true, 0 \
    }
#define WIDTH                                \
    {                                        \
        "hidden_size", FIELD(width), true, 0 \
    }
#define HEADS                                        \
    {                                                \
        "num_attention_heads", FIELD(heads), true, 0 \
    }
#define KV_HEADS(otherwise)                                      \
    {                                                            \
        "num_key_value_heads", FIELD(kv_heads), false, otherwise \
    }
#define HEAD_WIDTH(otherwise)                           \
    {                                                   \
        "head_dim", FIELD(head_width), false, otherwise \
    }
#define FFN_WIDTH                                      \
    {                                                  \
        "intermediate_size", FIELD(ffn_width), true, 0 \
    }
#define VOCAB                               \
    {                                       \
        "vocab_size", FIELD(vocab), true, 0 \
    }
#define SEQUENCE                                            \
    {                                                       \
        "max_position_embeddings", FIELD(sequence), true, 0 \
    }
/* kv_heads, head_width: without their keys. */
#define DECODER(kv_heads, head_width)                                                       \
    {                                                                                       \
        LAYERS, WIDTH, HEADS, KV_HEADS(kv_heads), HEAD_WIDTH(head_width), FFN_WIDTH, VOCAB, \
            SEQUENCE                                                                        \
    }

typedef struct zi_family {
    const char *type;
    uint32_t flags;
    bool tied;                 /* unless the file says otherwise */
    bool attention_bias;       /* likewise */
    uint32_t attention_biases; /* flags where "attention_bias" is true; 0: that is refused */
    zero_status (*read)(const zi_json *json, zero_transformer *t); /* NULL: keys are all */
    dimension keys[KEYS_MAX];
} zi_family;

#define GATED ZERO_TRANSFORMER_GATED
#define QKV ZERO_TRANSFORMER_QKV_BIASES
#define ATTENTION (QKV | ZERO_TRANSFORMER_OUTPUT_BIASES)
#define HEAD_NORMS ZERO_TRANSFORMER_HEAD_NORMS
#define GEMMA (GATED | ZERO_TRANSFORMER_POST_NORMS)
#define OSS \
    (GATED | ZERO_TRANSFORMER_FFN_BIASES | ZERO_TRANSFORMER_ROUTER_BIASES | ZERO_TRANSFORMER_SINKS)
#define NEOX (ZERO_TRANSFORMER_NORM_BIASES | ZERO_TRANSFORMER_FFN_BIASES)

/* Keys of latent attention, which has no other number of key heads and names its widths itself. */
#define DEEPSEEK_KEYS                                                 \
    {                                                                 \
        LAYERS, WIDTH, HEADS, KV_HEADS(0), FFN_WIDTH, VOCAB, SEQUENCE \
    }

static const zi_family families[] = {
    {"gpt2",
     ZERO_TRANSFORMER_BIASES,
     true,
     false,
     0,
     NULL,
     {{"n_layer", FIELD(layers), true, 0},
      {"n_embd", FIELD(width), true, 0},
      {"n_head", FIELD(heads), true, 0},
      {"n_inner", FIELD(ffn_width), false, 0},
      VOCAB,
      {"n_positions", FIELD(positions), true, 0},
      {"n_positions", FIELD(sequence), true, 0}}},
    {"llama", GATED, false, false, 0, NULL, DECODER(0, 0)},
    {"mistral", GATED, false, false, 0, NULL, DECODER(8, 0)},
    {"mixtral", GATED, false, false, 0, read_mixtral, DECODER(8, 0)},
    {"qwen2", GATED | QKV, false, false, 0, NULL, DECODER(32, 0)},
    {"qwen3", GATED | HEAD_NORMS, false, false, 0, NULL, DECODER(32, 128)},
    {"qwen3_moe", GATED | HEAD_NORMS, false, false, 0, read_qwen3_moe, DECODER(4, 0)},
    {"deepseek_v3", GATED, false, false, 0, read_deepseek, DEEPSEEK_KEYS},
    {"kimi_k2", GATED, false, false, 0, read_deepseek, DEEPSEEK_KEYS},
    {"llama4_text", GATED, false, false, ATTENTION, read_llama4, DECODER(8, 128)},
    {"gemma2", GEMMA, true, false, ATTENTION, read_gemma2, DECODER(4, 256)},
    {"gemma3_text",
     GEMMA | HEAD_NORMS,
     true,
     false,
     ATTENTION,
     read_gemma3,
     {LAYERS,
      WIDTH,
      FFN_WIDTH,
      KV_HEADS(4),
      HEAD_WIDTH(256),
      {"num_attention_heads", FIELD(heads), false, 8},
      {"vocab_size", FIELD(vocab), false, 262208},
      {"max_position_embeddings", FIELD(sequence), false, 131072}}},
    {"phi3", GATED, false, false, 0, read_phi3, DECODER(0, 0)},
    {"gpt_oss", OSS, false, true, ATTENTION, read_gpt_oss, DECODER(8, 64)},
    {"gpt_neox",
     NEOX,
     false,
     true,
     ATTENTION,
     read_gpt_neox,
     {LAYERS, WIDTH, HEADS, FFN_WIDTH, VOCAB, SEQUENCE}},
    {"opt",
     0,
     true,
     false,
     0,
     read_opt,
     {LAYERS, WIDTH, HEADS, VOCAB, SEQUENCE, {"ffn_dim", FIELD(ffn_width), true, 0}}},
    {"falcon",
     0,
     true,
     false,
     0,
     read_falcon,
     {LAYERS,
      WIDTH,
      HEADS,
      VOCAB,
      {"ffn_hidden_size", FIELD(ffn_width), false, 0},
      {"max_position_embeddings", FIELD(sequence), false, 2048}}},
    {"glm4_moe", GATED, false, false, QKV, read_glm, DECODER(8, 0)},
};
#define FAMILY_COUNT (sizeof families / sizeof families[0])

zero_status zi_family_find(const zi_json *json, const char *type, const zi_family **found)
{
    char names[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(families[i].type, type) == 0) {
            *found = &families[i];
            return ZERO_OK;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s, ", families[i].type);
    }
    ZI_FAIL(
        ZERO_ERR_INVALID_ARGUMENT,
        "\"model_type\" of %s is \"%.64s\": set the dimensions (zero plan layers=N,width=N,...);"
        " known are %sllama4, gemma3",
        json->path, type, names);
}

zero_status zi_family_read(const zi_family *family, const zi_json *json, zero_transformer *t)
{
    bool biases = family->attention_bias;
    bool tied = family->tied;
    t->flags = family->flags;
    ZI_TRY(read_keys(json, family->keys, t));
    if (family->read != NULL) {
        ZI_TRY(family->read(json, t));
    }
    ZI_TRY(zi_json_flag(json, (zi_json_key){.name = "attention_bias"}, &biases));
    if (biases && family->attention_biases == 0) {
        return refuse_key(json, "attention_bias", "is true");
    }
    ZI_TRY(zi_json_flag(json, (zi_json_key){.name = "tie_word_embeddings"}, &tied));
    t->flags |=
        (biases ? family->attention_biases : 0) | (tied ? (uint32_t)ZERO_TRANSFORMER_TIED_HEAD : 0);
    return ZERO_OK;
}
