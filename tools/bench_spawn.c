/* Owns running a benchmark again as several processes. Invariant: nothing of what was started is
 * left behind when the call returns, whatever happened to it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_report.h"

#define ARGUMENTS_MAX 32

extern char **environ;

/* The command line of the ranks. Texts are borrowed, numbers are printed into `numbers`. */
typedef struct spawn_line {
    char *words[ARGUMENTS_MAX];
    size_t word_count;
    char numbers[4][16];
    size_t number_count;
} spawn_line;

/* argv wants char *, though nobody writes to it. */
static void add_word(spawn_line *line, const char *word)
{
    line->words[line->word_count++] = (char *)(uintptr_t)word;
    line->words[line->word_count] = NULL;
}

static void add_number(spawn_line *line, const char *option, uint32_t number)
{
    char *text = line->numbers[line->number_count++];
    (void)snprintf(text, sizeof line->numbers[0], "%u", number);
    add_word(line, option);
    add_word(line, text);
}

static void make_line(const bench_options *options, const char *runner, uint32_t ranks,
                      const char *path, spawn_line *line)
{
    add_word(line, "mpirun");
    add_number(line, "-n", ranks);
    add_word(line, "--oversubscribe");
    add_word(line, "--bind-to");
    add_word(line, "none");
    add_word(line, options->program);
    add_word(line, "bench");
    add_word(line, runner);
    add_word(line, "--as-rank");
    add_word(line, path);
    add_number(line, "--repeat", options->repetitions);
    if (options->scale != BENCH_FULL) {
        add_word(line, options->scale == BENCH_QUICK ? "--quick" : "--tiny");
    }
    if (options->threads != 0) {
        add_number(line, "--threads", options->threads);
    }
    if (options->case_filter != NULL) {
        add_word(line, "--case");
        add_word(line, options->case_filter);
    }
}

/* Start the line with stdout going to our stderr. Returns 0 or an errno. */
static int start_line(const spawn_line *line, const sigset_t *mask, pid_t *child)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int code = posix_spawn_file_actions_init(&actions);
    if (code != 0) {
        return code;
    }
    code = posix_spawnattr_init(&attributes);
    if (code != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return code;
    }
    code = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (code == 0) {
        code = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    }
    if (code == 0) {
        code = posix_spawnattr_setsigmask(&attributes, mask);
    }
    if (code == 0) {
        code = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    }
    if (code == 0) {
        code = posix_spawnp(child, line->words[0], &actions, &attributes, line->words, environ);
    }
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

/* Wait until the child has ended or `seconds` are over; SIGCHLD is blocked. True when it ended. */
static bool wait_child(pid_t child, double seconds, int *state)
{
    sigset_t ended;
    (void)sigemptyset(&ended);
    (void)sigaddset(&ended, SIGCHLD);
    const double until = bench_now() + seconds;
    for (;;) {
        const pid_t got = waitpid(child, state, WNOHANG);
        if (got == child || (got < 0 && errno != EINTR)) {
            return got == child;
        }
        const double left = until - bench_now();
        if (left <= 0.0) {
            return false;
        }
        struct timespec pause = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        (void)sigtimedwait(&ended, NULL, &pause);
    }
}

/* Start the line, wait for its end, end it when it takes too long. */
static int run_line(const spawn_line *line, bool *missing)
{
    sigset_t block;
    sigset_t before;
    (void)sigemptyset(&block);
    (void)sigaddset(&block, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &block, &before);
    pid_t child = 0;
    int state = 0;
    bool ended = false;
    bool in_time = false;
    const int code = start_line(line, &before, &child);
    if (code == 0) {
        ended = in_time = wait_child(child, BENCH_SPAWN_SECONDS, &state);
        if (!ended) {
            (void)kill(child, SIGTERM);
            ended = wait_child(child, 10.0, &state);
        }
        if (!ended) {
            (void)kill(child, SIGKILL);
            ended = wait_child(child, 10.0, &state);
        }
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (code == ENOENT) {
        *missing = true;
        return 1;
    }
    if (code != 0) {
        return bench_fail("cannot start %s: %s", line->words[0], strerror(code));
    }
    if (!in_time) {
        return bench_fail("%s did not end within %d s", line->words[0], BENCH_SPAWN_SECONDS);
    }
    if (WIFSIGNALED(state)) {
        return bench_fail("%s was ended by signal %d", line->words[0], WTERMSIG(state));
    }
    return WEXITSTATUS(state) == 0
               ? 0
               : bench_fail("%s ended with status %d", line->words[0], WEXITSTATUS(state));
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

int bench_spawn_ranks(const bench_options *options, const char *runner, uint32_t ranks,
                      bench_report *report, bool *missing)
{
    *missing = false;
    /* A file without a name, which the ranks open through this process: none can be left over. */
    const int file = memfd_create("zero-bench", MFD_CLOEXEC);
    if (file < 0) {
        return bench_fail("cannot make room for the ranks' report: %s", strerror(errno));
    }
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), file);
    if (geteuid() == 0) {
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
        (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    }
    spawn_line line = {.word_count = 0};
    make_line(options, runner, ranks, path, &line);
    int failed = run_line(&line, missing);
    if (!failed) {
        failed = read_rows(file, report);
    }
    (void)close(file);
    return *missing ? 0 : failed;
}
