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

/* Read what follows `key` and the separator on the first line of a file that begins with it,
 * without quotes; "unknown" when there is none. */
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

json_t *bench_head_json(const bench_report *report)
{
#ifdef __OPTIMIZE__
    const int optimised = 1;
#else
    const int optimised = 0;
#endif
    char cpu[256];
    char cpu_family[32];
    char cpu_model[32]; /* names of processors that hypervisors give are often less than one */
    char os[256];
    char date[32] = "unknown";
    struct utsname names;
    struct tm parts;
    double load = 0.0;
    const time_t now = time(NULL);
    memset(&names, 0, sizeof names);
    const bool named = uname(&names) == 0;
    (void)getloadavg(&load, 1);
    file_value("/proc/cpuinfo", "model name", ':', cpu, sizeof cpu);
    file_value("/proc/cpuinfo", "cpu family", ':', cpu_family, sizeof cpu_family);
    file_value("/proc/cpuinfo", "model\t", ':', cpu_model, sizeof cpu_model);
    file_value("/etc/os-release", "PRETTY_NAME", '=', os, sizeof os);
    if (gmtime_r(&now, &parts) != NULL) {
        (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &parts);
    }
    json_t *machine = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:f}", "cpu", cpu, "cpu_family", cpu_family,
        "cpu_model", cpu_model, "architecture", named ? names.machine : "unknown", "cores",
        (json_int_t)core_count(), "memory_bytes", (json_int_t)memory_bytes(), "kernel",
        named ? names.release : "unknown", "os", os, "load_1min", load);
    if (report->gpu != NULL && json_object_set(machine, "gpu", report->gpu) != 0) {
        json_decref(machine);
        return NULL;
    }
    return json_pack("{s:o, s:s, s:s, s:{s:s, s:b}}", "machine", machine, "date", date, "commit",
                     BENCH_COMMIT, "build", "compiler", __VERSION__, "optimised", optimised);
}
