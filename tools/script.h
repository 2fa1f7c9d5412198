/* The Python scripts of `zero`, which are modules of tools/python: subcommands, and those that make
 * the text of reports. */
#ifndef TOOLS_SCRIPT_H
#define TOOLS_SCRIPT_H

#include <jansson.h>

/* The program becomes Python, which runs the function `main` of a module with the words of the
 * line. Returns only where that cannot be, with the exit status 1: it was said why.
 * - speaker: what messages begin with, as "zero trace".
 * - module: its name, as "trace_line".
 * - argv: argv[0] is not passed on. */
int script_run(const char *speaker, const char *module, int argc, char **argv);

/* The text that a module makes of a report: a table or a page. From malloc; NULL after bench_fail.
 * - word: of the module's line, or NULL.
 * - report: its reference is taken. NULL: memory was out. */
char *script_text(const char *module, const char *word, json_t *report);

/* The same, with our stdout for its own, and the exit status that it ends with; 1 after bench_fail
 * too. */
int script_status(const char *module, const char *word, json_t *report);

/* Check that there is a Python for that, of whatever version: for those who measure for long before
 * they print. 1 after bench_fail. */
int script_check(void);

/* Prints that text. 1 after bench_fail, also where stdout does not take all. */
int script_print(const char *module, const char *word, json_t *report);

#endif
