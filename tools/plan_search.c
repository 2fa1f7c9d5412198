/* Owns the search of `zero plan`: for what is asked, and where nothing fits for what would. */
#include <stdio.h>
#include <string.h>

#include "bench_report.h"
#include "plan_report.h"

/* Bytes of a node's disks that nothing lacks. */
#define PLENTY UINT64_C(100000000000000000)
#define SEQUENCE_LEAST 128

static zero_status search_with(const plan_report *report, const zero_cluster *cluster,
                               const zero_batch *batch, uint64_t step_samples, zero_search **search)
{
    zero_search_request request = zero_search_request_init();
    request.transformer = &report->transformer;
    request.cluster = cluster;
    request.options = &report->options;
    request.batch = batch;
    request.step_samples = step_samples;
    request.held = report->held;
    return zero_search_create(&request, search);
}

static uint64_t samples_of(const plan_report *report)
{
    const zero_batch *b = &report->batch;
    const uint64_t context = b->context_parallel != 0 ? b->context_parallel : 1;
    return report->step_samples != 0 ? report->step_samples
                                     : b->samples * b->micro_steps * report->world / context;
}

/* True if it fits so; what does not, or cannot be searched, is no remedy. */
static bool take_remedy(plan_report *report, const zero_cluster *cluster, const zero_batch *batch,
                        uint64_t step_samples, const char *words)
{
    plan_remedy *remedy = &report->remedies[report->remedy_count];
    if (search_with(report, cluster, batch, step_samples, &remedy->search) != ZERO_OK ||
        zero_search_plan_at(remedy->search, 0) == NULL) {
        zero_search_destroy(remedy->search);
        remedy->search = NULL;
        return false;
    }
    (void)snprintf(remedy->words, sizeof remedy->words, "%s", words);
    report->remedy_count++;
    return true;
}

/* Twice as many nodes until it fits, with as many samples of a rank. */
static void try_nodes(plan_report *report)
{
    zero_cluster more = report->cluster;
    char words[96];
    for (uint64_t times = 2; zero_cluster_check(&more) == ZERO_OK; times *= 2) {
        more.nodes = report->cluster.nodes * times;
        (void)snprintf(words, sizeof words, "--nodes %llu", (unsigned long long)more.nodes);
        if (zero_cluster_check(&more) != ZERO_OK ||
            take_remedy(report, &more, &report->batch, times * samples_of(report), words)) {
            return;
        }
    }
}

/* With all the disk that it takes: as much as the fastest plan then needs is enough. */
static void try_disk(plan_report *report)
{
    zero_cluster more = report->cluster;
    more.disk_bytes = PLENTY;
    if (take_remedy(report, &more, &report->batch, samples_of(report), "")) {
        plan_remedy *remedy = &report->remedies[report->remedy_count - 1];
        const zero_search_plan *plan = zero_search_plan_at(remedy->search, 0);
        const double bytes = (double)plan->footprint->need_bytes[ZERO_TIER_DISK] *
                             (double)report->cluster.ranks_per_node;
        (void)snprintf(remedy->words, sizeof remedy->words, "%.1f TB of disk a node (disk_bytes)",
                       bytes / 1e12 + 0.05);
    }
}

/* Half as long until it fits, with as many samples. */
static void try_sequence(plan_report *report)
{
    zero_batch shorter = report->batch;
    char words[96];
    while (shorter.sequence / 2 >= SEQUENCE_LEAST) {
        shorter.sequence /= 2;
        (void)snprintf(words, sizeof words, "--sequence %llu",
                       (unsigned long long)shorter.sequence);
        if (take_remedy(report, &report->cluster, &shorter, samples_of(report), words)) {
            return;
        }
    }
}

static int cost_plans(plan_report *report)
{
    const zero_search_plan *plan = NULL;
    for (uint32_t i = 0; (plan = zero_search_plan_at(report->search, i)) != NULL; i++) {
        report->costs[i] = zero_run_cost_init();
        if (report->run.tokens > 0 &&
            zero_run_cost_of(&report->run, plan->transformer, &report->cluster, plan->options,
                             plan->batch, &report->costs[i]) != ZERO_OK) {
            return bench_fail("%s", zero_last_error()->message);
        }
    }
    return 0;
}

/* A table that was asked for stays a table, and says why there is no more. */
int plan_search(plan_report *report)
{
    report->options.tuning = &report->tuning;
    if (search_with(report, &report->cluster, &report->batch, report->step_samples,
                    &report->search) != ZERO_OK) {
        (void)snprintf(report->unsearched, sizeof report->unsearched, "%s",
                       zero_last_error()->message);
        return report->mix_count == 0 ? bench_fail("%s", report->unsearched) : 0;
    }
    if (zero_search_nearest(report->search) != NULL) {
        try_nodes(report);
        try_disk(report);
        try_sequence(report);
    }
    return cost_plans(report);
}

void plan_search_close(plan_report *report)
{
    for (uint32_t i = 0; i < report->remedy_count; i++) {
        zero_search_destroy(report->remedies[i].search);
    }
    zero_search_destroy(report->search);
}
