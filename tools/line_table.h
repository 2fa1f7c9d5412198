/* Options of a subcommand as a table: a row has an option's name, and where in a struct its value
 * goes. */
#ifndef TOOLS_LINE_TABLE_H
#define TOOLS_LINE_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef enum line_kind {
    LINE_FLAG, /* a bool, without a value */
    LINE_SET,  /* a uint32_t or an enumeration that becomes `low`, likewise */
    LINE_TEXT, /* a const char * */
    LINE_U32,  /* a whole number in [low, high] */
    LINE_U64,
    LINE_REAL, /* a double, a decimal number in (low, high] */
    LINE_OTHER /* by `read` */
} line_kind;

enum { LINE_ROWS_MAX = 64, LINE_GROUPS_MAX = 8, LINE_HELP = 2 };

typedef struct line_row {
    const char *name;
    line_kind kind;
    size_t at; /* in the struct */
    uint64_t low;
    uint64_t high;
    /* 1 after bench_fail. */
    int (*read)(void *line, const char *name, const char *value);
    unsigned group; /* of options that belong together; 0: none */
} line_row;

#define LINE_VALUE(name, kind, at)    \
    {                                 \
        name, kind, at, 0, 0, NULL, 0 \
    }
#define LINE_NUMBER(name, kind, at, low, high) \
    {                                          \
        name, kind, at, low, high, NULL, 0     \
    }
#define LINE_REAL_IN(name, at, low, high)       \
    {                                           \
        name, LINE_REAL, at, low, high, NULL, 0 \
    }
#define LINE_BY(name, read)                \
    {                                      \
        name, LINE_OTHER, 0, 0, 0, read, 0 \
    }

typedef struct line_table {
    const line_row *rows; /* beside which there is --help */
    size_t count;
    int (*word)(void *line, const char *value); /* what is no option; 1 after bench_fail */
} line_table;

/* Reads a line into a struct. given: out, of each group the option that was given last, or NULL;
 * NULL: not wanted. Returns 0, 1 after bench_fail, or LINE_HELP, where the rest is not read. A line
 * that is --print-options alone prints the table and ends the program: man pages and completion of
 * shells are made of it (packaging/help_text.py). */
int line_read(const line_table *table, int argc, char **argv, void *line,
              const char *given[LINE_GROUPS_MAX]);

/* 1 after bench_fail with the bounds, when the value of --name is no whole number in them. */
int line_whole(const char *name, const char *value, uint64_t low, uint64_t high, uint64_t *number);

/* The same for a decimal number in (low, high], such as 15e12. */
int line_real(const char *name, const char *value, double low, double high, double *number);

#endif
