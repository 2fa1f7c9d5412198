/* Sets of times, and what a timeline's spans are as such. (trace_spans.c) */
#ifndef TOOLS_TRACE_SPANS_H
#define TOOLS_TRACE_SPANS_H

#include "trace_read.h"

typedef struct trace_times {
    int64_t begin_ns;
    int64_t end_ns;
} trace_times;

/* Disjoint, ascending. */
typedef struct trace_set {
    trace_times *at; /* free() it */
    size_t count;
} trace_set;

/* What a rank did when, by rank 0's clock. */
typedef struct trace_sets {
    trace_set waiting; /* the caller's stream is in a call of the library */
    trace_set compute; /* it is not, between the first call and the last */
    trace_set busy;    /* that, or the rank updates and does not wait for its disk */
    trace_set exchanges;
    trace_set transfers;
} trace_sets;

/* Whether the span is a call of the caller's that was noted where it waits. */
bool trace_is_hook(const trace_rank *rank, const trace_span *span);

/* False: no memory. */
bool trace_sets_make(const trace_rank *rank, trace_sets *sets);
void trace_sets_free(trace_sets *sets);
/* How much of a time a set covers, or two sets at once (NULL: one). */
int64_t trace_covered(const trace_set *set, const trace_set *other, trace_times during);

#endif
