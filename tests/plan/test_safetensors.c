/* Owns the tests of headers of safetensors files: what is read from them, and which transformers
 * they are the weights of. */
#include "counted_files.h"
#include "folders.h"
#include "weights_text.h"

#include "format/safetensors.h"
#include "zero/planner.h"
#include "zero/zero.h"

/* ---- files ---- */

static char *home; /* of a test's files */

static const char *path_of(const char *name)
{
    return test_text("%s/%s", home, name);
}

static void write_file(const char *name, const void *text, size_t bytes)
{
    FILE *file = fopen(path_of(name), "w");
    CHECK(file != NULL && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static void remove_file(const char *name)
{
    CHECK(unlink(path_of(name)) == 0);
}

/* JSON with its length before it. */
static void write_header(const char *name, const char *json)
{
    char text[4096] = {0};
    const size_t bytes = strlen(json);
    CHECK(bytes + 8 <= sizeof text && bytes < 65536);
    text[0] = (char)(bytes & 255);
    text[1] = (char)(bytes >> 8);
    memcpy(text + 8, json, bytes);
    write_file(name, text, bytes + 8);
}

/* ---- headers ---- */

/* A header and the refusal of it. */
typedef struct refusal {
    const char *json;
    const char *words;
} refusal;

#define TENSOR(name, dtype, shape, offsets) \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": " offsets "}"

static const refusal headers[] = {
    {"", "line 1"},
    {"[]", "no JSON object"},
    {"{\"a\": 1}", "\"a\": it is no object"},
    {"{\"a\": {\"dtype\": \"F32\", \"shape\": []}}", "it is no object"},
    {"{" TENSOR("a", "F32", "[]", "[0, 4], \"more\": 1") "}", "it is no object"},
    {"{" TENSOR("a", "F31", "[1]", "[0, 4]") "}", "\"dtype\" is \"F31\""},
    {"{\"a\": {\"dtype\": 7, \"shape\": [], \"data_offsets\": [0, 4]}}", "\"dtype\" is missing"},
    {"{" TENSOR("a", "F32", "[-1]", "[0, 4]") "}", "no whole number from 0 on"},
    {"{" TENSOR("a", "F32", "[1.0]", "[0, 4]") "}", "no whole number from 0 on"},
    {"{" TENSOR("a", "F32", "1", "[0, 4]") "}", "no array of at most 8"},
    {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0, 4]") "}", "no array of at most 8"},
    {"{" TENSOR("a", "F32", "[4294967296, 4294967296]", "[0, 0]") "}", "more than 2^64 elements"},
    {"{" TENSOR("a", "F32", "[4611686018427387904]", "[0, 0]") "}", "as far apart"},
    {"{" TENSOR("a", "F32", "[1]", "[4]") "}", "no beginning and no end"},
    {"{" TENSOR("a", "F32", "[1]", "[4, 0]") "}", "no beginning and no end"},
    {"{" TENSOR("a", "F32", "[1]", "[-4, 0]") "}", "no beginning and no end"},
    {"{" TENSOR("a", "F32", "[1]", "[0, 9223372036854775808]") "}", "line 1"},
    {"{" TENSOR("a", "F32", "[1]", "[0, 8]") "}", "as far apart"},
    {"{" TENSOR("a", "F32", "[1]", "[4, 8]") "}", "gap before"},
    {"{" TENSOR("a", "F32", "[1]", "[0, 4]") "," TENSOR("b", "F32", "[1]", "[8, 12]") "}",
     "\"b\": there is a gap"},
    {"{" TENSOR("a", "F32", "[2]", "[0, 8]") "," TENSOR("b", "F32", "[2]", "[4, 12]") "}",
     "\"b\": its bytes are another tensor's"},
    {"{" TENSOR("a", "F32", "[2]", "[0, 8]") "," TENSOR("b", "F32", "[2]", "[0, 8]") "}",
     "another tensor's"},
    {"{" TENSOR("a", "F32", "[1]", "[0, 4]") "," TENSOR("a", "F32", "[1]", "[4, 8]") "}",
     "duplicate"},
    {"{\"__metadata__\": {\"a\": 1}}", "no object of texts"},
    {"{\"__metadata__\": []}", "no object of texts"},
};

TEST(headers_that_lie_are_refused)
{
    home = rig_folder(true);
    zero_transformer t = zero_transformer_init();
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        write_header("m.safetensors", headers[i].json);
        CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &t), ZERO_ERR_INVALID_ARGUMENT,
                    headers[i].words);
    }
    remove_file("m.safetensors");
    rig_remove(home);
}

TEST(lengths_that_lie_are_refused)
{
    home = rig_folder(true);
    zero_transformer t = zero_transformer_init();
    static const struct {
        const char *text;
        size_t bytes;
        const char *words;
    } files[] = {
        {"\3\0\0\0\0\0\0\0{}", 10, "3 bytes; the file has 10"},
        {"\0\xe1\xf5\5\0\0\0\0{}", 10, "100000000"}, /* as much as the format allows */
        {"\1\xe1\xf5\5\0\0\0\0{}", 10, "100000001"},
        {"\0\0\0\0\0\0\0\x80{}", 10, "9223372036854775808"},
        {"\xff\xff\xff\xff\xff\xff\xff\0{}", 10, "72057594037927935"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "line 1"},
        {"\0\0\0\0\0\0\0\0", 8, "line 1"},
        {"\2\0\0\0\0\0\0", 7, "line 1"}, /* too short to be told from text */
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        write_file("m.safetensors", files[i].text, files[i].bytes);
        CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &t), ZERO_ERR_INVALID_ARGUMENT,
                    files[i].words);
    }
    remove_file("m.safetensors");
    rig_remove(home);
}

TEST(tensors_are_listed_as_they_lie)
{
    home = rig_folder(true);
    write_header("m.safetensors", "{" TENSOR("b", "F8_E4M3", "[3]", "[4, 7]") "," TENSOR(
                                      "a", "F32", "[]",
                                      "[0, 4]") "," TENSOR("empty", "I64", "[0, 7]", "[4, 4]") "}");
    zi_regular_file file;
    zi_safetensors header;
    CHECK_OK(zi_regular_file_open(&file, path_of("m.safetensors")));
    CHECK_OK(zi_safetensors_read(&header, &file));
    CHECK_EQ(header.count, 3);
    static const char *const names[] = {"a", "empty", "b"};
    static const uint64_t counts[] = {1, 0, 3};
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(strcmp(header.tensors[i].name, names[i]) == 0);
        CHECK_EQ(header.tensors[i].count, counts[i]);
    }
    CHECK_EQ(header.tensors[0].dtype, ZERO_DTYPE_F32);
    CHECK_EQ(header.tensors[2].dtype, ZERO_DTYPE_NONE);
    zi_safetensors_close(&header);
    zi_regular_file_close(&file);
    remove_file("m.safetensors");
    rig_remove(home);
}

/* ---- transformers ---- */

/* A small model of each kind. */
static const zero_transformer models[] = {
    {.layers = 3,
     .width = 128,
     .heads = 2,
     .vocab = 1000,
     .positions = 64,
     .sequence = 64,
     .flags = ZERO_TRANSFORMER_TIED_HEAD | ZERO_TRANSFORMER_BIASES},
    {.layers = 2,
     .width = 64,
     .heads = 4,
     .head_width = 16,
     .ffn_width = 172,
     .vocab = 500,
     .sequence = 256,
     .flags = ZERO_TRANSFORMER_GATED},
    {.layers = 12,
     .width = 64,
     .heads = 8,
     .kv_heads = 2,
     .head_width = 32,
     .ffn_width = 100,
     .vocab = 500,
     .sequence = 256,
     .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_TIED_HEAD},
    {.layers = 2,
     .width = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_width = 16,
     .ffn_width = 172,
     .vocab = 500,
     .sequence = 256,
     .experts = 11,
     .experts_used = 2,
     .flags = ZERO_TRANSFORMER_GATED},
    {.layers = 2,
     .width = 64,
     .heads = 4,
     .kv_heads = 2,
     .head_width = 16,
     .ffn_width = 172,
     .vocab = 500,
     .sequence = 256,
     .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_QKV_BIASES | ZERO_TRANSFORMER_TIED_HEAD},
    {.layers = 2,
     .width = 64,
     .heads = 4,
     .kv_heads = 1,
     .head_width = 24,
     .ffn_width = 96,
     .vocab = 500,
     .sequence = 256,
     .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_HEAD_NORMS},
    {.layers = 2,
     .width = 64,
     .heads = 4,
     .kv_heads = 1,
     .head_width = 24,
     .ffn_width = 96,
     .vocab = 500,
     .sequence = 256,
     .experts = 4,
     .experts_used = 3,
     .flags = ZERO_TRANSFORMER_GATED | ZERO_TRANSFORMER_HEAD_NORMS},
};
#define MODELS (sizeof models / sizeof models[0])

static zero_transformer model_of(size_t i)
{
    zero_transformer t = models[i];
    t.struct_bytes = sizeof t;
    t.dtype = ZERO_DTYPE_BF16;
    return t;
}

static uint64_t parameters_of(const zero_transformer *t)
{
    uint64_t total = 0;
    CHECK_OK(zero_transformer_parameters(t, &total, NULL));
    return total;
}

/* The dimensions that were written have come back. */
static void check_same(const zero_transformer *read, const zero_transformer *written)
{
    CHECK_EQ(read->layers, written->layers);
    CHECK_EQ(read->width, written->width);
    CHECK_EQ(read->heads, written->heads);
    CHECK_EQ(read->vocab, written->vocab);
    CHECK_EQ(read->positions, written->positions);
    CHECK_EQ(read->sequence, written->sequence);
    CHECK_EQ(read->experts, written->experts);
    CHECK_EQ(read->experts_used, written->experts_used);
    CHECK_EQ(read->flags, written->flags);
    CHECK_EQ(read->dtype, written->dtype);
    CHECK_EQ(parameters_of(read), parameters_of(written));
}

TEST(every_kind_of_weights_is_a_transformer)
{
    home = rig_folder(true);
    for (size_t i = 0; i < MODELS; i++) {
        const zero_transformer written = model_of(i);
        zero_transformer read = zero_transformer_init();
        weights_text w = weights_of(&written);
        write_file("m.safetensors", w.text, w.bytes);
        write_text("config.json", weights_config(&written));
        CHECK_OK(zero_transformer_read(path_of("m.safetensors"), &read));
        check_same(&read, &written);
        free(w.text);
    }
    remove_file("m.safetensors");
    remove_file("config.json");
    rig_remove(home);
}

/* ---- types that a config.json names ---- */

typedef struct named_type {
    const char *type;
    void (*write)(weights_text *w, const zero_transformer *t);
} named_type;

static const named_type named_types[] = {{"gemma2", weights_llama},
                                         {"gemma3_text", weights_llama},
                                         {"phi3", weights_phi3},
                                         {"gpt_neox", weights_neox},
                                         {"opt", weights_opt}};
#define NAMED_TYPES (sizeof named_types / sizeof named_types[0])

/* The transformer of config.json, with what its defaults stand for. */
static zero_transformer config_with_all(void)
{
    zero_transformer t = zero_transformer_init();
    CHECK_OK(zero_transformer_read(path_of("config.json"), &t));
    t.kv_heads = t.kv_heads != 0 ? t.kv_heads : t.heads;
    t.head_width = t.head_width != 0 ? t.head_width : t.width / t.heads;
    t.ffn_width = t.ffn_width != 0 ? t.ffn_width : 4 * t.width;
    t.dtype = ZERO_DTYPE_BF16;
    return t;
}

static void write_named(const named_type *type, const zero_transformer *t)
{
    weights_text w = {.dtype = "BF16", .element_bytes = 2};
    weights_open(&w);
    type->write(&w, t);
    weights_close(&w);
    write_file("m.safetensors", w.text, w.bytes);
    free(w.text);
}

/* Each file that transformers' own counts are kept of. */
static void read_named(const named_type *type)
{
    const char *start = test_text("{\"model_type\": \"%s\"", type->type);
    uint32_t files = 0;
    for (size_t i = 0; i < sizeof counted_files / sizeof counted_files[0]; i++) {
        zero_transformer read = zero_transformer_init();
        if (strncmp(counted_files[i].text, start, strlen(start)) != 0) {
            continue;
        }
        write_text("config.json", counted_files[i].text);
        const zero_transformer written = config_with_all();
        write_named(type, &written);
        CHECK_OK(zero_transformer_read(path_of("m.safetensors"), &read));
        check_same(&read, &written);
        CHECK_EQ(read.window, written.window);
        CHECK_EQ(read.full_every, written.full_every);
        CHECK_EQ(parameters_of(&read), counted_files[i].total);
        files++;
    }
    CHECK(files > 2);
}

TEST(types_that_a_config_names_are_read_from_their_weights)
{
    home = rig_folder(true);
    for (size_t i = 0; i < NAMED_TYPES; i++) {
        read_named(&named_types[i]);
    }
    remove_file("m.safetensors");
    remove_file("config.json");
    rig_remove(home);
}

/* Weights beside the config.json of every other type. */
TEST(weights_of_another_type_are_refused)
{
    static const char *const configs[] = {
        "{\"model_type\": \"gemma2\", " SMALL "}", "{\"model_type\": \"gemma3_text\", " SMALL "}",
        "{\"model_type\": \"phi3\", " SMALL "}", "{\"model_type\": \"gpt_neox\", " SMALL "}",
        "{\"model_type\": \"opt\", " SMALL ", \"ffn_dim\": 80}"};
    zero_transformer read = zero_transformer_init();
    home = rig_folder(true);
    for (size_t i = 0; i < NAMED_TYPES; i++) {
        write_text("config.json", configs[i]);
        const zero_transformer written = config_with_all();
        write_named(&named_types[i], &written);
        CHECK_OK(zero_transformer_read(path_of("m.safetensors"), &read));
        for (size_t k = 0; k < NAMED_TYPES; k++) {
            write_text("config.json", configs[k]);
            CHECK_EQ(zero_transformer_read(path_of("m.safetensors"), &read),
                     k == i ? ZERO_OK : ZERO_ERR_INVALID_ARGUMENT);
        }
    }
    remove_file("m.safetensors");
    remove_file("config.json");
    rig_remove(home);
}

/* Matrices that are stored as one, of extents that cannot be split. */
TEST(joined_matrices_have_the_parts_that_are_expected)
{
    static const uint64_t outputs[][2] = {{97, 160}, {48, 160}, {80, 161}}; /* qkv, gate_up */
    zero_transformer read = zero_transformer_init();
    home = rig_folder(true);
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        const weights_row rows[] = {{"input_layernorm.weight", 48, 0},
                                    {"self_attn.qkv_proj.weight", outputs[i][0], 48},
                                    {"self_attn.o_proj.weight", 48, 48},
                                    {"post_attention_layernorm.weight", 48, 0},
                                    {"mlp.gate_up_proj.weight", outputs[i][1], 48},
                                    {"mlp.down_proj.weight", 48, 80}};
        weights_text w = {.dtype = "BF16", .element_bytes = 2};
        weights_open(&w);
        weights_add(&w, 97, 48, "model.embed_tokens.weight");
        weights_block(&w, "model.layers", 0, rows, sizeof rows / sizeof rows[0]);
        weights_add(&w, 48, 0, "model.norm.weight");
        weights_close(&w);
        write_file("m.safetensors", w.text, w.bytes);
        free(w.text);
        CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &read),
                    ZERO_ERR_INVALID_ARGUMENT, "keys as many as values");
    }
    remove_file("m.safetensors");
    rig_remove(home);
}

/* Totals as model hubs count them in the weights, as in tests/plan/test_transformer.c. */
TEST(weights_of_published_models_have_their_parameters)
{
    static const struct {
        const char *preset;
        uint64_t total;
    } published[] = {{"gpt2", 124439808},
                     {"llama-7b", 6738415616},
                     {"mixtral-8x7b", 46702792704},
                     {"qwen3-235b", 235093634560}};
    home = rig_folder(true);
    for (size_t i = 0; i < sizeof published / sizeof published[0]; i++) {
        zero_transformer written = zero_transformer_init();
        zero_transformer read = zero_transformer_init();
        CHECK_OK(zero_transformer_preset(published[i].preset, &written));
        written.head_width = written.head_width != 0 ? written.head_width : 128;
        weights_text w = weights_of(&written);
        write_file("m.safetensors", w.text, w.bytes);
        written.head_width = written.positions != 0 ? 0 : written.head_width;
        write_text("config.json", weights_config(&written));
        CHECK_OK(zero_transformer_read(path_of("m.safetensors"), &read));
        CHECK_EQ(parameters_of(&read), published[i].total);
        free(w.text);
    }
    remove_file("m.safetensors");
    remove_file("config.json");
    rig_remove(home);
}

TEST(gpt2_needs_no_config_and_others_are_told_that_they_do)
{
    home = rig_folder(true);
    for (size_t i = 0; i < MODELS; i++) {
        const zero_transformer written = model_of(i);
        zero_transformer read = zero_transformer_init();
        weights_text w = weights_of(&written);
        write_file("m.safetensors", w.text, w.bytes);
        if (i == 0) {
            CHECK_OK(zero_transformer_read(path_of("m.safetensors"), &read));
            check_same(&read, &written);
        } else {
            CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &read),
                        ZERO_ERR_INVALID_ARGUMENT, "put the model's config.json beside it");
        }
        free(w.text);
    }
    remove_file("m.safetensors");
    rig_remove(home);
}

/* A config.json of another model, field by field. */
TEST(a_config_of_another_model_is_refused)
{
    static const struct {
        size_t offset;
        uint64_t value;
        const char *words;
    } changes[] = {
        {offsetof(zero_transformer, layers), 13, "layers is 12 by its tensors and 13"},
        {offsetof(zero_transformer, width), 72, "width is 64"},
        {offsetof(zero_transformer, vocab), 501, "vocab is 500"},
        {offsetof(zero_transformer, ffn_width), 101, "ffn_width is 100"},
        {offsetof(zero_transformer, heads), 10, "heads x head_width is 256"},
        {offsetof(zero_transformer, kv_heads), 4, "kv_heads x head_width is 64"},
    };
    home = rig_folder(true);
    zero_transformer read = zero_transformer_init();
    const zero_transformer written = model_of(2);
    weights_text w = weights_of(&written);
    write_file("m.safetensors", w.text, w.bytes);
    free(w.text);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        zero_transformer other = written;
        memcpy((unsigned char *)&other + changes[i].offset, &changes[i].value, sizeof(uint64_t));
        write_text("config.json", weights_config(&other));
        CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &read),
                    ZERO_ERR_INVALID_ARGUMENT, changes[i].words);
    }
    zero_transformer other = written;
    other.flags = ZERO_TRANSFORMER_GATED;
    write_text("config.json", weights_config(&other));
    CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &read), ZERO_ERR_INVALID_ARGUMENT,
                "flags (tied head");
    write_text("config.json", "{");
    CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &read), ZERO_ERR_INVALID_ARGUMENT,
                "config.json, line 1");
    remove_file("m.safetensors");
    remove_file("config.json");
    rig_remove(home);
}

/* The damage that is done to the weights of GPT-2 or Llama while they are written. */
typedef void (*spoil_fn)(weights_text *w, const zero_transformer *t);

static void add_stranger(weights_text *w, const zero_transformer *t)
{
    weights_add(w, t->width, 0, "h.0.ln_3.weight");
}

static void add_block_part(weights_text *w, const zero_transformer *t)
{
    weights_add(w, t->width, 0, "h.%" PRIu64 ".ln_1.weight", t->layers);
}

static void add_second_name(weights_text *w, const zero_transformer *t)
{
    weights_add(w, t->width, 0, "transformer.ln_f.bias");
}

static void add_zeros_before_number(weights_text *w, const zero_transformer *t)
{
    weights_add(w, t->width, 0, "h.01.ln_1.weight");
}

static void add_wrong_shape(weights_text *w, const zero_transformer *t)
{
    weights_add(w, t->vocab, t->width + 1, "lm_head.weight");
}

static void add_wrong_dims(weights_text *w, const zero_transformer *t)
{
    weights_add(w, t->vocab * t->width, 0, "lm_head.weight");
}

static void add_other_type(weights_text *w, const zero_transformer *t)
{
    w->dtype = "F32";
    w->element_bytes = 4;
    weights_add(w, t->vocab, t->width, "lm_head.weight");
}

static void add_quantized(weights_text *w, const zero_transformer *t)
{
    w->dtype = "F8_E4M3";
    w->element_bytes = 1;
    weights_add(w, t->vocab, t->width, "lm_head.weight");
}

static void add_other_family(weights_text *w, const zero_transformer *t)
{
    weights_add(w, t->vocab, t->width, "model.embed_tokens.weight");
}

TEST(tensors_that_fit_no_transformer_are_named)
{
    static const struct {
        spoil_fn spoil;
        const char *words;
    } cases[] = {
        {add_stranger, "a tensor \"h.0.ln_3.weight\""},
        {add_block_part, "of the tensors \"h.#.ln_1.bias\" there are 3; 4 blocks have 4"},
        {add_second_name, "of the tensors \"ln_f.bias\" there are 2"},
        {add_zeros_before_number, "a tensor \"h.01.ln_1.weight\""},
        {add_wrong_shape, "\"lm_head.weight\" has the extent 129"},
        {add_wrong_dims, "\"lm_head.weight\" has 1 dimensions"},
        {add_other_type, "\"lm_head.weight\" is of F32 and \"wte.weight\" of BF16"},
        {add_quantized, "\"lm_head.weight\" is of F8_E4M3"},
        {add_other_family, "not those of one model"},
    };
    home = rig_folder(true);
    const zero_transformer t = model_of(0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        zero_transformer read = zero_transformer_init();
        weights_text w = {.dtype = "BF16", .element_bytes = 2};
        weights_open(&w);
        weights_gpt2(&w, &t);
        cases[i].spoil(&w, &t);
        weights_close(&w);
        write_file("m.safetensors", w.text, w.bytes);
        CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &read),
                    ZERO_ERR_INVALID_ARGUMENT, cases[i].words);
        free(w.text);
    }
    remove_file("m.safetensors");
    rig_remove(home);
}

/* As some writers leave it: the tied head a second time. Without a config.json it has parameters.
 */
TEST(a_tied_head_that_is_there_too_is_the_embedding)
{
    home = rig_folder(true);
    const zero_transformer t = model_of(0);
    zero_transformer read = zero_transformer_init();
    weights_text w = {.dtype = "BF16", .element_bytes = 2};
    weights_open(&w);
    weights_gpt2(&w, &t);
    weights_add(&w, t.vocab, t.width, "lm_head.weight");
    weights_close(&w);
    write_file("m.safetensors", w.text, w.bytes);
    free(w.text);
    CHECK_OK(zero_transformer_read(path_of("m.safetensors"), &read));
    CHECK_EQ(read.flags & ZERO_TRANSFORMER_TIED_HEAD, 0);
    write_text("config.json", weights_config(&t));
    CHECK_OK(zero_transformer_read(path_of("m.safetensors"), &read));
    CHECK_EQ(read.flags & ZERO_TRANSFORMER_TIED_HEAD, ZERO_TRANSFORMER_TIED_HEAD);
    remove_file("m.safetensors");
    remove_file("config.json");
    rig_remove(home);
}

TEST(a_missing_expert_is_named)
{
    home = rig_folder(true);
    zero_transformer t = model_of(3);
    zero_transformer read = zero_transformer_init();
    weights_text w = {.dtype = "BF16", .element_bytes = 2};
    weights_open(&w);
    weights_llama(&w, &t);
    weights_add(&w, t.ffn_width, t.width, "model.layers.0.block_sparse_moe.experts.11.w1.weight");
    weights_close(&w);
    write_file("m.safetensors", w.text, w.bytes);
    free(w.text);
    CHECK_FAILS(zero_transformer_read(path_of("m.safetensors"), &read), ZERO_ERR_INVALID_ARGUMENT,
                "routers choose from 11 experts, and there are 12");
    remove_file("m.safetensors");
    rig_remove(home);
}

/* ---- several files ---- */

/* Writes Llama's weights to two files: the head, and all else. */
static void write_two(const zero_transformer *t)
{
    zero_transformer headless = *t;
    headless.flags |= ZERO_TRANSFORMER_TIED_HEAD;
    weights_text w = weights_of(&headless);
    write_file("m-1.safetensors", w.text, w.bytes);
    free(w.text);
    w = (weights_text){.dtype = "BF16", .element_bytes = 2};
    weights_open(&w);
    weights_add(&w, t->vocab, t->width, "lm_head.weight");
    weights_close(&w);
    write_file("m-2.safetensors", w.text, w.bytes);
    free(w.text);
}

/* An index of the two: "m-1" for all tensors of Llama's but the head. */
static void write_index(const zero_transformer *t, const char *head, const char *more)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    static const char *const names[] = {
        "input_layernorm",  "self_attn.q_proj",         "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",
        "mlp.up_proj",      "post_attention_layernorm", "mlp.down_proj"};
    CHECK(out != NULL);
    fprintf(out, "{\"metadata\": {\"total_size\": 7}, \"weight_map\": {\"lm_head.weight\": %s%s",
            head, more);
    for (uint64_t block = 0; block < t->layers; block++) {
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            fprintf(out, ", \"model.layers.%" PRIu64 ".%s.weight\": \"m-1.safetensors\"", block,
                    names[i]);
        }
    }
    fprintf(out, ", \"model.embed_tokens.weight\": \"m-1.safetensors\""
                 ", \"model.norm.weight\": \"m-1.safetensors\"}}");
    CHECK(fclose(out) == 0);
    write_file("m.safetensors.index.json", text, bytes);
    free(text);
}

TEST(an_index_joins_its_files)
{
    home = rig_folder(true);
    const zero_transformer t = model_of(1);
    zero_transformer read = zero_transformer_init();
    write_two(&t);
    write_text("config.json", weights_config(&t));
    write_index(&t, "\"m-2.safetensors\"", "");
    CHECK_OK(zero_transformer_read(path_of("m.safetensors.index.json"), &read));
    check_same(&read, &t);
    static const struct {
        const char *head;
        const char *more;
        const char *words;
    } cases[] = {
        {"\"m-2.safetensors\"", ", \"other.weight\": \"m-2.safetensors\"", "lists 22 tensors"},
        {"\"m-2.safetensors\"", ", \"other.weight\": \"../m-2.safetensors\"", "no name of a file"},
        {"\"\"", "", "no name of a file"},
        {"7", "", "no name of a file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_index(&t, cases[i].head, cases[i].more);
        CHECK_FAILS(zero_transformer_read(path_of("m.safetensors.index.json"), &read),
                    ZERO_ERR_INVALID_ARGUMENT, cases[i].words);
    }
    write_index(&t, "\"m-1.safetensors\"", ", \"other.weight\": \"m-2.safetensors\"");
    CHECK_FAILS(zero_transformer_read(path_of("m.safetensors.index.json"), &read),
                ZERO_ERR_INVALID_ARGUMENT, "\"lm_head.weight\", which");
    write_index(&t, "\"m-3.safetensors\"", "");
    CHECK_FAILS(zero_transformer_read(path_of("m.safetensors.index.json"), &read), ZERO_ERR_IO,
                "m-3.safetensors");
    static const char *const names[] = {"m-1.safetensors", "m-2.safetensors", "config.json",
                                        "m.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        remove_file(names[i]);
    }
    rig_remove(home);
}
