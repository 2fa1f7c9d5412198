/* Owns `zero bench overlap` and `zero bench checks`: the same steps with optimizer state on disk,
 * taken in two ways in turn. Invariant: nothing stays on disk, and a run that came to other bits,
 * or was not made in the way asked for, gives no row. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload_rank.h"

#define PATH_BYTES 4096
/* Not measured: what was never written is not read. */
#define WARM_STEPS 2

typedef struct pair_kind {
    const char *whole; /* metric of a side's time */
    const char *part;  /* metric of a part of it */
    const char *note;  /* ends the case's name */
    bool overlap;
} pair_kind;

/* Predicted steps, which are updated during backward, against others of the same rank. Backward
 * takes as long as a step, asleep: what a GPU computes, or other cores. The part is what comes
 * after backward. */
static const pair_kind overlap = {"overlap_vs_plain", "overlap_step_exposed", ", backward as long",
                                  true};

/* Steps with checksums of what is on disk against those of a second rank that has none, in folders
 * of its own beside the other's files. The part is CPU time, with that of the gradients, which is
 * the same on both sides. */
static const pair_kind checks = {"checked_vs_unchecked", "checked_cpu_vs_unchecked", "", false};

typedef struct pair_side {
    const pair_kind *kind;
    offload_rank *rank;
    offload_way way;
    double part[BENCH_REPETITIONS_MAX + 1];
    uint32_t rounds;
} pair_side;

typedef struct pair_run {
    pair_side sides[2]; /* the measured one, and the one that it is against */
    char folders[BENCH_DIRECTORIES_MAX][PATH_BYTES];
    const char *paths[BENCH_DIRECTORIES_MAX];
    uint32_t folder_count;
} pair_run;

static double run_side(void *argument)
{
    pair_side *side = argument;
    offload_step step;
    const double cpu = bench_cpu_now();
    if (offload_rank_step(side->rank, &side->way, &step) != 0) {
        return -1.0;
    }
    const bool timed = side->kind->overlap;
    side->part[side->rounds++] = timed ? step.seconds : bench_cpu_now() - cpu;
    return timed ? step.backward_s + step.seconds : step.seconds;
}

static int measure(pair_run *run, const char *name, uint32_t repetitions, bench_report *report)
{
    pair_side *ours = &run->sides[0];
    pair_side *other = &run->sides[1];
    const pair_kind *kind = ours->kind;
    const bench_side sides[] = {{run_side, ours}, {run_side, other}};
    bench_stat whole[2];
    if (bench_interleave(sides, 2, repetitions, whole) != 0) {
        return 1;
    }
    const uint64_t overlapped = offload_rank_overlapped(ours->rank);
    if (kind->overlap && overlapped != ours->rounds) {
        return bench_fail("of %u speculative steps %llu were updated during backward", ours->rounds,
                          (unsigned long long)overlapped);
    }
    /* Without the round that is not counted. */
    const bench_stat part[2] = {bench_stat_of(ours->part + 1, repetitions),
                                bench_stat_of(other->part + 1, repetitions)};
    return offload_rank_check(ours->rank) ||
           (other->rank != ours->rank && offload_rank_check(other->rank)) ||
           bench_add_times(report, kind->whole, name, &whole[0], &whole[1]) ||
           bench_add_times(report, kind->part, name, &part[0], &part[1]);
}

/* One rank, and how long a step takes by itself. */
static int open_overlap(pair_run *run, const offload_rank_desc *desc)
{
    offload_step step;
    offload_rank *rank = NULL;
    int failed = offload_rank_open(desc, &rank);
    run->sides[0].rank = run->sides[1].rank = rank;
    for (int i = 0; i < WARM_STEPS && !failed; i++) {
        failed = offload_rank_step(rank, &OFFLOAD_AT_ONCE, &step);
    }
    if (!failed) {
        run->sides[0].way = (offload_way){.backward_s = step.seconds, .predicted = true};
        run->sides[1].way = (offload_way){.backward_s = step.seconds};
    }
    return failed;
}

static int open_checks(pair_run *run, const offload_rank_desc *desc)
{
    for (uint32_t i = 0; i < desc->directory_count; i++) {
        char *folder = run->folders[i];
        const int length =
            snprintf(folder, PATH_BYTES, "%s/zero-bench-XXXXXX", desc->directories[i]);
        if (length >= PATH_BYTES || mkdtemp(folder) == NULL) {
            return bench_fail("--dir %s: no folder can be made in it: %s", desc->directories[i],
                              strerror(errno));
        }
        run->paths[run->folder_count++] = folder;
    }
    offload_rank_desc unchecked = *desc;
    unchecked.unchecked = true;
    unchecked.directories = run->paths;
    return offload_rank_open(desc, &run->sides[0].rank) ||
           offload_rank_open(&unchecked, &run->sides[1].rank);
}

static int run_pair(const bench_options *options, bench_report *report, const pair_kind *kind)
{
    static pair_run run;
    offload_rank_desc desc = bench_offload_desc(options);
    zero_memory plan;
    char name[96];
    char reason[512];
    memset(&run, 0, sizeof run);
    run.sides[0].kind = run.sides[1].kind = kind;
    desc.overlap = kind->overlap;
    if (offload_rank_plan(&desc, &plan) != 0) {
        return 1;
    }
    const uint64_t bytes = plan.tier_bytes[ZERO_TIER_DISK];
    char types[OFFLOAD_TYPES_TEXT];
    (void)snprintf(name, sizeof name, "%u layers, %s, %.3g GB on disk%s", desc.layers,
                   offload_rank_types(&desc, types), 1e-9 * (double)bytes, kind->note);
    if (!bench_wants(options, name)) {
        return 0;
    }
    if (!bench_disks_suffice(&desc, kind->overlap ? bytes : 2 * bytes, reason, sizeof reason)) {
        return options->named ? bench_fail("%s", reason)
                              : bench_skip(report, kind->whole, name, reason);
    }
    const int failed = (kind->overlap ? open_overlap(&run, &desc) : open_checks(&run, &desc)) ||
                       measure(&run, name, options->repetitions, report);
    if (run.sides[1].rank != run.sides[0].rank) {
        offload_rank_close(run.sides[1].rank);
    }
    offload_rank_close(run.sides[0].rank);
    for (uint32_t i = 0; i < run.folder_count; i++) {
        (void)rmdir(run.folders[i]);
    }
    return failed;
}

int bench_overlap(const bench_options *options, bench_report *report)
{
    return run_pair(options, report, &overlap);
}

int bench_checks(const bench_options *options, bench_report *report)
{
    return run_pair(options, report, &checks);
}
