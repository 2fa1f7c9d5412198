/* Owns the calibration of disks: accesses as long and as many at once as an engine's for rates, and
 * short ones for the time of an access. The file has no name and is gone when the program ends. */
#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "bench_calibrate.h"
#include "io_rig.h"

#define MIB ((uint64_t)1 << 20)
#define SHORT_BYTES 4096
/* In flight: an engine's, and few of the short ones, which do not wait for one another. */
#define ENGINE_DEPTH 16
#define SHORT_DEPTH 4

static const char *const fields[] = {"disk_bytes", "disk_read_bytes_per_s",
                                     "disk_write_bytes_per_s", "disk_latency_ns"};
#define FIELDS (sizeof fields / sizeof fields[0])

/* Bytes that this user may still write in a directory. */
static int free_bytes(const char *directory, uint64_t *bytes)
{
    struct statvfs status;
    if (statvfs(directory, &status) != 0) {
        return bench_fail("--dir %s: %s", directory, strerror(errno));
    }
    *bytes = (uint64_t)status.f_bavail * status.f_frsize;
    return 0;
}

/* Directories on one disk count once. */
static int add_bytes(calibration *all, const io_rates *rates)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < all->directory_count; i++) {
        uint64_t bytes = 0;
        if (free_bytes(all->directories[i], &bytes) != 0) {
            return 1;
        }
        sum += (double)bytes / (rates->sharers[i] > 1 ? rates->sharers[i] : 1);
    }
    calibrate_add(all, "disk_bytes", sum);
    return 0;
}

static int sample(calibration *all, io_rig *rig, double seconds)
{
    const io_setting engine = {IO_ACCESS_BYTES, ENGINE_DEPTH};
    const io_setting few = {SHORT_BYTES, SHORT_DEPTH};
    io_sample read;
    io_sample write;
    io_sample access;
    if (io_measure(rig, IO_MIX_READ, &engine, seconds, &read) != 0 ||
        io_measure(rig, IO_MIX_WRITE, &engine, seconds, &write) != 0 ||
        io_measure(rig, IO_MIX_READ, &few, seconds / 2, &access) != 0) {
        return 1;
    }
    calibrate_add(all, "disk_read_bytes_per_s", 1e9 / read.seconds_per_gb);
    calibrate_add(all, "disk_write_bytes_per_s", 1e9 / write.seconds_per_gb);
    /* Little's law: how many are in flight is their rate times the time of one. */
    calibrate_add(all, "disk_latency_ns",
                  access.seconds_per_gb * SHORT_BYTES * SHORT_DEPTH * all->directory_count);
    return 0;
}

static int measure(calibration *all, io_rig *rig)
{
    static const double seconds[] = {0.4, 0.1, 0.01};
    int failed = io_rig_fill(rig, 40.0 * seconds[all->scale]);
    /* The first round is unmeasured: it writes blocks of the file for the first time. */
    for (uint32_t round = 0; round <= all->repetitions && !failed; round++) {
        calibration unused = *all;
        bench_progress_round(round, all->repetitions + 1);
        failed = sample(round == 0 ? &unused : all, rig, seconds[all->scale]);
    }
    return failed;
}

int calibrate_disks(calibration *all)
{
    static const uint64_t sizes[] = {1024 * MIB, 128 * MIB, 8 * MIB};
    io_rates rates = {0};
    io_rig *rig = NULL;
    io_facts facts;
    const bool several = all->directory_count > 1;
    bench_progress_case("disks");
    if (several && io_find_rates(all->directories, all->directory_count, 0, &rates) != 0) {
        return 1;
    }
    const io_rig_desc desc = {.directories = all->directories,
                              .directory_count = all->directory_count,
                              .rates = several ? rates.rate : NULL,
                              .bytes = sizes[all->scale] * all->directory_count};
    if (io_rig_open(&desc, &rig) != 0) {
        return 1;
    }
    io_rig_facts(rig, &facts);
    int failed = 0;
    if (facts.in_memory) {
        for (size_t i = 0; i < FIELDS; i++) {
            calibrate_miss(all, fields[i], "a directory is in memory; name others with --dir");
        }
    } else {
        failed = measure(all, rig);
    }
    io_rig_close(rig);
    return failed || (!facts.in_memory && add_bytes(all, &rates) != 0);
}
