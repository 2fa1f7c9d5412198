/* Errors: a status of libzero, or one line that says what is wrong, with which value, and the
 * remedy. */
#ifndef GPT2_ERROR_H
#define GPT2_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "zero/status.h"

typedef struct gpt2_error {
    char text[512];
} gpt2_error;

/* Return the status of a call that failed. */
#define TRY(call)                        \
    do {                                 \
        const zero_status try_ = (call); \
        if (try_ != ZERO_OK) {           \
            return try_;                 \
        }                                \
    } while (0)

/* Sets the text; returns false, so that a caller can `return gpt2_fail(...)`. */
__attribute__((format(printf, 2, 3))) static inline bool gpt2_fail(gpt2_error *error,
                                                                   const char *format, ...)
{
    va_list values;
    va_start(values, format);
    (void)vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    return false;
}

#endif
