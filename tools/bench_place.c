/* Owns the CPU as a place, and what is measured there: what is put on the host stream has run when
 * the call returns. */
#include "bench_place.h"

#include <string.h>
#include <unistd.h>

static int wait_for_stream(const bench_place *place)
{
    (void)place;
    return 0;
}

static int fetch(const bench_place *place, void *host, const void *data, size_t bytes)
{
    (void)place;
    memcpy(host, data, bytes);
    return 0;
}

/* Pages of the process that are in memory. */
static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    if (file != NULL) {
        if (fscanf(file, "%*u %lu", &pages) != 1) {
            pages = 0;
        }
        (void)fclose(file);
    }
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static const bench_place cpu = {
    .device = ZERO_DEVICE_CPU,
    .suffix = "",
    .used = "resident pages",
    .hook_units = 256,
    .hook_calls = 1000000,
    .wait = wait_for_stream,
    .fetch = fetch,
    .used_bytes = resident_bytes,
};

int bench_hooks(const bench_options *options, bench_report *report)
{
    return bench_hooks_at(&cpu, options, report);
}

/* Memory first, while the process is still small. */
int bench_step(const bench_options *options, bench_report *report)
{
    const int memory_failed = bench_peak_memory_at(&cpu, options, report);
    const int speed_failed = bench_stage_speed(options, report);
    return memory_failed || speed_failed;
}
