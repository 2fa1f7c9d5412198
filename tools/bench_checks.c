/* Owns `zero bench checks`: what checksums of state on disk cost a step. Two ranks with the same
 * state take the same steps in turn, one of them without checksums, in folders of its own beside
 * the other's files. Invariant: the folders are gone afterwards, and a run whose results are wrong
 * gives no row. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench_offload.h"

#define METRIC_TIME "checked_vs_unchecked"
#define METRIC_CPU "checked_cpu_vs_unchecked"
#define DIRECTORIES_MAX 16
#define PATH_BYTES 4096

typedef struct checks_run {
    offload_rank *rank[2]; /* checked, unchecked */
    char folders[DIRECTORIES_MAX][PATH_BYTES];
    uint32_t folder_count;
    double cpu_s[2][BENCH_REPETITIONS_MAX + 1];
    uint32_t rounds[2];
} checks_run;

/* That this process has taken. */
static double cpu_now(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* CPU time is with that of the gradients, which is the same on both sides. */
static double take(checks_run *run, int side)
{
    offload_step step;
    const double start = cpu_now();
    if (offload_rank_step(run->rank[side], NULL, &step) != 0) {
        return -1.0;
    }
    run->cpu_s[side][run->rounds[side]++] = cpu_now() - start;
    return step.seconds;
}

static double checked_side(void *argument)
{
    return take(argument, 0);
}

static double unchecked_side(void *argument)
{
    return take(argument, 1);
}

static int measure(checks_run *run, const char *name, uint32_t repetitions, bench_report *report)
{
    const bench_side sides[] = {{checked_side, run}, {unchecked_side, run}};
    bench_stat times[2];
    if (bench_interleave(sides, 2, repetitions, times) != 0) {
        return 1;
    }
    /* Without the round that is not counted. */
    const bench_stat cpu[2] = {bench_stat_of(run->cpu_s[0] + 1, repetitions),
                               bench_stat_of(run->cpu_s[1] + 1, repetitions)};
    return offload_rank_check(run->rank[0]) || offload_rank_check(run->rank[1]) ||
           bench_add_times(report, METRIC_TIME, name, &times[0], &times[1]) ||
           bench_add_times(report, METRIC_CPU, name, &cpu[0], &cpu[1]);
}

static int make_folders(checks_run *run, const offload_rank_desc *desc)
{
    for (uint32_t i = 0; i < desc->directory_count && i < DIRECTORIES_MAX; i++) {
        char *folder = run->folders[i];
        const int length =
            snprintf(folder, PATH_BYTES, "%s/zero-bench-XXXXXX", desc->directories[i]);
        if (length >= PATH_BYTES || mkdtemp(folder) == NULL) {
            return bench_fail("--dir %s: no folder can be made in it: %s", desc->directories[i],
                              strerror(errno));
        }
        run->folder_count++;
    }
    return 0;
}

static int run_both(checks_run *run, const offload_rank_desc *desc, const char *name,
                    uint32_t repetitions, bench_report *report)
{
    const char *folders[DIRECTORIES_MAX];
    offload_rank_desc unchecked = *desc;
    if (make_folders(run, desc) != 0) {
        return 1;
    }
    for (uint32_t i = 0; i < run->folder_count; i++) {
        folders[i] = run->folders[i];
    }
    unchecked.unchecked = true;
    unchecked.directories = folders;
    return offload_rank_open(desc, &run->rank[0]) || offload_rank_open(&unchecked, &run->rank[1]) ||
           measure(run, name, repetitions, report);
}

int bench_checks(const bench_options *options, bench_report *report)
{
    static checks_run run;
    const offload_rank_desc desc = bench_offload_desc(options);
    zero_memory plan;
    char name[96];
    char reason[512];
    run = (checks_run){.folder_count = 0};
    if (offload_rank_plan(&desc, &plan) != 0) {
        return 1;
    }
    const uint64_t bytes = plan.tier_bytes[ZERO_TIER_DISK];
    (void)snprintf(name, sizeof name, "%u layers, %s moments, %.3g GB on disk", desc.layers,
                   desc.bf16_moments ? "bf16" : "f32", 1e-9 * (double)bytes);
    if (!bench_wants(options, name)) {
        return 0;
    }
    if (!bench_disks_suffice(&desc, 2 * bytes, reason, sizeof reason)) {
        return options->named ? bench_fail("%s", reason)
                              : bench_skip(report, METRIC_TIME, name, reason);
    }
    const int failed = run_both(&run, &desc, name, options->repetitions, report);
    for (int side = 0; side < 2; side++) {
        offload_rank_close(run.rank[side]);
    }
    for (uint32_t i = 0; i < run.folder_count; i++) {
        (void)rmdir(run.folders[i]);
    }
    return failed;
}
