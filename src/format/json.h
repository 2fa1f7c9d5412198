/* Files of JSON that people wrote or downloaded: read whole, checked key by key. Every error names
 * the file and, where it is about one, the key. */
#ifndef ZI_FORMAT_JSON_H
#define ZI_FORMAT_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/private_api.h"
#include "format/regular_file.h"
#include "zero/status.h"

/* A file's object, whose keys are asked for by name. */
typedef struct zi_json {
    const char *path;
    json_t *root; /* zi_json_close gives it back */
} zi_json;

#define ZI_JSON_BYTES_MAX ((uint64_t)1 << 20)

/* Read the object in a regular file of at most ZI_JSON_BYTES_MAX. Errors: INVALID_ARGUMENT for
 * NULL, for what is no such file, no JSON, no object, or has a key twice; IO; OUT_OF_MEMORY. */
ZI_PRIVATE_API zero_status zi_json_open(zi_json *json, const char *path);
/* The same of an open file, of at most `bytes_max`. */
ZI_PRIVATE_API zero_status zi_json_read(zi_json *json, const zi_regular_file *file,
                                        uint64_t bytes_max);
/* The same of text that was in the file at `path`. */
zero_status zi_json_parse(zi_json *json, const char *path, const char *text, size_t bytes);
/* After any of these, whatever it returned. */
ZI_PRIVATE_API void zi_json_close(zi_json *json);

/* The requirements of a key. */
typedef struct zi_json_key {
    const char *name;
    bool required;
    uint64_t low; /* of a number */
    uint64_t high;
} zi_json_key;

/* *value stays where the key is missing or null. Errors: INVALID_ARGUMENT: it is required, of
 * another type, or out of bounds. */
ZI_PRIVATE_API zero_status zi_json_number(const zi_json *json, zi_json_key key, uint64_t *value);
ZI_PRIVATE_API zero_status zi_json_flag(const zi_json *json, zi_json_key key, bool *value);
/* The file's memory. */
ZI_PRIVATE_API zero_status zi_json_text(const zi_json *json, zi_json_key key, const char **value);

#endif
