/* Owns reading a config.json, as model hubs have it, into a transformer: what belongs to no type of
 * model. Invariant: what a zero_transformer cannot describe is refused, or named in `left_out`. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "core/error.h"
#include "plan/transformer_families.h"
#include "plan/transformer_files.h"

/* text: the part that describes the text model, which may leave it to all of the file. */
static zero_status read_dtype(const zi_json *json, const zi_json *text, zero_dtype *dtype)
{
    static const struct {
        const char *name;
        zero_dtype dtype;
    } types[] = {
        {"float32", ZERO_DTYPE_F32}, {"bfloat16", ZERO_DTYPE_BF16}, {"float16", ZERO_DTYPE_F16}};
    const char *name = "float32";
    ZI_TRY(zi_json_text(json, (zi_json_key){.name = "torch_dtype"}, &name));
    ZI_TRY(zi_json_text(json, (zi_json_key){.name = "dtype"}, &name));
    ZI_TRY(zi_json_text(text, (zi_json_key){.name = "torch_dtype"}, &name));
    ZI_TRY(zi_json_text(text, (zi_json_key){.name = "dtype"}, &name));
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

/* A language model's name ends so, and that of one with towers. Others have another head, or none.
 */
static bool is_language_model(const char *architecture, bool towers)
{
    static const char *const ends[] = {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"};
    const size_t length = strlen(architecture);
    bool found = false;
    for (size_t i = 0; i < (towers ? 3 : 2); i++) {
        const size_t end = strlen(ends[i]);
        found = found || (length >= end && strcmp(architecture + length - end, ends[i]) == 0);
    }
    return found;
}

static zero_status check_architectures(const zi_json *json, bool towers)
{
    const json_t *names = json_object_get(json->root, "architectures");
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        if (name == NULL || !is_language_model(name, towers)) {
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
    static const char *const flags[] = {"mlp_bias", "add_cross_attention"};
    static const char *const others[] = {"mlp_only_layers", "pruned_heads"};
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
    ZI_TRY(zi_json_number(json, (zi_json_key){"decoder_sparse_step", false, 1, INT64_MAX}, &every));
    if (every != 1) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s has experts in some of its blocks only (\"decoder_sparse_step\" %" PRIu64
                "), which no zero_transformer describes",
                json->path, every);
    }
    return ZERO_OK;
}

/* Weights that are published in a quantised form and are trained in another: parameters are planned
 * without it. Other forms have tensors of their own. */
static zero_status read_quantization(const zi_json *json, uint64_t *left_out)
{
    static const char *const methods[] = {"fp8", "mxfp4"};
    const json_t *value = json_object_get(json->root, "quantization_config");
    const char *method = json_string_value(json_object_get(value, "quant_method"));
    if (!is_set(json, "quantization_config")) {
        return ZERO_OK;
    }
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (method != NULL && strcmp(method, methods[i]) == 0) {
            *left_out |= ZERO_TRANSFORMER_PART_QUANTIZED;
            return ZERO_OK;
        }
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "%s has a \"quantization_config\" of the method \"%.64s\"; fp8 and mxfp4 are known: "
            "plan the model without it",
            json->path, method != NULL ? method : "");
}

static zero_status read_predictors(const zi_json *json, uint64_t *left_out)
{
    static const char *const names[] = {"num_nextn_predict_layers", "num_mtp_layers"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        uint64_t count = 0;
        ZI_TRY(zi_json_number(json, (zi_json_key){names[i], false, 0, INT64_MAX}, &count));
        *left_out |= count != 0 ? ZERO_TRANSFORMER_PART_PREDICTORS : 0;
    }
    return ZERO_OK;
}

/* A model with towers. */
typedef struct wrapper {
    const char *type;
    const char *text_type;
    bool
        head; /* it has the head, which is tied unless it says otherwise; else the text model has */
} wrapper;

/* Find the text model in a file of all kinds. text: out; a part of json, or it itself. found: out,
 * NULL where there are no towers. */
static zero_status find_text(const zi_json *json, zi_json *text, const char **type,
                             const wrapper **found)
{
    static const wrapper wrappers[] = {{"llama4", "llama4_text", false},
                                       {"gemma3", "gemma3_text", true}};
    *text = *json;
    *found = NULL;
    ZI_TRY(zi_json_text(json, (zi_json_key){.name = "model_type", .required = true}, type));
    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++) {
        *found = strcmp(*type, wrappers[i].type) == 0 ? &wrappers[i] : *found;
    }
    if (*found == NULL) {
        return ZERO_OK;
    }
    text->root = json_object_get(json->root, "text_config");
    if (!json_is_object(text->root)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is of the type %s and has no \"text_config\", which has the dimensions of its "
                "text model",
                json->path, *type);
    }
    *type = (*found)->text_type;
    return zi_json_text(text, (zi_json_key){.name = "model_type"}, type);
}

static zero_status read_tied(const zi_json *json, uint32_t *flags)
{
    bool tied = true;
    ZI_TRY(zi_json_flag(json, (zi_json_key){.name = "tie_word_embeddings"}, &tied));
    *flags &= ~(uint32_t)ZERO_TRANSFORMER_TIED_HEAD;
    *flags |= tied ? (uint32_t)ZERO_TRANSFORMER_TIED_HEAD : 0;
    return ZERO_OK;
}

zero_status zi_transformer_of_config(const zi_json *json, zero_transformer *t)
{
    zi_json text;
    const zi_family *family = NULL;
    const wrapper *towers = NULL;
    const char *type = NULL;
    *t = (zero_transformer){.struct_bytes = sizeof *t};
    ZI_TRY(find_text(json, &text, &type, &towers));
    ZI_TRY(zi_family_find(&text, type, &family));
    ZI_TRY(zi_family_read(family, &text, t));
    if (towers != NULL) {
        t->left_out |= ZERO_TRANSFORMER_PART_TOWERS;
        ZI_TRY(towers->head ? read_tied(json, &t->flags) : ZERO_OK);
        ZI_TRY(read_quantization(&text, &t->left_out));
    }
    ZI_TRY(read_dtype(json, &text, &t->dtype));
    ZI_TRY(refuse_others(&text));
    ZI_TRY(check_architectures(json, towers != NULL));
    ZI_TRY(read_quantization(json, &t->left_out));
    ZI_TRY(read_predictors(&text, &t->left_out));
    return zero_transformer_check(t);
}
