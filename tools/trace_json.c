/* Owns how fields of files are read and refused. */
#include "trace_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"
#include "plan_report.h"

int trace_refuse(const trace_place *at, const char *field, const char *what)
{
    char index[32] = "";
    char inner[64] = "";
    if (at->index != TRACE_NO_INDEX && at->list != NULL) {
        (void)snprintf(index, sizeof index, "[%zu]", at->index);
    }
    if (at->inner != NULL) {
        (void)snprintf(inner, sizeof inner, ".%s[%zu]", at->inner, at->inner_index);
    }
    return bench_fail("%s: %s%s%s%s%s %s", at->path, at->list != NULL ? at->list : "", index, inner,
                      at->list != NULL && field[0] != '\0' ? "." : "", field, what);
}

int trace_load(const char *path, const char *writer, json_t **root)
{
    struct stat kind;
    json_error_t error;
    if (stat(path, &kind) != 0) {
        return bench_fail("%s cannot be read: %s", path, strerror(errno));
    }
    if (!S_ISREG(kind.st_mode)) {
        return bench_fail("%s is no regular file; name files of %s", path, writer);
    }
    *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL) {
        return bench_fail("%s:%d: no JSON: %.*s", path, error.line, (int)strcspn(error.text, "\n"),
                          error.text);
    }
    return 0;
}

int trace_read_whole(const trace_place *at, const json_t *object, const char *field, bool required,
                     uint64_t *value)
{
    const json_t *json = json_object_get(object, field);
    if (json == NULL && !required) {
        return 0;
    }
    const json_int_t number = json_integer_value(json);
    if (!json_is_integer(json) || number < 0 || (uint64_t)number > TRACE_COUNT_MAX) {
        return trace_refuse(at, field, json == NULL ? "is missing" : "is no whole number");
    }
    *value = (uint64_t)number;
    return 0;
}

int trace_read_text(const trace_place *at, const json_t *object, const char *field, bool required,
                    const char **value)
{
    const json_t *json = json_object_get(object, field);
    if (json == NULL && !required) {
        return 0;
    }
    *value = json_string_value(json);
    return *value != NULL ? 0 : trace_refuse(at, field, json == NULL ? "is missing" : "is no text");
}

int trace_read_ns(const trace_place *at, const json_t *object, const char *field, int64_t *value)
{
    const json_t *json = json_object_get(object, field);
    *value = json_integer_value(json);
    if (json_is_null(json)) {
        return 0;
    }
    if (!json_is_integer(json) || *value < 0 || *value > INT64_MAX / 2) {
        return trace_refuse(at, field, json == NULL ? "is missing" : "is no time in nanoseconds");
    }
    return 0;
}

int trace_write(json_t *json, const char *path)
{
    FILE *file = json != NULL ? plan_open(path) : NULL;
    if (json == NULL) {
        return bench_fail("no memory for the report");
    }
    if (file == NULL) {
        json_decref(json);
        return 1; /* it was said why */
    }
    const bool failed = json_dumpf(json, file, JSON_INDENT(2)) != 0 || fputc('\n', file) == EOF;
    json_decref(json);
    return plan_close(file, path, failed);
}
