/* `zero bench`: measurements of the library, each against its limit or a peer in the same run.
 *
 * A runner (bench_adam, ...) checks that what it measures computes the right thing, measures the
 * library and its reference in turn (bench_interleave), and adds one row per case to the report. A
 * ratio above 1 always means better than the reference. Runners print nothing on stdout; the
 * program prints the report. A wrong result, or a call that fails, ends the runner with
 * `return bench_fail(...)`; what this machine or build cannot measure is bench_skip. */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "zero/dtype.h"
#include "zero/status.h"

/* How much work a runner does. */
typedef enum bench_scale {
    BENCH_FULL = 0,  /* numbers fit to be published */
    BENCH_QUICK = 1, /* a few seconds in all: the tendency */
    BENCH_TINY = 2   /* under a second: shows that the case runs and is right, the numbers say
                        nothing */
} bench_scale;

#define BENCH_REPETITIONS_MIN 7
#define BENCH_REPETITIONS_MAX 1000

#define BENCH_DIRECTORIES_MAX 16

/* The options of `offload`, `overlap` and `checks`; directories of `memory` and `ckpt` too. */
typedef struct bench_offload_options {
    const char *directories[BENCH_DIRECTORIES_MAX];
    uint32_t directory_count; /* 0: the current directory */
    uint32_t layers;          /* 0: by scale */
    uint32_t slice_steps;     /* measure a rank's whole slice for so many steps; 0: not */
    zero_dtype master;        /* DEFAULT: f32 */
    zero_dtype moments;
} bench_offload_options;

/* The options of `memory` alone. */
typedef struct bench_memory_options {
    const char *model; /* NULL: gpt2 */
    uint32_t shrink;   /* every dimension is divided by it; 0: by scale */
    bool bf16_sums;
    bool on_gpu;
    const char *svg_path; /* NULL: not wanted */
    const char *html_path;
} bench_memory_options;

typedef struct bench_options {
    bench_scale scale;
    uint32_t repetitions;    /* per side of a case; 0 is never seen by a runner */
    uint32_t ranks;          /* 0: the runner's own choice */
    uint32_t threads;        /* 0: the runner's own choice */
    const char *case_filter; /* NULL: all; else a part of the names of the cases to run */
    bench_offload_options offload;
    bench_memory_options memory;
    const char *program; /* path of this program, for bench_spawn_ranks */
    bool named;          /* the line names this runner: what it lacks is then a failure */
    bool as_rank; /* this process is one of the ranks that bench_spawn_ranks started: run the cases
                     for the world it is in, and add rows on rank 0 only */
} bench_options;

typedef struct bench_report bench_report;

/* Say that a metric (name NULL) or one of its cases was not measured, and why. Returns 0. */
int bench_skip(bench_report *report, const char *metric, const char *name, const char *reason);

/* The command that speaks in bench_fail; "zero bench" until then. Static text. */
void bench_speak_as(const char *command);
const char *bench_speaker(void);

/* One line on stderr, "zero bench: ...". Returns 1. */
int bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* bench_fail with zero_last_error() behind `what`, which ends at the first parenthesis. Returns 1.
 */
int bench_fail_zero(const char *what);

/* A call of the library's. 0, or 1 after bench_fail_zero with its name. */
#define BENCH_TRY(call) ((call) == ZERO_OK ? 0 : bench_fail_zero(#call))

/* The status that a rank of zero_world_run returns after measurements that failed or did not: it is
 * not ZERO_OK when they did, and the library's own status where that is why. */
zero_status bench_rank_status(int failed);

/* True when options->case_filter asks for the case. */
bool bench_wants(const bench_options *options, const char *name);

/* Draw what is being measured over the last line of standard error where that is a terminal;
 * nothing elsewhere, and nothing in ranks that are processes. The first call begins it. */
void bench_progress_runner(const char *name, uint32_t number, uint32_t of);
/* A case of that runner; bench_wants says so itself. */
void bench_progress_case(const char *name);
/* Rounds of that case that are done; bench_interleave says so itself. From any thread. */
void bench_progress_round(uint32_t done, uint32_t of);
void bench_progress_clear(void); /* something else is to be printed */
void bench_progress_end(void);

/* Monotonic seconds. */
double bench_now(void);

/* Seconds of CPU time that this process has taken. */
double bench_cpu_now(void);

void bench_sleep(double seconds);

/* How often this program asked for memory: calls of malloc, calloc, realloc, posix_memalign,
 * aligned_alloc and mmap from the program and the library so far; those that system libraries make
 * inside themselves are not seen. */
uint64_t bench_allocations(void);

/* Runs a side once and returns the seconds that count (barriers, refills and checks left out),
 * taken with bench_now(). Negative: it failed and has said so with bench_fail. */
typedef double (*bench_side_fn)(void *argument);

typedef struct bench_side {
    bench_side_fn run;
    void *argument;
} bench_side;

#define BENCH_SIDES_MAX 8

/* Of a side's repetitions. */
typedef struct bench_stat {
    double median;
    double min;
    double max;
    uint32_t repetitions;
} bench_stat;

/* One unmeasured round, then `repetitions` rounds of 1 to BENCH_SIDES_MAX sides, every other one
 * backwards: C,B,A, A,B,C, ..., A,B,C.
 * stats: out, one per side, in seconds. Ranks in lock step call it with the same sides in the same
 * order. Returns 0, or 1 when a side failed. */
int bench_interleave(const bench_side *sides, uint32_t side_count, uint32_t repetitions,
                     bench_stat *stats);

/* Repetitions of a case whose sides take seconds: half of what the line says, and no fewer than
 * BENCH_REPETITIONS_MIN, so that a benchmark ends in minutes. */
uint32_t bench_long_repetitions(const bench_options *options);

/* Statistics of values measured by other means; reorders them. */
bench_stat bench_stat_of(double *values, uint32_t count);

/* The row of one case; texts are copied. value: the median; ratio = reference / value, so that less
 * is better. 0, or 1 after bench_fail when memory is out or a number is not finite. */
int bench_add(bench_report *report, const char *metric, const char *name, const char *unit,
              const bench_stat *stat, double reference);

/* The row of a timed case against a timed reference, in ms. */
int bench_add_times(bench_report *report, const char *metric, const char *name,
                    const bench_stat *ours, const bench_stat *reference);

/* Run `zero bench RUNNER --as-rank` with these options as `ranks` processes under mpirun, wait for
 * them (at most BENCH_SPAWN_SECONDS), and take rank 0's rows and skips into the report. The
 * processes' stdout goes to stderr. Returns 0, or 1 after bench_fail; where there is no mpirun,
 * *missing is set and nothing is said. */
#define BENCH_SPAWN_SECONDS 1200
int bench_spawn_ranks(const bench_options *options, const char *runner, uint32_t ranks,
                      bench_report *report, bool *missing);

/* The runners: 0, or 1 after bench_fail. */
int bench_adam(const bench_options *options, bench_report *report);
int bench_comm(const bench_options *options, bench_report *report);
int bench_step(const bench_options *options, bench_report *report);
int bench_hooks(const bench_options *options, bench_report *report);
int bench_start(const bench_options *options, bench_report *report);
int bench_footprint(const bench_options *options, bench_report *report);
int bench_offload(const bench_options *options, bench_report *report);
int bench_overlap(const bench_options *options, bench_report *report);
int bench_checks(const bench_options *options, bench_report *report);
int bench_ckpt(const bench_options *options, bench_report *report);
int bench_gpu(const bench_options *options, bench_report *report);

/* `memory` on a GPU: fails where there is none. */
int bench_footprint_gpu(const bench_options *options, bench_report *report);

/* bench_skip of every metric of `comm`. */
int bench_skip_comm(bench_report *report, const char *reason);

/* The half of `step` that needs matrix products: stage3_vs_stage0, whole training steps by stage,
 * and traced_vs_untraced; same batches, equal losses and parameters. */
int bench_stage_speed(const bench_options *options, bench_report *report);

#endif
