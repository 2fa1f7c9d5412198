/* Owns the model of a line of `zero plan`: a preset, a file, or dimensions one by one. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bench_report.h"
#include "command_line.h"
#include "plan_report.h"

#define WORD_BYTES 1024

typedef struct dimension {
    const char *name;
    size_t offset; /* of a number; 0: a flag */
    uint32_t flag;
} dimension;

#define NUMBER(field)                                \
    {                                                \
#field, offsetof(zero_transformer, field), 0 \
    }

static const dimension dimensions[] = {
    NUMBER(layers),
    NUMBER(width),
    NUMBER(heads),
    NUMBER(kv_heads),
    NUMBER(head_width),
    NUMBER(ffn_width),
    NUMBER(vocab),
    NUMBER(positions),
    NUMBER(sequence),
    NUMBER(experts),
    NUMBER(experts_used),
    NUMBER(dense_layers),
    NUMBER(expert_every),
    NUMBER(dense_ffn_width),
    NUMBER(shared_ffn_width),
    NUMBER(kv_rank),
    NUMBER(query_rank),
    NUMBER(rope_width),
    NUMBER(value_width),
    NUMBER(window),
    NUMBER(full_every),
    {"tied_head", 0, ZERO_TRANSFORMER_TIED_HEAD},
    {"biases", 0, ZERO_TRANSFORMER_BIASES},
    {"qkv_biases", 0, ZERO_TRANSFORMER_QKV_BIASES},
    {"gated", 0, ZERO_TRANSFORMER_GATED},
    {"head_norms", 0, ZERO_TRANSFORMER_HEAD_NORMS},
    {"norm_biases", 0, ZERO_TRANSFORMER_NORM_BIASES},
    {"output_biases", 0, ZERO_TRANSFORMER_OUTPUT_BIASES},
    {"ffn_biases", 0, ZERO_TRANSFORMER_FFN_BIASES},
    {"router_biases", 0, ZERO_TRANSFORMER_ROUTER_BIASES},
    {"sinks", 0, ZERO_TRANSFORMER_SINKS},
    {"post_norms", 0, ZERO_TRANSFORMER_POST_NORMS},
    {"parallel", 0, ZERO_TRANSFORMER_PARALLEL},
    {"one_norm", 0, ZERO_TRANSFORMER_ONE_NORM},
    {"chunked", 0, ZERO_TRANSFORMER_CHUNKED},
};
#define DIMENSIONS (sizeof dimensions / sizeof dimensions[0])

static int set_dtype(const char *value, zero_transformer *t)
{
    static const zero_dtype types[] = {ZERO_DTYPE_F32, ZERO_DTYPE_BF16, ZERO_DTYPE_F16};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(zero_dtype_name(types[i]), value) == 0) {
            t->dtype = types[i];
            return 0;
        }
    }
    return bench_fail("dtype=%.64s: expected f32, bf16 or f16", value);
}

static int set_dimension(const char *name, const char *value, zero_transformer *t)
{
    const char *names[DIMENSIONS + 1] = {"dtype"};
    char advice[128];
    uint64_t number = 0;
    if (strcmp(name, "dtype") == 0) {
        return set_dtype(value, t);
    }
    for (size_t i = 0; i < DIMENSIONS; i++) {
        const dimension *d = &dimensions[i];
        names[i + 1] = d->name;
        if (strcmp(d->name, name) != 0) {
            continue;
        }
        if (!command_line_whole(value, 0, d->flag != 0 ? 1 : INT64_MAX, &number)) {
            return bench_fail("%s=%.64s: expected %s", name, value,
                              d->flag != 0 ? "0 or 1" : "a whole number");
        }
        if (d->flag != 0) {
            t->flags = number != 0 ? t->flags | d->flag : t->flags & ~d->flag;
        } else {
            memcpy((unsigned char *)t + d->offset, &number, sizeof number);
        }
        return 0;
    }
    command_line_advice(name, names, DIMENSIONS + 1, "", "zero plan --help", advice, sizeof advice);
    return bench_fail("a model has no dimension \"%.64s\"%s", name, advice);
}

/* "[PRESET,]NAME=VALUE,...". */
static int read_dimensions(const char *word, zero_transformer *t)
{
    char text[WORD_BYTES];
    char *rest = text;
    if (strlen(word) >= sizeof text) {
        return bench_fail("%.64s...: a model's dimensions are at most %d bytes", word,
                          WORD_BYTES - 1);
    }
    (void)snprintf(text, sizeof text, "%s", word);
    *t = zero_transformer_init();
    t->dtype = ZERO_DTYPE_BF16;
    while (rest != NULL) {
        char *item = rest;
        rest = strchr(item, ',');
        if (rest != NULL) {
            *rest++ = '\0';
        }
        char *equals = strchr(item, '=');
        if (item == text && equals == NULL) {
            if (zero_transformer_preset(item, t) != ZERO_OK) {
                return bench_fail("%s", zero_last_error()->message);
            }
            continue;
        }
        if (equals == NULL) {
            return bench_fail("\"%.64s\": expected NAME=VALUE, as in layers=32", item);
        }
        *equals = '\0';
        if (set_dimension(item, equals + 1, t) != 0) {
            return 1;
        }
    }
    return zero_transformer_check(t) == ZERO_OK ? 0 : bench_fail("%s", zero_last_error()->message);
}

void plan_model_print_help(void)
{
    int column = printf("  dimensions:");
    for (size_t i = 0; i < DIMENSIONS; i++) {
        if (column + (int)strlen(dimensions[i].name) > 76) {
            column = printf("\n   ") - 1;
        }
        column += printf(" %s", dimensions[i].name);
    }
    printf(" dtype\n");
}

bool plan_names_file(const char *word)
{
    const char *suffix = strrchr(word, '.');
    return strchr(word, '/') != NULL || (suffix != NULL && (strcmp(suffix, ".json") == 0 ||
                                                            strcmp(suffix, ".safetensors") == 0));
}

int plan_model_read(const char *word, zero_transformer *transformer)
{
    if (!plan_names_file(word) && strpbrk(word, "=,") != NULL) {
        return read_dimensions(word, transformer);
    }
    const zero_status status = plan_names_file(word) ? zero_transformer_read(word, transformer)
                                                     : zero_transformer_preset(word, transformer);
    return status == ZERO_OK ? 0 : bench_fail("%s", zero_last_error()->message);
}
