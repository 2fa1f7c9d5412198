/* Owns the clock and the order of measurement. Invariants: sides of a case take turns, so that what
 * disturbs the machine for a while disturbs all of them; every other round goes backwards, so that
 * none of two always finds what the other leaves, such as a warm cache. The first round and the
 * last go forwards, since sides may prepare or check what others leave. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

static double read_clock(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double bench_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double bench_cpu_now(void)
{
    return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

void bench_sleep(double seconds)
{
    const time_t whole = (time_t)seconds;
    const struct timespec pause = {whole, (long)((seconds - (double)whole) * 1e9)};
    (void)nanosleep(&pause, NULL);
}

bool bench_wants(const bench_options *options, const char *name)
{
    const bool wants = options->case_filter == NULL || strstr(name, options->case_filter) != NULL;
    if (wants) {
        bench_progress_case(name);
    }
    return wants;
}

uint32_t bench_long_repetitions(const bench_options *options)
{
    const uint32_t half = options->repetitions / 2;
    return half > BENCH_REPETITIONS_MIN ? half : BENCH_REPETITIONS_MIN;
}

static int compare_values(const void *left, const void *right)
{
    const double a = *(const double *)left;
    const double b = *(const double *)right;
    return (a > b) - (a < b);
}

bench_stat bench_stat_of(double *values, uint32_t count)
{
    bench_stat stat = {0};
    if (count == 0) {
        return stat;
    }
    qsort(values, count, sizeof *values, compare_values);
    stat.median =
        count % 2 == 1 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
    stat.min = values[0];
    stat.max = values[count - 1];
    stat.repetitions = count;
    return stat;
}

int bench_interleave(const bench_side *sides, uint32_t side_count, uint32_t repetitions,
                     bench_stat *stats)
{
    if (side_count < 1 || side_count > BENCH_SIDES_MAX || repetitions < 1) {
        return bench_fail("%u sides, %u repetitions: cannot be measured in turn", side_count,
                          repetitions);
    }
    double *seconds = calloc((size_t)side_count * repetitions, sizeof *seconds);
    if (seconds == NULL) {
        return bench_fail("no memory left for %u x %u times", side_count, repetitions);
    }
    int failed = 0;
    for (uint32_t round = 0; round <= repetitions && !failed; round++) {
        const bool backwards = round % 2 == 1 && round < repetitions;
        bench_progress_round(round, repetitions + 1);
        for (uint32_t i = 0; i < side_count && !failed; i++) {
            const uint32_t side = backwards ? side_count - 1 - i : i;
            const double taken = sides[side].run(sides[side].argument);
            failed = taken < 0.0;
            if (round > 0) {
                seconds[(size_t)side * repetitions + round - 1] = taken;
            }
        }
    }
    for (uint32_t side = 0; side < side_count && !failed; side++) {
        stats[side] = bench_stat_of(seconds + (size_t)side * repetitions, repetitions);
    }
    free(seconds);
    return failed;
}
