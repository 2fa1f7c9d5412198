/* Owns the last line of a terminal. Invariant: whoever draws has the lock, and every line that is
 * drawn is shorter than the terminal is wide, so that it covers the one before. */
#include "live_line.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS_UNKNOWN = 80 };

struct live_line {
    FILE *file;
    pthread_t ticker;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t woken; /* live_line_close signals, the ticker waits */
    live_field fields[LIVE_FIELDS_MAX + 1];
    size_t count; /* 0: nothing is shown */
    struct timespec shown;
    bool over;
};

unsigned live_line_columns(FILE *file)
{
    struct winsize size;
    if (isatty(fileno(file)) != 1) {
        return 0;
    }
    const bool known = ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
    return known ? size.ws_col : COLUMNS_UNKNOWN;
}

/* Of the fields that are there and may be left out, the one to leave out first; count: none. */
static size_t first_to_drop(const live_field *fields, const bool *there, size_t count)
{
    size_t first = count;
    for (size_t i = 0; i < count; i++) {
        if (there[i] && fields[i].drop > 0 &&
            (first == count || fields[i].drop > fields[first].drop)) {
            first = i;
        }
    }
    return first;
}

void live_line_fit(const live_field *fields, size_t count, unsigned columns,
                   char text[LIVE_LINE_BYTES])
{
    bool there[LIVE_FIELDS_MAX + 1];
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        there[i] = fields[i].text[0] != '\0';
        length += there[i] ? strlen(fields[i].text) + 2 : 0;
    }
    const size_t most = columns == 0 ? LIVE_LINE_BYTES - 1 : columns - 1;
    for (size_t drop = 0; length > most + 2; length -= strlen(fields[drop].text) + 2) {
        drop = first_to_drop(fields, there, count);
        if (drop == count) {
            break;
        }
        there[drop] = false;
    }
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        if (there[i]) {
            used += (size_t)snprintf(text + used, LIVE_LINE_BYTES - used, "%s%s",
                                     used == 0 ? "" : "  ", fields[i].text);
        }
    }
    text[most < used ? most : used] = '\0';
}

/* With the lock. */
static void draw(live_line *line)
{
    char text[LIVE_LINE_BYTES];
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    const long seconds = (long)(now.tv_sec - line->shown.tv_sec);
    live_field *age = &line->fields[line->count];
    *age = (live_field){.drop = 0};
    if (seconds > 0) {
        (void)snprintf(age->text, sizeof age->text, "+%ld s", seconds);
    }
    live_line_fit(line->fields, line->count + 1, live_line_columns(line->file), text);
    (void)fprintf(line->file, "\r%s\033[K", text);
    (void)fflush(line->file);
}

static void *tick(void *user)
{
    live_line *line = user;
    (void)pthread_mutex_lock(&line->lock);
    while (!line->over) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec++;
        (void)pthread_cond_timedwait(&line->woken, &line->lock, &until);
        if (!line->over && line->count > 0) {
            draw(line);
        }
    }
    (void)pthread_mutex_unlock(&line->lock);
    return NULL;
}

live_line *live_line_open(FILE *file)
{
    pthread_condattr_t clock;
    if (live_line_columns(file) == 0 || pthread_condattr_init(&clock) != 0) {
        return NULL;
    }
    live_line *line = calloc(1, sizeof *line);
    if (line != NULL) {
        line->file = file;
        (void)pthread_mutex_init(&line->lock, NULL);
        (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&line->woken, &clock);
        if (pthread_create(&line->ticker, NULL, tick, line) != 0) {
            (void)pthread_cond_destroy(&line->woken);
            (void)pthread_mutex_destroy(&line->lock);
            free(line);
            line = NULL;
        }
    }
    (void)pthread_condattr_destroy(&clock);
    return line;
}

void live_line_show(live_line *line, const live_field *fields, size_t count)
{
    if (line == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&line->lock);
    line->count = count < LIVE_FIELDS_MAX ? count : LIVE_FIELDS_MAX;
    memcpy(line->fields, fields, line->count * sizeof *fields);
    (void)clock_gettime(CLOCK_MONOTONIC, &line->shown);
    draw(line);
    (void)pthread_mutex_unlock(&line->lock);
}

void live_line_say(live_line *line, const char *format, ...)
{
    live_field field = {.drop = 0};
    va_list values;
    va_start(values, format);
    (void)vsnprintf(field.text, sizeof field.text, format, values);
    va_end(values);
    live_line_show(line, &field, 1);
}

void live_line_clear(live_line *line)
{
    if (line == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&line->lock);
    if (line->count > 0) {
        (void)fputs("\r\033[K", line->file);
        (void)fflush(line->file);
    }
    line->count = 0;
    (void)pthread_mutex_unlock(&line->lock);
}

void live_line_close(live_line *line)
{
    if (line == NULL) {
        return;
    }
    live_line_clear(line);
    (void)pthread_mutex_lock(&line->lock);
    line->over = true;
    (void)pthread_cond_signal(&line->woken);
    (void)pthread_mutex_unlock(&line->lock);
    (void)pthread_join(line->ticker, NULL);
    (void)pthread_cond_destroy(&line->woken);
    (void)pthread_mutex_destroy(&line->lock);
    free(line);
}

/* How much of `text`, which has `length` characters, goes into `room`: to its last blank. */
static size_t piece_of(const char *text, size_t length, size_t room)
{
    if (length <= room) {
        return length;
    }
    for (size_t cut = room; cut > 0; cut--) {
        if (text[cut] == ' ') {
            return cut;
        }
    }
    return room;
}

void live_line_wrap(FILE *file, unsigned columns, const char *text)
{
    static const char indent[] = "    ";
    const size_t most = columns > sizeof indent + 8 ? columns - 1 : LIVE_LINE_BYTES;
    while (*text != '\0') {
        size_t left = strcspn(text, "\n");
        const bool ended = text[left] == '\n';
        for (size_t room = most; columns != 0 && left > room; room = most - (sizeof indent - 1)) {
            const size_t piece = piece_of(text, left, room);
            const size_t blank = text[piece] == ' ' ? 1 : 0;
            (void)fprintf(file, "%.*s\n%s", (int)piece, text, indent);
            text += piece + blank;
            left -= piece + blank;
        }
        (void)fprintf(file, "%.*s%s", (int)left, text, ended ? "\n" : "");
        text += left + (ended ? 1 : 0);
    }
}
