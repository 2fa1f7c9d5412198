/* Owns reading files of JSON. */
#include "plan/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"

#define FILE_BYTES_MAX ((off_t)1 << 20)

/* A pipe or a device would make the reader wait: what is no regular file is refused. */
static zero_status check_file(const char *path, int file, size_t *bytes)
{
    struct stat status;
    if (fstat(file, &status) != 0) {
        ZI_FAIL_NATIVE(ZERO_IO, errno, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s is no regular file; name a file of JSON", path);
    }
    if (status.st_size > FILE_BYTES_MAX) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s has %" PRIdMAX " bytes; at most 1 MiB is read", path,
                (intmax_t)status.st_size);
    }
    *bytes = (size_t)status.st_size;
    return ZERO_OK;
}

static zero_status read_bytes(const char *path, int file, char *text, size_t *bytes)
{
    size_t used = 0;
    while (used < *bytes) {
        const ssize_t count = read(file, text + used, *bytes - used);
        if (count < 0 && errno != EINTR) {
            ZI_FAIL_NATIVE(ZERO_IO, errno, "reading %s: %s", path, strerror(errno));
        }
        if (count == 0) {
            break; /* it became shorter */
        }
        used += count > 0 ? (size_t)count : 0;
    }
    *bytes = used;
    return ZERO_OK;
}

static zero_status parse(zi_json *json, const char *text, size_t bytes)
{
    json_error_t error;
    json->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (json->root == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s, line %d: %s", json->path, error.line, error.text);
    }
    if (!json_is_object(json->root)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s is no JSON object", json->path);
    }
    return ZERO_OK;
}

static zero_status read_file(zi_json *json, int file)
{
    size_t bytes = 0;
    char *text = NULL;
    ZI_TRY(check_file(json->path, file, &bytes));
    ZI_TRY(zi_calloc(1, bytes + 1, (void **)&text));
    zero_status status = read_bytes(json->path, file, text, &bytes);
    if (status == ZERO_OK) {
        status = parse(json, text, bytes);
    }
    zi_free(text);
    return status;
}

zero_status zi_json_open(zi_json *json, const char *path)
{
    *json = (zi_json){.path = path};
    if (path == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "path is NULL; name a file of JSON");
    }
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        ZI_FAIL_NATIVE(ZERO_IO, errno, "%s: %s", path, strerror(errno));
    }
    const zero_status status = read_file(json, file);
    (void)close(file);
    return status;
}

void zi_json_close(zi_json *json)
{
    json_decref(json->root);
    json->root = NULL;
}

/* The key's value; NULL where it is missing or null, which a required one may not be. */
static zero_status find(const zi_json *json, zi_json_key key, json_t **value)
{
    *value = json_object_get(json->root, key.name);
    *value = json_is_null(*value) ? NULL : *value;
    if (*value == NULL && key.required) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "%s has no \"%s\"", json->path, key.name);
    }
    return ZERO_OK;
}

zero_status zi_json_number(const zi_json *json, zi_json_key key, uint64_t *value)
{
    json_t *found = NULL;
    ZI_TRY(find(json, key, &found));
    if (found == NULL) {
        return ZERO_OK;
    }
    const json_int_t number = json_integer_value(found);
    if (!json_is_integer(found) || number < 0 || (uint64_t)number < key.low ||
        (uint64_t)number > key.high) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "\"%s\" of %s is not a whole number in [%" PRIu64 ", %" PRIu64 "]", key.name,
                json->path, key.low, key.high);
    }
    *value = (uint64_t)number;
    return ZERO_OK;
}

zero_status zi_json_flag(const zi_json *json, zi_json_key key, bool *value)
{
    json_t *found = NULL;
    ZI_TRY(find(json, key, &found));
    if (found != NULL && !json_is_boolean(found)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "\"%s\" of %s is neither true nor false", key.name,
                json->path);
    }
    *value = found != NULL ? json_is_true(found) : *value;
    return ZERO_OK;
}

zero_status zi_json_text(const zi_json *json, zi_json_key key, const char **value)
{
    json_t *found = NULL;
    ZI_TRY(find(json, key, &found));
    if (found != NULL && !json_is_string(found)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "\"%s\" of %s is no text", key.name, json->path);
    }
    *value = found != NULL ? json_string_value(found) : *value;
    return ZERO_OK;
}
