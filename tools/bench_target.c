/* Owns the CPU as a target, and what is measured there: what is put on the host stream has run when
 * the call returns. */
#include "bench_target.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int wait_for_stream(const bench_target *target)
{
    (void)target;
    return 0;
}

static int fetch(const bench_target *target, void *host, const void *data, size_t bytes)
{
    (void)target;
    memcpy(host, data, bytes);
    return 0;
}

uint64_t bench_proc_bytes(const char *path, const char *key)
{
    FILE *file = fopen(path, "r");
    char line[256];
    uint64_t bytes = 0;
    while (file != NULL && bytes == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            bytes = strtoull(line + strlen(key), NULL, 10) << 10;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

uint64_t bench_resident_start(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    bool cleared = file != NULL && fputs("5", file) >= 0;
    cleared = file != NULL && fclose(file) == 0 && cleared;
    return cleared ? bench_proc_bytes("/proc/self/status", "VmRSS:") : 0;
}

uint64_t bench_resident_most(void)
{
    return bench_proc_bytes("/proc/self/status", "VmHWM:");
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

/* True if the peak is forgotten; else what is resident at both moments has to do. */
static bool forgets;

static uint64_t used_start(void)
{
    const uint64_t bytes = bench_resident_start();
    forgets = bytes != 0;
    return forgets ? bytes : resident_bytes();
}

static uint64_t used_most(void)
{
    return forgets ? bench_resident_most() : resident_bytes();
}

const bench_target bench_cpu_target = {
    .device = ZERO_DEVICE_CPU,
    .suffix = "",
    .used = "resident pages",
    .hook_units = 256,
    .hook_calls = 1000000,
    .wait = wait_for_stream,
    .fetch = fetch,
    .used_start = used_start,
    .used_most = used_most,
};

int bench_hooks(const bench_options *options, bench_report *report)
{
    return bench_hooks_at(&bench_cpu_target, options, report);
}

/* Memory first, while the process is still small. */
int bench_step(const bench_options *options, bench_report *report)
{
    const int memory_failed = bench_peak_memory_at(&bench_cpu_target, options, report);
    const int speed_failed = bench_stage_speed(options, report);
    return memory_failed || speed_failed;
}
