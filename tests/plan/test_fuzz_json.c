/* Owns the fuzzing of what reads JSON: valid files are damaged, and whatever comes of it is either
 * accepted and passes its own check, or refused with a message, with nothing written. The same seed
 * gives the same files. A reader that hangs is ended by the harness's deadline, and one that leaks
 * is seen by what the process holds. The files lie in a folder in memory.
 *
 * For libFuzzer: scripts/fuzz json SECONDS. The first byte of an input chooses the reader. */
#include "folders.h"
#include "fuzz_damage.h"
#include "weights_text.h"

#include "core/check.h"
#include "zero/planner.h"
#include "zero/zero.h"

typedef enum fuzz_reader {
    FUZZ_CLUSTER,
    FUZZ_CONFIG,
    FUZZ_WEIGHTS, /* with a config.json beside them */
    FUZZ_INDEX,   /* with the files that it names */
    FUZZ_READERS
} fuzz_reader;

#define NAME_BYTES 96

static char *folder;
static char paths[FUZZ_READERS][NAME_BYTES];
static char beside[2][NAME_BYTES]; /* config.json; the weights that the index names */

/* ---- files ---- */

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

static void remove_files(void)
{
    for (int i = 0; i < FUZZ_READERS; i++) {
        (void)unlink(paths[i]);
    }
    for (int i = 0; i < 2; i++) {
        (void)unlink(beside[i]);
    }
    rig_remove(folder);
}

/* The smallest of each kind. */
static zero_transformer small_model(uint64_t turn)
{
    zero_transformer t = {.struct_bytes = sizeof t,
                          .layers = 2,
                          .width = 64,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_width = 32,
                          .ffn_width = 96,
                          .vocab = 300,
                          .sequence = 128,
                          .flags = ZERO_TRANSFORMER_GATED};
    switch (test_chance(turn, 5)) {
    case 0:
        t = (zero_transformer){.struct_bytes = sizeof t,
                               .layers = 2,
                               .width = 64,
                               .heads = 1,
                               .vocab = 300,
                               .positions = 128,
                               .sequence = 128,
                               .flags = ZERO_TRANSFORMER_TIED_HEAD | ZERO_TRANSFORMER_BIASES};
        break;
    case 1:
        t.experts = 3;
        t.experts_used = 2;
        break;
    case 2:
        t.flags |= ZERO_TRANSFORMER_HEAD_NORMS;
        t.experts = 2;
        t.experts_used = 1;
        break;
    case 3:
        t.flags |= ZERO_TRANSFORMER_QKV_BIASES | ZERO_TRANSFORMER_TIED_HEAD;
        break;
    default:
        break;
    }
    return t;
}

/* The turn whose model's config.json and weights lie beside what is read. */
#define BESIDE 4

static void make_files(void)
{
    static const char *const names[FUZZ_READERS] = {"cluster.json", "one.json", "m.safetensors",
                                                    "m.safetensors.index.json"};
    const zero_transformer t = small_model(BESIDE);
    folder = rig_folder(true);
    CHECK(atexit(remove_files) == 0);
    for (int i = 0; i < FUZZ_READERS; i++) {
        (void)snprintf(paths[i], NAME_BYTES, "%s/%s", folder, names[i]);
    }
    (void)snprintf(beside[0], NAME_BYTES, "%s/config.json", folder);
    (void)snprintf(beside[1], NAME_BYTES, "%s/m-1.safetensors", folder);
    const char *config = weights_config(&t);
    write_file(beside[0], config, strlen(config));
    weights_text w = weights_of(&t);
    write_file(beside[1], w.text, w.bytes);
    free(w.text);
}

/* ---- what must hold ---- */

static void check_refusal(zero_status status, const void *out, const void *before, size_t bytes)
{
    const char *said = zero_last_error()->message;
    zi_assert(status == ZERO_ERR_INVALID_ARGUMENT || status == ZERO_ERR_IO);
    zi_assert(strlen(said) > 10 && strlen(said) < 256);
    zi_assert(memcmp(out, before, bytes) == 0);
}

static bool read_cluster(const char *path)
{
    zero_cluster read = zero_cluster_init();
    const zero_cluster before = read;
    const zero_status status = zero_cluster_read(path, &read);
    if (status != ZERO_OK) {
        check_refusal(status, &read, &before, sizeof read);
        return false;
    }
    zi_assert(zero_cluster_check(&read) == ZERO_OK);
    return true;
}

static bool read_transformer(const char *path)
{
    zero_transformer read = zero_transformer_init();
    const zero_transformer before = read;
    const zero_status status = zero_transformer_read(path, &read);
    if (status != ZERO_OK) {
        check_refusal(status, &read, &before, sizeof read);
        return false;
    }
    uint64_t total = 0;
    uint64_t used = 0;
    zi_assert(zero_transformer_parameters(&read, &total, &used) == ZERO_OK);
    zi_assert(used > 0 && used <= total);
    return true;
}

static bool fuzz_read(fuzz_reader reader, const void *data, size_t bytes)
{
    if (folder == NULL) {
        make_files();
    }
    write_file(paths[reader], data, bytes);
    return reader == FUZZ_CLUSTER ? read_cluster(paths[reader]) : read_transformer(paths[reader]);
}

/* ---- valid files ---- */

static void valid_cluster(uint64_t turn, fuzz_input *input)
{
    zero_cluster c = zero_cluster_init();
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    const char *preset = zero_cluster_preset_name(test_chance(turn, 5));
    CHECK(out != NULL && zero_cluster_preset(preset, &c) == ZERO_OK);
    fprintf(out, "{\"preset\": \"%s\"", preset);
    for (uint32_t i = 0; zero_cluster_field_at(i) != NULL; i++) {
        const zero_cluster_field *field = zero_cluster_field_at(i);
        uint64_t value = 0;
        memcpy(&value, (const unsigned char *)&c + field->offset, sizeof value);
        if (test_chance(turn + i, 2) == 0) {
            fprintf(out, ", \"%s\": %" PRIu64, field->name, value);
        }
    }
    fprintf(out, "}\n");
    CHECK(fclose(out) == 0);
    fuzz_set(input, text, bytes);
    free(text);
}

/* Every tensor of the weights beside, read back from their text. */
static void valid_index(fuzz_input *input)
{
    const zero_transformer t = small_model(BESIDE);
    weights_text w = weights_of(&t);
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out != NULL);
    fprintf(out, "{\"weight_map\": {");
    const char *mark = ".weight\": {";
    bool first = true;
    for (const char *at = strstr(w.text + 8, mark); at != NULL; at = strstr(at + 1, mark)) {
        const char *begin = at;
        while (*begin != '"') {
            begin--;
        }
        fprintf(out, "%s%.*s.weight\": \"m-1.safetensors\"", first ? "" : ", ", (int)(at - begin),
                begin);
        first = false;
    }
    fprintf(out, "}}");
    CHECK(fclose(out) == 0);
    fuzz_set(input, text, bytes);
    free(text);
    free(w.text);
}

/* A valid file of the reader's, chosen by `turn`. */
static void fuzz_valid(fuzz_reader reader, uint64_t turn, fuzz_input *input)
{
    const zero_transformer t = small_model(reader == FUZZ_WEIGHTS ? BESIDE : turn);
    if (reader == FUZZ_CLUSTER) {
        valid_cluster(turn, input);
    } else if (reader == FUZZ_CONFIG) {
        const char *config = weights_config(&t);
        fuzz_set(input, config, strlen(config));
    } else if (reader == FUZZ_WEIGHTS) {
        weights_text w = weights_of(&t);
        fuzz_set(input, w.text, w.bytes);
        free(w.text);
    } else {
        valid_index(input);
    }
}

/* ---- damage ---- */

/* Damage it in ways that `turn` chooses. */
static void fuzz_damage(fuzz_reader reader, uint64_t turn, fuzz_input *input)
{
    static fuzz_input another;
    fuzz_valid(reader, turn + 1, &another);
    for (uint32_t i = 0; i <= test_chance(turn, 3); i++) {
        fuzz_damage_once(turn * 4 + i, input, &another);
    }
    /* A right length, in three of four headers: else few are read beyond it. */
    if (reader == FUZZ_WEIGHTS && input->bytes >= 8 && test_chance(turn + 7, 4) != 0) {
        for (int i = 0; i < 8; i++) {
            input->data[i] = (unsigned char)((input->bytes - 8) >> (8 * i));
        }
    }
}

#include "fuzz_run.h"

#ifndef FUZZ_LIBFUZZER

TEST_CALL(clusters_of_damaged_files, fuzz(FUZZ_CLUSTER, FUZZ_CASES / 100));
TEST_CALL(transformers_of_damaged_configs, fuzz(FUZZ_CONFIG, FUZZ_CASES / 100));
TEST_CALL(transformers_of_damaged_weights, fuzz(FUZZ_WEIGHTS, FUZZ_CASES / 1000));
TEST_CALL(transformers_of_damaged_indices, fuzz(FUZZ_INDEX, FUZZ_CASES / 1000));
TEST_CALL(corpus, fuzz_replay("json", fuzz_one));

#endif
