/* The program `zero`: finds the subcommand and hands the rest of the line to it. Exit status 0:
 * done; 1: refused or failed, with one line on stderr that says why. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "zero/version.h"

typedef struct zero_command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the subcommand's name */
} zero_command;

static const zero_command commands[] = {
    {"bench", "measure the library against its limits and peers", command_bench},
    {"io", "measure a directory for state on disk", command_io},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_help(FILE *out)
{
    fprintf(out, "usage: zero COMMAND [ARGUMENTS]\n"
                 "       zero --help | --version\n\n"
                 "commands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(out, "\n`zero COMMAND --help` explains a command.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 1;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("zero %s\n", zero_version());
        return fflush(stdout) == 0 ? 0 : 1;
    }
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "zero: unknown %s '%s'; `zero --help` lists the commands\n",
            argv[1][0] == '-' ? "option" : "command", argv[1]);
    return 1;
}
