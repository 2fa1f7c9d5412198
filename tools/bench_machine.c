/* Owns what a measurement must name to mean something: the machine, the build and the commit. */
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench_commit.h"
#include "bench_report.h"

/* What follows `key` and the separator on the first line of a file that begins with it, without
 * quotes; "unknown" when there is none. */
static void file_value(const char *path, const char *key, char separator, char *text,
                       size_t text_bytes)
{
    (void)snprintf(text, text_bytes, "unknown");
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return;
    }
    char line[512];
    while (fgets(line, sizeof line, file) != NULL) {
        const char *value = strchr(line, separator);
        if (strncmp(line, key, strlen(key)) != 0 || value == NULL) {
            continue;
        }
        value += 1 + strspn(value + 1, " \t\"");
        (void)snprintf(text, text_bytes, "%.*s", (int)strcspn(value, "\"\n"), value);
        break;
    }
    (void)fclose(file);
}

/* Cores this process may run on. */
static uint64_t core_count(void)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        return (uint64_t)CPU_COUNT(&allowed);
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint64_t)online : 0;
}

static uint64_t memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

static void gpu_json(const bench_gpu_facts *gpu, bench_json *json)
{
    bench_json_open(json, "gpu", '{');
    bench_json_text(json, "name", gpu->name);
    bench_json_text(json, "compute_capability", gpu->compute_capability);
    bench_json_text(json, "driver", gpu->driver);
    bench_json_text(json, "runtime", gpu->runtime);
    bench_json_whole(json, "gpus", gpu->gpu_count);
    bench_json_whole(json, "sm_count", gpu->sm_count);
    bench_json_whole(json, "sm_clock_max_mhz", gpu->sm_clock_max_mhz);
    bench_json_whole(json, "memory_clock_max_mhz", gpu->memory_clock_max_mhz);
    bench_json_whole(json, "l2_bytes", gpu->l2_bytes);
    bench_json_whole(json, "memory_bytes", gpu->memory_bytes);
    bench_json_number(json, "pinned_to_gpu_gb_per_s", gpu->to_gpu_gb_per_s);
    bench_json_number(json, "pinned_to_host_gb_per_s", gpu->to_host_gb_per_s);
    bench_json_number(json, "pinned_both_gb_per_s", gpu->both_gb_per_s);
    bench_json_close(json, '}');
}

void bench_machine_json(const bench_gpu_facts *gpu, bench_json *json)
{
    char cpu[256];
    char os[256];
    struct utsname names;
    memset(&names, 0, sizeof names);
    const char *kernel = uname(&names) == 0 ? names.release : "unknown";
    double load = 0.0;
    (void)getloadavg(&load, 1);
    file_value("/proc/cpuinfo", "model name", ':', cpu, sizeof cpu);
    file_value("/etc/os-release", "PRETTY_NAME", '=', os, sizeof os);
    bench_json_open(json, "machine", '{');
    bench_json_text(json, "cpu", cpu);
    bench_json_text(json, "architecture", names.machine[0] != '\0' ? names.machine : "unknown");
    bench_json_whole(json, "cores", core_count());
    bench_json_whole(json, "memory_bytes", memory_bytes());
    bench_json_text(json, "kernel", kernel);
    bench_json_text(json, "os", os);
    bench_json_number(json, "load_1min", load);
    if (gpu->name[0] != '\0') {
        gpu_json(gpu, json);
    }
    bench_json_close(json, '}');
}

void bench_date_json(bench_json *json)
{
    const time_t now = time(NULL);
    struct tm parts;
    char text[32] = "unknown";
    if (gmtime_r(&now, &parts) != NULL) {
        (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
    bench_json_text(json, "date", text);
}

void bench_build_json(bench_json *json)
{
#ifdef __OPTIMIZE__
    const bool optimised = true;
#else
    const bool optimised = false;
#endif
    bench_json_open(json, "build", '{');
    bench_json_text(json, "compiler", __VERSION__);
    bench_json_flag(json, "optimised", optimised);
    bench_json_close(json, '}');
}

const char *bench_commit_text(void)
{
    return BENCH_COMMIT;
}
