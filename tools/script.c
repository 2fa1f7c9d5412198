/* Owns how `zero` finds and starts its Python scripts. They lie beside the program in a build tree
 * and below the library's folder in an installation, whichever place that was moved to. */
#include "script.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

/* Below the program's own folder; meson makes the first one. ZERO_SCRIPTS: tools/meson.build. */
static const char *const script_folders[] = {"zero-python", ZERO_SCRIPTS};

/* The program's folder, with a '/' at its end. */
static bool find_program(char folder[PATH_MAX])
{
    const ssize_t bytes = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    if (bytes <= 0) {
        return false;
    }
    folder[bytes] = '\0';
    strrchr(folder, '/')[1] = '\0';
    return true;
}

/* The file that Python is to run, start.py. */
static bool find_start(char start[PATH_MAX])
{
    char program[PATH_MAX];
    if (!find_program(program)) {
        return false;
    }
    for (size_t i = 0; i < sizeof script_folders / sizeof script_folders[0]; i++) {
        const char *folder = script_folders[i];
        const int bytes =
            snprintf(start, PATH_MAX, "%s%s/start.py", folder[0] == '/' ? "" : program, folder);
        if (bytes < PATH_MAX && access(start, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

int script_run(const char *speaker, const char *module, int argc, char **argv)
{
    /* These use Python's library alone: a user's own settings of Python are not for them. */
    static const char *const first[] = {"python3", "-BEsS", "-Xutf8"};
    enum { FIRST = sizeof first / sizeof first[0] };
    char start[PATH_MAX];
    bench_speak_as(speaker);
    if (!find_start(start)) {
        return bench_fail("the scripts of the program are not beside it, in %s; install it again",
                          ZERO_SCRIPTS);
    }
    const char **words = calloc((size_t)argc + FIRST + 4, sizeof *words);
    if (words == NULL) {
        return bench_fail("no memory for the line");
    }
    memcpy(words, first, sizeof first);
    words[FIRST] = start;
    words[FIRST + 1] = speaker;
    words[FIRST + 2] = module;
    for (int i = 1; i < argc; i++) {
        words[FIRST + 2 + i] = argv[i];
    }
    (void)execvp(first[0], (char **)(uintptr_t)words);
    const int reason = errno;
    free(words);
    return reason == ENOENT
               ? bench_fail("it needs Python 3.11 or newer, and there is no python3; install it "
                            "(Debian: python3)")
               : bench_fail("python3 cannot be started: %s", strerror(reason));
}
