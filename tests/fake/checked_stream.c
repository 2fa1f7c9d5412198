/* Owns the checked device's lines. Invariant: a line moves on only by the thread whose line it is,
 * or in its stream's turn, under the lock. */
#include "checked_stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked_device.h"
#include "device/cpu/cpu_stream.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static checked_wait waits[CHECKED_WAITS_MAX];
static uint32_t wait_count;
static checked_wait ignored;
static checked_stream *callers;
static zi_device cpu; /* of the callers' streams */
static pthread_key_t host_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Of the stream whose task the calling thread runs; NULL: it runs none. */
static _Thread_local race_line *task_line;

/* ---- lines ---- */

static void lock(void)
{
    (void)pthread_mutex_lock(&mutex);
}

void checked_unlock(void)
{
    (void)pthread_mutex_unlock(&mutex);
}

static void close_host_line(void *line)
{
    lock();
    race_line_close(line);
    checked_unlock();
    free(line);
}

static void open_all(void)
{
    if (pthread_key_create(&host_key, close_host_line) != 0 ||
        zi_cpu_device_create(&cpu) != ZERO_OK) {
        abort();
    }
}

static race_line *line_here(void)
{
    if (task_line != NULL) {
        return task_line;
    }
    (void)pthread_once(&once, open_all);
    race_line *line = pthread_getspecific(host_key);
    if (line == NULL) {
        line = race_allocate(sizeof *line);
        race_line_open(line, "the host");
        if (pthread_setspecific(host_key, line) != 0) {
            abort();
        }
    }
    return line;
}

race_line *checked_lock(void)
{
    lock();
    return line_here();
}

race_line *checked_line(checked_stream *stream)
{
    return stream->host ? line_here() : &stream->line;
}

/* ---- waits ---- */

static bool is_wait(const checked_wait *wait, const char *waiter, const char *awaited)
{
    return strcmp(wait->waiter, waiter) == 0 && strcmp(wait->awaited, awaited) == 0;
}

static void count_wait(const char *waiter, const char *awaited)
{
    uint32_t w = 0;
    while (w < wait_count && !is_wait(&waits[w], waiter, awaited)) {
        w++;
    }
    if (w == wait_count && w < CHECKED_WAITS_MAX) {
        checked_wait *wait = &waits[wait_count++];
        (void)snprintf(wait->waiter, sizeof wait->waiter, "%s", waiter);
        (void)snprintf(wait->awaited, sizeof wait->awaited, "%s", awaited);
    }
}

void checked_follow(race_line *line, uint32_t timeline, const race_clock *clock)
{
    const char *waiter = race_line_name(line->timeline);
    const char *awaited = race_line_name(timeline);
    if (line->timeline == timeline) {
        return;
    }
    count_wait(waiter, awaited);
    if (!is_wait(&ignored, waiter, awaited)) {
        race_clock_join(&line->clock, clock);
    }
}

uint32_t checked_waits(checked_wait out[CHECKED_WAITS_MAX])
{
    lock();
    memcpy(out, waits, sizeof waits);
    const uint32_t count = wait_count;
    checked_unlock();
    return count;
}

void checked_start(const checked_wait *without)
{
    lock();
    race_faults_clear();
    wait_count = 0;
    ignored = without != NULL ? *without : (checked_wait){.waiter = ""};
    checked_unlock();
}

/* ---- turns ---- */

/* An operation until its turn. */
typedef struct boxed_turn {
    checked_stream *stream;
    race_clock known; /* to whoever put it */
    checked_turn turn;
    race_range ranges[];
} boxed_turn;

static void note_turn(race_line *line, const checked_turn *turn)
{
    const race_access who = race_line_next(line, turn->what);
    const checked_record *awaited = turn->awaited;
    checked_record *record = turn->record;
    if (awaited != NULL && !awaited->run) {
        race_fault(RACE_MISUSE, "%s goes on before the record that it waits for",
                   race_access_text(who));
    } else if (awaited != NULL) {
        checked_follow(line, awaited->timeline, &awaited->clock);
    }
    race_note(&line->clock, who, turn->ranges, turn->range_count);
    if (record != NULL) {
        record->timeline = line->timeline;
        record->run = true;
        race_clock_copy(&record->clock, &line->clock);
    }
}

static zero_status take_turn(void *argument)
{
    boxed_turn *const *place = argument;
    boxed_turn *box = *place;
    lock();
    race_line *line = checked_line(box->stream);
    race_clock_join(&line->clock, &box->known);
    note_turn(line, &box->turn);
    checked_unlock();
    task_line = box->stream->host ? task_line : line;
    free(box->known.seen);
    free(box);
    return ZERO_OK;
}

/* Run always, so that none is lost; on a stream that issues on the calling thread, now. */
static void put(const zi_device *inner, checked_stream *stream, const checked_turn *turn)
{
    boxed_turn *box = race_allocate(sizeof *box + turn->range_count * sizeof turn->ranges[0]);
    box->stream = stream;
    box->turn = *turn;
    box->turn.ranges = box->ranges;
    for (size_t i = 0; i < turn->range_count; i++) {
        box->ranges[i] = turn->ranges[i];
    }
    race_clock_join(&box->known, &checked_lock()->clock);
    checked_unlock();
    (void)inner->ops->task_always(inner->self, stream->inner, take_turn, &box, sizeof(box));
}

void checked_put(const zi_device *inner, checked_stream *stream, const checked_turn *turn)
{
    race_line *before = task_line;
    put(inner, stream, turn);
    task_line = before;
}

zero_status checked_task(const zi_device *inner, checked_put_fn put_task, checked_stream *stream,
                         zi_task_fn fn, const void *argument, size_t bytes)
{
    race_line *before = task_line;
    put(inner, stream, &(checked_turn){.what = "task"});
    const zero_status status = put_task(inner->self, stream->inner, fn, argument, bytes);
    task_line = before;
    return status;
}

/* ---- streams ---- */

checked_stream *checked_stream_open(zi_stream *inner, const char *name)
{
    checked_stream *stream = race_allocate(sizeof *stream);
    stream->inner = inner;
    stream->host = name == NULL;
    if (name != NULL) {
        race_line_open(&stream->line, name);
    }
    return stream;
}

void checked_stream_close(checked_stream *stream)
{
    race_line *here = checked_lock();
    if (!stream->host) {
        race_clock_join(&here->clock, &stream->line.clock);
        race_line_close(&stream->line);
    }
    checked_unlock();
    free(stream);
}

checked_stream *checked_stream_find(checked_stream *list, const void *native)
{
    while (list != NULL && list->native != native) {
        list = list->next;
    }
    return list;
}

/* ---- callers ---- */

checked_stream *checked_caller_find(const void *native)
{
    lock();
    checked_stream *stream = checked_stream_find(callers, native);
    checked_unlock();
    return stream;
}

zero_stream checked_caller_open(void)
{
    zi_stream *inner = NULL;
    zi_event *end = NULL;
    (void)pthread_once(&once, open_all);
    if (cpu.ops->stream_create(cpu.self, "the caller", &inner) != ZERO_OK ||
        cpu.ops->event_create(cpu.self, &end) != ZERO_OK) {
        abort();
    }
    lock();
    checked_stream *stream = checked_stream_open(inner, "the caller");
    stream->native = inner;
    stream->end = end;
    stream->next = callers;
    callers = stream;
    checked_unlock();
    return (zero_stream){.native = inner};
}

void checked_caller_close(zero_stream caller)
{
    checked_stream *stream = checked_caller_find(caller.native);
    lock();
    checked_stream **link = &callers;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    checked_unlock();
    cpu.ops->stream_destroy(cpu.self, stream->inner);
    cpu.ops->event_destroy(cpu.self, stream->end);
    checked_stream_close(stream);
}

void checked_caller_put(zero_stream caller, zi_task_fn fn, const void *argument, size_t bytes,
                        const race_range *ranges, size_t range_count)
{
    checked_stream *stream = checked_caller_find(caller.native);
    const checked_turn turn = {.what = "kernel", .ranges = ranges, .range_count = range_count};
    checked_put(&cpu, stream, &turn);
    (void)cpu.ops->task(cpu.self, stream->inner, fn, argument, bytes);
}

void checked_caller_wait(zero_stream caller)
{
    checked_stream *stream = checked_caller_find(caller.native);
    (void)cpu.ops->event_record(cpu.self, stream->end, stream->inner);
    (void)cpu.ops->event_wait(cpu.self, stream->end, NULL);
    race_clock_join(&checked_lock()->clock, &stream->line.clock);
    checked_unlock();
}
