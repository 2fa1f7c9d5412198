/* `zero options`: the table of an engine's options (zero/option.h), for people and as the page
 * docs/options.md. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "command_line.h"
#include "commands.h"
#include "zero/option.h"

static const char help[] =
    "usage: zero options [--markdown]\n\n"
    "Lists the options of an engine: the fields of zero_engine_options, then those of\n"
    "zero_tuning, with their values, their defaults and what they do.\n\n"
    "  --markdown  as the page docs/options.md\n"
    "  --help      this text\n";

static void print_names(const zero_option *option, FILE *out)
{
    bool first = true;
    for (uint32_t i = 0; i < option->choice_count; i++) {
        if (option->choices[i] != NULL) {
            fprintf(out, "%s%s", first ? "" : ", ", option->choices[i]);
            first = false;
        }
    }
}

/* 8M rather than 8388608. */
static void print_number(const zero_option *option, uint64_t value, FILE *out)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    uint32_t unit = 0;
    while (option->kind == ZERO_OPTION_BYTES && unit < 4 && value != 0 && value % 1024 == 0) {
        value /= 1024;
        unit++;
    }
    fprintf(out, "%" PRIu64 "%s", value, units[unit]);
}

static void print_values(const zero_option *option, FILE *out)
{
    const uint64_t most = option->bytes == sizeof(uint32_t) ? UINT32_MAX : UINT64_MAX;
    switch (option->kind) {
    case ZERO_OPTION_FLAG:
        fputs("0 or 1", out);
        return;
    case ZERO_OPTION_COUNT:
    case ZERO_OPTION_BYTES:
    case ZERO_OPTION_NUMBER:
        print_number(option, option->low, out);
        fputs(option->high == most ? " or more" : " to ", out);
        if (option->high != most) {
            print_number(option, option->high, out);
        }
        return;
    case ZERO_OPTION_REAL:
        fputs("0 or more", out);
        return;
    case ZERO_OPTION_CHOICE:
        print_names(option, out);
        return;
    case ZERO_OPTION_TIERS:
        fputs("for each role: ", out);
        print_names(option, out);
        return;
    case ZERO_OPTION_GROUPS:
        fputs("for each group: ", out);
        print_names(option, out);
        return;
    case ZERO_OPTION_POINTER:
        fputs("a pointer", out);
        return;
    case ZERO_OPTION_TEXT:
        fputs("text", out);
        return;
    }
}

static void print_page(FILE *out)
{
    static const char *const titles[] = {"zero_engine_options", "zero_tuning"};
    static const char *const intros[] = {
        "What users set. `zero_engine_options_init()` fills it, then fields are assigned.",
        "What only a few runs need: `zero_tuning_init()`, then `options.tuning = &tuning`."};
    const zero_option *option = NULL;
    int32_t is_tuning = -1;
    fputs(
        "# Options\n\n"
        "Printed by `zero options --markdown` from the table that also checks the options, "
        "compares "
        "them over the ranks and\nserves command lines (`zero/option.h`). 0 stands for the default "
        "wherever 0 is no value; the headers `zero/options.h`\nand `zero/tuning.h` say more of "
        "each.\n",
        out);
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        if (option->is_tuning != is_tuning) {
            is_tuning = option->is_tuning;
            fprintf(out,
                    "\n## %s\n\n%s\n\n| field | what | values | default | alike on all ranks |\n"
                    "|---|---|---|---|---|\n",
                    titles[is_tuning], intros[is_tuning]);
        }
        fprintf(out, "| `%s` | %s | ", option->name, option->text);
        print_values(option, out);
        fprintf(out, " | %s | %s |\n", option->fallback, option->same_on_ranks != 0 ? "yes" : "");
    }
}

static void print_list(FILE *out)
{
    const zero_option *option = NULL;
    int32_t is_tuning = -1;
    for (uint32_t i = 0; (option = zero_option_at(i)) != NULL; i++) {
        if (option->is_tuning != is_tuning) {
            is_tuning = option->is_tuning;
            fprintf(out, "%s:\n", is_tuning != 0 ? "\nzero_tuning" : "zero_engine_options");
        }
        fprintf(out, "  %-22s %s\n%25s", option->name, option->text, "");
        print_values(option, out);
        fprintf(out, " [%s]\n", option->fallback);
    }
}

int command_options(int argc, char **argv)
{
    enum { MARKDOWN = COMMAND_LINE_OPTIONS };
    static const struct option rows[] = {{"help", no_argument, NULL, COMMAND_LINE_HELP},
                                         {"markdown", no_argument, NULL, MARKDOWN},
                                         {0}};
    command_line line = command_line_begin(argc, argv, rows);
    const char *value = NULL;
    void (*print)(FILE * out) = print_list;
    int found = 0;
    while ((found = command_line_next(&line, &value)) != COMMAND_LINE_END) {
        switch (found) {
        case COMMAND_LINE_HELP:
            fputs(help, stdout);
            return fflush(stdout) == 0 ? 0 : 1;
        case MARKDOWN:
            print = print_page;
            break;
        case COMMAND_LINE_WORD:
            fprintf(stderr, "zero options: \"%s\" is no option; --help lists them all\n", value);
            return 1;
        default:
            fprintf(stderr, "zero options: %s\n", line.error);
            return 1;
        }
    }
    print(stdout);
    return fflush(stdout) == 0 ? 0 : 1;
}
