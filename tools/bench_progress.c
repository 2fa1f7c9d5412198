/* Owns what `zero bench` says of itself while it measures. Invariant: it draws between the times
 * that count, but for the seconds that live_line.c adds by itself. */
#include "bench.h"
#include "live_line.h"

#include <pthread.h>

/* Drawn at most so often, so that rounds of microseconds do not wait for a terminal. */
#define SECONDS_BETWEEN 0.2

static struct {
    pthread_mutex_t lock; /* ranks that are threads show their rounds */
    live_line *line;      /* NULL: no terminal */
    double started;
    double case_started;
    double shown;
    live_field runner;
    live_field name;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* With the lock. round: its text, or "". left: seconds to the case's end; negative: not known. */
static void show(const char *round, double left)
{
    const double now = bench_now();
    const unsigned elapsed = (unsigned)(now - progress.started);
    live_field fields[5] = {progress.runner, progress.name};
    (void)snprintf(fields[2].text, LIVE_FIELD_BYTES, "%s", round);
    fields[2].drop = 1;
    (void)snprintf(fields[3].text, LIVE_FIELD_BYTES, "%u:%02u", elapsed / 60, elapsed % 60);
    fields[3].drop = 2;
    if (left >= 0) {
        const unsigned seconds = (unsigned)(left + 0.5);
        (void)snprintf(fields[4].text, LIVE_FIELD_BYTES, "case ETA %u:%02u", seconds / 60,
                       seconds % 60);
        fields[4].drop = 3;
    }
    live_line_show(progress.line, fields, 5);
    progress.shown = now;
}

/* Shows what begins, in its field. */
static void begin(live_field *field, int drop, const char *text)
{
    if (progress.line != NULL) {
        (void)pthread_mutex_lock(&progress.lock);
        field->drop = drop;
        (void)snprintf(field->text, LIVE_FIELD_BYTES, "%s", text);
        progress.case_started = bench_now();
        show("", -1);
        (void)pthread_mutex_unlock(&progress.lock);
    }
}

void bench_progress_runner(const char *name, uint32_t number, uint32_t of)
{
    char text[LIVE_FIELD_BYTES];
    if (number == 1) {
        progress.started = bench_now();
        progress.line = live_line_open(stderr);
    }
    (void)snprintf(text, sizeof text, "%u of %u: %s", number, of, name);
    progress.name.text[0] = '\0';
    begin(&progress.runner, 0, text);
}

void bench_progress_case(const char *name)
{
    begin(&progress.name, 4, name);
}

void bench_progress_round(uint32_t done, uint32_t of)
{
    if (progress.line != NULL) {
        (void)pthread_mutex_lock(&progress.lock);
        const double now = bench_now();
        if (done == 0) {
            progress.case_started = now;
        }
        if (now - progress.shown > SECONDS_BETWEEN) {
            char text[32];
            (void)snprintf(text, sizeof text, "round %u/%u", done + 1, of);
            show(text, done == 0 ? -1 : (now - progress.case_started) / done * (of - done));
        }
        (void)pthread_mutex_unlock(&progress.lock);
    }
}

void bench_progress_clear(void)
{
    live_line_clear(progress.line);
}

void bench_progress_end(void)
{
    live_line_close(progress.line);
    progress.line = NULL;
}
