/* Programs on a terminal of a given width, and what is on its screen when they have ended. */
#ifndef TESTS_TERMINAL_H
#define TESTS_TERMINAL_H

#include "harness.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

enum { TERMINAL_ROW_BYTES = 4096 };

/* The two ends of a terminal `columns` wide: [0] is where its screen is read, [1] the program's. */
static inline void terminal_open(unsigned columns, int ends[2])
{
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0);
    ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    CHECK(ends[1] >= 0 && ioctl(ends[1], TIOCSWINSZ, &size) == 0);
}

/* All that was written to the terminal until nobody has it open; the caller frees it. */
static inline char *terminal_read(int end)
{
    char *text = NULL;
    size_t bytes = 0;
    char part[4096];
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out != NULL);
    for (ssize_t got = 0; (got = read(end, part, sizeof part)) > 0;) {
        CHECK(fwrite(part, 1, (size_t)got, out) == (size_t)got);
    }
    CHECK(fclose(out) == 0);
    (void)close(end);
    return text;
}

/* Runs argv[0] on a terminal; its exit status, and what it wrote in *text. */
static inline int terminal_run(unsigned columns, char *const *argv, char **text)
{
    int ends[2];
    terminal_open(columns, ends);
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(100);
        CHECK(dup2(ends[1], 0) == 0 && dup2(ends[1], 1) == 1 && dup2(ends[1], 2) == 2);
        execv(argv[0], argv);
        _exit(126);
    }
    (void)close(ends[1]);
    *text = terminal_read(ends[0]);
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* Draws what was written, as a terminal that never wraps would: a line that reaches its last column
 * fails the test, and so does one that is drawn over without erasing what it does not cover. The
 * rows that are left, ended by '\n'; the caller frees them. */
static inline char *terminal_screen(const char *text, unsigned columns)
{
    char row[TERMINAL_ROW_BYTES] = "";
    size_t at = 0;
    char *screen = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&screen, &bytes);
    CHECK(out != NULL);
    for (; *text != '\0'; text++) {
        if (strncmp(text, "\033[K", 3) == 0) {
            row[at] = '\0';
            text += 2;
        } else if (*text == '\r') {
            at = 0;
        } else if (*text == '\n') {
            (void)fprintf(out, "%s\n", row);
            row[at = 0] = '\0';
        } else {
            const bool last = row[at] == '\0';
            row[at++] = *text;
            row[at] = last ? '\0' : row[at];
            if (at >= columns || at + 1 >= sizeof row) {
                TEST_FAIL("%u columns, and a line of %zu: %s", columns, at, row);
            }
        }
    }
    (void)fprintf(out, "%s", row);
    CHECK(fclose(out) == 0);
    return screen;
}

#endif
