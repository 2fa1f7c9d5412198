/* The device that engines are measured on: the CPU or a GPU. */
#ifndef TOOLS_BENCH_TARGET_H
#define TOOLS_BENCH_TARGET_H

#include "bench.h"
#include "zero/options.h"
#include "zero/stream.h"

typedef struct bench_target {
    zero_device device;
    zero_stream stream;  /* for the hooks of the main thread */
    const char *suffix;  /* behind the names of cases */
    const char *used;    /* the memory that used_most counts, in names of cases */
    uint32_t hook_units; /* units whose hooks are timed without a pause */
    uint32_t hook_calls; /* timed in one measurement at full scale */
    /* Wait for what is on `stream`. 0, or 1 after bench_fail. */
    int (*wait)(const struct bench_target *target);
    /* Bytes of an engine's to the host, after what is on `stream`. Likewise. */
    int (*fetch)(const struct bench_target *target, void *host, const void *data, size_t bytes);
    /* Bytes in use as the system sees it, and the most since then; 0 where it does not tell. */
    uint64_t (*used_start)(void);
    uint64_t (*used_most)(void);
} bench_target;

extern const bench_target bench_cpu_target;

/* A number of kB behind `key` in a file of /proc, in bytes; 0 where there is none. */
uint64_t bench_proc_bytes(const char *path, const char *key);

/* Forget the peak of the process's resident memory so far; what is resident now, or 0 where the
 * system does not tell or does not forget. Then the most since. */
uint64_t bench_resident_start(void);
uint64_t bench_resident_most(void);

/* hook_ns, peak_memory_vs_plan, and `memory`. 0, or 1 after bench_fail. */
int bench_hooks_at(const bench_target *target, const bench_options *options, bench_report *report);
int bench_peak_memory_at(const bench_target *target, const bench_options *options,
                         bench_report *report);
int bench_footprint_at(const bench_target *target, const bench_options *options,
                       bench_report *report);

#endif
