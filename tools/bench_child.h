/* A program that this one starts and waits for: the ranks under mpirun, fio, or a script. */
#ifndef TOOLS_BENCH_CHILD_H
#define TOOLS_BENCH_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CHILD_WORDS_MAX = 40,
    CHILD_TIMED_OUT = 124, /* the status that `timeout` of the coreutils ends with, which starts the
                              program */
    CHILD_KILLED = 137,
    CHILD_MISSING = 127
};

typedef struct child_line {
    char *words[CHILD_WORDS_MAX + 1]; /* owned; NULL ends them */
    int count;
    bool lost; /* memory was out, or there were too many words */
} child_line;

/* An empty line for a program that is ended after so many seconds, by force 10 s later. */
child_line child_begin(uint32_t seconds);

void child_add(child_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Run the line to its end, with no input; the words are freed. text: out, all that it prints on
 * stdout, from malloc, its stderr is dropped; NULL: its stdout goes to our stderr. Returns its exit
 * status, 128 and the signal that ended it, or an errno below 0 when it could not be started; text
 * is NULL then. */
int child_run(child_line *line, char **text);

/* The same for words that NULL ends, with an input that it reads to its end before it prints, our
 * stderr, and for text NULL our stdout. */
int child_talk(const char *const *words, const char *input, char **text);

/* child_run of `program --version`, which does nothing else. */
int child_version(const char *program, char **text);

#endif
