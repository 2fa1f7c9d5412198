/* Streams and events of the CUDA device, for the files of this folder. */
#ifndef ZI_DEVICE_CUDA_CUDA_STREAM_H
#define ZI_DEVICE_CUDA_CUDA_STREAM_H

#include "device/cuda/cuda_device.h"

/* A zi_stream of this device. */
typedef struct cuda_stream {
    cudaStream_t native;
    zi_stream *issuer; /* a CPU stream whose thread issues; NULL: the calling thread does */
    bool host;         /* the calling thread: what is put on it has run when the call returns */
    int ordinal;       /* of its GPU */
} cuda_stream;

/* Records alternate between two native events, so that recording one again does not move it under a
 * wait that is not issued yet. On a queued device one stream of the device's own may wait for an
 * event, besides the caller's streams. */
#define CUDA_EVENT_RECORDS 2

/* A zi_event of this device. The CPU events exist on a queued device only. */
typedef struct cuda_event {
    cudaEvent_t native[CUDA_EVENT_RECORDS];
    uint64_t records;
    uint64_t epoch;   /* the device's at the last record */
    zi_event *issued; /* fires when the last record is issued */
    zi_event
        *awaited[CUDA_EVENT_RECORDS]; /* fire when the waits for each native event are issued */
    const cuda_stream *waiter;        /* the device's own stream that waits */
} cuda_event;

typedef struct cuda_stream_desc {
    bool queued;
    bool first; /* before what other streams wait to run */
    int ordinal;
} cuda_stream_desc;

/* Runs fn while GPU `ordinal` is the thread's current one. A caller may have chosen another since
 * the engine was created, and kernels and new events belong to the current one. */
zero_status zi_cuda_on_gpu(int ordinal, zi_task_fn fn, void *argument);

zero_status zi_cuda_stream_open(const cuda_stream_desc *desc, const char *name, cuda_stream **out);
/* Waits for everything on it. Accepts NULL. */
void zi_cuda_stream_close(cuda_stream *stream);

zero_status zi_cuda_event_open(bool queued, cuda_event **out);
void zi_cuda_event_close(cuda_event *event); /* accepts NULL */

/* Run fn when the stream issues it: now where the caller issues, or is in a task of this stream.
 * Waits for the GPU where it is the host stream. */
zero_status zi_cuda_issue(cuda_stream *stream, zi_task_fn fn, const void *argument, size_t bytes);

zero_status zi_cuda_event_record(cuda_event *event, cuda_stream *stream);
zero_status zi_cuda_stream_wait(cuda_stream *stream, cuda_event *event, uint64_t *waited_ns);
zero_status zi_cuda_event_wait(cuda_event *event, uint64_t *waited_ns);
zero_status zi_cuda_issue_wait(cuda_event *event, uint64_t *waited_ns);

#endif
