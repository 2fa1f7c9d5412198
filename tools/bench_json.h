/* Writing JSON, as much of it as the report needs. By hand, so that the program depends on nothing:
 * the machines whose figures matter most, those with GPUs, rarely have a JSON library's headers. */
#ifndef TOOLS_BENCH_JSON_H
#define TOOLS_BENCH_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Zeroed but for `out`: at the start of a document. Errors of writing stay in `out`. */
typedef struct bench_json {
    FILE *out;
    uint32_t depth;
    bool filled; /* the innermost bracket has something in it */
} bench_json;

/* In all of them key is NULL inside [] and at the start. */

/* bracket: '{' or '['; closed by '}' or ']'. */
void bench_json_open(bench_json *json, const char *key, char bracket);
void bench_json_close(bench_json *json, char bracket);

/* text: UTF-8; NULL is null. */
void bench_json_text(bench_json *json, const char *key, const char *text);

/* Ten significant digits; not finite: null. */
void bench_json_number(bench_json *json, const char *key, double number);
void bench_json_whole(bench_json *json, const char *key, uint64_t number);
void bench_json_flag(bench_json *json, const char *key, bool flag);

#endif
