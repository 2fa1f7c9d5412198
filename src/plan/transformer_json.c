/* Owns reading a config.json, as model hubs have it, into a transformer. Invariant: what a
 * zero_transformer cannot describe is refused, never left out. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "plan/transformer_files.h"

/* The properties of a model type, whatever its file says, and its defaults for keys that a file
 * leaves out. These are the defaults of the types' configurations in transformers 5;
 * scripts/check_configs.py compares. */
typedef struct family {
    const char *type;
    uint32_t flags;
    bool tied;              /* unless the file says otherwise */
    bool old_names;         /* n_layer rather than num_hidden_layers */
    bool experts;           /* blocks choose from them */
    uint64_t head_width;    /* if the key is missing; 0: width / heads */
    uint64_t kv_heads;      /* if the key is missing, not if it is null; 0: as many as heads */
    const char *expert_ffn; /* the key of their inner width; NULL: of every ffn's */
} family;

#define GATED ZERO_TRANSFORMER_GATED
#define QWEN2 (GATED | ZERO_TRANSFORMER_QKV_BIASES)
#define QWEN3 (GATED | ZERO_TRANSFORMER_HEAD_NORMS)

static const family families[] = {
    {"gpt2", ZERO_TRANSFORMER_BIASES, true, true, false, 0, 0, NULL},
    {"llama", GATED, false, false, false, 0, 0, NULL},
    {"mistral", GATED, false, false, false, 0, 8, NULL},
    {"mixtral", GATED, false, false, true, 0, 8, NULL},
    {"qwen2", QWEN2, false, false, false, 0, 32, NULL},
    {"qwen3", QWEN3, false, false, false, 128, 32, NULL},
    {"qwen3_moe", QWEN3, false, false, true, 0, 4, "moe_intermediate_size"},
};
#define FAMILY_COUNT (sizeof families / sizeof families[0])

static zero_status find_family(const zi_json *json, const family **found)
{
    const char *type = NULL;
    char names[128] = "";
    size_t used = 0;
    ZI_TRY(zi_json_text(json, (zi_json_key){.name = "model_type", .required = true}, &type));
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(families[i].type, type) == 0) {
            *found = &families[i];
            return ZERO_OK;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ",
                                 families[i].type);
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "\"model_type\" of %s is \"%.64s\"; the types known are %s: set the dimensions instead "
            "(zero plan layers=N,width=N,...)",
            json->path, type, names);
}

/* A dimension and its key, by the old names and the new ones; NULL: there is none. */
typedef struct dimension {
    const char *name[2];
    size_t offset;
    bool required[2];
} dimension;

#define FIELD(field) offsetof(zero_transformer, field)

static const dimension dimensions[] = {
    {{"num_hidden_layers", "n_layer"}, FIELD(layers), {true, true}},
    {{"hidden_size", "n_embd"}, FIELD(width), {true, true}},
    {{"num_attention_heads", "n_head"}, FIELD(heads), {true, true}},
    {{"num_key_value_heads", NULL}, FIELD(kv_heads), {false, false}},
    {{"head_dim", NULL}, FIELD(head_width), {false, false}},
    {{"intermediate_size", "n_inner"}, FIELD(ffn_width), {true, false}},
    {{"vocab_size", "vocab_size"}, FIELD(vocab), {true, true}},
    {{NULL, "n_positions"}, FIELD(positions), {false, true}},
    {{"max_position_embeddings", "n_positions"}, FIELD(sequence), {true, true}},
};

/* Upper bounds are those of zero_transformer_check, which names them. A 0 would be its default,
 * and in a file it is none. */
static zero_status transformer_json_read_number(const zi_json *json, const char *name,
                                                bool required, uint64_t *value)
{
    return zi_json_number(json, (zi_json_key){name, required, 1, INT64_MAX}, value);
}

/* Their number has two names: newer files of a type have the other one. */
static zero_status read_experts(const zi_json *json, zero_transformer *t)
{
    uint64_t local = 0;
    ZI_TRY(transformer_json_read_number(json, "num_experts", false, &t->experts));
    ZI_TRY(transformer_json_read_number(json, "num_local_experts", false, &local));
    if (t->experts == 0 && local == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s has no \"num_experts\" or \"num_local_experts\"",
                json->path);
    }
    if (t->experts != 0 && local != 0 && t->experts != local) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s has \"num_experts\" %" PRIu64 " and \"num_local_experts\" %" PRIu64
                "; leave the one out that is wrong",
                json->path, t->experts, local);
    }
    t->experts = t->experts != 0 ? t->experts : local;
    return transformer_json_read_number(json, "num_experts_per_tok", true, &t->experts_used);
}

static zero_status read_dimensions(const zi_json *json, const family *kind, zero_transformer *t)
{
    for (size_t i = 0; i < sizeof dimensions / sizeof dimensions[0]; i++) {
        const dimension *d = &dimensions[i];
        const char *name = d->name[kind->old_names];
        uint64_t *value = (uint64_t *)(void *)((unsigned char *)t + d->offset);
        if (name != NULL) {
            ZI_TRY(transformer_json_read_number(json, name, d->required[kind->old_names], value));
        }
    }
    if (json_object_get(json->root, "num_key_value_heads") == NULL) {
        t->kv_heads = kind->kv_heads;
    }
    if (kind->experts) {
        ZI_TRY(read_experts(json, t));
    }
    if (kind->expert_ffn != NULL) {
        ZI_TRY(transformer_json_read_number(json, kind->expert_ffn, true, &t->ffn_width));
    }
    return ZERO_OK;
}

static zero_status read_dtype(const zi_json *json, zero_dtype *dtype)
{
    static const struct {
        const char *name;
        zero_dtype dtype;
    } types[] = {
        {"float32", ZERO_DTYPE_F32}, {"bfloat16", ZERO_DTYPE_BF16}, {"float16", ZERO_DTYPE_F16}};
    const char *name = "float32";
    ZI_TRY(zi_json_text(json, (zi_json_key){.name = "torch_dtype"}, &name));
    ZI_TRY(zi_json_text(json, (zi_json_key){.name = "dtype"}, &name));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, name) == 0) {
            *dtype = types[i].dtype;
            return ZERO_OK;
        }
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "the type of parameters in %s is \"%.64s\"; float32, bfloat16 and float16 are known",
            json->path, name);
}

/* A feature that is there unless its key is missing, null, false or empty. */
static bool is_set(const zi_json *json, const char *name)
{
    const json_t *value = json_object_get(json->root, name);
    return value != NULL && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_array(value) && json_array_size(value) == 0) &&
           !(json_is_object(value) && json_object_size(value) == 0);
}

/* A language model's name ends so. Others have another head, or none. */
static bool is_language_model(const char *architecture)
{
    static const char *const ends[] = {"ForCausalLM", "LMHeadModel"};
    const size_t length = strlen(architecture);
    bool found = false;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t end = strlen(ends[i]);
        found = found || (length >= end && strcmp(architecture + length - end, ends[i]) == 0);
    }
    return found;
}

static zero_status check_architectures(const zi_json *json)
{
    const json_t *names = json_object_get(json->root, "architectures");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (name == NULL || !is_language_model(name)) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "\"architectures\" of %s has \"%.64s\", which has another head than a "
                    "language model, or none; name one that ends in ForCausalLM or LMHeadModel",
                    json->path, name != NULL ? name : "");
        }
    }
    return ZERO_OK;
}

/* Features that change a model's tensors in ways that a zero_transformer has no field for. */
static zero_status refuse_others(const zi_json *json)
{
    static const char *const flags[] = {"attention_bias", "mlp_bias", "add_cross_attention"};
    static const char *const others[] = {"mlp_only_layers", "pruned_heads", "quantization_config"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        bool set = false;
        ZI_TRY(zi_json_flag(json, (zi_json_key){.name = flags[i]}, &set));
        if (set) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "\"%s\" of %s is true, which no zero_transformer describes", flags[i],
                    json->path);
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (is_set(json, others[i])) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s has \"%s\", which changes tensors as no zero_transformer describes; plan "
                    "the model without it",
                    json->path, others[i]);
        }
    }
    uint64_t every = 1;
    ZI_TRY(transformer_json_read_number(json, "decoder_sparse_step", false, &every));
    if (every != 1) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s has experts in some of its blocks only (\"decoder_sparse_step\" %" PRIu64
                "), which no zero_transformer describes",
                json->path, every);
    }
    return check_architectures(json);
}

zero_status zi_transformer_of_config(const zi_json *json, zero_transformer *t)
{
    *t = (zero_transformer){.struct_bytes = sizeof *t};
    const family *kind = families;
    ZI_TRY(find_family(json, &kind));
    bool tied = kind->tied;
    t->head_width = kind->head_width;
    ZI_TRY(read_dimensions(json, kind, t));
    ZI_TRY(zi_json_flag(json, (zi_json_key){.name = "tie_word_embeddings"}, &tied));
    ZI_TRY(read_dtype(json, &t->dtype));
    ZI_TRY(refuse_others(json));
    t->flags = kind->flags | (tied ? (uint32_t)ZERO_TRANSFORMER_TIED_HEAD : 0);
    return zero_transformer_check(t);
}
