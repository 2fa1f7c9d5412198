/* Owns the programs that measurements start. Invariant: nothing of what was started is left behind
 * when a call returns, whatever happened to it. */
#include "bench_child.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* 0 or an errno. in -1: no input. says: its stderr is ours. */
static int start(const char *const *words, int in, int out, bool says, pid_t *child)
{
    posix_spawn_file_actions_t actions;
    int code = posix_spawn_file_actions_init(&actions);
    if (code != 0) {
        return code;
    }
    code = in < 0
               ? posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0)
               : posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    if (code == 0) {
        code = posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    }
    if (code == 0 && !says) {
        code = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    }
    if (code == 0) {
        code = posix_spawnp(child, words[0], &actions, NULL, (char **)(uintptr_t)words, environ);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    return code;
}

/* A program that ended before it read all has its reasons. */
static void write_all(int pipe, const char *text)
{
    ssize_t put = 0;
    for (size_t left = strlen(text); left > 0 && (put >= 0 || errno == EINTR);) {
        put = write(pipe, text, left);
        text += put > 0 ? put : 0;
        left -= put > 0 ? (size_t)put : 0;
    }
}

/* Read what comes through the pipe until its end; NULL: no memory. */
static char *read_all(int pipe)
{
    char piece[4096];
    char *text = NULL;
    size_t bytes = 0;
    ssize_t got = 1;
    FILE *file = open_memstream(&text, &bytes);
    while (file != NULL && (got > 0 || (got < 0 && errno == EINTR))) {
        got = read(pipe, piece, sizeof piece);
        (void)fwrite(piece, 1, got > 0 ? (size_t)got : 0, file);
    }
    if (file != NULL && fclose(file) != 0) {
        free(text);
        text = NULL;
    }
    return text;
}

static void close_end(int end)
{
    if (end >= 0) {
        (void)close(end);
    }
}

/* input, text: as child_talk's and child_run's. */
static int run(const char *const *words, const char *input, char **text)
{
    int in[2] = {-1, -1};
    int out[2] = {-1, -1};
    int code =
        (input != NULL && pipe2(in, O_CLOEXEC) != 0) || (text != NULL && pipe2(out, O_CLOEXEC) != 0)
            ? errno
            : 0;
    pid_t child = 0;
    const int target = text != NULL ? out[1] : input != NULL ? STDOUT_FILENO : STDERR_FILENO;
    code = code != 0 ? code : start(words, in[0], target, text == NULL || input != NULL, &child);
    close_end(in[0]);
    close_end(out[1]);
    if (code == 0 && input != NULL) {
        write_all(in[1], input);
    }
    close_end(in[1]);
    if (text != NULL) {
        *text = code == 0 ? read_all(out[0]) : NULL;
        code = code == 0 && *text == NULL ? ENOMEM : code;
    }
    close_end(out[0]);
    int state = 0;
    while (child != 0 && waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    if (code != 0) {
        return -code;
    }
    return WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
}

int child_run(child_line *line, char **text)
{
    const int status =
        line->lost ? -ENOMEM : run((const char *const *)(uintptr_t)line->words, NULL, text);
    for (int i = 0; i < line->count; i++) {
        free(line->words[i]);
    }
    return status;
}

int child_talk(const char *const *words, const char *input, char **text)
{
    return run(words, input, text);
}

int child_version(const char *program, char **text)
{
    child_line line = child_begin(VERSION_S);
    child_add(&line, "%s", program);
    child_add(&line, "--version");
    return child_run(&line, text);
}
