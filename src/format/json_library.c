/* Owns the table of jansson's functions. Invariant: after zi_jansson_load returned OK all of them
 * are there, and no JSON value exists before. */
#include "format/json_library.h"

#include <pthread.h>

#include "core/error.h"
#include "core/library.h"

#define LIBRARY "libjansson.so.4"

#define FUNCTIONS(X)      \
    X(array_get)          \
    X(array_size)         \
    X(delete)             \
    X(integer_value)      \
    X(loadb)              \
    X(number_value)       \
    X(object_get)         \
    X(object_iter)        \
    X(object_iter_key)    \
    X(object_iter_next)   \
    X(object_iter_value)  \
    X(object_key_to_iter) \
    X(object_size)        \
    X(string_value)

/* NULL where the program does not link jansson. */
#define DECLARE(name) \
    extern __typeof__(zi_json_##name) linked_##name __asm__("json_" #name) __attribute__((weak));
FUNCTIONS(DECLARE)

#define MEMBER(name) __typeof__(&zi_json_##name) name;
#define LINKED(name) .name = linked_##name,
static struct jansson_table {
    FUNCTIONS(MEMBER)
} jansson;

#define ROW(name) {"json_" #name, offsetof(struct jansson_table, name), true},
static const zi_library_symbol symbols[] = {FUNCTIONS(ROW)};
static const zi_library jansson_library = {
    .symbols = symbols,
    .symbol_count = sizeof symbols / sizeof symbols[0],
    .remedy = "JSON is read with jansson: install it (Debian: libjansson4), or link the program "
              "with -ljansson",
};

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static zero_error load_error; /* status ZERO_OK: loaded */

static void json_library_load(void)
{
    jansson = (struct jansson_table){FUNCTIONS(LINKED)};
    if (!zi_library_complete(&jansson_library, &jansson) &&
        zi_library_load(&jansson_library, LIBRARY, &jansson) != ZERO_OK) {
        load_error = *zero_last_error();
    }
}

zero_status zi_jansson_load(void)
{
    (void)pthread_once(&load_once, json_library_load);
    return load_error.status == ZERO_OK ? ZERO_OK : zi_error_adopt(&load_error);
}

json_t *zi_json_array_get(const json_t *array, size_t index)
{
    return jansson.array_get(array, index);
}

size_t zi_json_array_size(const json_t *array)
{
    return jansson.array_size(array);
}

void zi_json_delete(json_t *json)
{
    jansson.delete(json);
}

json_int_t zi_json_integer_value(const json_t *integer)
{
    return jansson.integer_value(integer);
}

json_t *zi_json_loadb(const char *buffer, size_t length, size_t flags, json_error_t *error)
{
    return jansson.loadb(buffer, length, flags, error);
}

double zi_json_number_value(const json_t *json)
{
    return jansson.number_value(json);
}

json_t *zi_json_object_get(const json_t *object, const char *key)
{
    return jansson.object_get(object, key);
}

void *zi_json_object_iter(json_t *object)
{
    return jansson.object_iter(object);
}

const char *zi_json_object_iter_key(void *iter)
{
    return jansson.object_iter_key(iter);
}

void *zi_json_object_iter_next(json_t *object, void *iter)
{
    return jansson.object_iter_next(object, iter);
}

json_t *zi_json_object_iter_value(void *iter)
{
    return jansson.object_iter_value(iter);
}

void *zi_json_object_key_to_iter(const char *key)
{
    return jansson.object_key_to_iter(key);
}

size_t zi_json_object_size(const json_t *object)
{
    return jansson.object_size(object);
}

const char *zi_json_string_value(const json_t *string)
{
    return jansson.string_value(string);
}
