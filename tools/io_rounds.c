/* Owns how the library's queue is measured beside fio: whether fio can be, and rounds of both in
 * turn. */
#include <string.h>

#include "io_rig.h"

#define ROUNDS_MAX 15
#define SAMPLE_MIN_S 0.01
#define SAMPLE_S 0.4

const char *io_fio_unusable(const io_rig *rig, double *start_s)
{
    const io_setting setting = {1 << 20, 8};
    io_facts facts;
    io_sample unread;
    io_rig_facts(rig, &facts);
    *start_s = 0.0;
    if (!facts.direct) {
        return "without O_DIRECT the page cache would decide";
    }
    if (facts.files > 1) {
        return "it is measured on one directory only";
    }
    const char *missing = io_fio_missing();
    if (missing != NULL) {
        return missing;
    }
    const double start = bench_now();
    missing = io_measure_fio(rig, IO_MIX_READ, &setting, SAMPLE_MIN_S, &unread);
    *start_s = bench_now() - start - SAMPLE_MIN_S;
    return missing;
}

int io_add_row(bench_report *report, const char *metric, const char *name, const bench_stat *ours,
               double reference)
{
    const bench_row row = {.metric = metric,
                           .name = name,
                           .value = ours->median,
                           .unit = "ms/GB",
                           .reference = reference,
                           .ratio = reference / ours->median,
                           .min = ours->min,
                           .max = ours->max,
                           .repetitions = ours->repetitions};
    return bench_add(report, &row);
}

int io_measure_rounds(io_rig *rig, io_mix mix, const io_setting *setting, double budget,
                      bench_report *report)
{
    double time[2][ROUNDS_MAX];
    double cpu[2][ROUNDS_MAX];
    char name[64];
    const double end = bench_now() + budget;
    uint32_t rounds = 0;
    double round_s = 0.0;
    while (rounds < ROUNDS_MAX && (rounds == 0 || bench_now() + round_s < end)) {
        const double start = bench_now();
        const double seconds = budget < SAMPLE_S ? SAMPLE_MIN_S : SAMPLE_S;
        io_sample samples[2] = {{0.0, 0.0}, {0.0, 0.0}};
        if (io_measure(rig, mix, setting, seconds, &samples[0]) != 0) {
            return 1;
        }
        const char *reason = io_measure_fio(rig, mix, setting, seconds, &samples[1]);
        if (reason != NULL) {
            return bench_fail("%s", reason);
        }
        for (int side = 0; side < 2; side++) {
            time[side][rounds] = samples[side].seconds_per_gb * 1e3;
            cpu[side][rounds] = samples[side].cpu_ms_per_gb;
        }
        rounds++;
        round_s = bench_now() - start;
    }
    io_case_name(mix, setting, name, sizeof name);
    const bench_stat time_ours = bench_stat_of(time[0], rounds);
    const bench_stat cpu_ours = bench_stat_of(cpu[0], rounds);
    const double cpu_fio = bench_stat_of(cpu[1], rounds).median;
    if (io_add_row(report, IO_METRIC_FIO, name, &time_ours,
                   bench_stat_of(time[1], rounds).median) != 0) {
        return 1;
    }
    return cpu_fio > 0.0 && cpu_ours.median > 0.0
               ? io_add_row(report, IO_METRIC_CPU, name, &cpu_ours, cpu_fio)
               : bench_skip(report, IO_METRIC_CPU, name,
                            "too short for CPU time; give it more time");
}
