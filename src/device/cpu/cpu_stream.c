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
#include "core/error.h"
#include "core/memory.h"
#include "core/thread.h"

/* Tasks that a stream holds before the host must wait. A step of a unit puts about six. */
#define QUEUE_TASKS 256

typedef enum task_kind { TASK_RUN, TASK_ALWAYS, TASK_SIGNAL, TASK_WAIT, TASK_TIME } task_kind;

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
    atomic_uint_fast64_t done;
    atomic_bool failed;
    pthread_mutex_t mutex; /* guards error and the waiting for done */
    pthread_cond_t fired;
    zero_error error;
};

struct zi_stream {
    bool host;
    pthread_t thread;
    pthread_mutex_t mutex;    /* guards head, tail, sleeping and stop */
    pthread_cond_t not_empty; /* tail moved, or stop */
    pthread_cond_t not_full;  /* head moved */
    uint64_t head;            /* next to run; its cell is free once head has passed it */
    uint64_t tail;            /* next to fill */
    bool stop;
    bool failed;      /* worker only */
    zero_error error; /* worker only: the first failure */
    stream_task queue[QUEUE_TASKS];
};

zero_status zi_cpu_event_create(void *self, zi_event **out)
{
    (void)self;
    *out = NULL;
    zi_event *event = NULL;
    ZI_TRY(zi_calloc(1, sizeof *event, (void **)&event));
    atomic_init(&event->done, 0);
    atomic_init(&event->failed, false);
    (void)pthread_mutex_init(&event->mutex, NULL);
    (void)pthread_cond_init(&event->fired, NULL);
    *out = event;
    return ZERO_OK;
}

void zi_cpu_event_destroy(void *self, zi_event *event)
{
    (void)self;
    if (event == NULL) {
        return;
    }
    /* The thread that fired it last may still be inside its broadcast. */
    (void)pthread_mutex_lock(&event->mutex);
    (void)pthread_mutex_unlock(&event->mutex);
    (void)pthread_cond_destroy(&event->fired);
    (void)pthread_mutex_destroy(&event->mutex);
    zi_free(event);
}

/* error: what the stream carries, or NULL. */
static void fire(event_point point, const zero_error *error)
{
    zi_event *event = point.event;
    (void)pthread_mutex_lock(&event->mutex);
    if (error != NULL && !atomic_load(&event->failed)) {
        event->error = *error;
        atomic_store(&event->failed, true);
    }
    if (point.number > atomic_load(&event->done)) {
        atomic_store_explicit(&event->done, point.number, memory_order_release);
    }
    (void)pthread_cond_broadcast(&event->fired);
    (void)pthread_mutex_unlock(&event->mutex);
}

/* Block until the record has fired; true when it carries an error, copied to *error. */
static bool cpu_stream_await(event_point point, zero_error *error)
{
    zi_event *event = point.event;
    if (atomic_load_explicit(&event->done, memory_order_acquire) < point.number) {
        (void)pthread_mutex_lock(&event->mutex);
        while (atomic_load_explicit(&event->done, memory_order_acquire) < point.number) {
            (void)pthread_cond_wait(&event->fired, &event->mutex);
        }
        (void)pthread_mutex_unlock(&event->mutex);
    }
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
    return atomic_load_explicit(&event->done, memory_order_acquire) >= event->recorded;
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
    }
}

static void *stream_run(void *argument)
{
    zi_stream *stream = argument;
    (void)pthread_mutex_lock(&stream->mutex);
    for (;;) {
        while (stream->head == stream->tail && !stream->stop) {
            (void)pthread_cond_wait(&stream->not_empty, &stream->mutex);
        }
        if (stream->head == stream->tail) {
            break; /* stopped, and nothing is left */
        }
        stream_task *task = &stream->queue[stream->head % QUEUE_TASKS];
        (void)pthread_mutex_unlock(&stream->mutex);
        run_task(stream, task);
        (void)pthread_mutex_lock(&stream->mutex);
        stream->head++;
        (void)pthread_cond_signal(&stream->not_full);
    }
    (void)pthread_mutex_unlock(&stream->mutex);
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
    (void)pthread_mutex_init(&stream->mutex, NULL);
    (void)pthread_cond_init(&stream->not_empty, NULL);
    (void)pthread_cond_init(&stream->not_full, NULL);
    const zero_status status = zi_thread_start(&stream->thread, stream_run, stream);
    if (status != ZERO_OK) {
        (void)pthread_cond_destroy(&stream->not_full);
        (void)pthread_cond_destroy(&stream->not_empty);
        (void)pthread_mutex_destroy(&stream->mutex);
        zi_free(stream);
        return status;
    }
    (void)pthread_setname_np(stream->thread, name);
    *out = stream;
    return ZERO_OK;
}

void zi_cpu_stream_destroy(void *self, zi_stream *stream)
{
    (void)self;
    if (stream == NULL) {
        return;
    }
    if (!stream->host) {
        (void)pthread_mutex_lock(&stream->mutex);
        stream->stop = true;
        (void)pthread_cond_signal(&stream->not_empty);
        (void)pthread_mutex_unlock(&stream->mutex);
        (void)pthread_join(stream->thread, NULL);
        (void)pthread_cond_destroy(&stream->not_full);
        (void)pthread_cond_destroy(&stream->not_empty);
        (void)pthread_mutex_destroy(&stream->mutex);
    }
    zi_free(stream);
}

/* Wait until the queue is not full; its next cell. The host fills it outside the lock: the worker
 * does not read it before push(). */
static stream_task *next_cell(zi_stream *stream)
{
    (void)pthread_mutex_lock(&stream->mutex);
    while (stream->tail - stream->head == QUEUE_TASKS) {
        (void)pthread_cond_wait(&stream->not_full, &stream->mutex);
    }
    stream_task *cell = &stream->queue[stream->tail % QUEUE_TASKS];
    (void)pthread_mutex_unlock(&stream->mutex);
    return cell;
}

static void push(zi_stream *stream)
{
    (void)pthread_mutex_lock(&stream->mutex);
    stream->tail++;
    (void)pthread_cond_signal(&stream->not_empty);
    (void)pthread_mutex_unlock(&stream->mutex);
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
