/* Owns fio as a peer, at its best: the same file and mix, past the page cache, in memory of huge
 * pages, by io_uring with registered memory and files or by libaio. Invariant: no fio is left
 * running when a call returns. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io_rig.h"

#define TEXT_BYTES 8192
#define WORD_BYTES 96
#define WORDS_MAX 32
/* Beyond the time it is asked to run. */
#define PATIENCE_S 30.0

/* Fields of the terse form, version 3: kilobytes and milliseconds of reading and writing, and
 * percent of one CPU. */
#define FIELD_READ_KIB 5
#define FIELD_READ_MS 8
#define FIELD_WRITE_KIB 46
#define FIELD_WRITE_MS 49
#define FIELD_USER 87
#define FIELD_SYSTEM 88
#define FIELDS 89

extern char **environ;

/* Start the words with stdout in a pipe and stderr nowhere. Returns 0 or an errno. */
static int start(char *const *words, pid_t *child, int *out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return errno;
    }
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code == 0) {
        (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        (void)posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        code = posix_spawnp(child, words[0], &actions, NULL, words, environ);
        (void)posix_spawn_file_actions_destroy(&actions);
    }
    (void)close(ends[1]);
    if (code != 0) {
        (void)close(ends[0]);
    }
    *out = ends[0];
    return code;
}

/* What comes through the pipe until its end; false when that does not come in time. */
static bool read_all(int out, double end, char *text, size_t text_bytes)
{
    size_t used = 0;
    for (;;) {
        const double left = end - bench_now();
        struct pollfd look = {.fd = out, .events = POLLIN};
        if (left <= 0.0 || poll(&look, 1, (int)(left * 1e3) + 1) == 0) {
            return false;
        }
        char more[512];
        const ssize_t got = read(out, more, sizeof more);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            text[used] = '\0';
            return got == 0;
        }
        const size_t kept =
            (size_t)got < text_bytes - 1 - used ? (size_t)got : text_bytes - 1 - used;
        memcpy(text + used, more, kept);
        used += kept;
    }
}

/* Run to the end; what it printed is in text. 0, an errno, or -1 when it failed or was killed. */
static int run(char *const *words, double seconds, char *text, size_t text_bytes)
{
    pid_t child = 0;
    int out = -1;
    const int code = start(words, &child, &out);
    if (code != 0) {
        return code;
    }
    const bool ended = read_all(out, bench_now() + seconds, text, text_bytes);
    (void)close(out);
    if (!ended) {
        (void)kill(child, SIGKILL);
    }
    int state = 0;
    while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    return ended && WIFEXITED(state) && WEXITSTATUS(state) == 0 ? 0 : -1;
}

const char *io_fio_missing(void)
{
    char name[] = "fio";
    char option[] = "--version";
    char *words[] = {name, option, NULL};
    char text[TEXT_BYTES];
    const int code = run(words, PATIENCE_S, text, sizeof text);
    if (code == ENOENT) {
        return "fio is not installed";
    }
    return code == 0 && strncmp(text, "fio-", 4) == 0 ? NULL : "fio does not start";
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

/* A line of words for a process. */
typedef struct fio_line {
    char words[WORDS_MAX][WORD_BYTES];
    int count;
} fio_line;

static void add_word(fio_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add_word(fio_line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (line->count < WORDS_MAX - 1) {
        (void)vsnprintf(line->words[line->count++], WORD_BYTES, format, args);
    }
    va_end(args);
}

/* Memory as the library's, huge pages where the kernel grants them on request: with small ones an
 * access of 1 MiB is 256 segments, and fio is offloaded slower. fio has no option for these but for
 * pools that an administrator reserves; the C library's allocator has, from glibc 2.35 on. Threads
 * instead of processes, so that killing fio kills all of it. */
static void add_constant(fio_line *line)
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
        add_word(line, "%s", words[i]);
    }
}

/* Each job has a part of the file, and begins `begin` bytes behind its start. */
static void add_setting(fio_line *line, const io_fio_setting *fio, uint64_t part, uint64_t begin)
{
    const uint64_t block = fio->setting.segment_bytes;
    add_word(line, "--ioengine=%s", fio->libaio ? "libaio" : "io_uring");
    if (!fio->libaio) {
        add_word(line, "--fixedbufs=1");
        add_word(line, "--registerfiles=1");
    }
    add_word(line, "--bs=%" PRIu64, block);
    add_word(line, "--iodepth=%u", fio->setting.depth);
    add_word(line, "--iodepth_batch=%u", fio->batch);
    add_word(line, "--iodepth_batch_complete_min=%u", fio->batch);
    add_word(line, "--iodepth_batch_complete_max=%u", fio->setting.depth);
    add_word(line, "--numjobs=%u", fio->jobs);
    add_word(line, "--offset=%" PRIu64, begin);
    add_word(line, "--size=%" PRIu64, part - begin);
    add_word(line, "--offset_increment=%" PRIu64, part);
}

const char *io_measure_fio(io_rig *rig, io_mix mix, const io_fio_setting *fio, double seconds,
                           io_sample *sample)
{
    static const char *const modes[IO_MIXES] = {"read", "write", "rw"};
    fio_line line = {.count = 0};
    char *argv[WORDS_MAX] = {NULL};
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
    add_constant(&line);
    add_setting(&line, fio, part, begin);
    add_word(&line, "--filename=%s", path);
    add_word(&line, "--rw=%s", modes[mix]);
    add_word(&line, "--runtime=%.0fms", seconds * 1e3);
    for (int i = 0; i < line.count; i++) {
        argv[i] = line.words[i];
    }
    char text[TEXT_BYTES];
    const int code = run(argv, seconds + PATIENCE_S, text, sizeof text);
    if (code != 0) {
        return code > 0 ? strerror(code) : "fio fails here";
    }
    uint64_t passed = 0;
    const char *reason = read_sample(text, fio->jobs, sample, &passed);
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
