/* Owns reading and writing JSON. Invariant: no locale changes what is read or written. */
#include "format/json.h"

#include <inttypes.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/utf8.h"

/* Any value, and a real with as many digits as are needed to read it back exactly. */
#define ANY_VALUE (JSON_ENCODE_ANY | JSON_REAL_PRECISION(17))

/* jansson takes the decimal point of the thread's locale for one byte. In some it has more, so
 * jansson is called in the locale C. */
static locale_t enter_plain_locale(locale_t *before)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *before = uselocale(plain);
    return plain;
}

static void leave_plain_locale(locale_t plain, locale_t before)
{
    (void)uselocale(before);
    if (plain != (locale_t)0) {
        freelocale(plain);
    }
}

/* ---- reading ---- */

zero_status zi_json_parse(zi_json *json, const char *path, const char *text, size_t bytes)
{
    json_error_t error;
    json->path = path;
    json->root = NULL;
    locale_t before;
    const locale_t plain = enter_plain_locale(&before);
    json->root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    leave_plain_locale(plain, before);
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

/* ---- writing ---- */

json_t *zi_json_of_text(const char *text)
{
    char *good = NULL;
    size_t at = 0;
    if (zi_calloc(strlen(text) + 1, 2, (void **)&good) != ZERO_OK) {
        return NULL;
    }
    while (*text != '\0') {
        const unsigned char byte = (unsigned char)*text;
        const size_t bytes = zi_utf8_bytes((const unsigned char *)text);
        if (bytes == 0) { /* from U+0080 to U+00FF */
            good[at++] = (char)(0xc0 | byte >> 6);
            good[at++] = (char)(0x80 | (byte & 0x3f));
            text++;
        } else {
            memcpy(good + at, text, bytes);
            at += bytes;
            text += bytes;
        }
    }
    json_t *json = json_string(good);
    zi_free(good);
    return json;
}

json_t *zi_json_of_number(uint64_t number)
{
    return json_integer((json_int_t)number);
}

json_t *zi_json_of_digits(uint64_t number)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, number);
    return json_string(text);
}

json_t *zi_json_of_hash(uint64_t hash)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%016" PRIx64, hash);
    return json_string(text);
}

static void lose(json_t **value, bool lost)
{
    if (lost) {
        json_decref(*value);
        *value = NULL;
    }
}

void zi_json_set(json_t **object, const char *name, json_t *part)
{
    lose(object, json_object_set_new(*object, name, part) != 0);
}

void zi_json_append(json_t **array, json_t *part)
{
    lose(array, json_array_append_new(*array, part) != 0);
}

json_t *zi_json_of_numbers(const uint64_t *numbers, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++) {
        zi_json_append(&array, zi_json_of_number(numbers[i]));
    }
    return array;
}

static zero_status make_room(zi_json_writer *writer, size_t bytes)
{
    char *text = NULL;
    const size_t room = 2 * (writer->bytes + bytes) + 1;
    ZI_TRY(zi_calloc(room, 1, (void **)&text));
    if (writer->bytes != 0) {
        memcpy(text, writer->text, writer->bytes);
    }
    zi_free(writer->text);
    writer->text = text;
    writer->room = room;
    return ZERO_OK;
}

static int add_bytes(const char *bytes, size_t count, void *user)
{
    zi_json_writer *writer = user;
    if (writer->lost ||
        (writer->bytes + count >= writer->room && make_room(writer, count) != ZERO_OK)) {
        writer->lost = true;
        return -1;
    }
    memcpy(writer->text + writer->bytes, bytes, count);
    writer->bytes += count;
    return 0;
}

void zi_json_begin(zi_json_writer *writer, size_t flags)
{
    *writer = (zi_json_writer){.flags = flags, .member = "{\n"};
    writer->plain = enter_plain_locale(&writer->before);
}

void zi_json_raw(zi_json_writer *writer, const char *text)
{
    (void)add_bytes(text, strlen(text), writer);
}

void zi_json_put(zi_json_writer *writer, json_t *value)
{
    if (json_dump_callback(value, add_bytes, writer, writer->flags | ANY_VALUE) != 0) {
        writer->lost = true;
    }
    json_decref(value);
}

static void put_name(zi_json_writer *writer, const char *name)
{
    zi_json_raw(writer, writer->member);
    zi_json_raw(writer, "\"");
    zi_json_raw(writer, name);
    zi_json_raw(writer, "\": ");
}

void zi_json_member(zi_json_writer *writer, const char *name, json_t *value)
{
    put_name(writer, name);
    zi_json_put(writer, value);
    writer->member = ",\n";
}

void zi_json_list(zi_json_writer *writer, const char *name)
{
    put_name(writer, name);
    zi_json_raw(writer, "[");
    writer->entry = "\n";
    writer->member = "],\n";
}

void zi_json_entry(zi_json_writer *writer, json_t *value)
{
    zi_json_raw(writer, writer->entry);
    zi_json_put(writer, value);
    writer->entry = ",\n";
}

zero_status zi_json_end(zi_json_writer *writer, char **text, size_t *bytes)
{
    const char first = writer->member[0];
    zi_json_raw(writer, first == '{' ? "" : first == ']' ? "]\n}\n" : "\n}\n");
    leave_plain_locale(writer->plain, writer->before);
    *text = writer->text;
    *bytes = writer->bytes;
    if (writer->lost) {
        zi_free(writer->text);
        *text = NULL;
        ZI_FAIL(ZERO_ERR_OUT_OF_MEMORY, "the host has no memory left for a text of JSON");
    }
    return ZERO_OK;
}
