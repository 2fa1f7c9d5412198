/* Owns the ring of events that times are read from. An event is recorded where a time is wanted. It
 * is asked when the ring comes round to it, or at a flush: no stream calls the host.
 * Invariant: an event whose time is not known yet is not recorded again; the time that was wanted
 * next is given up instead. */
#include "device/cuda/cuda_times.h"

#include <pthread.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

/* More than the host puts on the streams of an engine before it waits for a step. */
#define TIMES 4096
/* CUDA says how far two events are apart in milliseconds, as a float, and the clocks of GPU and
 * host drift. So the event that times are counted from is recorded again after this time. */
#define BASE_NS UINT64_C(1000000000)

typedef struct cuda_mark {
    cudaEvent_t native;
    uint64_t *ns; /* to be set; NULL: nobody waits for this one */
} cuda_mark;

struct cuda_times {
    pthread_mutex_t mutex; /* guards all but idle */
    cudaStream_t idle;
    cudaEvent_t base; /* times are counted from */
    uint64_t base_ns;
    uint32_t next;
    cuda_mark marks[TIMES];
};

/* Record the base anew, and note when that was by the host's clock: half way through a call that
 * waits for nothing else. The first of two finds code and caches cold. */
static zero_status tie(cuda_times *times)
{
    for (int i = 0; i < 2; i++) {
        const uint64_t before_ns = zi_clock_ns();
        ZI_TRY(zi_cuda_check(cudaEventRecord(times->base, times->idle), "cudaEventRecord"));
        ZI_TRY(zi_cuda_check(cudaEventSynchronize(times->base), "cudaEventSynchronize"));
        times->base_ns = before_ns + (zi_clock_ns() - before_ns) / 2;
    }
    return ZERO_OK;
}

zero_status zi_cuda_times_create(cudaStream_t idle, cuda_times **out)
{
    *out = NULL;
    cuda_times *times = NULL;
    ZI_TRY(zi_calloc(1, sizeof *times, (void **)&times));
    (void)pthread_mutex_init(&times->mutex, NULL);
    times->idle = idle;
    zero_status status = zi_cuda_check(cudaEventCreateWithFlags(&times->base, cudaEventDefault),
                                       "cudaEventCreateWithFlags");
    for (uint32_t i = 0; status == ZERO_OK && i < TIMES; i++) {
        status = zi_cuda_check(cudaEventCreateWithFlags(&times->marks[i].native, cudaEventDefault),
                               "cudaEventCreateWithFlags");
    }
    status = status == ZERO_OK ? tie(times) : status;
    if (status != ZERO_OK) {
        zi_cuda_times_destroy(times);
        return status;
    }
    *out = times;
    return ZERO_OK;
}

void zi_cuda_times_destroy(cuda_times *times)
{
    if (times == NULL) {
        return;
    }
    for (uint32_t i = 0; i < TIMES && times->marks[i].native != NULL; i++) {
        (void)cudaEventDestroy(times->marks[i].native);
    }
    if (times->base != NULL) {
        (void)cudaEventDestroy(times->base);
    }
    (void)pthread_mutex_destroy(&times->mutex);
    zi_free(times);
}

/* Set the time of a mark that its stream has come to; a mark that is pending stays. */
static zero_status cuda_times_settle(cuda_times *times, cuda_mark *mark)
{
    const cudaError_t code = mark->ns != NULL ? cudaEventQuery(mark->native) : cudaErrorNotReady;
    float ms = 0;
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return ZERO_OK;
    }
    ZI_TRY(zi_cuda_check(code, "cudaEventQuery"));
    if (zi_clock_ns() - times->base_ns > BASE_NS) {
        ZI_TRY(tie(times));
    }
    /* Negative where the mark came before the base. */
    ZI_TRY(zi_cuda_check(cudaEventElapsedTime(&ms, times->base, mark->native),
                         "cudaEventElapsedTime"));
    zi_timestamp_set(mark->ns, times->base_ns + (uint64_t)(int64_t)((double)ms * 1e6));
    mark->ns = NULL;
    return ZERO_OK;
}

static zero_status cuda_times_mark(cuda_times *times, cudaStream_t stream, uint64_t *ns)
{
    cuda_mark *next = &times->marks[times->next];
    ZI_TRY(cuda_times_settle(times, next));
    if (next->ns != NULL) {
        zi_timestamp_set(ns, ZI_NO_TIME);
        return ZERO_OK;
    }
    ZI_TRY(zi_cuda_check(cudaEventRecord(next->native, stream), "cudaEventRecord"));
    next->ns = ns;
    times->next = (times->next + 1) % TIMES;
    return ZERO_OK;
}

zero_status zi_cuda_times_mark(cuda_times *times, cudaStream_t stream, uint64_t *ns)
{
    enum cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    ZI_TRY(zi_cuda_check(cudaStreamIsCapturing(stream, &captured), "cudaStreamIsCapturing"));
    if (captured != cudaStreamCaptureStatusNone) {
        zi_timestamp_set(ns, ZI_NO_TIME);
        return ZERO_OK;
    }
    (void)pthread_mutex_lock(&times->mutex);
    const zero_status status = cuda_times_mark(times, stream, ns);
    (void)pthread_mutex_unlock(&times->mutex);
    return status;
}

zero_status zi_cuda_times_settle(cuda_times *times)
{
    zero_status status = ZERO_OK;
    (void)pthread_mutex_lock(&times->mutex);
    for (uint32_t i = 0; status == ZERO_OK && i < TIMES; i++) {
        status = cuda_times_settle(times, &times->marks[i]);
    }
    (void)pthread_mutex_unlock(&times->mutex);
    return status;
}
