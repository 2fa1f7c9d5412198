/* The last line of a terminal: what a program is doing. It is drawn over itself, never longer than
 * the terminal is wide, and counts the seconds by itself while nothing new is shown. Used by `zero`
 * and by the examples. */
#ifndef TOOLS_LIVE_LINE_H
#define TOOLS_LIVE_LINE_H

#include <stddef.h>
#include <stdio.h>

enum { LIVE_FIELDS_MAX = 14, LIVE_FIELD_BYTES = 64, LIVE_LINE_BYTES = 1024 };

/* A part of a line. Where all parts do not fit, those of the largest `drop` are left out first; 0:
 * never. */
typedef struct live_field {
    char text[LIVE_FIELD_BYTES]; /* ASCII; empty: it is not there */
    int drop;
} live_field;

typedef struct live_line live_line;

/* A line at the end of `file`. NULL where that is no terminal or memory is out: all calls below do
 * nothing for it. */
live_line *live_line_open(FILE *file);

/* Draws the fields with two blanks between them, and again every second, with the seconds since
 * this call behind them, until the next call. Between live_line_show and live_line_clear nobody
 * else writes to the file. */
void live_line_show(live_line *line, const live_field *fields, size_t count);

/* The same for one text. */
void live_line_say(live_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Takes it away. What is printed next stands in its place. */
void live_line_clear(live_line *line);
void live_line_close(live_line *line); /* and it is cleared */

/* Columns of the terminal that `file` is, asked now; 0: it is none. */
unsigned live_line_columns(FILE *file);

/* The fields in at most columns - 1 characters, so that the terminal never wraps; columns 0: all of
 * them. What no field's absence makes short enough is cut. */
void live_line_fit(const live_field *fields, size_t count, unsigned columns,
                   char text[LIVE_LINE_BYTES]);

/* Prints lines of text. Those that columns - 1 characters do not hold go on in the next, at a blank
 * and indented; columns 0: they stay as they are. */
void live_line_wrap(FILE *file, unsigned columns, const char *text);

#endif
