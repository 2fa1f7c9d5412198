/* Where an engine's memory is, for measurements that are made on the CPU and on a GPU. */
#ifndef TOOLS_BENCH_PLACE_H
#define TOOLS_BENCH_PLACE_H

#include "bench.h"
#include "zero/options.h"
#include "zero/stream.h"

typedef struct bench_place {
    zero_device device;
    zero_stream stream;  /* for the hooks of the main thread */
    const char *suffix;  /* behind the names of cases */
    const char *used;    /* what used_bytes counts, in names of cases */
    uint32_t hook_units; /* units whose hooks are timed without a pause */
    uint32_t hook_calls; /* timed in one measurement at full scale */
    /* Wait for what is on `stream`. 0, or 1 after bench_fail. */
    int (*wait)(const struct bench_place *place);
    /* Bytes of an engine's to the host, after what is on `stream`. Likewise. */
    int (*fetch)(const struct bench_place *place, void *host, const void *data, size_t bytes);
    /* Bytes in use as the system sees it; 0 where it does not tell. */
    uint64_t (*used_bytes)(void);
} bench_place;

/* hook_ns and peak_memory_vs_plan. 0, or 1 after bench_fail. */
int bench_hooks_at(const bench_place *place, const bench_options *options, bench_report *report);
int bench_peak_memory_at(const bench_place *place, const bench_options *options,
                         bench_report *report);

#endif
