/* Owns the reading of lines by tables. */
#include "line_table.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "command_line.h"

int line_whole(const char *name, const char *value, uint64_t low, uint64_t high, uint64_t *number)
{
    return command_line_whole(value, low, high, number)
               ? 0
               : bench_fail("--%s %.100s: expected a whole number in [%" PRIu64 ", %" PRIu64 "]",
                            name, value, low, high);
}

int line_real(const char *name, const char *value, double low, double high, double *number)
{
    char *end = NULL;
    const bool digit = (value[0] >= '0' && value[0] <= '9') || value[0] == '.';
    *number = digit ? strtod(value, &end) : 0;
    return digit && *end == '\0' && *number > low && *number <= high
               ? 0
               : bench_fail("--%s %.100s: expected a number above %g, at most %g", name, value, low,
                            high);
}

static int read_row(const line_row *row, const char *value, void *line)
{
    void *at = (unsigned char *)line + row->at;
    uint64_t number = row->low;
    const bool counts = row->kind == LINE_U32 || row->kind == LINE_U64;
    if (counts && line_whole(row->name, value, row->low, row->high, &number) != 0) {
        return 1;
    }
    const uint32_t narrow = (uint32_t)number;
    double real = 0;
    switch (row->kind) {
    case LINE_REAL:
        if (line_real(row->name, value, (double)row->low, (double)row->high, &real) != 0) {
            return 1;
        }
        memcpy(at, &real, sizeof real);
        return 0;
    case LINE_FLAG:
        *(bool *)at = true;
        return 0;
    case LINE_TEXT:
        memcpy(at, &value, sizeof value);
        return 0;
    case LINE_SET:
    case LINE_U32:
        memcpy(at, &narrow, sizeof narrow);
        return 0;
    case LINE_U64:
        memcpy(at, &number, sizeof number);
        return 0;
    case LINE_OTHER:
        break;
    }
    return row->read(line, row->name, value);
}

static void make_options(const line_table *table, struct option options[LINE_ROWS_MAX + 2])
{
    if (table->count > LINE_ROWS_MAX) {
        abort(); /* of a table that is longer than there is room for */
    }
    options[0] = (struct option){"help", no_argument, NULL, COMMAND_LINE_HELP};
    for (size_t i = 0; i < table->count; i++) {
        const bool bare = table->rows[i].kind == LINE_FLAG || table->rows[i].kind == LINE_SET;
        options[i + 1] =
            (struct option){table->rows[i].name, bare ? no_argument : required_argument, NULL,
                            COMMAND_LINE_OPTIONS + (int)i};
    }
    options[table->count + 1] = (struct option){0};
}

/* A line each: "NAME value", or "NAME flag". */
static int print_rows(const line_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        const bool bare = table->rows[i].kind == LINE_FLAG || table->rows[i].kind == LINE_SET;
        printf("%s %s\n", table->rows[i].name, bare ? "flag" : "value");
    }
    return fflush(stdout) == 0 ? 0 : 1;
}

int line_read(const line_table *table, int argc, char **argv, void *line,
              const char *given[LINE_GROUPS_MAX])
{
    struct option options[LINE_ROWS_MAX + 2];
    if (argc == 2 && strcmp(argv[1], "--print-options") == 0) {
        exit(print_rows(table));
    }
    make_options(table, options);
    command_line words = command_line_begin(argc, argv, options);
    const char *value = NULL;
    int found = 0;
    while ((found = command_line_next(&words, &value)) != COMMAND_LINE_END) {
        if (found == COMMAND_LINE_HELP) {
            return LINE_HELP;
        }
        if (found == COMMAND_LINE_BAD) {
            return bench_fail("%s", words.error);
        }
        if (found == COMMAND_LINE_WORD) {
            if (table->word(line, value) != 0) {
                return 1;
            }
            continue;
        }
        const line_row *row = &table->rows[found - COMMAND_LINE_OPTIONS];
        if (given != NULL && row->group != 0) {
            given[row->group] = row->name;
        }
        if (read_row(row, value, line) != 0) {
            return 1;
        }
    }
    return 0;
}
