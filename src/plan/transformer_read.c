/* Owns reading a transformer from a file: finds out by what is in it which kind it is, and opens
 * the files that belong to it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "plan/transformer_files.h"

/* An index has a line for each tensor of a model: 36945 and 3 MB for 235 billion parameters. */
#define INDEX_SUFFIX ".index.json"
#define INDEX_BYTES_MAX ((uint64_t)128 << 20)
/* A model's files at most. */
#define FILES_MAX 1024
#define PATH_BYTES 4096

/* `name` in the folder of `path`. */
static zero_status path_beside(const char *path, const char *name, char beside[PATH_BYTES])
{
    const char *slash = strrchr(path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    const int length = snprintf(beside, PATH_BYTES, "%.*s%s", folder, path, name);
    if (length < 0 || length >= PATH_BYTES) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "the path of %.80s beside %.100s is too long", name, path);
    }
    return ZERO_OK;
}

/* ---- one file of weights, or several ---- */

static zero_status read_weights(const zi_weights *weights, zero_transformer *t)
{
    char path[PATH_BYTES];
    zi_json json = {0};
    zero_transformer config;
    ZI_TRY(path_beside(weights->path, "config.json", path));
    if (access(path, F_OK) != 0) {
        return zi_transformer_of_weights(weights, NULL, t);
    }
    zero_status status = zi_json_open(&json, path);
    if (status == ZERO_OK) {
        status = zi_transformer_of_config(&json, &config);
    }
    zi_json_close(&json);
    return status == ZERO_OK ? zi_transformer_of_weights(weights, &config, t) : status;
}

static zero_status read_one(const zi_regular_file *file, zero_transformer *t)
{
    zi_safetensors header;
    zero_status status = zi_safetensors_read(&header, file);
    if (status == ZERO_OK) {
        status = read_weights(&(zi_weights){file->path, &header, 1}, t);
    }
    zi_safetensors_close(&header);
    return status;
}

/* The files of an index. */
typedef struct shard_list {
    const zi_json *index;
    const json_t *map; /* from the name of a tensor to its file's */
    uint32_t count;
    const char *names[FILES_MAX];
    char paths[FILES_MAX][PATH_BYTES];
    zi_safetensors headers[FILES_MAX];
} shard_list;

/* A plain name: an index does not lead out of its folder. */
static zero_status check_name(const shard_list *shards, const json_t *value)
{
    const char *name = json_string_value(value);
    if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s: \"weight_map\" has a value that is no name of a file",
                shards->index->path);
    }
    return ZERO_OK;
}

static zero_status add_name(shard_list *shards, const char *name)
{
    for (uint32_t i = 0; i < shards->count; i++) {
        if (strcmp(shards->names[i], name) == 0) {
            return ZERO_OK;
        }
    }
    if (shards->count == FILES_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s names more than %d files", shards->index->path,
                FILES_MAX);
    }
    shards->names[shards->count++] = name;
    return ZERO_OK;
}

/* Each tensor of the file is said to be in it. */
static zero_status check_listed(const shard_list *shards, uint32_t file)
{
    const zi_safetensors *header = &shards->headers[file];
    for (uint32_t i = 0; i < header->count; i++) {
        const char *name = header->tensors[i].name;
        const char *said = json_string_value(json_object_get(shards->map, name));
        if (said == NULL || strcmp(said, shards->names[file]) != 0) {
            ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s has the tensor \"%.80s\", which %s does not list",
                    header->json.path, name, shards->index->path);
        }
    }
    return ZERO_OK;
}

static zero_status read_shard(shard_list *shards, uint32_t file)
{
    zi_regular_file opened;
    ZI_TRY(path_beside(shards->index->path, shards->names[file], shards->paths[file]));
    zero_status status = zi_regular_file_open(&opened, shards->paths[file]);
    if (status == ZERO_OK) {
        status = zi_safetensors_read(&shards->headers[file], &opened);
    }
    zi_regular_file_close(&opened);
    return status == ZERO_OK ? check_listed(shards, file) : status;
}

static zero_status read_shards(shard_list *shards, zero_transformer *t)
{
    const char *tensor = NULL;
    json_t *value = NULL;
    uint64_t found = 0;
    json_object_foreach((json_t *)(uintptr_t)shards->map, tensor, value)
    {
        ZI_TRY(check_name(shards, value));
        ZI_TRY(add_name(shards, json_string_value(value)));
    }
    for (uint32_t i = 0; i < shards->count; i++) {
        ZI_TRY(read_shard(shards, i));
        found += shards->headers[i].count;
    }
    if (found != json_object_size(shards->map)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s lists %zu tensors; its files have %zu of them",
                shards->index->path, json_object_size(shards->map), (size_t)found);
    }
    return read_weights(&(zi_weights){shards->index->path, shards->headers, shards->count}, t);
}

static zero_status read_index(const zi_json *index, const json_t *map, zero_transformer *t)
{
    shard_list *shards = NULL;
    ZI_TRY(zi_calloc(1, sizeof *shards, (void **)&shards));
    shards->index = index;
    shards->map = map;
    const zero_status status = read_shards(shards, t);
    for (uint32_t i = 0; i < shards->count; i++) {
        zi_safetensors_close(&shards->headers[i]);
    }
    zi_free(shards);
    return status;
}

/* ---- any of them ---- */

static zero_status read_text(const zi_regular_file *file, zero_transformer *t)
{
    const size_t length = strlen(file->path);
    const size_t suffix = sizeof INDEX_SUFFIX - 1;
    const bool named = length > suffix && strcmp(file->path + length - suffix, INDEX_SUFFIX) == 0;
    zi_json json = {0};
    zero_status status = zi_json_read(&json, file, named ? INDEX_BYTES_MAX : ZI_JSON_BYTES_MAX);
    if (status == ZERO_OK) {
        const json_t *map = json_object_get(json.root, "weight_map");
        status =
            json_is_object(map) ? read_index(&json, map, t) : zi_transformer_of_config(&json, t);
    }
    zi_json_close(&json);
    return status;
}

zero_status zero_transformer_read(const char *path, zero_transformer *transformer)
{
    zi_regular_file file;
    zero_transformer t = {.struct_bytes = sizeof t};
    bool weights = false;
    zero_status status = zi_regular_file_open(&file, path);
    if (status == ZERO_OK) {
        status = zi_safetensors_found(&file, &weights);
    }
    if (status == ZERO_OK) {
        status = weights ? read_one(&file, &t) : read_text(&file, &t);
    }
    zi_regular_file_close(&file);
    return status == ZERO_OK ? ZI_SIZED_OUT(zero_transformer, transformer, &t) : status;
}
