/* Owns the CUDA device's streams and events.
 * Invariant: a wait that is issued names the native event of the very record it was called after.
 * On a direct device that holds because call and issue are one; on a queued device because a
 * native event is recorded again only after the waits for it are issued. */
#include "device/cuda/cuda_stream.h"

#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "device/cpu/cpu_stream.h"

zero_status zi_cuda_check(cudaError_t code, const char *call)
{
    if (code == cudaSuccess) {
        return ZERO_OK;
    }
    (void)cudaGetLastError(); /* an error that does not last is not found again by the next call */
    ZI_FAIL_NATIVE(code == cudaErrorMemoryAllocation ? ZERO_ERR_OUT_OF_MEMORY : ZERO_ERR_DEVICE,
                   (int)code, "%s: %s (%s)", call, cudaGetErrorString(code),
                   cudaGetErrorName(code));
}

zero_status zi_cuda_on_gpu(int ordinal, zi_task_fn fn, void *argument)
{
    int current = ordinal;
    ZI_TRY(zi_cuda_check(cudaGetDevice(&current), "cudaGetDevice"));
    if (current == ordinal) {
        return fn(argument);
    }
    ZI_TRY(zi_cuda_check(cudaSetDevice(ordinal), "cudaSetDevice"));
    const zero_status status = fn(argument);
    (void)cudaSetDevice(current);
    return status;
}

static zero_status use_device(void *argument)
{
    const int *ordinal = argument;
    return zi_cuda_check(cudaSetDevice(*ordinal), "cudaSetDevice");
}

/* Lower is earlier; CUDA takes the nearest that the GPU has. Not the earliest, so that a caller has
 * room before us. */
#define PRIORITY_FIRST (-1)

static zero_status open_native(bool first, cudaStream_t *out)
{
    return first ? zi_cuda_check(
                       cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, PRIORITY_FIRST),
                       "cudaStreamCreateWithPriority")
                 : zi_cuda_check(cudaStreamCreateWithFlags(out, cudaStreamNonBlocking),
                                 "cudaStreamCreateWithFlags");
}

zero_status zi_cuda_stream_open(const cuda_stream_desc *desc, const char *name, cuda_stream **out)
{
    *out = NULL;
    cuda_stream *stream = NULL;
    ZI_TRY(zi_calloc(1, sizeof *stream, (void **)&stream));
    stream->ordinal = desc->ordinal;
    zero_status status = open_native(desc->first, &stream->native);
    if (status == ZERO_OK && desc->queued) {
        status = zi_cpu_stream_create(NULL, name, &stream->issuer);
    }
    if (status == ZERO_OK && desc->queued) {
        status =
            zi_cpu_stream_task(stream->issuer, use_device, &desc->ordinal, sizeof desc->ordinal);
    }
    if (status != ZERO_OK) {
        zi_cuda_stream_close(stream);
        return status;
    }
    *out = stream;
    return ZERO_OK;
}

void zi_cuda_stream_close(cuda_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    zi_cpu_stream_destroy(NULL, stream->issuer);
    if (stream->native != NULL) {
        (void)cudaStreamSynchronize(stream->native);
        (void)cudaStreamDestroy(stream->native);
    }
    zi_free(stream);
}

zero_status zi_cuda_event_open(bool queued, cuda_event **out)
{
    *out = NULL;
    cuda_event *event = NULL;
    zero_status status = zi_calloc(1, sizeof *event, (void **)&event);
    const int natives = queued ? CUDA_EVENT_RECORDS : 1;
    for (int i = 0; status == ZERO_OK && i < natives; i++) {
        status = zi_cuda_check(cudaEventCreateWithFlags(&event->native[i], cudaEventDisableTiming),
                               "cudaEventCreateWithFlags");
        if (status == ZERO_OK && queued) {
            status = zi_cpu_event_create(NULL, &event->awaited[i]);
        }
    }
    if (status == ZERO_OK && queued) {
        status = zi_cpu_event_create(NULL, &event->issued);
    }
    if (status != ZERO_OK) {
        zi_cuda_event_close(event);
        return status;
    }
    *out = event;
    return ZERO_OK;
}

void zi_cuda_event_close(cuda_event *event)
{
    if (event == NULL) {
        return;
    }
    for (int i = 0; i < CUDA_EVENT_RECORDS; i++) {
        zi_cpu_event_destroy(NULL, event->awaited[i]);
        if (event->native[i] != NULL) {
            (void)cudaEventDestroy(event->native[i]);
        }
    }
    zi_cpu_event_destroy(NULL, event->issued);
    zi_free(event);
}

/* A task whose argument is a copy that it may change, as a stream's thread would have it. */
typedef struct direct_task {
    zi_task_fn fn;
    const void *argument;
    size_t bytes;
} direct_task;

static zero_status run_direct(void *argument)
{
    const direct_task *direct = argument;
    return zi_cpu_task_now(direct->fn, direct->argument, direct->bytes);
}

zero_status zi_cuda_issue(cuda_stream *stream, zi_task_fn fn, const void *argument, size_t bytes)
{
    if (stream->issuer != NULL) {
        return zi_cpu_stream_task(stream->issuer, fn, argument, bytes);
    }
    direct_task direct = {fn, argument, bytes};
    ZI_TRY(zi_cuda_on_gpu(stream->ordinal, run_direct, &direct));
    return stream->host
               ? zi_cuda_check(cudaStreamSynchronize(stream->native), "cudaStreamSynchronize")
               : ZERO_OK;
}

/* The native event of the last record, and the place of its waits. */
static uint64_t cuda_stream_place_of(const cuda_event *event)
{
    return event->issued != NULL ? (event->records - 1) % CUDA_EVENT_RECORDS : 0;
}

/* Arguments of the tasks below. */
typedef struct point {
    cudaStream_t stream;
    cudaEvent_t event;
} point;

static zero_status record_now(void *argument)
{
    const point *p = argument;
    return zi_cuda_check(cudaEventRecord(p->event, p->stream), "cudaEventRecord");
}

static zero_status wait_now(void *argument)
{
    const point *p = argument;
    return zi_cuda_check(cudaStreamWaitEvent(p->stream, p->event, 0), "cudaStreamWaitEvent");
}

zero_status zi_cuda_event_record(cuda_event *event, cuda_stream *stream)
{
    event->records++;
    const uint64_t place = cuda_stream_place_of(event);
    const point p = {stream->native, event->native[place]};
    if (event->issued == NULL) {
        return zi_cuda_issue(stream, record_now, &p, sizeof p);
    }
    /* Waits for the record before the last one may not be issued yet. */
    ZI_TRY(zi_cpu_event_wait(NULL, event->awaited[place], NULL));
    ZI_TRY(zi_cuda_issue(stream, record_now, &p, sizeof p));
    return stream->issuer != NULL ? zi_cpu_event_record(NULL, event->issued, stream->issuer)
                                  : zi_cpu_event_fire(event->issued);
}

/* On a queued device, from a stream whose thread issues. */
static zero_status wait_queued(cuda_stream *stream, cuda_event *event, const point *p)
{
    zi_assert(event->waiter == NULL || event->waiter == stream);
    event->waiter = stream;
    ZI_TRY(zi_cpu_stream_wait(NULL, stream->issuer, event->issued, NULL));
    ZI_TRY(zi_cuda_issue(stream, wait_now, p, sizeof *p));
    return zi_cpu_event_record(NULL, event->awaited[cuda_stream_place_of(event)], stream->issuer);
}

zero_status zi_cuda_stream_wait(cuda_stream *stream, cuda_event *event, uint64_t *waited_ns)
{
    if (event->records == 0) {
        return ZERO_OK;
    }
    if (stream->host) {
        return zi_cuda_event_wait(event, waited_ns);
    }
    const point p = {stream->native, event->native[cuda_stream_place_of(event)]};
    if (stream->issuer != NULL) {
        return wait_queued(stream, event, &p);
    }
    ZI_TRY(zi_cuda_issue_wait(event, waited_ns));
    return zi_cuda_issue(stream, wait_now, &p, sizeof p);
}

zero_status zi_cuda_issue_wait(cuda_event *event, uint64_t *waited_ns)
{
    return event->issued != NULL ? zi_cpu_event_wait(NULL, event->issued, waited_ns) : ZERO_OK;
}

zero_status zi_cuda_event_wait(cuda_event *event, uint64_t *waited_ns)
{
    if (event->records == 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_cuda_issue_wait(event, waited_ns));
    const uint64_t start_ns = zi_clock_ns();
    const cudaError_t code = cudaEventSynchronize(event->native[cuda_stream_place_of(event)]);
    if (waited_ns != NULL) {
        *waited_ns += zi_clock_ns() - start_ns;
    }
    return zi_cuda_check(code, "cudaEventSynchronize");
}
