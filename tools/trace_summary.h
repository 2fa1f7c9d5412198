/* What timelines come to: the figures behind `zero trace summary`. */
#ifndef TOOLS_TRACE_SUMMARY_H
#define TOOLS_TRACE_SUMMARY_H

#include "trace_spans.h"

/* A step. Nanoseconds; the mean over the ranks, but for the time, which is the longest's. */
typedef struct trace_step {
    int64_t time;
    int64_t compute; /* by the caller, on its stream */
    int64_t exposed; /* of the caller's stream in calls of the library */
    int64_t exchange;
    int64_t exchange_hidden; /* of that, behind compute or an update */
    int64_t disk;
    int64_t disk_hidden; /* likewise */
} trace_step;

/* A unit: nanoseconds in the mean over steps and ranks. */
typedef struct trace_unit {
    const char *name;
    int64_t exposed; /* calls that are about it */
    int64_t compute; /* what the caller did after it was acquired, up to the next call */
    int64_t gather;
    int64_t reduce;
    int64_t update;
} trace_unit;

/* A rank at collectives whose members are all there. */
typedef struct trace_arrival {
    uint64_t last;  /* to how many it came last */
    int64_t waited; /* nanoseconds that the others waited for it then, in the mean of them */
} trace_arrival;

typedef struct trace_figures {
    const trace_rank *ranks;
    size_t rank_count;
    trace_step *steps;
    size_t step_count;
    trace_step mean;
    trace_unit *units; /* those that are waited for longest first */
    size_t unit_count;
    trace_arrival *arrivals; /* by rank */
    uint64_t collectives;    /* compared */
} trace_figures;

/* The longest of what is done for a unit: "compute", "gather", "reduce", "update", or "-". */
const char *trace_bottleneck(const trace_unit *unit);

/* 0, or 1 after bench_fail. (trace_print.c) */
int trace_print(const trace_figures *figures);
int trace_write_json(const trace_figures *figures, const char *path);

#endif
