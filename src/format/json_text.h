/* Writing JSON without a library: texts, whole numbers and reals, appended to memory. The same
 * calls without memory only count, so that a writer runs twice: to know the size, and to write. */
#ifndef ZI_FORMAT_JSON_TEXT_H
#define ZI_FORMAT_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct zi_json_out {
    char *text; /* NULL: bytes are only counted */
    size_t bytes;
} zi_json_out;

/* As it is. */
void zi_json_put(zi_json_out *out, const char *raw);
/* In quotes, with escapes where JSON needs them. A byte that is no UTF-8 becomes the character of
 * its number. */
void zi_json_put_text(zi_json_out *out, const char *text);
void zi_json_put_number(zi_json_out *out, uint64_t number);
/* 16 hexadecimal digits, in quotes. */
void zi_json_put_hash(zi_json_out *out, uint64_t hash);
/* Decimal digits in quotes: a number that may need all 64 bits, of which many readers lose some. */
void zi_json_put_quoted(zi_json_out *out, uint64_t number);
/* A finite value with enough digits to be read back exactly: 17, or 9 of a float. It has a '.' or
 * an exponent, so that a reader takes it for a real, and no locale changes it. */
void zi_json_put_real(zi_json_out *out, double value);
void zi_json_put_float(zi_json_out *out, float value);

#endif
