/* Owns running a benchmark again as several processes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench_child.h"
#include "bench_report.h"

static child_line make_line(const bench_options *options, const char *runner, uint32_t ranks,
                            int file)
{
    child_line line = child_begin(BENCH_SPAWN_SECONDS);
    child_add(&line, "mpirun");
    child_add(&line, "-n");
    child_add(&line, "%u", ranks);
    child_add(&line, "--oversubscribe");
    child_add(&line, "--bind-to");
    child_add(&line, "none");
    child_add(&line, "%s", options->program);
    child_add(&line, "bench");
    child_add(&line, "%s", runner);
    child_add(&line, "--as-rank=/proc/%ld/fd/%d", (long)getpid(), file);
    child_add(&line, "--repeat=%u", options->repetitions);
    if (options->scale != BENCH_FULL) {
        child_add(&line, options->scale == BENCH_QUICK ? "--quick" : "--tiny");
    }
    if (options->threads != 0) {
        child_add(&line, "--threads=%u", options->threads);
    }
    if (options->case_filter != NULL) {
        child_add(&line, "--case=%s", options->case_filter);
    }
    return line;
}

/* Take the rows that rank 0 left in the file, which stays open. */
static int read_rows(int file, bench_report *report)
{
    json_error_t error;
    json_t *json = json_loadfd(file, 0, &error);
    const int failed = json == NULL ? bench_fail("cannot read the ranks' report: %s", error.text)
                                    : bench_report_take(report, json);
    json_decref(json);
    return failed;
}

static int check_status(int status)
{
    if (status < 0) {
        return bench_fail("cannot start mpirun by timeout: %s", strerror(-status));
    }
    if (status == CHILD_TIMED_OUT || status == CHILD_KILLED) {
        return bench_fail("mpirun did not end within %d s", BENCH_SPAWN_SECONDS);
    }
    return status == 0 ? 0 : bench_fail("mpirun ended with status %d", status);
}

int bench_spawn_ranks(const bench_options *options, const char *runner, uint32_t ranks,
                      bench_report *report, bool *missing)
{
    char *version = NULL;
    *missing = child_version("mpirun", &version) == CHILD_MISSING;
    free(version);
    if (*missing) {
        return 0;
    }
    /* A file without a name, which the ranks open through this process: none can be left over. */
    const int file = memfd_create("zero-bench", MFD_CLOEXEC);
    if (file < 0) {
        return bench_fail("cannot make room for the ranks' report: %s", strerror(errno));
    }
    if (geteuid() == 0) {
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    child_line line = make_line(options, runner, ranks, file);
    const int failed = check_status(child_run(&line, NULL)) || read_rows(file, report);
    (void)close(file);
    return failed;
}
