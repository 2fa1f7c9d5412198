/* The report behind bench.h: kept rows, and the forms they are printed in. */
#ifndef TOOLS_BENCH_REPORT_H
#define TOOLS_BENCH_REPORT_H

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

#include "bench.h"

/* A case that was not measured. */
typedef struct bench_omission {
    char *metric;
    char *name; /* NULL: the whole metric */
    char *reason;
} bench_omission;

struct bench_report {
    bench_row *rows; /* texts owned */
    size_t row_count;
    size_t row_capacity;
    bench_omission *omissions;
    size_t omission_count;
    size_t omission_capacity;
    const char *failed[8]; /* runners that failed; static text */
    size_t failed_count;
    bench_gpu_facts gpu; /* name[0] == '\0': no runner looked at a GPU */
    /* Where the JSON goes after every row, so that whoever ends a run early has those before. */
    const char *json_path; /* NULL: nowhere before the end */
    int json_file;
    bench_scale scale;
    bool unfinished; /* rows are still to come */
};

/* Writes the JSON so far. 0, or 1 after bench_fail. */
int bench_report_keep(const bench_report *report);

void bench_report_clear(bench_report *report);

/* The GPU, one line a row, then what was left out and why. */
void bench_report_print(const bench_report *report, FILE *out);

/* Open the file for the JSON before anything is measured, without losing what is in it; "-" is
 * stdout. 1 after bench_fail. */
int bench_open_json(const char *path, int *file);

/* The whole document into that file, which is closed. 1 after bench_fail. */
int bench_write_json(const bench_report *report, bench_scale scale, const char *path, int file);

/* {"results": [...], "skipped": [...], "failed": [...]}; NULL: memory is out. The caller's. */
json_t *bench_report_json(const bench_report *report);

/* Add the rows and the omissions of bench_report_json, of another process. 1 after bench_fail when
 * that is not what it holds. */
int bench_report_take(bench_report *report, json_t *json);

/* The machine; "unknown" and 0 where the system does not tell, "gpu" only where a runner looked at
 * one. The date, by UTC. What the program was built with. As above. */
json_t *bench_machine_json(const bench_gpu_facts *gpu);
json_t *bench_date_json(void);
json_t *bench_build_json(void);

/* The commit it was built from, with "-dirty" behind it when files differed; "unknown" outside a
 * repository. */
const char *bench_commit_text(void);

#endif
