/* Owns the CPU's streams and events.
 * Invariant: a task put on a stream runs exactly once or, after the stream's first failure, is
 * skipped unless it is to run always; signals, waits and timestamps are never skipped, so every
 * record of an event fires. One host thread calls; workers call nothing here but fire(). */
#include "device/cpu/cpu_stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/counter.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/thread.h"

/* Tasks that a stream holds before the host must wait. A step of a unit puts about six. */
#define QUEUE_TASKS 256

typedef enum task_kind {
    TASK_RUN,
    TASK_ALWAYS,
    TASK_SIGNAL,
    TASK_WAIT,
    TASK_TIME,
    TASK_END /* of the stream's thread */
} task_kind;

typedef struct event_point {
    zi_event *event;
    uint64_t number;
} event_point;

typedef struct stream_task {
    task_kind kind;
    zi_task_fn fn;
    event_point point; /* TASK_SIGNAL, TASK_WAIT */
    uint64_t *ns;      /* TASK_TIME */
    _Alignas(16) unsigned char argument[ZI_TASK_ARGUMENT_BYTES];
} stream_task;

struct zi_event {
    uint64_t recorded; /* host thread only */
    zi_counter fired;
    atomic_bool failed;
    pthread_mutex_t mutex; /* guards error */
    zero_error error;
};

struct zi_stream {
    bool host;
    pthread_t thread;
    bool failed;                   /* worker only */
    zero_error error;              /* worker only: the first failure */
    uint64_t cells;                /* host thread only: filled so far */
    _Alignas(64) zi_counter tasks; /* that the worker may run */
    _Alignas(64) zi_counter run;   /* that it has: their cells are free */
    stream_task queue[QUEUE_TASKS];
};

zero_status zi_cpu_event_create(void *self, zi_event **out)
{
    (void)self;
    *out = NULL;
    zi_event *event = NULL;
    ZI_TRY(zi_calloc(1, sizeof *event, (void **)&event));
    atomic_init(&event->failed, false);
    (void)pthread_mutex_init(&event->mutex, NULL);
    *out = event;
    return ZERO_OK;
}

void zi_cpu_event_destroy(void *self, zi_event *event)
{
    (void)self;
    if (event == NULL) {
        return;
    }
    (void)pthread_mutex_destroy(&event->mutex);
    zi_free(event);
}

static void keep_error(zi_event *event, const zero_error *error)
{
    (void)pthread_mutex_lock(&event->mutex);
    if (!atomic_load(&event->failed)) {
        event->error = *error;
        atomic_store(&event->failed, true);
    }
    (void)pthread_mutex_unlock(&event->mutex);
}

/* error: what the stream carries, or NULL. The host may destroy the event once it is raised. */
static void fire(event_point point, const zero_error *error)
{
    if (error != NULL) {
        keep_error(point.event, error);
    }
    zi_counter_raise(&point.event->fired, point.number);
}

/* Block until the record has fired; true when it carries an error, copied to *error. */
static bool cpu_stream_await(event_point point, zero_error *error)
{
    zi_event *event = point.event;
    zi_counter_await(&event->fired, point.number);
    if (!atomic_load(&event->failed)) {
        return false;
    }
    (void)pthread_mutex_lock(&event->mutex);
    *error = event->error;
    (void)pthread_mutex_unlock(&event->mutex);
    return true;
}

bool zi_cpu_event_done(zi_event *event)
{
    return zi_counter_get(&event->fired) >= event->recorded;
}

zero_status zi_cpu_event_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    (void)self;
    const event_point point = {event, event->recorded};
    const uint64_t start_ns = waited_ns != NULL && !zi_cpu_event_done(event) ? zi_clock_ns() : 0;
    zero_error error;
    const bool failed = cpu_stream_await(point, &error);
    if (start_ns != 0) {
        *waited_ns += zi_clock_ns() - start_ns;
    }
    return failed ? zi_error_adopt(&error) : ZERO_OK;
}

static void run_task(zi_stream *stream, stream_task *task)
{
    switch (task->kind) {
    case TASK_RUN:
    case TASK_ALWAYS:
        if (stream->failed && task->kind == TASK_RUN) {
            break;
        }
        if (task->fn(task->argument) != ZERO_OK && !stream->failed) {
            stream->error = *zero_last_error();
            stream->failed = true;
        }
        break;
    case TASK_SIGNAL:
        fire(task->point, stream->failed ? &stream->error : NULL);
        break;
    case TASK_WAIT: {
        zero_error error;
        if (cpu_stream_await(task->point, &error) && !stream->failed) {
            stream->error = error;
            stream->failed = true;
        }
        break;
    }
    case TASK_TIME:
        zi_timestamp_set(task->ns, zi_clock_ns());
        break;
    case TASK_END:
        break;
    }
}

static void *stream_run(void *argument)
{
    zi_stream *stream = argument;
    task_kind kind = TASK_RUN;
    for (uint64_t i = 0; kind != TASK_END; i++) {
        zi_counter_await(&stream->tasks, i + 1);
        stream_task *task = &stream->queue[i % QUEUE_TASKS];
        kind = task->kind;
        run_task(stream, task);
        zi_counter_raise(&stream->run, i + 1);
    }
    return NULL;
}

zero_status zi_cpu_stream_create_host(zi_stream **out)
{
    ZI_TRY(zi_calloc(1, sizeof **out, (void **)out));
    (*out)->host = true;
    return ZERO_OK;
}

zero_status zi_cpu_stream_create(void *self, const char *name, zi_stream **out)
{
    (void)self;
    *out = NULL;
    zi_stream *stream = NULL;
    ZI_TRY(zi_calloc(1, sizeof *stream, (void **)&stream));
    const zero_status status = zi_thread_start(&stream->thread, stream_run, stream);
    if (status != ZERO_OK) {
        zi_free(stream);
        return status;
    }
    (void)pthread_setname_np(stream->thread, name);
    *out = stream;
    return ZERO_OK;
}

/* Wait until the queue is not full; its next cell. */
static stream_task *next_cell(zi_stream *stream)
{
    if (stream->cells >= QUEUE_TASKS) {
        zi_counter_await(&stream->run, stream->cells - QUEUE_TASKS + 1);
    }
    return &stream->queue[stream->cells % QUEUE_TASKS];
}

static void push(zi_stream *stream)
{
    zi_counter_raise(&stream->tasks, ++stream->cells);
}

void zi_cpu_stream_destroy(void *self, zi_stream *stream)
{
    (void)self;
    if (stream == NULL) {
        return;
    }
    if (!stream->host) {
        next_cell(stream)->kind = TASK_END;
        push(stream);
        (void)pthread_join(stream->thread, NULL);
    }
    zi_free(stream);
}

zero_status zi_cpu_task_now(zi_task_fn fn, const void *argument, size_t bytes)
{
    _Alignas(16) unsigned char copy[ZI_TASK_ARGUMENT_BYTES];
    zi_assert_cmp(bytes, <=, ZI_TASK_ARGUMENT_BYTES);
    memcpy(copy, argument, bytes);
    return fn(copy);
}

/* True if work put on it runs at once: it is the caller's thread, or this is a task of it. */
static bool is_here(const zi_stream *stream)
{
    return stream->host || pthread_equal(stream->thread, pthread_self());
}

static zero_status put_task(zi_stream *stream, task_kind kind, zi_task_fn fn, const void *argument,
                            size_t bytes)
{
    zi_assert_cmp(bytes, <=, ZI_TASK_ARGUMENT_BYTES);
    if (is_here(stream)) {
        return zi_cpu_task_now(fn, argument, bytes);
    }
    stream_task *task = next_cell(stream);
    task->kind = kind;
    task->fn = fn;
    memcpy(task->argument, argument, bytes);
    push(stream);
    return ZERO_OK;
}

zero_status zi_cpu_stream_task(zi_stream *stream, zi_task_fn fn, const void *argument, size_t bytes)
{
    return put_task(stream, TASK_RUN, fn, argument, bytes);
}

zero_status zi_cpu_stream_task_always(zi_stream *stream, zi_task_fn fn, const void *argument,
                                      size_t bytes)
{
    return put_task(stream, TASK_ALWAYS, fn, argument, bytes);
}

static void push_point(zi_stream *stream, task_kind kind, event_point point)
{
    stream_task *task = next_cell(stream);
    task->kind = kind;
    task->point = point;
    push(stream);
}

zero_status zi_cpu_event_record(void *self, zi_event *event, zi_stream *stream)
{
    (void)self;
    if (stream->host) {
        return zi_cpu_event_fire(event);
    }
    push_point(stream, TASK_SIGNAL, (event_point){event, ++event->recorded});
    return ZERO_OK;
}

zero_status zi_cpu_event_fire(zi_event *event)
{
    fire((event_point){event, ++event->recorded}, NULL);
    return ZERO_OK;
}

zero_status zi_cpu_stream_wait(void *self, zi_stream *stream, zi_event *event, uint64_t *waited_ns)
{
    (void)self;
    if (stream->host) {
        return zi_cpu_event_wait(self, event, waited_ns);
    }
    if (event->recorded != 0 && !(zi_cpu_event_done(event) && !atomic_load(&event->failed))) {
        push_point(stream, TASK_WAIT, (event_point){event, event->recorded});
    }
    return ZERO_OK;
}

zero_status zi_cpu_stream_timestamp(void *self, zi_stream *stream, uint64_t *ns)
{
    (void)self;
    if (is_here(stream)) {
        zi_timestamp_set(ns, zi_clock_ns());
        return ZERO_OK;
    }
    stream_task *task = next_cell(stream);
    task->kind = TASK_TIME;
    task->ns = ns;
    push(stream);
    return ZERO_OK;
}
