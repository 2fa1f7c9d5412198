/* Owns the programs that measurements start. Invariant: nothing of what was started is left behind
 * when a call returns, whatever happened to it. */
#include "bench_child.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define VERSION_S 30

extern char **environ;

/* --foreground: whoever interrupts this program interrupts the other one too. */
child_line child_begin(uint32_t seconds)
{
    child_line line = {.count = 0};
    child_add(&line, "timeout");
    child_add(&line, "--foreground");
    child_add(&line, "--kill-after=10");
    child_add(&line, "%u", seconds);
    return line;
}

void child_add(child_line *line, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    line->lost = line->lost || line->count == CHILD_WORDS_MAX ||
                 vasprintf(&line->words[line->count], format, values) < 0;
    va_end(values);
    line->count += line->lost ? 0 : 1;
    line->words[line->count] = NULL;
}

/* 0 or an errno. */
static int start(const child_line *line, int out, pid_t *child)
{
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code != 0) {
        return code;
    }
    code = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (code == 0) {
        code = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    }
    if (code == 0 && out != STDERR_FILENO) {
        code = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    }
    if (code == 0) {
        code = posix_spawnp(child, line->words[0], &actions, NULL, line->words, environ);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

/* Read what comes through the pipe until its end; what there is no room for is dropped. */
static void read_all(int pipe, char *text, size_t text_bytes)
{
    size_t used = 0;
    char dropped[512];
    for (;;) {
        const size_t room = text_bytes - 1 - used;
        const ssize_t got =
            room > 0 ? read(pipe, text + used, room) : read(pipe, dropped, sizeof dropped);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            break;
        }
        used += got > 0 && room > 0 ? (size_t)got : 0;
    }
    text[used] = '\0';
}

static int run(const child_line *line, char *text, size_t text_bytes)
{
    int ends[2] = {-1, STDERR_FILENO};
    if (text != NULL && pipe2(ends, O_CLOEXEC) != 0) {
        return -errno;
    }
    pid_t child = 0;
    const int code = start(line, ends[1], &child);
    if (text != NULL) {
        (void)close(ends[1]);
        read_all(ends[0], text, text_bytes);
        (void)close(ends[0]);
    }
    int state = 0;
    while (code == 0 && waitpid(child, &state, 0) < 0) {
        if (errno != EINTR) {
            return -errno;
        }
    }
    if (code != 0) {
        return -code;
    }
    return WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
}

int child_run(child_line *line, char *text, size_t text_bytes)
{
    const int status = line->lost ? -ENOMEM : run(line, text, text_bytes);
    for (int i = 0; i < line->count; i++) {
        free(line->words[i]);
    }
    return status;
}

int child_version(const char *program, char *text, size_t text_bytes)
{
    child_line line = child_begin(VERSION_S);
    child_add(&line, "%s", program);
    child_add(&line, "--version");
    return child_run(&line, text, text_bytes);
}
