/* Owns the letters of a JSON document. Invariant: whatever the texts hold, what is written is one
 * well-formed document once every bracket is closed. */
#include "bench_json.h"

#include <inttypes.h>
#include <math.h>

#define INDENT 2

static void write_text(FILE *out, const char *text)
{
    (void)fputc('"', out);
    for (const char *at = text; *at != '\0'; at++) {
        const unsigned char letter = (unsigned char)*at;
        if (letter == '"' || letter == '\\') {
            (void)fputc('\\', out);
        }
        if (letter < 0x20) {
            (void)fprintf(out, "\\u%04x", letter);
        } else {
            (void)fputc(letter, out);
        }
    }
    (void)fputc('"', out);
}

static void new_line(const bench_json *json)
{
    (void)fprintf(json->out, "\n%*s", (int)(json->depth * INDENT), "");
}

/* What stands before any value. */
static void begin_value(bench_json *json, const char *key)
{
    if (json->filled) {
        (void)fputc(',', json->out);
    }
    if (json->depth > 0) {
        new_line(json);
    }
    if (key != NULL) {
        write_text(json->out, key);
        (void)fputs(": ", json->out);
    }
    json->filled = true;
}

void bench_json_open(bench_json *json, const char *key, char bracket)
{
    begin_value(json, key);
    (void)fputc(bracket, json->out);
    json->depth++;
    json->filled = false;
}

void bench_json_close(bench_json *json, char bracket)
{
    json->depth--;
    if (json->filled) {
        new_line(json);
    }
    (void)fputc(bracket, json->out);
    json->filled = true;
    if (json->depth == 0) {
        (void)fputc('\n', json->out);
    }
}

void bench_json_text(bench_json *json, const char *key, const char *text)
{
    begin_value(json, key);
    if (text == NULL) {
        (void)fputs("null", json->out);
    } else {
        write_text(json->out, text);
    }
}

void bench_json_number(bench_json *json, const char *key, double number)
{
    begin_value(json, key);
    if (isfinite(number)) {
        (void)fprintf(json->out, "%.10g", number);
    } else {
        (void)fputs("null", json->out);
    }
}

void bench_json_whole(bench_json *json, const char *key, uint64_t number)
{
    begin_value(json, key);
    (void)fprintf(json->out, "%" PRIu64, number);
}

void bench_json_flag(bench_json *json, const char *key, bool flag)
{
    begin_value(json, key);
    (void)fputs(flag ? "true" : "false", json->out);
}
