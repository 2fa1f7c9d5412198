/* Owns the per-thread error record. Fixed storage, no allocation; written only where a fault is
 * found. */
#include "core/error.h"

#include <stdarg.h>
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

zero_status zi_error_adopt(const zero_error *error)
{
    if (error != &last_error) {
        last_error = *error;
    }
    return error->status;
}
