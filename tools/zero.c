/* The program `zero`: finds the subcommand and hands the rest of the line to it. Exit status 0:
 * done; 1: refused or failed, with one line on stderr that says why. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "command_line.h"
#include "commands.h"
#include "script.h"
#include "zero/version.h"

typedef struct zero_command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand's name */
} zero_command;

static int run_trace(int argc, char **argv)
{
    return script_run("zero trace", "trace_line", argc, argv);
}

static const zero_command commands[] = {
    {"bench", "measure the library against its limits and peers", command_bench},
    {"ckpt", "checkpoints: list, check, compare, and make others of them", command_ckpt},
    {"io", "measure a directory for state on disk", command_io},
    {"options", "list the options of an engine", command_options},
    {"plan", "what a model needs of a cluster, by stage and tier", command_plan},
    {"sim", "how long a step takes on a cluster that is not at hand", command_sim},
    {"trace", "timelines of ranks: put on one clock, and summed up", run_trace},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_help(FILE *out)
{
    fprintf(out, "usage: zero COMMAND [ARGUMENTS]\n"
                 "       zero -h | --help | --version\n\n"
                 "commands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(out, "\n`zero COMMAND --help` explains a command.\n");
}

/* An option instead of a command. */
static int run_option(int argc, char **argv)
{
    enum { VERSION = COMMAND_LINE_OPTIONS };
    static const struct option options[] = {{"help", no_argument, NULL, COMMAND_LINE_HELP},
                                            {"version", no_argument, NULL, VERSION},
                                            {0}};
    command_line line = command_line_begin(argc, argv, options);
    const char *value = NULL;
    switch (command_line_next(&line, &value)) {
    case COMMAND_LINE_HELP:
        print_help(stdout);
        break;
    case VERSION:
        printf("zero %s\n", zero_version());
        break;
    case COMMAND_LINE_BAD:
        fprintf(stderr, "zero: %s\n", line.error);
        return 1;
    default:
        print_help(stderr);
        return 1;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    const char *names[COMMAND_COUNT];
    char advice[128];
    /* A file that may not grow, and a pipe that nobody reads, are errors of writing. */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return 1;
    }
    if (argv[1][0] == '-') {
        return run_option(argc, argv);
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    command_line_advice(argv[1], names, COMMAND_COUNT, "", "zero --help", advice, sizeof advice);
    fprintf(stderr, "zero: unknown command \"%s\"%s\n", argv[1], advice);
    return 1;
}
