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
};

void bench_report_clear(bench_report *report);

/* One line a row, then what was left out and why. */
void bench_report_print(const bench_report *report, FILE *out);

/* {"results": [...], "skipped": [...], "failed": [...]}; NULL when memory is out. Ownership: the
 * caller's. */
json_t *bench_report_json(const bench_report *report);

/* Take rows and omissions of such an object; 1 after bench_fail when it is not one. */
int bench_report_merge(bench_report *report, const json_t *object);

/* The machine as an object; "unknown" and 0 where the system does not tell. */
json_t *bench_machine_json(void);

/* What the program was built from and with. */
json_t *bench_build_json(void);

/* The commit it was built from, with "-dirty" behind it when files differed; "unknown" outside a
 * repository. */
const char *bench_commit_text(void);

#endif
