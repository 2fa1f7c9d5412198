/* Files of timelines, as zero_engine_trace writes them (zero/trace.h). */
#ifndef TOOLS_TRACE_READ_H
#define TOOLS_TRACE_READ_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A span. Texts are the file's. */
typedef struct trace_span {
    const char *category;
    const char *of;    /* "": of nothing with a name */
    const char *group; /* NULL: it is no collective */
    uint64_t track;
    int64_t begin_ns; /* in the file's clock; trace_aligned makes it rank 0's */
    int64_t end_ns;
    uint64_t leader;
    uint64_t ranks;
    uint64_t batch;
} trace_span;

/* A rank's file. */
typedef struct trace_rank {
    const char *path;
    json_t *root;
    uint64_t rank;
    uint64_t world;
    uint64_t part;
    uint64_t parts;
    int64_t offset_ns; /* that its clock is ahead of rank 0's */
    uint64_t error_ns;
    uint64_t lost;
    uint64_t hooks;    /* the track that hooks wait on */
    bool on_stream;    /* it is a GPU's */
    trace_span *spans; /* by track and time */
    size_t span_count;
} trace_rank;

/* Read a file. 1 after bench_fail, which names the file and what is wrong with which event; then
 * too it is to be freed. */
int trace_read(const char *path, trace_rank *rank);
void trace_free(trace_rank *rank);

/* All files of a run, which fit together: each rank is there at most once, and all are of one
 * world. 1 after bench_fail. */
int trace_read_all(char *const *paths, size_t count, trace_rank *ranks);

/* Write the timeline of all ranks to a new file, or "-". 1 after bench_fail. (trace_merge.c) */
int trace_merge(const char *out, trace_rank *ranks, size_t count);

/* Print what it comes to; json_path: NULL, or where to write that as JSON too, "-" for stdout and
 * no table. 1 after bench_fail. (trace_summary.c) */
int trace_summary(const trace_rank *ranks, size_t count, const char *json_path);

#endif
