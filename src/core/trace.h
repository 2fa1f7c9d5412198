/* Spans of the calling thread: in a timeline, and as NVTX ranges of the domain "libzero" where the
 * build has NVTX (it comes with the CUDA toolkit). With neither a profiler nor a timeline a span
 * costs two loads. */
#ifndef ZI_CORE_TRACE_H
#define ZI_CORE_TRACE_H

#include "core/timeline.h"

/* Spans of a thread nest.
 * - timeline: whose calling thread this is; NULL: for a profiler alone.
 * - name: a unit's or a group's; with a timeline it lives as long as that. */
void zi_span_begin(zi_timeline *timeline, zi_span span, const char *name);
void zi_span_end(zi_timeline *timeline);

#endif
