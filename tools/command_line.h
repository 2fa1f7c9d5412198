/* Command lines in the manner of GNU programs: --name value, --name=value, names shortened while
 * they are unique, `--` before words that look like options. Used by `zero` and by the examples. */
#ifndef TOOLS_COMMAND_LINE_H
#define TOOLS_COMMAND_LINE_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One line at a time: getopt_long keeps its place in globals. */
typedef struct command_line {
    int argc;
    char **argv;
    const struct option *options; /* a zeroed row ends them */
    bool over;                    /* "--" or the end was met: the rest are words */
    char error[256];              /* the text of COMMAND_LINE_BAD */
} command_line;

/* The values that command_line_next returns beside the `val` of an option. */
enum {
    COMMAND_LINE_END = -1,
    COMMAND_LINE_WORD = 1, /* no option */
    COMMAND_LINE_BAD = '?',
    COMMAND_LINE_HELP = 'h',    /* the `val` of --help, and what -h gives */
    COMMAND_LINE_OPTIONS = 256, /* the `val`s of all others begin here */
};

/* argv[0] is not read. `options` stays until the line is read. */
command_line command_line_begin(int argc, char **argv, const struct option *options);

/* The next option's `val`, with its value or NULL in *value; or a word, in *value. */
int command_line_next(command_line *line, const char **value);

/* The name that `word` most likely should have been: few letters differ, are missing, or changed
 * places. NULL: none is close. */
const char *command_line_nearest(const char *word, const char *const *names, size_t count);

/* "; did you mean "--NAME"?" for `word`, or "; HELP lists them all" where no name is close. */
void command_line_advice(const char *word, const char *const *names, size_t count,
                         const char *prefix, const char *help, char *text, size_t text_bytes);

/* A whole number: digits only, in [low, high]. */
bool command_line_whole(const char *text, uint64_t low, uint64_t high, uint64_t *value);

/* A whole number, with K, M or G behind it for KiB, MiB or GiB. */
bool command_line_bytes(const char *text, uint64_t *bytes);

#endif
