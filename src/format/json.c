/* Owns reading JSON. */
#include "format/json.h"

#include <inttypes.h>

#include "core/error.h"
#include "core/memory.h"

zero_status zi_json_parse(zi_json *json, const char *path, const char *text, size_t bytes)
{
    json_error_t error;
    json->path = path;
    json->root = NULL;
    json->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (json->root == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s, line %d: %s", json->path, error.line, error.text);
    }
    if (!json_is_object(json->root)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is no JSON object", json->path);
    }
    return ZERO_OK;
}

zero_status zi_json_read(zi_json *json, const zi_regular_file *file, uint64_t bytes_max)
{
    size_t bytes = (size_t)file->bytes;
    char *text = NULL;
    *json = (zi_json){.path = file->path};
    if (file->bytes > bytes_max) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s has %" PRIu64 " bytes; at most %" PRIu64 " MiB are read", file->path,
                file->bytes, bytes_max >> 20);
    }
    ZI_TRY(zi_calloc(1, bytes + 1, (void **)&text));
    zero_status status = zi_regular_file_read(file, 0, text, &bytes);
    if (status == ZERO_OK) {
        status = zi_json_parse(json, file->path, text, bytes);
    }
    zi_free(text);
    return status;
}

zero_status zi_json_open(zi_json *json, const char *path)
{
    zi_regular_file file;
    *json = (zi_json){.path = path};
    zero_status status = zi_regular_file_open(&file, path);
    if (status == ZERO_OK) {
        status = zi_json_read(json, &file, ZI_JSON_BYTES_MAX);
    }
    zi_regular_file_close(&file);
    return status;
}

void zi_json_close(zi_json *json)
{
    json_decref(json->root);
    json->root = NULL;
}

/* The key's value; NULL where it is missing or null, which a required one may not be. */
static zero_status json_find(const zi_json *json, zi_json_key key, json_t **value)
{
    *value = json_object_get(json->root, key.name);
    *value = json_is_null(*value) ? NULL : *value;
    if (*value == NULL && key.required) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s has no \"%s\"", json->path, key.name);
    }
    return ZERO_OK;
}

zero_status zi_json_number(const zi_json *json, zi_json_key key, uint64_t *value)
{
    json_t *found = NULL;
    ZI_TRY(json_find(json, key, &found));
    if (found == NULL) {
        return ZERO_OK;
    }
    const json_int_t number = json_integer_value(found);
    if (!json_is_integer(found) || number < 0 || (uint64_t)number < key.low ||
        (uint64_t)number > key.high) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "\"%s\" of %s is not a whole number in [%" PRIu64 ", %" PRIu64 "]", key.name,
                json->path, key.low, key.high);
    }
    *value = (uint64_t)number;
    return ZERO_OK;
}

zero_status zi_json_flag(const zi_json *json, zi_json_key key, bool *value)
{
    json_t *found = NULL;
    ZI_TRY(json_find(json, key, &found));
    if (found != NULL && !json_is_boolean(found)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s is neither true nor false", key.name,
                json->path);
    }
    *value = found != NULL ? json_is_true(found) : *value;
    return ZERO_OK;
}

zero_status zi_json_text(const zi_json *json, zi_json_key key, const char **value)
{
    json_t *found = NULL;
    ZI_TRY(json_find(json, key, &found));
    if (found != NULL && !json_is_string(found)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "\"%s\" of %s is no text", key.name, json->path);
    }
    *value = found != NULL ? json_string_value(found) : *value;
    return ZERO_OK;
}
