/* Owns fio as a peer, at its best: the same file and mix, past the page cache, in memory of huge
 * pages, by io_uring with registered memory and files or by libaio. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_child.h"
#include "io_rig.h"

/* Beyond the time it is asked to run. */
#define PATIENCE_S 30

/* Fields of the terse form, version 3: kilobytes and milliseconds of reading and writing, and
 * percent of one CPU. */
#define FIELD_READ_KIB 5
#define FIELD_READ_MS 8
#define FIELD_WRITE_KIB 46
#define FIELD_WRITE_MS 49
#define FIELD_USER 87
#define FIELD_SYSTEM 88
#define FIELDS 89

const char *io_fio_missing(void)
{
    char *text = NULL;
    const int status = child_version("fio", &text);
    const bool starts = status == 0 && text != NULL && strncmp(text, "fio-", 4) == 0;
    free(text);
    return status == CHILD_MISSING ? "fio is not installed" : starts ? NULL : "fio does not start";
}

/* NULL, or what is wrong. Percent are a job's mean. passed: out, bytes of its part that a job has
 * gone over. */
static const char *read_sample(char *text, uint32_t jobs, io_sample *sample, uint64_t *passed)
{
    double fields[FIELDS] = {0.0};
    char *rest = text;
    int count = 0;
    for (char *field = strsep(&rest, ";"); field != NULL && count < FIELDS;
         field = strsep(&rest, ";")) {
        fields[count++] = strtod(field, NULL);
    }
    const double read_ms = fields[FIELD_READ_MS];
    const double write_ms = fields[FIELD_WRITE_MS];
    const double ms = read_ms > write_ms ? read_ms : write_ms;
    const double read_kib = fields[FIELD_READ_KIB];
    const double write_kib = fields[FIELD_WRITE_KIB];
    const double gb = (read_kib + write_kib) * 1024.0 * 1e-9;
    if (count < FIELDS || ms <= 0.0 || gb <= 0.0) {
        return "fio's report is not understood";
    }
    /* Reads and writes go over the same blocks, each in their own turn. */
    *passed = (uint64_t)(read_kib > write_kib ? read_kib : write_kib) * 1024 / jobs;
    sample->seconds_per_gb = ms * 1e-3 / gb;
    sample->cpu_ms_per_gb = (fields[FIELD_USER] + fields[FIELD_SYSTEM]) * 0.01 * jobs * ms / gb;
    return NULL;
}

/* Memory as the library's, huge pages where the kernel grants them on request: with small ones an
 * access of 1 MiB is 256 segments, and fio is much slower. fio has no option for these but for
 * pools that an administrator reserves; the C library's allocator has, from glibc 2.35 on. Threads
 * instead of processes, so that killing fio kills all of it. */
static void add_constant(child_line *line)
{
    static const char *const words[] = {"env",
                                        "GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
                                        "fio",
                                        "--name=zero",
                                        "--thread",
                                        "--iomem_align=2m",
                                        "--direct=1",
                                        "--time_based",
                                        "--scramble_buffers=0",
                                        "--gtod_reduce=1",
                                        "--group_reporting",
                                        "--output-format=terse",
                                        "--terse-version=3"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        child_add(line, "%s", words[i]);
    }
}

/* Each job has a part of the file, and begins `begin` bytes behind its start. */
static void add_setting(child_line *line, const io_fio_setting *fio, uint64_t part, uint64_t begin)
{
    const uint64_t block = fio->setting.segment_bytes;
    child_add(line, "--ioengine=%s", fio->libaio ? "libaio" : "io_uring");
    if (!fio->libaio) {
        child_add(line, "--fixedbufs=1");
        child_add(line, "--registerfiles=1");
    }
    child_add(line, "--bs=%" PRIu64, block);
    child_add(line, "--iodepth=%u", fio->setting.depth);
    child_add(line, "--iodepth_batch=%u", fio->batch);
    child_add(line, "--iodepth_batch_complete_min=%u", fio->batch);
    child_add(line, "--iodepth_batch_complete_max=%u", fio->setting.depth);
    child_add(line, "--numjobs=%u", fio->jobs);
    child_add(line, "--offset=%" PRIu64, begin);
    child_add(line, "--size=%" PRIu64, part - begin);
    child_add(line, "--offset_increment=%" PRIu64, part);
}

const char *io_measure_fio(io_rig *rig, io_mix mix, const io_fio_setting *fio, double seconds,
                           io_sample *sample)
{
    static const char *const modes[IO_MIXES] = {"read", "write", "rw"};
    char path[64];
    io_facts facts;
    io_rig_path(rig, path, sizeof path);
    io_rig_facts(rig, &facts);
    const uint64_t block = fio->setting.segment_bytes;
    const uint64_t part = facts.bytes / fio->jobs / block * block;
    if (part == 0) {
        return "the file is too small for fio's accesses";
    }
    const uint64_t begin = io_rig_fio_begin(rig, part, block);
    child_line line = child_begin((uint32_t)seconds + PATIENCE_S);
    add_constant(&line);
    add_setting(&line, fio, part, begin);
    child_add(&line, "--filename=%s", path);
    child_add(&line, "--rw=%s", modes[mix]);
    child_add(&line, "--runtime=%.0fms", seconds * 1e3);
    char *text = NULL;
    uint64_t passed = 0;
    const char *reason = child_run(&line, &text) != 0
                             ? "fio fails here"
                             : read_sample(text, fio->jobs, sample, &passed);
    free(text);
    if (reason == NULL) {
        io_rig_fio_moved(rig, begin, passed);
    }
    return reason;
}

void io_fio_name(const io_fio_setting *fio, char *text, uint32_t text_bytes)
{
    char batch[32] = "";
    char jobs[32] = "";
    if (fio->batch > 1) {
        (void)snprintf(batch, sizeof batch, " by %u", fio->batch);
    }
    if (fio->jobs > 1) {
        (void)snprintf(jobs, sizeof jobs, ", %u jobs", fio->jobs);
    }
    (void)snprintf(text, text_bytes, "fio %s%" PRIu64 " KiB x %u%s%s", fio->libaio ? "libaio " : "",
                   fio->setting.segment_bytes >> 10, fio->setting.depth, batch, jobs);
}
