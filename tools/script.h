/* Subcommands of `zero` that are Python scripts: the modules of tools/python. */
#ifndef TOOLS_SCRIPT_H
#define TOOLS_SCRIPT_H

/* The program becomes Python, which runs the function `main` of a module with the words of the
 * line. Returns only where that cannot be, with the exit status 1: it was said why.
 * - speaker: what messages begin with, as "zero trace".
 * - module: its name, as "trace_line".
 * - argv: argv[0] is not passed on. */
int script_run(const char *speaker, const char *module, int argc, char **argv);

#endif
