/* Owns writing JSON. Invariant: what is counted without memory is what is written with it, on every
 * machine and in every locale. */
#include "format/json_text.h"

#include <stdio.h>
#include <string.h>

#include "core/utf8.h"

static const char digits[] = "0123456789abcdef";

static void put_bytes(zi_json_out *out, const char *bytes, size_t count)
{
    if (out->text != NULL) {
        memcpy(out->text + out->bytes, bytes, count);
    }
    out->bytes += count;
}

void zi_json_put(zi_json_out *out, const char *raw)
{
    put_bytes(out, raw, strlen(raw));
}

static void put_escaped(zi_json_out *out, unsigned char byte)
{
    if (byte == '"' || byte == '\\') {
        put_bytes(out, (const char[]){'\\', (char)byte}, 2);
    } else {
        put_bytes(out, (const char[]){'\\', 'u', '0', '0', digits[byte >> 4], digits[byte & 15]},
                  6);
    }
}

void zi_json_put_text(zi_json_out *out, const char *text)
{
    zi_json_put(out, "\"");
    while (*text != '\0') {
        const unsigned char byte = (unsigned char)*text;
        const size_t bytes = zi_utf8_bytes((const unsigned char *)text);
        if (bytes == 0 || byte < 0x20 || byte == '"' || byte == '\\') {
            put_escaped(out, byte);
        } else {
            put_bytes(out, text, bytes);
        }
        text += bytes != 0 ? bytes : 1;
    }
    zi_json_put(out, "\"");
}

void zi_json_put_number(zi_json_out *out, uint64_t number)
{
    char text[20];
    size_t at = sizeof text;
    do {
        text[--at] = digits[number % 10];
        number /= 10;
    } while (number != 0);
    put_bytes(out, text + at, sizeof text - at);
}

void zi_json_put_quoted(zi_json_out *out, uint64_t number)
{
    zi_json_put(out, "\"");
    zi_json_put_number(out, number);
    zi_json_put(out, "\"");
}

void zi_json_put_hash(zi_json_out *out, uint64_t hash)
{
    char text[18];
    text[0] = text[17] = '"';
    for (int i = 0; i < 16; i++) {
        text[16 - i] = digits[hash >> (4 * i) & 15];
    }
    put_bytes(out, text, sizeof text);
}

/* The digits of snprintf, but with a '.' whatever the locale calls it, and always one or an
 * exponent. */
static void put_digits(zi_json_out *out, const char *text)
{
    bool real = false;
    for (; *text != '\0'; text++) {
        const bool digit = (*text >= '0' && *text <= '9') || *text == '-' || *text == '+';
        if (digit || *text == 'e') {
            put_bytes(out, text, 1);
            real = real || *text == 'e';
        } else if (!real) { /* the decimal point may have several bytes */
            zi_json_put(out, ".");
            real = true;
        }
    }
    zi_json_put(out, real ? "" : ".0");
}

void zi_json_put_real(zi_json_out *out, double value)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%.17g", value);
    put_digits(out, text);
}

void zi_json_put_float(zi_json_out *out, float value)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%.9g", (double)value);
    put_digits(out, text);
}
