/* Owns the per-thread error record. Fixed storage, no allocation; written only where a fault is
 * found. */
#include "core/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static _Thread_local zero_error last_error;

const zero_error *zero_last_error(void)
{
    return &last_error;
}

const char *zero_status_name(zero_status status)
{
#define ZI_ROW(name, value, text) \
    case ZERO_ERR_##name:         \
        return #name;
    switch (status) {
    case ZERO_OK:
        return "OK";
        ZERO_ERR_LIST(ZI_ROW)
    }
#undef ZI_ROW
    return "UNKNOWN";
}

const char *zero_status_text(zero_status status)
{
#define ZI_ROW(name, value, text) \
    case ZERO_ERR_##name:         \
        return text;
    switch (status) {
    case ZERO_OK:
        return "no error";
        ZERO_ERR_LIST(ZI_ROW)
    }
#undef ZI_ROW
    return "unknown status";
}

zero_status zi_error_set(zero_status status, int native, const char *file, int line,
                         const char *format, ...)
{
    /* Formatted aside: an argument may be the record's own last message. */
    char message[sizeof last_error.message];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(message, sizeof message, format, args);
    va_end(args);
    memcpy(last_error.message, message, sizeof message);
    const char *slash = strrchr(file, '/');
    last_error.status = status;
    last_error.native = native;
    last_error.file = slash != NULL ? slash + 1 : file;
    last_error.line = line;
    last_error.of_other = 0;
    return status;
}

zero_status zi_error_set_other(zero_status status, int native, const char *world, uint32_t rank,
                               const char *message)
{
    (void)zi_error_set(status, native, __FILE__, __LINE__, "%srank %" PRIu32 ": %.230s", world,
                       rank, message);
    last_error.of_other = 1;
    return status;
}

zi_error_told zi_error_tell(zero_status status)
{
    zi_error_told told = {.status = (int16_t)status};
    if (status != ZERO_OK) {
        told.of_other = (uint16_t)last_error.of_other;
        told.native = last_error.native;
        (void)snprintf(told.text, sizeof told.text, "%.*s", (int)sizeof told.text - 1,
                       last_error.message);
    }
    return told;
}

zero_status zi_error_hear(const zi_error_told *told, const char *world, uint32_t rank)
{
    return zi_error_set_other((zero_status)told->status, told->native, world, rank, told->text);
}

/* A rank has COMM and POISONED because of something else, and an error of another because it was
 * told. */
static bool is_cause(const zi_error_told *told)
{
    return told->status != ZERO_OK && told->status != ZERO_ERR_COMM &&
           told->status != ZERO_ERR_POISONED && told->of_other == 0;
}

uint32_t zi_error_first_cause(const zi_error_told *told, size_t stride, uint32_t count)
{
    uint32_t failed = count;
    for (uint32_t rank = 0; rank < count; rank++) {
        const zi_error_told *at =
            (const void *)((const unsigned char *)told + (size_t)rank * stride);
        if (is_cause(at)) {
            return rank;
        }
        failed = at->status != ZERO_OK && failed == count ? rank : failed;
    }
    return failed;
}

const char *zi_error_cause(const zero_error *error, uint32_t *rank)
{
    uint32_t named = 0;
    int chars = 0;
    if (error->of_other == 0 ||
        sscanf(error->message, "rank %" SCNu32 ": %n", &named, &chars) != 1 || chars == 0) {
        return error->message;
    }
    *rank = named;
    return error->message + chars;
}

zero_status zi_error_adopt(const zero_error *error)
{
    if (error != &last_error) {
        last_error = *error;
    }
    return error->status;
}
