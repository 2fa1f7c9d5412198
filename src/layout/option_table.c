/* Owns the table of options, and how each is read from text and written as text. Invariant: a row
 * for each field of zero_engine_options and zero_tuning, in their order. */
#include "layout/option_table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check.h"
#include "core/error.h"
#include "core/role.h"
#include "layout/options_list.h"
#include "optimizer/optimizer.h"

static const char *const stages[] = {"0", "1", "2", "3"};
static const char *const devices[] = {"default", "cpu", "cuda"};
static const char *const float_types[] = {"default", "f32", "bf16", "f16"};
static const char *const gather_types[] = {"default", "f32", "bf16", "f16", NULL,    NULL,
                                           NULL,      NULL,  NULL,   NULL,  "mxfp8", "int8"};
static const char *const wire_types[] = {"default", "f32", "bf16", "f16", NULL, NULL,
                                         NULL,      NULL,  NULL,   NULL,  NULL, "int8"};
static const char *const host_wire_types[] = {"default", NULL, NULL, NULL, NULL,   NULL,  NULL,
                                              NULL,      NULL, NULL, NULL, "int8", "int4"};
static const char *const sum_types[] = {"default", "f32", "bf16"};
static const char *const master_types[] = {"default", "f32",         NULL,        NULL,
                                           "none",    "remainder16", "remainder8"};
static const char *const moment_types[] = {"default", "f32", "bf16", NULL, NULL, NULL, NULL, "i8"};
/* clang-format off */
#define OPTIMIZER(KIND, name) [ZERO_OPTIMIZER_##KIND] = #name,
static const char *const optimizers[] = {
    [ZERO_OPTIMIZER_DEFAULT] = "default",
    [ZERO_OPTIMIZER_CALLBACK] = "callback",
    ZI_OPTIMIZERS(OPTIMIZER)
};
/* clang-format on */
static const char *const tiers[] = {"default", "device", "host", "disk"};
static const char *const reductions[] = {"default", "exact", "native"};
static const char *const accumulations[] = {"default", "local"};
static const char *const transports[] = {"default", "nccl", "host", "peer"};
static const char *const nccl_memories[] = {"none", "registered"};
static const char *const updaters[] = {"default", "gpu", "cpu", "both"};

/* Of the longest list. */
#define LIST_BYTES (ZERO_STEP_GROUPS * sizeof(zero_optimizer))

enum { OWN, SAME };
#define FLAG .kind = ZERO_OPTION_FLAG
#define COUNT .kind = ZERO_OPTION_COUNT
#define BYTES .kind = ZERO_OPTION_BYTES
#define NUMBER .kind = ZERO_OPTION_NUMBER
#define REAL .kind = ZERO_OPTION_REAL
#define POINTER .kind = ZERO_OPTION_POINTER
#define TEXT .kind = ZERO_OPTION_TEXT
#define NAMED(names) .choices = (names), .choice_count = sizeof(names) / sizeof(names)[0]
#define CHOICE(names) .kind = ZERO_OPTION_CHOICE, NAMED(names)
#define TIERS(names) .kind = ZERO_OPTION_TIERS, NAMED(names)
#define GROUPS(names) .kind = ZERO_OPTION_GROUPS, NAMED(names)

#define STRUCT_options zero_engine_options
#define STRUCT_tuning zero_tuning
#define IS_TUNING_options 0
#define IS_TUNING_tuning 1

/* clang-format off */
#define ROW(where, field, kind_, low_, high_, value_, ranks_, fallback_, text_)             \
    {.name = #field, .text = text_, .fallback = fallback_, kind_, .is_tuning = IS_TUNING_##where, \
     .same_on_ranks = ranks_, .offset = offsetof(STRUCT_##where, field),                   \
     .bytes = sizeof((STRUCT_##where){0}.field), .low = low_, .high = high_, .value = value_},

static const zero_option table[] = {
    ZI_OPTIONS_LIST(ROW)
    ZI_TUNING_LIST(ROW)
};
/* clang-format on */

uint32_t zero_option_count(void)
{
    return sizeof table / sizeof table[0];
}

const zero_option *zero_option_at(uint32_t index)
{
    return index < zero_option_count() ? &table[index] : NULL;
}

static bool option_table_is_name(const char *name, const char *given)
{
    while (*name != '\0' && (*name == *given || (*name == '_' && *given == '-'))) {
        name++;
        given++;
    }
    return *name == '\0' && *given == '\0';
}

const zero_option *zero_option_find(const char *name)
{
    for (uint32_t i = 0; name != NULL && i < zero_option_count(); i++) {
        if (option_table_is_name(table[i].name, name)) {
            return &table[i];
        }
    }
    return NULL;
}

const char *zi_option_struct(const zero_option *option)
{
    return option->is_tuning != 0 ? "tuning" : "options";
}

void *zi_option_field(const zero_option *option, zero_engine_options *options, zero_tuning *tuning)
{
    void *whole = option->is_tuning != 0 ? (void *)tuning : (void *)options;
    return (unsigned char *)whole + option->offset;
}

void zi_option_choices(const zero_option *option, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < option->choice_count && used < text_bytes; i++) {
        if (option->choices[i] != NULL) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used == 0 ? "" : ", ",
                                     option->choices[i]);
        }
    }
}

uint64_t zi_option_whole(const zero_option *option, const void *field)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    if (option->bytes == sizeof wide) {
        memcpy(&wide, field, sizeof wide);
        return wide;
    }
    memcpy(&narrow, field, sizeof narrow);
    return narrow;
}

void zi_option_put(const zero_option *option, void *field, uint64_t value)
{
    const uint32_t narrow = (uint32_t)value;
    if (option->bytes == sizeof value) {
        memcpy(field, &value, sizeof value);
    } else {
        memcpy(field, &narrow, sizeof narrow);
    }
}

/* ---- from text ---- */

/* Names of the roles that have a tier, with commas between. */
static void list_roles(char *text, size_t text_bytes)
{
    size_t used = 0;
    for (int role = 0; role < ZI_TIER_ROLES; role++) {
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", role != 0 ? ", " : "",
                                 zero_role_name((zero_role)role));
        zi_assert_cmp(used, <, text_bytes);
    }
}

static zero_status option_table_refuse(const zero_option *option, const char *text)
{
    char names[128];
    char roles[128];
    const char *name = option->name;
    switch (option->kind) {
    case ZERO_OPTION_CHOICE:
        zi_option_choices(option, names, sizeof names);
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s \"%.40s\" is not one of %s", name, text, names);
    case ZERO_OPTION_TIERS:
        zi_option_choices(option, names, sizeof names);
        list_roles(roles, sizeof roles);
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s \"%.40s\" is not a list of ROLE=TIER; roles are %s, tiers are %s", name, text,
                roles, names);
    case ZERO_OPTION_GROUPS:
        zi_option_choices(option, names, sizeof names);
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s \"%.40s\" is not a list of GROUP=NAME; groups are 0 to %d, names %s", name,
                text, ZERO_STEP_GROUPS - 1, names);
    case ZERO_OPTION_REAL:
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s \"%.40s\" is not a finite number >= 0", name, text);
    case ZERO_OPTION_POINTER:
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s cannot be given as text; assign the field", name);
    case ZERO_OPTION_FLAG:
    case ZERO_OPTION_COUNT:
    case ZERO_OPTION_BYTES:
    case ZERO_OPTION_NUMBER:
    case ZERO_OPTION_TEXT:
        break;
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s \"%.40s\" is not in [%" PRIu64 ", %" PRIu64 "]%s", name,
            text, option->low, option->high,
            option->kind == ZERO_OPTION_BYTES ? ", with K, M or G behind it for more" : "");
}

/* Digits, and a unit where bytes are meant. */
static bool read_whole(const zero_option *option, const char *text, uint64_t *value)
{
    static const char units[] = "KMG";
    char *end = NULL;
    if (strcmp(text, "default") == 0) {
        *value = 0;
        return true;
    }
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    errno = 0;
    *value = strtoull(text, &end, 10);
    if (errno != 0) {
        return false;
    }
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL && option->kind == ZERO_OPTION_BYTES) {
        const uint32_t shift = 10 * (uint32_t)(unit - units + 1);
        if (*value > UINT64_MAX >> shift) {
            return false;
        }
        *value <<= shift;
        end++;
    }
    return *end == '\0' && zi_option_in_bounds(option, *value);
}

static bool read_choice(const zero_option *option, const char *text, size_t length, uint64_t *value)
{
    for (uint32_t i = 0; i < option->choice_count; i++) {
        const char *name = option->choices[i];
        if (name != NULL && strlen(name) == length && memcmp(name, text, length) == 0) {
            *value = i;
            return true;
        }
    }
    return false;
}

/* Keys of a list, in the order of the field's entries. */
static uint32_t key_count(const zero_option *option)
{
    return option->kind == ZERO_OPTION_TIERS ? ZI_TIER_ROLES : ZERO_STEP_GROUPS;
}

static const char *key_name(const zero_option *option, uint32_t key, char *digits,
                            size_t digits_bytes)
{
    if (option->kind == ZERO_OPTION_TIERS) {
        return zero_role_name((zero_role)key);
    }
    (void)snprintf(digits, digits_bytes, "%" PRIu32, key);
    return digits;
}

static uint32_t find_key(const zero_option *option, const char *text, size_t bytes)
{
    char digits[16];
    uint32_t key = 0;
    for (; key < key_count(option); key++) {
        const char *name = key_name(option, key, digits, sizeof digits);
        if (strlen(name) == bytes && memcmp(name, text, bytes) == 0) {
            break;
        }
    }
    return key;
}

/* Sets those entries of `field`, all of which are 32 bits, that the text names. */
static bool read_list(const zero_option *option, const char *text, unsigned char *field)
{
    const char *at = text;
    while (true) {
        const size_t key_bytes = strcspn(at, "=");
        const uint32_t key = find_key(option, at, key_bytes);
        const char *choice = at + key_bytes + 1;
        uint64_t number = 0;
        if (key == key_count(option) || at[key_bytes] == '\0' ||
            !read_choice(option, choice, strcspn(choice, ","), &number)) {
            return false;
        }
        const uint32_t entry = (uint32_t)number;
        memcpy(field + key * sizeof entry, &entry, sizeof entry);
        at = choice + strcspn(choice, ",");
        if (*at == '\0') {
            return true;
        }
        at++;
    }
}

/* Decimal digits only: strtof alone would take blanks, hexadecimal digits and words. */
static bool read_real(const char *text, float *value)
{
    char *end = NULL;
    *value = strtof(text, &end);
    return text[strspn(text, "0123456789.eE+-")] == '\0' && end != text && *end == '\0' &&
           isfinite(*value) && *value >= 0.0f;
}

static zero_status set_field(const zero_option *option, void *field, const char *text)
{
    uint64_t whole = 0;
    float real = 0.0f;
    unsigned char list[LIST_BYTES];
    bool is_value = false;
    switch (option->kind) {
    case ZERO_OPTION_FLAG:
    case ZERO_OPTION_COUNT:
    case ZERO_OPTION_BYTES:
    case ZERO_OPTION_NUMBER:
    case ZERO_OPTION_CHOICE:
        is_value = option->kind == ZERO_OPTION_CHOICE
                       ? read_choice(option, text, strlen(text), &whole)
                       : read_whole(option, text, &whole);
        if (is_value) {
            zi_option_put(option, field, whole);
        }
        break;
    case ZERO_OPTION_REAL:
        is_value = read_real(text, &real);
        if (is_value) {
            memcpy(field, &real, sizeof real);
        }
        break;
    case ZERO_OPTION_TIERS:
    case ZERO_OPTION_GROUPS:
        memcpy(list, field, option->bytes);
        is_value = read_list(option, text, list);
        if (strcmp(text, "default") == 0) {
            memset(list, 0, sizeof list);
            is_value = true;
        }
        if (is_value) {
            memcpy(field, list, option->bytes);
        }
        break;
    case ZERO_OPTION_TEXT:
        memcpy(field, &text, sizeof text);
        is_value = true;
        break;
    case ZERO_OPTION_POINTER:
        break;
    }
    return is_value ? ZERO_OK : option_table_refuse(option, text);
}

zero_status zero_option_set(zero_engine_options *options, zero_tuning *tuning, const char *name,
                            const char *text)
{
    const zero_option *option = zero_option_find(name);
    if (name == NULL || text == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is NULL; zero_option_set needs an option's name and "
                "a value as text",
                name == NULL ? "name" : "text");
    }
    if (option == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "there is no option \"%.60s\"; zero_option_at lists them all", name);
    }
    void *whole = option->is_tuning != 0 ? (void *)tuning : (void *)options;
    size_t struct_bytes = 0;
    if (whole == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is NULL and has %s", zi_option_struct(option),
                option->name);
    }
    memcpy(&struct_bytes, whole, sizeof struct_bytes);
    if (struct_bytes < option->offset + option->bytes) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED, "%s has %zu bytes, without %s; compile with newer headers",
                zi_option_struct(option), struct_bytes, option->name);
    }
    return set_field(option, (unsigned char *)whole + option->offset, text);
}

/* ---- to text ---- */

/* Tiers of all roles; of groups those that have an entry. */
static size_t print_list(const zero_option *option, const unsigned char *field, char *text,
                         size_t text_bytes)
{
    char digits[16];
    size_t used = 0;
    for (uint32_t key = 0; key < key_count(option); key++) {
        const size_t room = used < text_bytes ? text_bytes - used : 0;
        uint32_t entry = 0;
        memcpy(&entry, field + key * sizeof entry, sizeof entry);
        if (option->kind == ZERO_OPTION_GROUPS && entry == 0) {
            continue;
        }
        const int length =
            snprintf(room != 0 ? text + used : NULL, room, "%s%s=%s", used == 0 ? "" : ",",
                     key_name(option, key, digits, sizeof digits),
                     entry < option->choice_count ? option->choices[entry] : "?");
        used += (size_t)length;
    }
    return used != 0 ? used : (size_t)snprintf(text, text_bytes, "default");
}

/* 1M rather than 1048576. */
static size_t print_bytes(uint64_t value, char *text, size_t text_bytes)
{
    static const char *const units[] = {"", "K", "M", "G"};
    uint32_t unit = 0;
    while (unit < 3 && value != 0 && value % 1024 == 0) {
        value /= 1024;
        unit++;
    }
    return (size_t)snprintf(text, text_bytes, "%" PRIu64 "%s", value, units[unit]);
}

size_t zero_option_print(const zero_option *option, const zero_engine_options *options,
                         const zero_tuning *tuning, char *text, size_t text_bytes)
{
    const zero_engine_options no_options = zero_engine_options_init();
    const zero_tuning no_tuning = zero_tuning_init();
    const void *pointer = NULL;
    float real = 0.0f;
    text_bytes = text != NULL ? text_bytes : 0;
    if (text_bytes != 0) {
        text[0] = '\0';
    }
    if (option == NULL) {
        return 0;
    }
    const void *whole = option->is_tuning != 0
                            ? (const void *)(tuning != NULL ? tuning : &no_tuning)
                            : (const void *)(options != NULL ? options : &no_options);
    const unsigned char *field = (const unsigned char *)whole + option->offset;
    switch (option->kind) {
    case ZERO_OPTION_TIERS:
    case ZERO_OPTION_GROUPS:
        return print_list(option, field, text, text_bytes);
    case ZERO_OPTION_POINTER:
        memcpy(&pointer, field, sizeof pointer);
        return (size_t)snprintf(text, text_bytes, "%s", pointer != NULL ? "set" : "none");
    case ZERO_OPTION_TEXT:
        memcpy(&pointer, field, sizeof pointer);
        return (size_t)snprintf(text, text_bytes, "%s",
                                pointer != NULL ? (const char *)pointer : "none");
    case ZERO_OPTION_REAL:
        memcpy(&real, field, sizeof real);
        return (size_t)snprintf(text, text_bytes, "%.9g", (double)real);
    case ZERO_OPTION_BYTES:
        return print_bytes(zi_option_whole(option, field), text, text_bytes);
    case ZERO_OPTION_CHOICE:
    case ZERO_OPTION_FLAG:
    case ZERO_OPTION_COUNT:
    case ZERO_OPTION_NUMBER:
        break;
    }
    const uint64_t value = zi_option_whole(option, field);
    if (value < option->choice_count && option->choices[value] != NULL) {
        return (size_t)snprintf(text, text_bytes, "%s", option->choices[value]);
    }
    return (size_t)snprintf(text, text_bytes, "%" PRIu64, value);
}
