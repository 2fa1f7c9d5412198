/* Owns the order of `zero bench step`: memory first, while the process is still small. */
#include "bench_step.h"

#include "bench_place.h"

int bench_step(const bench_options *options, bench_report *report)
{
    const int memory_failed = bench_peak_memory_at(&bench_cpu_place, options, report);
    const int speed_failed = bench_stage_speed(options, report);
    return memory_failed || speed_failed;
}
