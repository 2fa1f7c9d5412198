/* A device: memory, streams and events. A backend is a const table of functions and its own state;
 * nothing above asks for its name.
 *
 * Streams run what is put on them in order; different streams run at the same time. The host stream
 * is the caller's own thread seen as a stream: what is put on it runs at once, and waiting on it
 * blocks.
 *
 * What is put on a stream is first issued, then run. The CPU runs what it issues. On a GPU issuing
 * hands the work to the driver; a task is host code, so it runs when it is issued. Arguments that
 * are given by pointer must stay valid until the work is issued.
 *
 * Threads: all calls on one device's streams and events come from one host thread, the rank's, and
 * from tasks. A task may put tasks, copies and kernels on its own stream; those run within it.
 *
 * Failure: the first task of a stream that fails leaves its error in the stream. Later tasks of
 * that stream are skipped. Its events still fire and carry the error to whoever waits, streams
 * included, so nothing hangs and the caller gets the first error. */
#ifndef ZI_DEVICE_DEVICE_H
#define ZI_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zero/options.h"
#include "zero/status.h"
#include "zero/stream.h"

typedef struct zi_stream zi_stream; /* backend's own */
typedef struct zi_event zi_event;   /* backend's own */
typedef struct zi_fence zi_fence;   /* backend's own */

/* Host code that a stream runs in order. */
typedef zero_status (*zi_task_fn)(void *argument);

/* Bytes of argument that a task carries by value. */
#define ZI_TASK_ARGUMENT_BYTES 192

/* The caller's functions for a device's memory (include/zero/options.h). */
typedef struct zi_memory_source {
    zero_device_alloc_fn alloc;
    zero_device_free_fn free;
    void *user;
} zi_memory_source;

typedef struct zi_device_ops {
    size_t struct_bytes;
    const char *name;
    bool host_memory; /* memory_alloc's is the host's */
    /* For messages: how callers name a stream of the device, and how they begin to capture one.
     * NULL where no stream can be captured. */
    const char *stream_text;
    const char *capture_text;
    /* Zeroed memory in multiples of ZI_PAGE_BYTES. Blocking; only while an engine is created,
     * filled, or reloaded (include/zero/evict.h). */
    zero_status (*memory_alloc)(void *self, size_t bytes, void **out);
    void (*memory_free)(void *self, void *pointer, size_t bytes);
    /* Zeroed memory of the host that copies and kernels of the device reach; as memory_alloc. */
    zero_status (*host_alloc)(void *self, size_t bytes, void **out);
    void (*host_free)(void *self, void *pointer, size_t bytes);
    /* Let the device access whole pages of host memory that is already allocated. Once for a page.
     */
    zero_status (*host_map)(void *self, void *pointer, size_t bytes);
    void (*host_unmap)(void *self, void *pointer); /* accepts NULL */
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
    /* Work put on `stream` from now on runs after the event's last record. Never recorded: no wait.
     * On the host stream this blocks, adds the time to *waited_ns (may be NULL) and returns the
     * error the event carries. */
    zero_status (*stream_wait)(void *self, zi_stream *stream, zi_event *event, uint64_t *waited_ns);
    /* Block the host until the event's last record has fired; returns the error it carries. */
    zero_status (*event_wait)(void *self, zi_event *event, uint64_t *waited_ns);
    /* Block the host until what was put on the stream before the event's last record has been
     * issued: what it was given by pointer may be changed. Returns the error the event carries. */
    zero_status (*issue_wait)(void *self, zi_event *event, uint64_t *waited_ns);
    /* Run fn on the stream; `bytes` <= ZI_TASK_ARGUMENT_BYTES of argument are copied. Blocks only
     * while the stream's queue is full. On the host stream: runs at once and returns its status. */
    zero_status (*task)(void *self, zi_stream *stream, zi_task_fn fn, const void *argument,
                        size_t bytes);
    /* The same, but run also when the stream has failed: for what earlier tasks have begun and only
     * the stream's thread may end. */
    zero_status (*task_always)(void *self, zi_stream *stream, zi_task_fn fn, const void *argument,
                               size_t bytes);
    /* Set `bytes` bytes to `byte`. */
    zero_status (*fill)(void *self, zi_stream *stream, void *target, int byte, size_t bytes);
    /* Between any two places in memory of the device or the host. */
    zero_status (*copy)(void *self, zi_stream *stream, void *target, const void *source,
                        size_t bytes);
    /* The rest is for tasks, on their own stream, where collectives order the streams of ranks. */
    /* Block until what is on the stream has run. */
    zero_status (*drain)(void *self, zi_stream *stream);
    /* A fence is a point on one rank's stream for which the streams of other ranks of the process
     * can wait. Marking it again moves it: all that were to follow it must have done so before. */
    zero_status (*fence_create)(void *self, zi_fence **out); /* *out may be NULL: needs none */
    void (*fence_destroy)(void *self, zi_fence *fence);      /* accepts NULL */
    zero_status (*fence_mark)(void *self, zi_fence *fence, zi_stream *stream);
    /* Work put on `stream` from now on runs after the mark, another rank's. UNSUPPORTED when the
     * devices cannot read each other's memory. */
    zero_status (*fence_follow)(void *self, zi_stream *stream, const zi_fence *fence);
    /* For timelines. The device sets *ns to the time (zi_clock_ns) at which all that was put on the
     * stream before had run; on the host stream, and in a task of a stream that runs on the host:
     * to the time of the call. Before the call *ns is 0. It stays in place until it is set, or its
     * stream is destroyed. ZI_NO_TIME (core/clock.h): the stream is being captured, or too many
     * times are pending. Never blocks but as task does. */
    zero_status (*timestamp)(void *self, zi_stream *stream, uint64_t *ns);
    /* Set every *ns whose stream has come there. Not while the thread captures a stream. */
    zero_status (*timestamps_flush)(void *self);
    /* For graphs of captured work (include/zero/capture.h). */
    /* *out := true if work put on the stream is being captured. UNSUPPORTED where no stream of the
     * device can be. */
    zero_status (*captured)(void *self, zi_stream *stream, bool *out);
    /* Make all events as if they had never been recorded: what was put on the streams has run, or
     * belongs to a graph. */
    void (*forget)(void *self);
    void (*destroy)(void *self); /* accepts NULL */
    /* As stream_create. Where the device has no room for the work of all streams, this one's goes
     * first. NULL: streams are alike. */
    zero_status (*stream_create_first)(void *self, const char *name, zi_stream **out);
    /* Give streams threads that issue, from now on, for tasks that wait for other ranks. Called
     * before the device has streams or events of its own. NULL: they have them anyway. */
    void (*issue_on_threads)(void *self);
    /* memory_alloc and memory_free use the caller's functions, from now on. Called before either.
     * NULL: the device cannot. */
    void (*memory_from)(void *self, const zi_memory_source *source);
} zi_device_ops;

struct zi_timeline; /* core/timeline.h */

typedef struct zi_device {
    const zi_device_ops *ops;
    void *self;
    /* The timeline in which work put on its streams is noted by whoever puts it
     * (device/stream_span.h); borrowed. NULL: nobody asked for it. */
    struct zi_timeline *timeline;
} zi_device;

/* The CPU: streams are worker threads, memory is the host's. */
zero_status zi_cpu_device_create(zi_device *device);

/* The calling thread's current GPU (cuda/cuda_device.h). Errors: DEVICE when there is no GPU or no
 * driver, UNSUPPORTED in a build without CUDA. */
zero_status zi_cuda_device_create(zi_device *device);

static inline void zi_device_issue_on_threads(const zi_device *device)
{
    if (device->ops->issue_on_threads != NULL) {
        device->ops->issue_on_threads(device->self);
    }
}

/* A stream whose work goes first, where the device can tell them apart. */
static inline zero_status zi_device_stream_first(const zi_device *device, const char *name,
                                                 zi_stream **out)
{
    return device->ops->stream_create_first != NULL
               ? device->ops->stream_create_first(device->self, name, out)
               : device->ops->stream_create(device->self, name, out);
}

/* Accepts a zeroed device. */
void zi_device_destroy(zi_device *device);

#endif
