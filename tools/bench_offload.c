/* Owns `zero bench offload`: steps of a rank whose optimizer state is on disk against moving the
 * same bytes and nothing else, what they hold in memory beyond the plan, their bottleneck, and the
 * storage beneath beside fio. Invariant: nothing stays on disk, and a run whose results are wrong
 * gives no row. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "bench_target.h"
#include "io_rig.h"
#include "offload_rank.h"

#define METRIC_STEP "offload_step_vs_io"
#define METRIC_SPEED "offload_ms_per_gb"
#define METRIC_BOTTLENECK "offload_bound_ms"
#define METRIC_OVERHEAD "offload_overhead_bytes"
#define METRIC_PEAK "peak_memory_vs_plan"
#define PAGE_BYTES 4096
#define OVERHEAD_AIM ((double)(64 << 20))
#define RIG_BYTES_MAX ((uint64_t)4 << 30)
/* A side that only moves bytes takes as long as the step before it, within these. */
#define SAMPLE_MIN_S 0.01
#define SAMPLE_MAX_S 10.0
#define PAUSE_MAX_S 10.0
#define FILL_S 60.0
#define RIG_RANK 1 /* the engine there is rank 0's */

/* Enough to keep a disk busy; as an engine's queue does by default. */
static const io_setting setting = {IO_ACCESS_BYTES, 16};

typedef struct offload_run {
    const bench_options *options;
    offload_rank_desc desc;
    io_rates rates; /* of its directories: engine and rig are striped by the same */
    zero_memory plan;
    io_rig *rig;
    offload_rank *rank;
    offload_step step;                 /* the last one */
    zero_bottleneck_report bottleneck; /* of all measured steps: times added up */
    uint32_t steps;                    /* with the one that is not measured */
    double step_s;                     /* of the measured ones */
    const char *fio_unusable;
    io_fio_setting fio; /* its best for a mix of both */
    char name[96];      /* of the case */
} offload_run;

/* ---- is there room ---- */

/* Of bytes that are striped over all directories, those that are to be on one file system. */
static uint64_t wanted_on(const offload_rank_desc *desc, uint64_t bytes, dev_t device)
{
    double all = 0.0;
    double there = 0.0;
    struct stat other;
    for (uint32_t i = 0; i < desc->directory_count; i++) {
        const double rate = desc->disk_weights != NULL ? desc->disk_weights[i] : 1.0;
        const bool on_it = stat(desc->directories[i], &other) == 0 && other.st_dev == device;
        all += rate;
        there += on_it ? rate : 0.0;
    }
    return (uint64_t)((double)bytes * (there / all));
}

bool bench_disks_suffice(const offload_rank_desc *desc, uint64_t bytes, char *reason,
                         size_t reason_bytes)
{
    for (uint32_t i = 0; i < desc->directory_count; i++) {
        const char *directory = desc->directories[i];
        struct statvfs space;
        struct stat own;
        if (stat(directory, &own) != 0 || statvfs(directory, &space) != 0) {
            (void)snprintf(reason, reason_bytes, "--dir %s: %s", directory, strerror(errno));
            return false;
        }
        const uint64_t available = (uint64_t)space.f_bavail * space.f_frsize;
        const uint64_t wanted = wanted_on(desc, bytes, own.st_dev);
        if (wanted > available) {
            (void)snprintf(reason, reason_bytes,
                           "--dir %s: %llu bytes wanted, %llu free, %llu too few; use a larger "
                           "disk, more of them, or a smaller model (--layers, --shrink)",
                           directory, (unsigned long long)wanted, (unsigned long long)available,
                           (unsigned long long)(wanted - available));
            return false;
        }
    }
    return true;
}

static uint64_t memory_bytes(const zero_memory *plan)
{
    return plan->tier_bytes[ZERO_TIER_DEVICE] + plan->tier_bytes[ZERO_TIER_HOST];
}

static bool memory_suffices(const offload_run *run, char *reason, size_t reason_bytes)
{
    const uint64_t wanted = memory_bytes(&run->plan) + (uint64_t)OVERHEAD_AIM;
    const uint64_t available = bench_proc_bytes("/proc/meminfo", "MemAvailable:");
    (void)snprintf(reason, reason_bytes,
                   "%llu bytes of memory wanted, %llu available; give fewer --layers",
                   (unsigned long long)wanted, (unsigned long long)available);
    return available == 0 || wanted <= available;
}

/* ---- the sides ---- */

static double step_side(void *argument)
{
    offload_run *run = argument;
    if (offload_rank_step(run->rank, &OFFLOAD_AT_ONCE, &run->step) != 0) {
        return -1.0;
    }
    if (run->steps++ > 0) { /* the first one reads nothing */
        const zero_bottleneck_report *one = &run->step.bottleneck;
        run->bottleneck.cpu_ns += one->cpu_ns;
        run->bottleneck.disk_read_ns += one->disk_read_ns;
        run->bottleneck.disk_write_ns += one->disk_write_ns;
        run->step_s += run->step.seconds;
    }
    return run->step.seconds;
}

/* How long to move bytes, after a pause as long as the disk had before the step: many disks are
 * fast for a while after one. */
static double begin_sample(const offload_run *run)
{
    const double seconds = run->step.seconds;
    const double pause = run->step.backward_s < PAUSE_MAX_S ? run->step.backward_s : PAUSE_MAX_S;
    bench_sleep(pause);
    return seconds < SAMPLE_MIN_S ? SAMPLE_MIN_S : seconds > SAMPLE_MAX_S ? SAMPLE_MAX_S : seconds;
}

/* The time that the last step's bytes would have taken. */
static double own_side(void *argument)
{
    const offload_run *run = argument;
    io_sample sample;
    if (io_measure(run->rig, IO_MIX_BOTH, &setting, begin_sample(run), &sample) != 0) {
        return -1.0;
    }
    return sample.seconds_per_gb * 1e-9 * (double)run->step.bytes;
}

static double fio_side(void *argument)
{
    const offload_run *run = argument;
    io_sample sample;
    const char *reason =
        io_measure_fio(run->rig, IO_MIX_BOTH, &run->fio, begin_sample(run), &sample);
    if (reason != NULL) {
        (void)bench_fail("%s", reason);
        return -1.0;
    }
    return sample.seconds_per_gb * 1e-9 * (double)run->step.bytes;
}

/* ---- rows ---- */

static int report_times(const offload_run *run, const bench_stat *stats, bench_report *report)
{
    char name[sizeof run->name + 64 + 8];
    const double gb = 1e-9 * (double)run->step.bytes;
    const bench_stat speed = {stats[0].median * 1e3 / gb, stats[0].min * 1e3 / gb,
                              stats[0].max * 1e3 / gb, stats[0].repetitions};
    (void)snprintf(name, sizeof name, "%s, own queue", run->name);
    if (bench_add_times(report, METRIC_STEP, name, &stats[0], &stats[1]) != 0) {
        return 1;
    }
    char fio[64] = "fio";
    if (run->fio_unusable == NULL) {
        io_fio_name(&run->fio, fio, sizeof fio);
    }
    (void)snprintf(name, sizeof name, "%s, %s", run->name, fio);
    const int failed = run->fio_unusable != NULL
                           ? bench_skip(report, METRIC_STEP, name, run->fio_unusable)
                           : bench_add_times(report, METRIC_STEP, name, &stats[0], &stats[2]);
    return failed ||
           bench_add(report, METRIC_SPEED, run->name, "ms/GB", &speed, stats[1].median * 1e3 / gb);
}

/* Report what most time of the measured steps went to, a step, against a step's mean time. */
static int report_bottleneck(offload_run *run, bench_report *report)
{
    const zero_bottleneck_report *sum = &run->bottleneck;
    const double times[] = {(double)sum->cpu_ns, (double)sum->disk_read_ns,
                            (double)sum->disk_write_ns};
    static const zero_bottleneck kinds[] = {ZERO_BOTTLENECK_CPU, ZERO_BOTTLENECK_DISK_READ,
                                            ZERO_BOTTLENECK_DISK_WRITE};
    const double count = run->steps - 1;
    for (int i = 0; i < 3; i++) {
        char name[160];
        double value = times[i] * 1e-6 / count;
        const bench_stat stat = {value, value, value, run->steps - 1};
        const double whole = run->step_s * 1e3 / count;
        (void)snprintf(name, sizeof name, "%s, %s", run->name, zero_bottleneck_name(kinds[i]));
        if (value > 0.0 ? bench_add(report, METRIC_BOTTLENECK, name, "ms", &stat, whole) != 0
                        : bench_skip(report, METRIC_BOTTLENECK, name, "no time went to it") != 0) {
            return 1;
        }
    }
    return 0;
}

static int add_bytes(const offload_run *run, const char *metric, double bytes, double reference,
                     bench_report *report)
{
    const bench_stat stat = {bytes, bytes, bytes, 1};
    return bench_add(report, metric, run->name, "bytes", &stat, reference);
}

/* base: resident before the rank was made; peak: the most since then. What is beyond the plan is a
 * page at least. */
static int report_memory(const offload_run *run, uint64_t base, uint64_t peak, bench_report *report)
{
    const char *unknown = "the system does not tell the peak";
    const uint64_t planned = memory_bytes(&run->plan);
    if (base == 0 || peak <= base) {
        return bench_skip(report, METRIC_PEAK, run->name, unknown) ||
               bench_skip(report, METRIC_OVERHEAD, run->name, unknown);
    }
    const uint64_t used = peak - base;
    const double beyond = used > planned + PAGE_BYTES ? (double)(used - planned) : PAGE_BYTES;
    return add_bytes(run, METRIC_PEAK, (double)used, (double)planned, report) ||
           add_bytes(run, METRIC_OVERHEAD, beyond, OVERHEAD_AIM, report);
}

static int report_storage(const offload_run *run, bench_report *report)
{
    static const double budgets[] = {18.0, 2.0, 0.05};
    const io_fio_setting first = io_fio_alike(&setting);
    if (run->fio_unusable != NULL) {
        return bench_skip(report, IO_METRIC_FIO, NULL, run->fio_unusable) ||
               bench_skip(report, IO_METRIC_CPU, NULL, run->fio_unusable);
    }
    for (int mix = 0; mix < IO_MIXES; mix++) {
        if (io_measure_rounds(run->rig, (io_mix)mix, &setting, &first, budgets[run->options->scale],
                              report) != 0) {
            return 1;
        }
    }
    return 0;
}

/* ---- the run ---- */

offload_rank_desc bench_offload_desc(const bench_options *options)
{
    static const char *const here[] = {"."};
    static const uint32_t layers[] = {16, 2, 2};
    const bench_offload_options *o = &options->offload;
    const bool tiny = options->scale == BENCH_TINY;
    const uint32_t by_default = o->slice_steps != 0 ? OFFLOAD_LAYERS : layers[options->scale];
    return (offload_rank_desc){
        .layers = o->layers != 0 ? o->layers : by_default,
        .unit = tiny && o->slice_steps == 0 ? 8192 : OFFLOAD_UNIT,
        .master = o->master,
        .moments = o->moments,
        .tier = ZERO_TIER_DISK,
        .directories = o->directory_count != 0 ? o->directories : here,
        .directory_count = o->directory_count != 0 ? o->directory_count : 1,
        .threads = options->threads,
        /* So that the I/O window is much smaller than the state. */
        .extent_bytes = tiny ? 65536 : 0,
    };
}

static void name_case(offload_run *run)
{
    const bool real = run->desc.unit == OFFLOAD_UNIT;
    char types[OFFLOAD_TYPES_TEXT];
    (void)snprintf(run->name, sizeof run->name, "%u %s, %s, %.3g GB on disk", run->desc.layers,
                   real ? "layers of a rank of 512" : "small layers",
                   offload_rank_types(&run->desc, types),
                   1e-9 * (double)run->plan.tier_bytes[ZERO_TIER_DISK]);
}

static int measure(offload_run *run, bench_report *report)
{
    const bench_side sides[] = {{step_side, run}, {own_side, run}, {fio_side, run}};
    static const double search_s[] = {6.0, 1.0, 0.0};
    const uint32_t slice_steps = run->options->offload.slice_steps;
    double unread = 0.0;
    bench_stat stats[3];
    run->fio_unusable = io_fio_unusable(run->rig, &unread);
    if (run->fio_unusable == NULL) {
        const io_fio_setting first = io_fio_alike(&setting);
        run->fio_unusable = io_fio_find_best(run->rig, IO_MIX_BOTH, &first,
                                             search_s[run->options->scale], &run->fio);
    }
    const uint64_t base = bench_resident_start();
    if (offload_rank_open(&run->desc, &run->rank) != 0 ||
        bench_interleave(sides, run->fio_unusable == NULL ? 3 : 2,
                         slice_steps != 0 ? slice_steps : run->options->repetitions, stats) != 0) {
        return 1;
    }
    const uint64_t peak = bench_resident_most();
    return offload_rank_check(run->rank) || report_times(run, stats, report) ||
           report_bottleneck(run, report) || report_memory(run, base, peak, report) ||
           report_storage(run, report);
}

int bench_offload(const bench_options *options, bench_report *report)
{
    offload_run run = {.options = options, .desc = bench_offload_desc(options)};
    if (offload_rank_plan(&run.desc, &run.plan) != 0) {
        return 1;
    }
    name_case(&run);
    if (!bench_wants(options, run.name)) {
        return 0;
    }
    const uint64_t state = run.plan.tier_bytes[ZERO_TIER_DISK];
    const uint64_t rig_bytes = state < RIG_BYTES_MAX ? state : RIG_BYTES_MAX;
    if (io_find_rates(run.desc.directories, run.desc.directory_count, state, &run.rates) != 0) {
        return 1;
    }
    run.desc.disk_weights = run.rates.measured ? run.rates.rate : NULL;
    const io_rig_desc rig = {.directories = run.desc.directories,
                             .rates = run.desc.disk_weights,
                             .directory_count = run.desc.directory_count,
                             .rank = RIG_RANK,
                             .bytes = rig_bytes};
    char reason[512];
    if (!bench_disks_suffice(&run.desc, state + rig_bytes, reason, sizeof reason) ||
        !memory_suffices(&run, reason, sizeof reason)) {
        return options->named ? bench_fail("%s", reason)
                              : bench_skip(report, METRIC_STEP, run.name, reason);
    }
    const int failed =
        io_rig_open(&rig, &run.rig) || io_rig_fill(run.rig, FILL_S) || measure(&run, report);
    offload_rank_close(run.rank);
    io_rig_close(run.rig);
    return failed;
}
