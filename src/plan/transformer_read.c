/* Owns reading a transformer from a file: finds out by what is in it which kind it is, and opens
 * the files that belong to it. */
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sized.h"
#include "format/safetensors_set.h"
#include "plan/transformer_files.h"

#define INDEX_SUFFIX ".index.json"

/* ---- one file of weights, or several ---- */

static zero_status read_weights(const zi_weights *weights, zero_transformer *t)
{
    char path[ZI_SAFETENSORS_PATH_BYTES];
    zi_json json = {0};
    zero_transformer config;
    ZI_TRY(zi_path_beside(weights->path, "config.json", path));
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

static zero_status transformer_read_read_one(const zi_regular_file *file, zero_transformer *t)
{
    zi_safetensors header;
    zero_status status = zi_safetensors_read(&header, file);
    if (status == ZERO_OK) {
        status = read_weights(&(zi_weights){file->path, &header, 1}, t);
    }
    zi_safetensors_close(&header);
    return status;
}

static zero_status transformer_read_read_index(const zi_json *index, zero_transformer *t)
{
    zi_safetensors_set *set = NULL;
    ZI_TRY(zi_calloc(1, sizeof *set, (void **)&set));
    zero_status status = zi_safetensors_set_read(set, index);
    if (status == ZERO_OK) {
        status = read_weights(&(zi_weights){index->path, set->headers, set->count}, t);
    }
    zi_safetensors_set_close(set);
    zi_free(set);
    return status;
}

/* ---- any of them ---- */

static zero_status transformer_read_read_text(const zi_regular_file *file, zero_transformer *t)
{
    const size_t length = strlen(file->path);
    const size_t suffix = sizeof INDEX_SUFFIX - 1;
    const bool named = length > suffix && strcmp(file->path + length - suffix, INDEX_SUFFIX) == 0;
    zi_json json = {0};
    zero_status status =
        zi_json_read(&json, file, named ? ZI_SAFETENSORS_INDEX_BYTES_MAX : ZI_JSON_BYTES_MAX);
    if (status == ZERO_OK) {
        const json_t *map = json_object_get(json.root, "weight_map");
        status = json_is_object(map) ? transformer_read_read_index(&json, t)
                                     : zi_transformer_of_config(&json, t);
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
        status =
            weights ? transformer_read_read_one(&file, &t) : transformer_read_read_text(&file, &t);
    }
    zi_regular_file_close(&file);
    return status == ZERO_OK ? ZI_SIZED_OUT(zero_transformer, transformer, &t) : status;
}
