/* Owns the public GPT-2's files: which of them there are, and what stands in a config.json; and the
 * text in a checkpoint that says the sizes of the model. */
#include "gpt2_weights.h"

#include "zero/shard.h"
#include "zero/transformer.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static bool join(char path[PATH_BYTES], const char *folder, const char *name)
{
    return snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES;
}

/* --- sizes ------------------------------------------------------------------------------------ */

enum { SIZES = 5 };

typedef struct size_field {
    const char *name; /* also the option's */
    uint32_t value;
} size_field;

static void list_sizes(const gpt2_config *config, size_field fields[SIZES])
{
    const size_field all[SIZES] = {{"layers", config->layers},
                                   {"heads", config->heads},
                                   {"width", config->width},
                                   {"seq", config->seq},
                                   {"vocab", config->vocab}};
    memcpy(fields, all, sizeof all);
}

void gpt2_sizes_print(const gpt2_config *config, char text[GPT2_SIZES_TEXT])
{
    size_field fields[SIZES];
    size_t used = 0;
    list_sizes(config, fields);
    for (int i = 0; i < SIZES; i++) {
        used += (size_t)snprintf(text + used, GPT2_SIZES_TEXT - used, "%s%s %u", i == 0 ? "" : " ",
                                 fields[i].name, fields[i].value);
    }
}

/* what: stands before `path` in the message, "" or "the checkpoint ". */
static bool check_size(const size_field *field, uint64_t found, const char *what, const char *path,
                       gpt2_error *error)
{
    return found == field->value ||
           gpt2_fail(error, "this model has --%s %u, and %s%.300s %llu; give --%s %llu",
                     field->name, field->value, what, path, (unsigned long long)found, field->name,
                     (unsigned long long)found);
}

/* Compares the sizes of this run with those of the checkpoint. What has no such text was not saved
 * by this program, and zero_load has compared shapes. */
static bool check_sizes(const gpt2_config *config, const char *text, const char *folder,
                        gpt2_error *error)
{
    size_field fields[SIZES];
    list_sizes(config, fields);
    for (int i = 0; i < SIZES; i++) {
        const char *at = strstr(text, fields[i].name);
        const uint64_t found =
            at != NULL ? strtoul(at + strlen(fields[i].name), NULL, 10) : fields[i].value;
        if (!check_size(&fields[i], found, "the checkpoint ", folder, error)) {
            return false;
        }
    }
    return true;
}

zero_status gpt2_checkpoint_load(gpt2_net *net, const zero_load_options *load,
                                 zero_load_report *report, char sizes[GPT2_SIZES_TEXT],
                                 gpt2_error *error)
{
    memset(sizes, 0, GPT2_SIZES_TEXT);
    report->user_bytes = sizes;
    report->user_room = GPT2_SIZES_TEXT - 1;
    const zero_status status = zero_load(net->engine, load, report);
    report->user_bytes = NULL;
    report->user_room = 0;
    if ((status == ZERO_OK || status == ZERO_ERR_INVALID_ARGUMENT) &&
        !check_sizes(&net->config, sizes, report->folder, error)) {
        return ZERO_ERR_INVALID_ARGUMENT; /* says more than the list of shapes */
    }
    return status;
}

/* --- in --------------------------------------------------------------------------------------- */

/* The file that says what all tensors are: `path`, or model.safetensors or its index in the folder
 * `path`. False: there is none, so `path` is a checkpoint or nothing. */
static bool find_weights(const char *path, char file[PATH_BYTES])
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    struct stat about;
    if (stat(path, &about) == 0 && S_ISREG(about.st_mode)) {
        return snprintf(file, PATH_BYTES, "%s", path) < PATH_BYTES;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (join(file, path, names[i]) && stat(file, &about) == 0) {
            return true;
        }
    }
    return false;
}

/* Refuses weights of another model. zero_transformer_read has refused what no transformer has, and
 * what is not there. */
static bool check_dimensions(const zero_transformer *found, const gpt2_config *config,
                             const char *file, gpt2_error *error)
{
    const uint64_t there[SIZES] = {found->layers, found->heads, found->width, found->positions,
                                   found->vocab};
    size_field fields[SIZES];
    list_sizes(config, fields);
    if ((found->flags & ZERO_TRANSFORMER_BIASES) == 0 || found->positions == 0) {
        return gpt2_fail(error, "%.300s has a transformer of another kind than GPT-2", file);
    }
    for (int i = 0; i < SIZES; i++) {
        if (!check_size(&fields[i], there[i], "", file, error)) {
            return false;
        }
    }
    return true;
}

/* Loads what the engine has and the file too; adds up how many tensors that are. */
static zero_status load_named(zero_engine *engine, const char *file, const char *prefix,
                              uint32_t *loaded, uint32_t *unexpected)
{
    zero_load_options load = zero_load_options_init();
    zero_load_report report = zero_load_report_init();
    load.path = file;
    load.prefix = prefix;
    load.params_only = 1;
    load.partial = 1;
    TRY(zero_load(engine, &load, &report));
    *loaded += report.loaded;
    *unexpected = report.unexpected;
    return ZERO_OK;
}

/* Names may have "transformer." in front, which the head's name never has. */
static zero_status load_either(zero_engine *engine, const char *file, uint32_t *loaded,
                               uint32_t *unexpected)
{
    TRY(load_named(engine, file, NULL, loaded, unexpected));
    return *loaded > 1 ? ZERO_OK : load_named(engine, file, "transformer.", loaded, unexpected);
}

static zero_status describe_head(zero_model *model, const gpt2_config *config)
{
    static const char *const names[2] = {"wte.weight", "lm_head.weight"};
    for (int i = 0; i < 2; i++) {
        uint32_t index = 0;
        const zero_tensor_desc desc = {.name = names[i],
                                       .shape = {config->vocab, config->width},
                                       .dims = 2,
                                       .dtype = ZERO_DTYPE_F32,
                                       .flags = ZERO_TENSOR_FROZEN};
        TRY(zero_unit_add(model, &(zero_unit_desc){.name = names[i]}, &index, NULL));
        TRY(zero_tensor_add(model, index, &desc, &index));
    }
    return ZERO_OK;
}

/* same: out, true too where the file has but one of the two. */
static zero_status compare_head(zero_engine *engine, const char *file, bool *same)
{
    uint32_t loaded = 0;
    uint32_t unexpected = 0;
    uint64_t first = 0;
    zero_view views[2];
    TRY(load_either(engine, file, &loaded, &unexpected));
    for (uint32_t i = 0; i < 2; i++) {
        TRY(zero_shard_view(engine, i, ZERO_ROLE_PARAM, &first, &views[i]));
    }
    *same = loaded < 2 || memcmp(views[0].data, views[1].data, views[0].count * sizeof(float)) == 0;
    return ZERO_OK;
}

/* The model's head is its token embedding, so one that a file has beside must be the same. Both
 * are loaded into an engine of their own, since this model has no tensor of the head's name. Local:
 * one rank compares, in a world of its own and on the CPU, whatever the run computes on. */
static zero_status check_head(const gpt2_config *config, const char *file, gpt2_error *error)
{
    zero_model *model = NULL;
    zero_world *world = NULL;
    zero_engine *engine = NULL;
    const zero_engine_options options = zero_engine_options_init();
    bool same = false;
    zero_status status = zero_model_create(&model);
    status = status == ZERO_OK ? describe_head(model, config) : status;
    status = status == ZERO_OK ? zero_world_create_self(&world) : status;
    status = status == ZERO_OK ? zero_engine_create(world, model, &options, &engine) : status;
    status = status == ZERO_OK ? compare_head(engine, file, &same) : status;
    if (status == ZERO_OK && !same) {
        (void)gpt2_fail(error,
                        "%.300s: lm_head.weight differs from wte.weight; the head of GPT-2 is its "
                        "token embedding",
                        file);
        status = ZERO_ERR_INVALID_ARGUMENT;
    }
    zero_engine_destroy(engine);
    zero_world_destroy(world);
    zero_model_destroy(model);
    return status;
}

zero_status gpt2_weights_load(gpt2_net *net, zero_world *world, const char *path, gpt2_error *error)
{
    char file[PATH_BYTES];
    if (!find_weights(path, file)) {
        zero_load_options load = zero_load_options_init();
        zero_load_report report = zero_load_report_init();
        load.path = path;
        load.params_only = 1;
        char sizes[GPT2_SIZES_TEXT];
        return gpt2_checkpoint_load(net, &load, &report, sizes, error);
    }
    zero_transformer found = zero_transformer_init();
    uint32_t loaded = 0;
    uint32_t unexpected = 0;
    TRY(zero_transformer_read(file, &found));
    if (!check_dimensions(&found, &net->config, file, error)) {
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    TRY(load_either(net->engine, file, &loaded, &unexpected));
    if (loaded != gpt2_tensor_count(&net->config)) {
        (void)gpt2_fail(error, "%.300s has %u of the %u tensors of this model", file, loaded,
                        gpt2_tensor_count(&net->config));
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    /* zero_transformer_read knows what is there beside: masks, and the head. */
    return unexpected != 0 && zero_world_rank(world) == 0 ? check_head(&net->config, file, error)
                                                          : ZERO_OK;
}

/* --- out -------------------------------------------------------------------------------------- */

static bool fail_file(const char *path, gpt2_error *error)
{
    return gpt2_fail(error, "cannot write %.400s: %s", path, strerror(errno));
}

/* The header of a safetensors file as text, or NULL; the caller frees it. */
static char *read_header(const char *path)
{
    unsigned char length[8];
    uint64_t bytes = 0;
    char *text = NULL;
    FILE *file = fopen(path, "re");
    if (file != NULL && fread(length, 1, sizeof length, file) == sizeof length) {
        for (int i = 8; i-- > 0;) {
            bytes = bytes << 8 | length[i];
        }
        text = bytes < 100000000 ? calloc(bytes + 1, 1) : NULL;
        if (text != NULL && fread(text, 1, bytes, file) != bytes) {
            free(text);
            text = NULL;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return text;
}

/* The lines of those tensors of the model that a file has; returns how many. */
static uint32_t print_tensors(FILE *out, const gpt2_config *config, const char *header,
                              const char *name, uint32_t before)
{
    uint32_t count = before;
    for (uint32_t i = 0; i < gpt2_tensor_count(config); i++) {
        gpt2_tensor tensor;
        char key[sizeof tensor.name + 4];
        gpt2_tensor_describe(config, i, &tensor);
        (void)snprintf(key, sizeof key, "\"%s\":", tensor.name);
        if (strstr(header, key) != NULL) {
            (void)fprintf(out, "%s\n    %s \"%s\"", count == 0 ? "" : ",", key, name);
            count++;
        }
    }
    return count - before;
}

bool gpt2_weights_index(const gpt2_config *config, const char *folder, uint32_t files,
                        gpt2_error *error)
{
    char path[PATH_BYTES];
    uint32_t found = 0;
    FILE *out = join(path, folder, "model.safetensors.index.json") ? fopen(path, "we") : NULL;
    if (out == NULL) {
        return fail_file(path, error);
    }
    (void)fprintf(out, "{\n  \"metadata\": {},\n  \"weight_map\": {");
    for (uint32_t i = 1; i <= files; i++) {
        char name[64];
        char part[PATH_BYTES];
        (void)snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", i, files);
        char *header = join(part, folder, name) ? read_header(part) : NULL;
        found += header != NULL ? print_tensors(out, config, header, name, found) : 0;
        free(header);
    }
    (void)fprintf(out, "\n  }\n}\n");
    const bool good = ferror(out) == 0;
    if (fclose(out) != 0 || !good) {
        return fail_file(path, error);
    }
    return found == gpt2_tensor_count(config) ||
           gpt2_fail(error, "the %u files in %.300s have %u of the %u tensors", files, folder,
                     found, gpt2_tensor_count(config));
}

/* Write the configuration with which GPT2LMHeadModel of transformers computes what this model
 * does. */
static bool write_config(const gpt2_config *c, zero_dtype dtype, const char *folder,
                         gpt2_error *error)
{
    char path[PATH_BYTES];
    const char *type = dtype == ZERO_DTYPE_F32    ? "float32"
                       : dtype == ZERO_DTYPE_BF16 ? "bfloat16"
                                                  : "float16";
    const char *end = c->vocab > 50256 ? "50256" : "null"; /* GPT-2's token between texts */
    FILE *out = join(path, folder, "config.json") ? fopen(path, "we") : NULL;
    if (out == NULL) {
        return fail_file(path, error);
    }
    (void)fprintf(out,
                  "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
                  "  \"n_layer\": %u,\n  \"n_head\": %u,\n  \"n_embd\": %u,\n"
                  "  \"n_positions\": %u,\n  \"n_inner\": null,\n  \"vocab_size\": %u,\n"
                  "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
                  "  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n"
                  "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n"
                  "  \"initializer_range\": 0.02,\n  \"bos_token_id\": %s,\n"
                  "  \"eos_token_id\": %s,\n  \"torch_dtype\": \"%s\"\n}\n",
                  c->layers, c->heads, c->width, c->seq, c->vocab, end, end, type);
    const bool good = ferror(out) == 0;
    return (fclose(out) == 0 && good) || fail_file(path, error);
}

/* Moves the parameters' files of the checkpoint `from` to `folder` under the names that
 * transformers looks for, and removes the others. files: out, how many were moved. */
static bool take_files(const char *from, const char *folder, uint32_t *files, gpt2_error *error)
{
    DIR *entries = opendir(from);
    const struct dirent *entry = NULL;
    bool good = entries != NULL || fail_file(from, error);
    *files = 0;
    while (good && (entry = readdir(entries)) != NULL) {
        char old[PATH_BYTES];
        char name[300];
        char path[PATH_BYTES];
        const bool moves = strncmp(entry->d_name, "param", 5) == 0;
        if (entry->d_name[0] == '.') {
            continue;
        }
        (void)snprintf(name, sizeof name, "model%s", entry->d_name + (moves ? 5 : 0));
        good = join(old, from, entry->d_name) && join(path, folder, name) &&
               (moves ? rename(old, path) : unlink(old)) == 0;
        good = good || fail_file(path, error);
        *files += moves;
    }
    if (entries != NULL) {
        (void)closedir(entries);
    }
    return good;
}

/* The name of the one checkpoint in the run's directory that the export makes and removes. */
#define EXPORT_NAME "weights"

static bool finish_export(const gpt2_net *net, const char *run, const char *folder,
                          gpt2_error *error)
{
    char path[PATH_BYTES];
    uint32_t files = 0;
    if (!join(path, run, EXPORT_NAME) || !take_files(path, folder, &files, error)) {
        return false;
    }
    (void)rmdir(path);
    if (join(path, run, "latest")) {
        (void)unlink(path);
    }
    (void)rmdir(run);
    /* Files of an earlier export that readers would take first. */
    if (join(path, folder, files > 1 ? "model.safetensors" : "model.safetensors.index.json")) {
        (void)unlink(path);
    }
    return (files == 1 || gpt2_weights_index(&net->config, folder, files, error)) &&
           write_config(&net->config, net->dtype, folder, error);
}

zero_status gpt2_weights_export(gpt2_net *net, zero_world *world, const char *folder,
                                gpt2_error *error)
{
    char run[PATH_BYTES];
    zero_save_options save = zero_save_options_init();
    if (!join(run, folder, "export.part")) {
        (void)gpt2_fail(error, "the path %.300s is too long", folder);
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    save.directory = run;
    save.name = EXPORT_NAME;
    save.params_only = 1;
    save.replace = 1; /* one that was killed has left it */
    TRY(zero_save(net->engine, &save));
    const bool good = zero_world_rank(world) != 0 || finish_export(net, run, folder, error);
    const zero_status status = zero_world_barrier(world);
    return good ? status : ZERO_ERR_IO;
}
