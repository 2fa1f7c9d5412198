/* Owns how the library's queue is measured beside fio: whether fio can be, at which setting it is
 * fastest, and rounds of both in turn. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "io_rig.h"

#define ROUNDS_MAX 15
#define SAMPLE_MIN_S 0.01
#define SAMPLE_S 0.4
/* Of the budget, what goes to looking for fio's best setting, at most so many times over. */
#define SEARCH_SHARE 0.5
#define SEARCH_SAMPLE_S 0.25
#define SEARCH_PASSES 2
#define NAME_BYTES 128

const char *io_fio_unusable(io_rig *rig, double *start_s)
{
    const io_setting setting = {1 << 20, 8};
    const io_fio_setting fio = io_fio_alike(&setting);
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
    missing = io_measure_fio(rig, IO_MIX_READ, &fio, SAMPLE_MIN_S, &unread);
    *start_s = bench_now() - start - SAMPLE_MIN_S;
    return missing;
}

io_fio_setting io_fio_alike(const io_setting *setting)
{
    return (io_fio_setting){.setting = *setting, .jobs = 1, .batch = 1};
}

const char *io_fio_find_best(io_rig *rig, io_mix mix, const io_fio_setting *first, double budget,
                             io_fio_setting *best)
{
    /* Larger accesses, several at once, a second thread, and the older way of the kernel. */
    const io_fio_setting tried[] = {*first,
                                    {{2 << 20, 8}, 1, 1, false},
                                    {{4 << 20, 8}, 1, 1, false},
                                    {{1 << 20, 16}, 1, 4, false},
                                    {{2 << 20, 8}, 2, 1, false},
                                    {{2 << 20, 16}, 1, 1, true}};
    enum { TRIED = sizeof tried / sizeof tried[0] };
    const double end = bench_now() + budget;
    double least = 0.0;
    double longest = 0.0;
    *best = *first;
    for (int i = 0; i < TRIED * SEARCH_PASSES; i++) {
        const double start = bench_now();
        if (start + longest >= end || budget < SEARCH_SAMPLE_S) {
            break;
        }
        io_sample sample;
        const char *reason = io_measure_fio(rig, mix, &tried[i % TRIED], SEARCH_SAMPLE_S, &sample);
        if (reason != NULL && i == 0) {
            return reason;
        }
        if (reason == NULL && (least <= 0.0 || sample.seconds_per_gb < least)) {
            least = sample.seconds_per_gb;
            *best = tried[i % TRIED];
        }
        const double own = bench_now() - start;
        longest = own > longest ? own : longest;
    }
    return NULL;
}

const char *io_mix_name(io_mix mix)
{
    static const char *const names[IO_MIXES] = {"read", "write", "mixed"};
    return names[mix];
}

void io_case_name(io_mix mix, const io_setting *setting, char *text, uint32_t text_bytes)
{
    (void)snprintf(text, text_bytes, "%s, %" PRIu64 " KiB x %u", io_mix_name(mix),
                   setting->segment_bytes >> 10, setting->depth);
}

/* "read, 1024 KiB x 16; fio 2048 KiB x 8, 2 jobs" */
static void name_rounds(io_mix mix, const io_setting *setting, const io_fio_setting *fio,
                        char *name)
{
    char ours[NAME_BYTES / 2];
    char peer[NAME_BYTES / 2];
    io_case_name(mix, setting, ours, sizeof ours);
    io_fio_name(fio, peer, sizeof peer);
    (void)snprintf(name, NAME_BYTES, "%.63s; %.62s", ours, peer);
}

int io_measure_rounds(io_rig *rig, io_mix mix, const io_setting *setting,
                      const io_fio_setting *first, double budget, bench_report *report)
{
    double time[2][ROUNDS_MAX];
    double cpu[2][ROUNDS_MAX];
    char name[NAME_BYTES];
    io_fio_setting fio;
    const double end = bench_now() + budget;
    const char *lost = io_fio_find_best(rig, mix, first, budget * SEARCH_SHARE, &fio);
    if (lost != NULL) {
        return bench_fail("%s", lost);
    }
    uint32_t rounds = 0;
    double round_s = 0.0;
    while (rounds < ROUNDS_MAX && (rounds == 0 || bench_now() + round_s < end)) {
        const double start = bench_now();
        const double seconds = budget < SAMPLE_S ? SAMPLE_MIN_S : SAMPLE_S;
        io_sample samples[2] = {{0.0, 0.0}, {0.0, 0.0}};
        if (io_measure(rig, mix, setting, seconds, &samples[0]) != 0) {
            return 1;
        }
        const char *reason = io_measure_fio(rig, mix, &fio, seconds, &samples[1]);
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
    name_rounds(mix, setting, &fio, name);
    const bench_stat time_ours = bench_stat_of(time[0], rounds);
    const bench_stat cpu_ours = bench_stat_of(cpu[0], rounds);
    const double cpu_fio = bench_stat_of(cpu[1], rounds).median;
    if (bench_add(report, IO_METRIC_FIO, name, "ms/GB", &time_ours,
                  bench_stat_of(time[1], rounds).median) != 0) {
        return 1;
    }
    return cpu_fio > 0.0 && cpu_ours.median > 0.0
               ? bench_add(report, IO_METRIC_CPU, name, "ms/GB", &cpu_ours, cpu_fio)
               : bench_skip(report, IO_METRIC_CPU, name,
                            "too short for CPU time; give it more time");
}
