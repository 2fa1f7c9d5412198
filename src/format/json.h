/* JSON by jansson. Files that people wrote or downloaded are read whole and checked key by key;
 * every error names the file and, where it is about one, the key. Files of the library are made of
 * values and written with as many digits as are needed to read a real back exactly, in any locale.
 */
#ifndef ZI_FORMAT_JSON_H
#define ZI_FORMAT_JSON_H

#include <jansson.h>
#include <locale.h>
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

/* Values to write. NULL: there is no memory. */

/* A text; a byte that is no UTF-8 becomes the character of its number. */
json_t *zi_json_of_text(const char *text);
/* A number below 2^63, as jansson reads them. */
json_t *zi_json_of_number(uint64_t number);
json_t *zi_json_of_numbers(const uint64_t *numbers, uint32_t count);
/* Decimal digits in quotes: a number that may need all 64 bits, of which many readers lose some. */
json_t *zi_json_of_digits(uint64_t number);
/* 16 hexadecimal digits, in quotes. */
json_t *zi_json_of_hash(uint64_t hash);

/* Give a part to an object or an array that is made. Where either is NULL or there is no memory for
 * both, the whole is given back, and becomes NULL. */
void zi_json_set(json_t **object, const char *name, json_t *part);
void zi_json_append(json_t **array, json_t *part);

/* A text of JSON while it is written, in the locale C until it ends. Its values are given up to it;
 * one may be NULL, which is lost. */
typedef struct zi_json_writer {
    char *text; /* with a NUL at its end */
    size_t bytes;
    size_t room;
    size_t flags; /* jansson's, of values */
    bool lost;
    const char *member; /* what goes ahead of the next one, and of the next entry of a list */
    const char *entry;
    locale_t plain;
    locale_t before;
} zi_json_writer;

void zi_json_begin(zi_json_writer *writer, size_t flags);
/* As it is. */
void zi_json_raw(zi_json_writer *writer, const char *text);
void zi_json_put(zi_json_writer *writer, json_t *value);
/* Of an object that has a member a line, whose names need no escapes. */
void zi_json_member(zi_json_writer *writer, const char *name, json_t *value);
/* A member that is an array with an entry a line: those that follow, to the next member. */
void zi_json_list(zi_json_writer *writer, const char *name);
void zi_json_entry(zi_json_writer *writer, json_t *value);
/* Closes an object that has members so. *text: zi_free gives it back; it ends with a NUL, which
 * does not count. Errors: OUT_OF_MEMORY. */
zero_status zi_json_end(zi_json_writer *writer, char **text, size_t *bytes);

#endif
