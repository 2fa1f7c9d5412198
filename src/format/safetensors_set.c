/* Owns reading an index and what it lists. Invariant: each tensor is listed once, and is in the
 * file that the index says. */
#include "format/safetensors_set.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

zero_status zi_path_beside(const char *path, const char *name,
                           char beside[ZI_SAFETENSORS_PATH_BYTES])
{
    const char *slash = strrchr(path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    const int length = snprintf(beside, ZI_SAFETENSORS_PATH_BYTES, "%.*s%s", folder, path, name);
    if (length < 0 || length >= ZI_SAFETENSORS_PATH_BYTES) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "the path of %.80s beside %.100s is too long", name,
                path);
    }
    return ZERO_OK;
}

/* A plain name: an index does not lead out of its folder. */
static zero_status safetensors_set_check_name(const zi_json *index, const json_t *value)
{
    const char *name = json_string_value(value);
    if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, "..") == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: \"weight_map\" has a value that is no name of a file", index->path);
    }
    return ZERO_OK;
}

static zero_status add_name(zi_safetensors_set *set, const zi_json *index, const char *name)
{
    for (uint32_t i = 0; i < set->count; i++) {
        if (strcmp(set->names[i], name) == 0) {
            return ZERO_OK;
        }
    }
    if (set->count == ZI_SAFETENSORS_FILES_MAX) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s names more than %d files", index->path,
                ZI_SAFETENSORS_FILES_MAX);
    }
    set->names[set->count++] = name;
    return ZERO_OK;
}

/* Each tensor of the file is said to be in it. */
static zero_status check_listed(const zi_safetensors_set *set, uint32_t file, const zi_json *index,
                                const json_t *map)
{
    const zi_safetensors *header = &set->headers[file];
    for (uint32_t i = 0; i < header->count; i++) {
        const char *name = header->tensors[i].name;
        const char *said = json_string_value(json_object_get(map, name));
        if (said == NULL || strcmp(said, set->names[file]) != 0) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                    "%s has the tensor \"%.80s\", which %s does not list", header->json.path, name,
                    index->path);
        }
    }
    return ZERO_OK;
}

static zero_status safetensors_set_read_file(zi_safetensors_set *set, uint32_t file,
                                             const zi_json *index)
{
    zi_regular_file opened;
    ZI_TRY(zi_path_beside(index->path, set->names[file], set->paths[file]));
    zero_status status = zi_regular_file_open(&opened, set->paths[file]);
    if (status == ZERO_OK) {
        status = zi_safetensors_read(&set->headers[file], &opened);
    }
    zi_regular_file_close(&opened);
    return status;
}

zero_status zi_safetensors_set_read(zi_safetensors_set *set, const zi_json *index)
{
    json_t *map = json_object_get(index->root, "weight_map");
    const char *tensor = NULL;
    json_t *value = NULL;
    uint64_t found = 0;
    if (!json_is_object(map)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s has no \"weight_map\"; name an index of safetensors",
                index->path);
    }
    if (json_object_size(map) == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s: its \"weight_map\" is empty; name an index that lists tensors", index->path);
    }
    json_object_foreach(map, tensor, value)
    {
        ZI_TRY(safetensors_set_check_name(index, value));
        ZI_TRY(add_name(set, index, json_string_value(value)));
    }
    for (uint32_t i = 0; i < set->count; i++) {
        ZI_TRY(safetensors_set_read_file(set, i, index));
        ZI_TRY(check_listed(set, i, index, map));
        found += set->headers[i].count;
    }
    if (found != json_object_size(map)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s lists %zu tensors; its files have %zu of them",
                index->path, json_object_size(map), (size_t)found);
    }
    return ZERO_OK;
}

void zi_safetensors_set_close(zi_safetensors_set *set)
{
    for (uint32_t i = 0; i < set->count; i++) {
        zi_safetensors_close(&set->headers[i]);
    }
    set->count = 0;
}
