/* The report behind bench.h: its rows as JSON has them, and where they are written. */
#ifndef TOOLS_BENCH_REPORT_H
#define TOOLS_BENCH_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "bench.h"

struct bench_report {
    json_t *results;
    json_t *skipped;
    json_t *failed;    /* names of runners */
    json_t *gpu;       /* NULL: no runner looked at one */
    char *drawing;     /* of bench_report_draw; NULL: none */
    const char *drawn; /* what metrics begin with that it shows */
    bench_scale scale;
    const char
        *json_path; /* NULL: no JSON is wanted; "-": stdout, where no table is printed then */
    int json_file;
    bool on_disk;    /* the file has what there is after every row, for whoever ends a run early */
    bool unfinished; /* rows are still to come */
};

/* A row, read: "adamw_vs_limit", "bf16 grad and copy, 2 threads", ... Texts are the report's. */
typedef struct bench_row {
    const char *metric;
    const char *name;
    double value; /* median of what was measured */
    const char *unit;
    double reference; /* median of the reference, or the limit */
    double ratio;     /* above 1: better than the reference */
    double min;
    double max;
    uint32_t repetitions;
} bench_row;

/* Open a file to be written without losing what is in it; "-" is stdout. -1 after bench_fail. */
int bench_open_file(const char *path);

/* An empty report. The file for its JSON is opened before anything is measured, without losing what
 * is in it. 1 after bench_fail. */
int bench_report_open(bench_report *report, const char *json_path, bench_scale scale);

/* Writes the JSON, where it is wanted, and gives everything back. 1 after bench_fail. */
int bench_report_close(bench_report *report);

/* True when the table goes to stdout. */
bool bench_report_has_table(const bench_report *report);

/* The GPU, one line a row, then what was left out and why. */
void bench_report_print(const bench_report *report, FILE *out);

/* False when `json` is no row. */
bool bench_row_read(const json_t *json, bench_row *row);

/* Add what another process measured: the rows and the omissions of its JSON. 1 after bench_fail
 * when that is not what it holds. */
int bench_report_take(bench_report *report, const json_t *json);

/* {"machine", "date", "commit", "build"}; "unknown" and 0 where the system does not tell. The date
 * is UTC's. The commit is that which the program was built from, with "-dirty" behind it when files
 * differed. NULL: memory is out. The caller's. */
json_t *bench_head_json(const bench_report *report);

#endif
