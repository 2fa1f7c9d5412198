/* The report behind bench.h: its rows as JSON has them, and where they are written. */
#ifndef TOOLS_BENCH_REPORT_H
#define TOOLS_BENCH_REPORT_H

#include <jansson.h>

#include "bench.h"

struct bench_report {
    json_t *results;
    json_t *skipped;
    json_t *failed; /* names of runners */
    json_t *gpu;    /* NULL: no runner looked at one */
    json_t *more;   /* what a runner has beside rows, by its name */
    bench_scale scale;
    const char
        *json_path; /* NULL: no JSON is wanted; "-": stdout, where no table is printed then */
    int json_file;
    bool on_disk;    /* the file has what there is after every row, for whoever ends a run early */
    bool unfinished; /* rows are still to come */
};

/* Open a file to be written without losing what is in it; "-" is stdout. -1 after bench_fail. */
int bench_open_file(const char *path);

/* An empty report. The file for its JSON is opened before anything is measured, without losing what
 * is in it. 1 after bench_fail. */
int bench_report_open(bench_report *report, const char *json_path, bench_scale scale);

/* Writes the JSON, where it is wanted, and gives everything back. 1 after bench_fail. */
int bench_report_close(bench_report *report);

/* True when the table goes to stdout. */
bool bench_report_has_table(const bench_report *report);

/* Print the text that a module of tools/python makes of it: "bench_table" or "io_table". 1 after
 * bench_fail. */
int bench_report_print(const bench_report *report, const char *module);

/* Beside rows the report has under `key` what a picture shows; the reference is taken. 1 after
 * bench_fail. */
int bench_report_more(bench_report *report, const char *key, json_t *value);

/* Add what another process measured: the rows and the omissions of its JSON. 1 after bench_fail
 * when that is not what it holds. */
int bench_report_take(bench_report *report, const json_t *json);

/* {"machine", "date", "commit", "build"}; "unknown" and 0 where the system does not tell. The date
 * is UTC's. The commit is that which the program was built from, with "-dirty" behind it when files
 * differed. NULL: memory is out. The caller's. */
json_t *bench_head_json(const bench_report *report);

#endif
