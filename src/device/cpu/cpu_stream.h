/* Streams and events of the CPU device. A stream is a worker thread and a bounded queue of tasks.
 * An event counts its records; a record has fired when `done` has reached its number. Functions
 * with a `self` stand in zi_device_ops as they are: they need no state of the device. */
#ifndef ZI_DEVICE_CPU_CPU_STREAM_H
#define ZI_DEVICE_CPU_CPU_STREAM_H

#include <stdbool.h>

#include "device/device.h"

/* The stream that is the caller's own thread. Create never fails once memory is there. */
zero_status zi_cpu_stream_create_host(zi_stream **out);
zero_status zi_cpu_stream_create(void *self, const char *name, zi_stream **out);
void zi_cpu_stream_destroy(void *self, zi_stream *stream);
zero_status zi_cpu_stream_task(zi_stream *stream, zi_task_fn fn, const void *argument,
                               size_t bytes);

/* The same, but run also when the stream has failed. */
zero_status zi_cpu_stream_task_always(zi_stream *stream, zi_task_fn fn, const void *argument,
                                      size_t bytes);

/* Run fn on a copy of its argument, as a stream would. */
zero_status zi_cpu_task_now(zi_task_fn fn, const void *argument, size_t bytes);

zero_status zi_cpu_event_create(void *self, zi_event **out);
void zi_cpu_event_destroy(void *self, zi_event *event);
zero_status zi_cpu_event_record(void *self, zi_event *event, zi_stream *stream);
/* Record it on the calling thread: it fires at once. */
zero_status zi_cpu_event_fire(zi_event *event);
zero_status zi_cpu_event_wait(void *self, zi_event *event, uint64_t *waited_ns);
bool zi_cpu_event_done(zi_event *event);
zero_status zi_cpu_stream_wait(void *self, zi_stream *stream, zi_event *event, uint64_t *waited_ns);
zero_status zi_cpu_stream_timestamp(void *self, zi_stream *stream, uint64_t *ns);

#endif
