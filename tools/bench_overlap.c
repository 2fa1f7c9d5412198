/* Owns `zero bench overlap`: steps with state on disk that are predicted, so that they are updated
 * during backward, against the same steps of the same rank that are not. Backward takes as long as
 * a step, asleep: what a GPU computes, or other cores. Invariant: a run in which a speculative step
 * was not updated so, or came to other bits, gives no row. */
#include "bench_offload.h"

#define METRIC_WHOLE "overlap_vs_plain"
#define METRIC_EXPOSED "overlap_step_exposed"
/* Not measured: what was never written is not read. */
#define WARM_STEPS 2

typedef struct overlap_run {
    offload_rank *rank;
    offload_way way[2]; /* predicted, plain */
    double exposed[2][BENCH_REPETITIONS_MAX + 1];
    uint32_t rounds[2];
} overlap_run;

/* Backward and step; what of it comes after backward is kept. */
static double take(overlap_run *run, int side)
{
    offload_step step;
    if (offload_rank_step(run->rank, &run->way[side], &step) != 0) {
        return -1.0;
    }
    run->exposed[side][run->rounds[side]++] = step.seconds;
    return step.quiet_s + step.seconds;
}

static double predicted_side(void *argument)
{
    return take(argument, 0);
}

static double plain_side(void *argument)
{
    return take(argument, 1);
}

/* How long a step takes by itself. */
static int warm_up(overlap_run *run)
{
    offload_step step;
    for (int i = 0; i < WARM_STEPS; i++) {
        if (offload_rank_step(run->rank, NULL, &step) != 0) {
            return 1;
        }
    }
    run->way[0] = (offload_way){.backward_s = step.seconds, .predicted = true};
    run->way[1] = (offload_way){.backward_s = step.seconds};
    return 0;
}

static int measure(overlap_run *run, const char *name, uint32_t repetitions, bench_report *report)
{
    const bench_side sides[] = {{predicted_side, run}, {plain_side, run}};
    bench_stat whole[2];
    if (warm_up(run) != 0 || bench_interleave(sides, 2, repetitions, whole) != 0) {
        return 1;
    }
    if (offload_rank_overlapped(run->rank) != run->rounds[0]) {
        return bench_fail("of %u speculative steps %llu were updated during backward",
                          run->rounds[0], (unsigned long long)offload_rank_overlapped(run->rank));
    }
    /* Without the round that is not counted. */
    const bench_stat exposed[2] = {bench_stat_of(run->exposed[0] + 1, repetitions),
                                   bench_stat_of(run->exposed[1] + 1, repetitions)};
    return offload_rank_check(run->rank) ||
           bench_add_times(report, METRIC_WHOLE, name, &whole[0], &whole[1]) ||
           bench_add_times(report, METRIC_EXPOSED, name, &exposed[0], &exposed[1]);
}

int bench_overlap(const bench_options *options, bench_report *report)
{
    static overlap_run run;
    offload_rank_desc desc = bench_offload_desc(options);
    zero_memory plan;
    char name[96];
    char reason[512];
    run = (overlap_run){.rank = NULL};
    desc.overlap = true;
    if (offload_rank_plan(&desc, &plan) != 0) {
        return 1;
    }
    (void)snprintf(name, sizeof name, "%u layers, %s moments, %.3g GB on disk, backward as long",
                   desc.layers, desc.bf16_moments ? "bf16" : "f32",
                   1e-9 * (double)plan.tier_bytes[ZERO_TIER_DISK]);
    if (!bench_wants(options, name)) {
        return 0;
    }
    if (!bench_disks_suffice(&desc, plan.tier_bytes[ZERO_TIER_DISK], reason, sizeof reason)) {
        return options->named ? bench_fail("%s", reason)
                              : bench_skip(report, METRIC_WHOLE, name, reason);
    }
    const int failed =
        offload_rank_open(&desc, &run.rank) || measure(&run, name, options->repetitions, report);
    offload_rank_close(run.rank);
    return failed;
}
