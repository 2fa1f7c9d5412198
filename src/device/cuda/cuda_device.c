/* Owns the CUDA device: the table that maps the device's verbs to the CUDA runtime. */
#include "device/cuda/cuda_device.h"

#include <stdatomic.h>

#include "core/arena.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "device/cpu/cpu_stream.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_times.h"

typedef struct cuda_device {
    int ordinal;
    int host_node; /* of the host's memory, nearest to the GPU; -1: not known */
    bool queued;
    uint64_t epoch;          /* records of an earlier one are forgotten */
    cuda_stream *blocking;   /* carries what is put on the host stream */
    cuda_stream caller;      /* the stream wrapped last; good until the next is */
    cuda_times *times;       /* NULL: nobody has asked for a time */
    zi_memory_source source; /* alloc NULL: cudaMalloc */
    _Atomic uint64_t peers;  /* GPUs whose memory kernels of this one may read, a bit each */
} cuda_device;

/* Arguments of a copy, or of a fill (source NULL). */
typedef struct move {
    cudaStream_t stream;
    void *target;
    const void *source;
    size_t bytes;
    int byte;
} move;

static cuda_stream *stream_of(zi_stream *stream)
{
    return (cuda_stream *)stream;
}

static cuda_event *event_of(zi_event *event)
{
    return (cuda_event *)event;
}

cudaStream_t zi_cuda_stream_native(const zi_stream *stream)
{
    return ((const cuda_stream *)stream)->native;
}

/* cudaMemset may return before the memory is set. */
static zero_status set_zero(void *pointer, size_t bytes)
{
    ZI_TRY(zi_cuda_check(cudaMemset(pointer, 0, bytes), "cudaMemset"));
    return zi_cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

typedef struct allocation {
    const zi_memory_source *source;
    int ordinal;
    size_t bytes;
    void *memory;
} allocation;

static void free_here(const allocation *it)
{
    if (it->source->alloc != NULL) {
        it->source->free(it->source->user, it->memory, it->bytes, it->ordinal);
    } else {
        (void)cudaFree(it->memory);
    }
}

/* Check what kernels and copies count on, and a pool may get wrong. */
static zero_status check_given(const allocation *it)
{
    struct cudaPointerAttributes about;
    if ((uintptr_t)it->memory % ZI_ARENA_ALIGN != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.device_alloc gave %p for %zu bytes, which is not a multiple of %u; align "
                "what it gives",
                it->memory, it->bytes, (unsigned)ZI_ARENA_ALIGN);
    }
    ZI_TRY(zi_cuda_check(cudaPointerGetAttributes(&about, it->memory), "cudaPointerGetAttributes"));
    if ((about.type != cudaMemoryTypeDevice && about.type != cudaMemoryTypeManaged) ||
        about.device != it->ordinal) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "options.device_alloc gave %p for %zu bytes of GPU %d, which is memory of kind %d "
                "of GPU %d; give memory of the GPU that it is asked for",
                it->memory, it->bytes, it->ordinal, (int)about.type, about.device);
    }
    /* A pool may order its memory by a stream of its own. */
    return zi_cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static zero_status take_given(allocation *it)
{
    it->memory = it->source->alloc(it->source->user, it->bytes, it->ordinal);
    if (it->memory == NULL) {
        ZI_FAIL(ZERO_ERR_OUT_OF_MEMORY,
                "options.device_alloc gave NULL for %zu bytes of GPU %d; free some of its pool, or "
                "use more ranks, a higher stage or fewer param_slots",
                it->bytes, it->ordinal);
    }
    return check_given(it);
}

static zero_status alloc_here(void *argument)
{
    allocation *it = argument;
    zero_status status = it->source->alloc != NULL
                             ? take_given(it)
                             : zi_cuda_check(cudaMalloc(&it->memory, it->bytes), "cudaMalloc");
    if (status == ZERO_OK) {
        status = set_zero(it->memory, it->bytes);
    }
    if (status != ZERO_OK && it->memory != NULL) {
        free_here(it);
        it->memory = NULL;
    }
    return status;
}

static zero_status cuda_device_memory_alloc(void *self, size_t bytes, void **out)
{
    const cuda_device *device = self;
    allocation it = {&device->source, device->ordinal, bytes, NULL};
    const zero_status status =
        bytes == 0 ? ZERO_OK : zi_cuda_on_gpu(device->ordinal, alloc_here, &it);
    *out = it.memory;
    return status;
}

/* Also where the GPU has failed and cannot be made current: a pool counts what it has lent. */
static void give_back(const allocation *it)
{
    int current = it->ordinal;
    if (cudaGetDevice(&current) == cudaSuccess && current != it->ordinal) {
        (void)cudaSetDevice(it->ordinal);
    }
    free_here(it);
    if (current != it->ordinal) {
        (void)cudaSetDevice(current);
    }
    (void)cudaGetLastError();
}

static void cuda_device_memory_free(void *self, void *pointer, size_t bytes)
{
    const cuda_device *device = self;
    const allocation it = {&device->source, device->ordinal, bytes, pointer};
    if (pointer != NULL && it.source->alloc != NULL) {
        give_back(&it);
    } else if (pointer != NULL) {
        (void)cudaFree(pointer);
    }
}

static void memory_from(void *self, const zi_memory_source *source)
{
    ((cuda_device *)self)->source = *source;
}

static zero_status cuda_device_host_map(void *self, void *pointer, size_t bytes)
{
    (void)self;
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    return zi_cuda_check(cudaHostRegister(pointer, bytes, flags), "cudaHostRegister");
}

static void cuda_device_host_unmap(void *self, void *pointer)
{
    (void)self;
    if (pointer != NULL) {
        (void)cudaHostUnregister(pointer);
    }
}

static zero_status cuda_device_host_alloc(void *self, size_t bytes, void **out)
{
    const cuda_device *device = self;
    ZI_TRY(zi_pages_alloc_on(bytes, device->host_node, out));
    if (bytes == 0) {
        return ZERO_OK; /* no page, and CUDA refuses to register none */
    }
    const zero_status status = cuda_device_host_map(self, *out, bytes);
    if (status != ZERO_OK) {
        zi_pages_free(*out, bytes);
        *out = NULL;
    }
    return status;
}

static void host_free(void *self, void *pointer, size_t bytes)
{
    cuda_device_host_unmap(self, pointer);
    zi_pages_free(pointer, bytes);
}

static zero_status open_stream(const cuda_device *device, bool first, const char *name,
                               zi_stream **out)
{
    const cuda_stream_desc desc = {
        .queued = device->queued, .first = first, .ordinal = device->ordinal};
    cuda_stream *stream = NULL;
    const zero_status status = zi_cuda_stream_open(&desc, name, &stream);
    *out = (zi_stream *)stream;
    return status;
}

static zero_status cuda_device_stream_create(void *self, const char *name, zi_stream **out)
{
    return open_stream(self, false, name, out);
}

static zero_status stream_create_first(void *self, const char *name, zi_stream **out)
{
    return open_stream(self, true, name, out);
}

static void cuda_device_stream_destroy(void *self, zi_stream *stream)
{
    (void)self;
    zi_cuda_stream_close(stream_of(stream));
}

static zero_status cuda_device_stream_wrap(void *self, zero_stream native, zi_stream **out)
{
    cuda_device *device = self;
    device->caller.native = native.native;
    device->caller.ordinal = device->ordinal;
    *out = (zi_stream *)(native.native == NULL ? device->blocking : &device->caller);
    return ZERO_OK;
}

static zero_status cuda_device_event_create(void *self, zi_event **out)
{
    const cuda_device *device = self;
    cuda_event *event = NULL;
    const zero_status status = zi_cuda_event_open(device->queued, &event);
    *out = (zi_event *)event;
    return status;
}

static void cuda_device_event_destroy(void *self, zi_event *event)
{
    (void)self;
    zi_cuda_event_close(event_of(event));
}

/* True if the last record of the event was made after the last forget. */
static bool is_remembered(const cuda_device *device, const cuda_event *event)
{
    return event->epoch == device->epoch;
}

static zero_status cuda_device_event_record(void *self, zi_event *event, zi_stream *stream)
{
    const cuda_device *device = self;
    event_of(event)->epoch = device->epoch;
    return zi_cuda_event_record(event_of(event), stream_of(stream));
}

static zero_status cuda_device_stream_wait(void *self, zi_stream *stream, zi_event *event,
                                           uint64_t *waited_ns)
{
    if (!is_remembered(self, event_of(event))) {
        return ZERO_OK;
    }
    return zi_cuda_stream_wait(stream_of(stream), event_of(event), waited_ns);
}

static zero_status cuda_device_event_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    if (!is_remembered(self, event_of(event))) {
        return ZERO_OK;
    }
    return zi_cuda_event_wait(event_of(event), waited_ns);
}

static zero_status cuda_device_issue_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    (void)self;
    return zi_cuda_issue_wait(event_of(event), waited_ns);
}

static zero_status cuda_device_task(void *self, zi_stream *stream, zi_task_fn fn,
                                    const void *argument, size_t bytes)
{
    (void)self;
    return zi_cuda_issue(stream_of(stream), fn, argument, bytes);
}

static zero_status cuda_device_task_always(void *self, zi_stream *stream, zi_task_fn fn,
                                           const void *argument, size_t bytes)
{
    const cuda_stream *target = stream_of(stream);
    (void)self;
    return target->issuer != NULL ? zi_cpu_stream_task_always(target->issuer, fn, argument, bytes)
                                  : zi_cpu_task_now(fn, argument, bytes);
}

static zero_status fill_now(void *argument)
{
    const move *m = argument;
    return zi_cuda_check(cudaMemsetAsync(m->target, m->byte, m->bytes, m->stream),
                         "cudaMemsetAsync");
}

static zero_status cuda_device_fill(void *self, zi_stream *stream, void *target, int byte,
                                    size_t bytes)
{
    const move m = {zi_cuda_stream_native(stream), target, NULL, bytes, byte};
    return bytes == 0 ? ZERO_OK : cuda_device_task(self, stream, fill_now, &m, sizeof m);
}

static zero_status copy_now(void *argument)
{
    const move *m = argument;
    return zi_cuda_check(
        cudaMemcpyAsync(m->target, m->source, m->bytes, cudaMemcpyDefault, m->stream),
        "cudaMemcpyAsync");
}

static zero_status cuda_device_copy(void *self, zi_stream *stream, void *target, const void *source,
                                    size_t bytes)
{
    const move m = {zi_cuda_stream_native(stream), target, source, bytes, 0};
    return bytes == 0 ? ZERO_OK : cuda_device_task(self, stream, copy_now, &m, sizeof m);
}

static zero_status cuda_device_drain(void *self, zi_stream *stream)
{
    (void)self;
    return zi_cuda_check(cudaStreamSynchronize(stream_of(stream)->native), "cudaStreamSynchronize");
}

/* ---- fences: a CUDA event that one rank records and others wait for ----
 * When it is safe to record one again is for the collective to know. */

struct zi_fence {
    cudaEvent_t native;
    int ordinal; /* of the GPU whose streams mark it */
};

static zero_status cuda_device_fence_create(void *self, zi_fence **out)
{
    const cuda_device *device = self;
    *out = NULL;
    zi_fence *fence = NULL;
    ZI_TRY(zi_calloc(1, sizeof *fence, (void **)&fence));
    fence->ordinal = device->ordinal;
    const zero_status status =
        zi_cuda_check(cudaEventCreateWithFlags(&fence->native, cudaEventDisableTiming),
                      "cudaEventCreateWithFlags");
    if (status != ZERO_OK) {
        zi_free(fence);
        return status;
    }
    *out = fence;
    return ZERO_OK;
}

static void cuda_device_fence_destroy(void *self, zi_fence *fence)
{
    (void)self;
    if (fence != NULL) {
        (void)cudaEventDestroy(fence->native);
        zi_free(fence);
    }
}

static zero_status cuda_device_fence_mark(void *self, zi_fence *fence, zi_stream *stream)
{
    (void)self;
    return zi_cuda_check(cudaEventRecord(fence->native, stream_of(stream)->native),
                         "cudaEventRecord");
}

/* Let kernels of the current GPU read the memory of another. */
static zero_status open_peer(cuda_device *device, int other)
{
    const uint64_t bit = UINT64_C(1) << (other % 64);
    if ((atomic_load(&device->peers) & bit) != 0) {
        return ZERO_OK;
    }
    int can = 0;
    ZI_TRY(zi_cuda_check(cudaDeviceCanAccessPeer(&can, device->ordinal, other),
                         "cudaDeviceCanAccessPeer"));
    if (!can) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "GPU %d cannot read the memory of GPU %d; start one process for each GPU, or put "
                "the ranks on GPUs that can",
                device->ordinal, other);
    }
    const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
    if (code == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
    } else {
        ZI_TRY(zi_cuda_check(code, "cudaDeviceEnablePeerAccess"));
    }
    (void)atomic_fetch_or(&device->peers, bit);
    return ZERO_OK;
}

static zero_status cuda_device_fence_follow(void *self, zi_stream *stream, const zi_fence *fence)
{
    cuda_device *device = self;
    if (fence->ordinal != device->ordinal) {
        ZI_TRY(open_peer(device, fence->ordinal));
    }
    return zi_cuda_check(cudaStreamWaitEvent(stream_of(stream)->native, fence->native, 0),
                         "cudaStreamWaitEvent");
}

/* ---- times ---- */

typedef struct time_point {
    cuda_times *times;
    cudaStream_t stream;
    uint64_t *ns;
} time_point;

static zero_status mark_now(void *argument)
{
    const time_point *p = argument;
    return zi_cuda_times_mark(p->times, p->stream, p->ns);
}

static zero_status create_times(void *argument)
{
    cuda_device *device = argument;
    return zi_cuda_times_create(device->blocking->native, &device->times);
}

/* The first call, of the rank's thread, makes the events. */
static zero_status cuda_device_timestamp(void *self, zi_stream *stream, uint64_t *ns)
{
    cuda_device *device = self;
    if (device->times == NULL) {
        ZI_TRY(zi_cuda_on_gpu(device->ordinal, create_times, device));
    }
    if (stream_of(stream)->host) {
        zi_timestamp_set(ns, zi_clock_ns());
        return ZERO_OK;
    }
    const time_point p = {device->times, zi_cuda_stream_native(stream), ns};
    return cuda_device_task_always(self, stream, mark_now, &p, sizeof p);
}

static zero_status cuda_device_timestamps_flush(void *self)
{
    const cuda_device *device = self;
    return device->times != NULL ? zi_cuda_times_settle(device->times) : ZERO_OK;
}

static void cuda_device_issue_on_threads(void *self)
{
    ((cuda_device *)self)->queued = true;
}

/* ---- graphs of captured work ---- */

static zero_status cuda_device_captured(void *self, zi_stream *stream, bool *out)
{
    const cuda_device *device = self;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    *out = false;
    if (device->queued) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "ranks that meet on the host (threads of one process, MPI, ZERO_TRANSPORT_HOST, "
                "memory that NCCL registers as buffers) cannot be captured into a graph; start one "
                "process for each GPU and use NCCL without it");
    }
    ZI_TRY(zi_cuda_check(cudaStreamIsCapturing(stream_of(stream)->native, &status),
                         "cudaStreamIsCapturing"));
    *out = status == cudaStreamCaptureStatusActive;
    return ZERO_OK;
}

/* A stream outside a capture may not wait for a record inside, nor the other way round. */
static void cuda_device_forget(void *self)
{
    cuda_device *device = self;
    device->epoch++;
}

static void cuda_device_destroy(void *self)
{
    cuda_device *device = self;
    if (device != NULL) {
        zi_cuda_times_destroy(device->times);
        zi_cuda_stream_close(device->blocking);
        zi_free(device);
    }
}

static const zi_device_ops cuda_ops = {
    .struct_bytes = sizeof(zi_device_ops),
    .name = "cuda",
    .stream_text = "zero_stream_cuda of a CUDA stream",
    .capture_text = "cudaStreamBeginCapture with cudaStreamCaptureModeThreadLocal",
    .memory_alloc = cuda_device_memory_alloc,
    .memory_free = cuda_device_memory_free,
    .host_alloc = cuda_device_host_alloc,
    .host_free = host_free,
    .host_map = cuda_device_host_map,
    .host_unmap = cuda_device_host_unmap,
    .stream_create = cuda_device_stream_create,
    .stream_create_first = stream_create_first,
    .stream_destroy = cuda_device_stream_destroy,
    .stream_wrap = cuda_device_stream_wrap,
    .event_create = cuda_device_event_create,
    .event_destroy = cuda_device_event_destroy,
    .event_record = cuda_device_event_record,
    .stream_wait = cuda_device_stream_wait,
    .event_wait = cuda_device_event_wait,
    .issue_wait = cuda_device_issue_wait,
    .task = cuda_device_task,
    .task_always = cuda_device_task_always,
    .fill = cuda_device_fill,
    .copy = cuda_device_copy,
    .drain = cuda_device_drain,
    .fence_create = cuda_device_fence_create,
    .fence_destroy = cuda_device_fence_destroy,
    .fence_mark = cuda_device_fence_mark,
    .fence_follow = cuda_device_fence_follow,
    .timestamp = cuda_device_timestamp,
    .timestamps_flush = cuda_device_timestamps_flush,
    .captured = cuda_device_captured,
    .forget = cuda_device_forget,
    .destroy = cuda_device_destroy,
    .issue_on_threads = cuda_device_issue_on_threads,
    .memory_from = memory_from,
};

/* A driver older than the toolkit may not know what is asked. */
static int ask_host_node(int ordinal)
{
    int node = -1;
#if CUDART_VERSION >= 12020
    if (cudaDeviceGetAttribute(&node, cudaDevAttrHostNumaId, ordinal) != cudaSuccess) {
        (void)cudaGetLastError();
        node = -1;
    }
#else
    (void)ordinal;
#endif
    return node;
}

/* Kernels are given the host's own addresses of registered memory: for the hyper-parameters and the
 * result of every step, and for what is offloaded. */
static zero_status check_host_addresses(int ordinal)
{
    int shared = 0;
    ZI_TRY(zi_cuda_check(
        cudaDeviceGetAttribute(&shared, cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal),
        "cudaDeviceGetAttribute"));
    if (!shared) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "GPU %d does not reach registered host memory by the host's addresses "
                "(cudaDevAttrCanUseHostPointerForRegisteredMem is 0), as every engine on a GPU "
                "needs; use another GPU or driver, or the CPU device",
                ordinal);
    }
    return ZERO_OK;
}

static zero_status cuda_device_open_device(cuda_device *self)
{
    int count = 0;
    ZI_TRY(zi_cuda_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
    if (count == 0) {
        ZI_FAIL(ZERO_ERR_DEVICE,
                "this machine has no GPU that CUDA can use; look at nvidia-smi and "
                "CUDA_VISIBLE_DEVICES");
    }
    ZI_TRY(zi_cuda_check(cudaGetDevice(&self->ordinal), "cudaGetDevice"));
    ZI_TRY(check_host_addresses(self->ordinal));
    self->host_node = ask_host_node(self->ordinal);
    const cuda_stream_desc desc = {.ordinal = self->ordinal};
    ZI_TRY(zi_cuda_stream_open(&desc, "zero host", &self->blocking));
    self->blocking->host = true;
    return ZERO_OK;
}

zero_status zi_cuda_device_create(zi_device *device)
{
    *device = (zi_device){0};
    cuda_device *self = NULL;
    ZI_TRY(zi_calloc(1, sizeof *self, (void **)&self));
    const zero_status status = cuda_device_open_device(self);
    if (status != ZERO_OK) {
        cuda_device_destroy(self);
        return status;
    }
    *device = (zi_device){.ops = &cuda_ops, .self = self};
    return ZERO_OK;
}
