/* The CUDA runtime's functions over the fake, but for those on memory. Each begins with fake_enter
 * and ends with fake_leave; signatures are checked by CUDA's own header. */
#include "fake_cuda.h"

#include "fake_stream.h"

/* A test program's, where this is linked into one (tests/sanitizer.h). */
extern bool test_over_doubles __attribute__((weak));

__attribute__((constructor)) static void tell_harness(void)
{
    if (&test_over_doubles != NULL) {
        test_over_doubles = true;
    }
}

#define FAKE_CLOCK_KHZ 1000000 /* of multiprocessors and of memory */

/* ---- errors ---- */

typedef struct error_text {
    cudaError_t code;
    const char *name;
    const char *text;
} error_text;

static const error_text error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
};

static const error_text *text_of(cudaError_t code)
{
    static const error_text unknown = {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++) {
        if (error_texts[i].code == code) {
            return &error_texts[i];
        }
    }
    return &unknown;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return text_of(error)->text;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return text_of(error)->name;
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t code = fake_enter("cudaGetDeviceCount");
    if (code == cudaSuccess) {
        *count = fake.devices;
        code = fake.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
    }
    return fake_leave(code);
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t code = fake_enter("cudaGetDevice");
    if (code == cudaSuccess) {
        *device = fake_device;
        code = fake.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
    }
    return fake_leave(code);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t code = fake_enter("cudaSetDevice");
    if (code == cudaSuccess && (device < 0 || device >= fake.devices)) {
        code = cudaErrorInvalidDevice;
    }
    if (code == cudaSuccess) {
        fake_device = device;
    }
    return fake_leave(code);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    cudaError_t code = fake_enter("cudaDeviceGetAttribute");
    if (code == cudaSuccess && (device < 0 || device >= fake.devices)) {
        code = cudaErrorInvalidDevice;
    }
#if CUDART_VERSION >= 12020
    if (code == cudaSuccess && attr == cudaDevAttrHostNumaId) {
        *value = fake.host_node;
        return fake_leave(code);
    }
#endif
    if (code == cudaSuccess && attr == cudaDevAttrCanUseHostPointerForRegisteredMem) {
        *value = !fake.other_addresses;
        return fake_leave(code);
    }
    if (code == cudaSuccess &&
        (attr == cudaDevAttrClockRate || attr == cudaDevAttrMemoryClockRate)) {
        *value = FAKE_CLOCK_KHZ;
        return fake_leave(code);
    }
    if (code == cudaSuccess) {
        code = cudaErrorInvalidValue;
    }
    return fake_leave(code);
}

cudaError_t cudaDeviceCanAccessPeer(int *canAccessPeer, int device, int peerDevice)
{
    cudaError_t code = fake_enter("cudaDeviceCanAccessPeer");
    if (code == cudaSuccess && (device >= fake.devices || peerDevice >= fake.devices)) {
        code = cudaErrorInvalidDevice;
    }
    if (code == cudaSuccess) {
        *canAccessPeer = !fake.no_peers && device != peerDevice;
    }
    return fake_leave(code);
}

cudaError_t cudaDeviceEnablePeerAccess(int peerDevice, unsigned int flags)
{
    (void)flags; /* must be 0 */
    cudaError_t code = fake_enter("cudaDeviceEnablePeerAccess");
    if (code == cudaSuccess && (peerDevice >= fake.devices || peerDevice == fake_device)) {
        code = cudaErrorInvalidDevice;
    }
    if (code == cudaSuccess && fake.no_peers) {
        code = cudaErrorPeerAccessUnsupported;
    }
    if (code == cudaSuccess && fake.peers[fake_device][peerDevice]) {
        code = cudaErrorPeerAccessAlreadyEnabled;
    }
    if (code == cudaSuccess) {
        fake.peers[fake_device][peerDevice] = true;
    }
    return fake_leave(code);
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t code = fake_enter("cudaDeviceSynchronize");
    fake.syncs++;
    if (code == cudaSuccess) {
        code = fake_capture_unsafe("cudaDeviceSynchronize");
    }
    if (code == cudaSuccess) {
        fake_host_wait_device(fake_device);
    }
    return fake_leave(code);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *leastPriority, int *greatestPriority)
{
    const cudaError_t code = fake_enter("cudaDeviceGetStreamPriorityRange");
    if (code == cudaSuccess) {
        *leastPriority = 0;
        *greatestPriority = -5;
    }
    return fake_leave(code);
}

/* ---- streams ---- */

static cudaError_t stream_create(const char *call, cudaStream_t *out, unsigned int flags,
                                 int priority)
{
    cudaError_t code = fake_enter(call);
    if (code == cudaSuccess && fake.devices == 0) {
        code = cudaErrorNoDevice;
    }
    if (code == cudaSuccess) {
        *out = fake_stream_add(fake_device, (flags & cudaStreamNonBlocking) == 0, false);
        (*out)->priority = priority;
    }
    return fake_leave(code);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags)
{
    return stream_create("cudaStreamCreateWithFlags", pStream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream, unsigned int flags, int priority)
{
    return stream_create("cudaStreamCreateWithPriority", pStream, flags, priority);
}

cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int *priority)
{
    cudaStream_t found = NULL;
    const cudaError_t code = fake_enter_stream("cudaStreamGetPriority", hStream, &found);
    if (code == cudaSuccess) {
        *priority = found->priority;
    }
    return fake_leave(code);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    const cudaError_t entered = fake_enter("cudaStreamDestroy");
    cudaStream_t found = NULL;
    if (!fake_may_release(entered)) {
        return fake_leave(entered);
    }
    const cudaError_t code = fake_stream_find(stream, &found);
    if (code != cudaSuccess || found->legacy) {
        return fake_leave(cudaErrorInvalidResourceHandle);
    }
    found->alive = false;
    if (race_line_settled(&found->line, fake_host_clock())) {
        fake_stream_retire(found);
    } else if (entered == cudaSuccess) {
        race_fault(RACE_MISUSE, "cudaStreamDestroy of %s, whose work may not have run",
                   race_line_name(found->line.timeline));
    }
    return fake_leave(entered);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream("cudaStreamSynchronize", stream, &found);
    fake.syncs++;
    if (code == cudaSuccess) {
        code = fake_capture_asked(found, NULL);
    }
    if (code == cudaSuccess) {
        fake_stream_order(found);
        fake_host_wait(found, found->line.number, &found->line.clock);
    }
    return fake_leave(code);
}

/* A caller that polls moves things on, in every mode. */
static cudaError_t query(cudaStream_t stream, uint64_t number, const race_clock *clock)
{
    if (stream->done < number) {
        fake_run_toward(stream, number);
        return cudaErrorNotReady;
    }
    fake_host_learn(clock);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream("cudaStreamQuery", stream, &found);
    if (code == cudaSuccess) {
        code = fake_capture_asked(found, NULL);
    }
    if (code == cudaSuccess) {
        fake_stream_order(found);
        code = query(found, found->line.number, &found->line.clock);
    }
    return fake_leave(code);
}

typedef struct host_function_payload {
    cudaHostFn_t fn;
    void *user;
} host_function_payload;

static void run_host_function(void *payload)
{
    const host_function_payload *call = payload;
    call->fn(call->user);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
    const host_function_payload call = {fn, userData};
    const fake_cuda_work work = {.name = "cudaLaunchHostFunc",
                                 .kind = FAKE_CUDA_HOST_FN,
                                 .run = run_host_function,
                                 .payload = &call,
                                 .payload_bytes = sizeof call};
    return fake_cuda_enqueue(stream, &work);
}

/* ---- events ---- */

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const cudaError_t entered = fake_enter("cudaEventDestroy");
    cudaEvent_t found = NULL;
    if (!fake_may_release(entered)) {
        return fake_leave(entered);
    }
    const cudaError_t code = fake_event_find(event, &found);
    if (code != cudaSuccess) {
        return fake_leave(code);
    }
    /* Legal while its record is still to run: the runtime gives it back later. */
    found->alive = false;
    return fake_leave(entered);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaStream_t found = NULL;
    cudaEvent_t point = NULL;
    cudaError_t code = fake_enter_event("cudaEventRecord", event, &point);
    if (code == cudaSuccess) {
        code = fake_stream_find(stream, &found);
    }
    if (code == cudaSuccess && point->device != found->device) {
        code = cudaErrorInvalidResourceHandle;
    }
    bool captured = false;
    if (code == cudaSuccess) {
        code = fake_capture_record(found, point, &captured);
    }
    if (code == cudaSuccess && !captured) {
        fake_stream_record(found, point);
    }
    return fake_leave(code);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    (void)flags;
    cudaStream_t found = NULL;
    cudaEvent_t point = NULL;
    cudaError_t code = fake_enter_event("cudaStreamWaitEvent", event, &point);
    if (code == cudaSuccess) {
        code = fake_stream_find(stream, &found);
    }
    bool captured = false;
    if (code == cudaSuccess) {
        code = fake_capture_await(found, point, &captured);
    }
    if (code == cudaSuccess && !captured) {
        fake_stream_await(found, point);
    }
    return fake_leave(code);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaEvent_t point = NULL;
    cudaError_t code = fake_enter_event("cudaEventSynchronize", event, &point);
    fake.syncs++;
    if (code == cudaSuccess) {
        code = fake_capture_asked(NULL, point);
    }
    if (code == cudaSuccess && point->stream != NULL) {
        fake_host_wait(point->stream, point->number, &point->clock);
    }
    return fake_leave(code);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaEvent_t point = NULL;
    cudaError_t code = fake_enter_event("cudaEventQuery", event, &point);
    if (code == cudaSuccess) {
        code = fake_capture_asked(NULL, point);
    }
    if (code == cudaSuccess && point->stream != NULL) {
        code = query(point->stream, point->number, &point->clock);
    }
    return fake_leave(code);
}

static cudaError_t check_time(cudaEvent_t event)
{
    if (!event->timed || event->stream == NULL) {
        race_fault(RACE_MISUSE, "the time of an event that %s",
                   event->timed ? "was never recorded" : "keeps none");
        return cudaErrorInvalidResourceHandle;
    }
    return event->stream->done < event->number ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    cudaEvent_t first = NULL;
    cudaEvent_t last = NULL;
    cudaError_t code = fake_enter_event("cudaEventElapsedTime", start, &first);
    if (code == cudaSuccess) {
        code = fake_event_find(end, &last);
    }
    code = code == cudaSuccess ? fake_capture_asked(NULL, first) : code;
    code = code == cudaSuccess ? fake_capture_asked(NULL, last) : code;
    code = code == cudaSuccess ? check_time(first) : code;
    code = code == cudaSuccess ? check_time(last) : code;
    if (code == cudaSuccess) {
        *ms = (float)((double)((int64_t)last->ns - (int64_t)first->ns) / 1e6);
    }
    return fake_leave(code);
}

/* ---- what fakes of launches put ---- */

cudaError_t fake_cuda_enqueue(cudaStream_t stream, const fake_cuda_work *work)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream(work->name, stream, &found);
    /* A kernel goes to the device that is current. */
    if (code == cudaSuccess && work->kind == FAKE_CUDA_KERNEL && found->device != fake_device) {
        code = cudaErrorInvalidResourceHandle;
    }
    if (code == cudaSuccess) {
        code = fake_stream_put(found, work);
    }
    return fake_leave(code);
}
