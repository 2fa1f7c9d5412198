/* A device: memory, streams and events. A backend is a const table of functions and its own state;
 * nothing above asks for its name.
 *
 * Streams run tasks in order; different streams run at the same time. All calls on one device's
 * streams and events come from one host thread (the rank's), except inside tasks, which make none.
 * The host stream is the caller's own thread seen as a stream: a task put on it runs at once,
 * waiting on it blocks.
 *
 * Failure: the first task of a stream that fails leaves its error in the stream. Later tasks of
 * that stream are skipped; its events still fire and carry the error to whoever waits, streams
 * included. So nothing hangs and the first fault is what the caller reads. */
#ifndef ZI_DEVICE_DEVICE_H
#define ZI_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "zero/status.h"
#include "zero/stream.h"

typedef struct zi_stream zi_stream; /* backend's own */
typedef struct zi_event zi_event;   /* backend's own */

/* A piece of host code run by a stream in its turn. */
typedef zero_status (*zi_task_fn)(void *argument);

/* Bytes of argument that a task carries by value. */
#define ZI_TASK_ARGUMENT_BYTES 192

typedef struct zi_device_ops {
    size_t struct_bytes;
    const char *name;
    /* Zeroed memory in multiples of ZI_PAGE_BYTES. Blocking; only while an engine is created. */
    zero_status (*memory_alloc)(void *self, size_t bytes, void **out);
    void (*memory_free)(void *self, void *pointer, size_t bytes);
    /* name: static text, for traces. */
    zero_status (*stream_create)(void *self, const char *name, zi_stream **out);
    /* Waits for the tasks under way. Accepts NULL. */
    void (*stream_destroy)(void *self, zi_stream *stream);
    /* The caller's stream as one of ours; INVALID_ARGUMENT when the handle is not of this device.
     */
    zero_status (*stream_wrap)(void *self, zero_stream native, zi_stream **out);
    zero_status (*event_create)(void *self, zi_event **out);
    void (*event_destroy)(void *self, zi_event *event); /* accepts NULL; nobody may be waiting */
    /* The event fires when everything put on `stream` so far has run. Recording again moves it. */
    zero_status (*event_record)(void *self, zi_event *event, zi_stream *stream);
    /* What is put on `stream` from now on runs after the event's last record. Never recorded: no
     * wait. On the host stream this blocks, adds the time to *waited_ns (may be NULL) and returns
     * the error the event carries. */
    zero_status (*stream_wait)(void *self, zi_stream *stream, zi_event *event, uint64_t *waited_ns);
    /* Block the host until the event's last record has fired; returns the error it carries. */
    zero_status (*event_wait)(void *self, zi_event *event, uint64_t *waited_ns);
    /* 1 if the event's last record has fired. Never blocks. */
    int (*event_done)(void *self, zi_event *event);
    /* Run fn on the stream; `bytes` <= ZI_TASK_ARGUMENT_BYTES of argument are copied. Blocks only
     * while the stream's queue is full. On the host stream: runs at once and returns its status. */
    zero_status (*task)(void *self, zi_stream *stream, zi_task_fn fn, const void *argument,
                        size_t bytes);
    /* Set `bytes` bytes to `byte`. */
    zero_status (*fill)(void *self, zi_stream *stream, void *target, int byte, size_t bytes);
    zero_status (*copy)(void *self, zi_stream *stream, void *target, const void *source,
                        size_t bytes);
    void (*destroy)(void *self); /* accepts NULL */
} zi_device_ops;

typedef struct zi_device {
    const zi_device_ops *ops;
    void *self;
} zi_device;

/* The CPU: streams are worker threads, memory is the host's. */
zero_status zi_cpu_device_create(zi_device *device);

/* Accepts a zeroed device. */
void zi_device_destroy(zi_device *device);

#endif
