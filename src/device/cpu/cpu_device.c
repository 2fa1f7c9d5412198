/* Owns the CPU device: the table that maps the device's verbs to host memory and worker-thread
 * streams. */
#include "core/error.h"
#include "core/memory.h"
#include "device/cpu/cpu_copy.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

#include <string.h>

typedef struct cpu_device {
    zi_stream *host;
} cpu_device;

typedef struct fill_argument {
    void *target;
    size_t bytes;
    int byte;
} fill_argument;

typedef struct copy_argument {
    void *target;
    const void *source;
    size_t bytes;
} copy_argument;

static zero_status cpu_device_memory_alloc(void *self, size_t bytes, void **out)
{
    (void)self;
    return zi_pages_alloc(bytes, out);
}

static void cpu_device_memory_free(void *self, void *pointer, size_t bytes)
{
    (void)self;
    zi_pages_free(pointer, bytes);
}

static zero_status cpu_device_stream_wrap(void *self, zero_stream native, zi_stream **out)
{
    cpu_device *device = self;
    if (native.native != NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "stream %p is not one of the CPU device's; pass zero_stream_host()", native.native);
    }
    *out = device->host;
    return ZERO_OK;
}

static zero_status cpu_device_task(void *self, zi_stream *stream, zi_task_fn fn,
                                   const void *argument, size_t bytes)
{
    (void)self;
    return zi_cpu_stream_task(stream, fn, argument, bytes);
}

static zero_status cpu_device_task_always(void *self, zi_stream *stream, zi_task_fn fn,
                                          const void *argument, size_t bytes)
{
    (void)self;
    return zi_cpu_stream_task_always(stream, fn, argument, bytes);
}

static zero_status run_fill(void *argument)
{
    const fill_argument *fill = argument;
    memset(fill->target, fill->byte, fill->bytes);
    return ZERO_OK;
}

static zero_status cpu_device_fill(void *self, zi_stream *stream, void *target, int byte,
                                   size_t bytes)
{
    const fill_argument argument = {target, bytes, byte};
    return bytes == 0 ? ZERO_OK
                      : cpu_device_task(self, stream, run_fill, &argument, sizeof argument);
}

static zero_status run_copy(void *argument)
{
    const copy_argument *copy = argument;
    zi_cpu_copy(copy->target, copy->source, copy->bytes);
    return ZERO_OK;
}

static zero_status cpu_device_copy(void *self, zi_stream *stream, void *target, const void *source,
                                   size_t bytes)
{
    const copy_argument argument = {target, source, bytes};
    return bytes == 0 ? ZERO_OK
                      : cpu_device_task(self, stream, run_copy, &argument, sizeof argument);
}

static zero_status cpu_device_host_map(void *self, void *pointer, size_t bytes)
{
    (void)self;
    (void)pointer;
    (void)bytes;
    return ZERO_OK;
}

static void cpu_device_host_unmap(void *self, void *pointer)
{
    (void)self;
    (void)pointer;
}

/* Tasks have run when they return: there is nothing to wait for and nothing to fence. */
static zero_status cpu_device_drain(void *self, zi_stream *stream)
{
    (void)self;
    (void)stream;
    return ZERO_OK;
}

static zero_status cpu_device_fence_create(void *self, zi_fence **out)
{
    (void)self;
    *out = NULL;
    return ZERO_OK;
}

static void cpu_device_fence_destroy(void *self, zi_fence *fence)
{
    (void)self;
    (void)fence;
}

static zero_status cpu_device_fence_mark(void *self, zi_fence *fence, zi_stream *stream)
{
    (void)self;
    (void)fence;
    (void)stream;
    return ZERO_OK;
}

static zero_status cpu_device_fence_follow(void *self, zi_stream *stream, const zi_fence *fence)
{
    (void)self;
    (void)stream;
    (void)fence;
    return ZERO_OK;
}

/* Streams set their times themselves. */
static zero_status cpu_device_timestamps_flush(void *self)
{
    (void)self;
    return ZERO_OK;
}

static zero_status cpu_device_captured(void *self, zi_stream *stream, bool *out)
{
    (void)self;
    (void)stream;
    *out = false;
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "only what runs on a GPU can be captured into a graph; create the "
            "engine with ZERO_DEVICE_CUDA");
}

/* Nothing is ever captured, and records that have fired cost no wait. */
static void cpu_device_forget(void *self)
{
    (void)self;
}

static void cpu_device_destroy(void *self)
{
    cpu_device *device = self;
    if (device != NULL) {
        zi_cpu_stream_destroy(self, device->host);
        zi_free(device);
    }
}

static const zi_device_ops cpu_ops = {
    .struct_bytes = sizeof(zi_device_ops),
    .name = "cpu",
    .host_memory = true,
    .memory_alloc = cpu_device_memory_alloc,
    .memory_free = cpu_device_memory_free,
    .host_alloc = cpu_device_memory_alloc,
    .host_free = cpu_device_memory_free,
    .host_map = cpu_device_host_map,
    .host_unmap = cpu_device_host_unmap,
    .stream_create = zi_cpu_stream_create,
    .stream_destroy = zi_cpu_stream_destroy,
    .stream_wrap = cpu_device_stream_wrap,
    .event_create = zi_cpu_event_create,
    .event_destroy = zi_cpu_event_destroy,
    .event_record = zi_cpu_event_record,
    .stream_wait = zi_cpu_stream_wait,
    .event_wait = zi_cpu_event_wait,
    .issue_wait = zi_cpu_event_wait,
    .task = cpu_device_task,
    .task_always = cpu_device_task_always,
    .fill = cpu_device_fill,
    .copy = cpu_device_copy,
    .drain = cpu_device_drain,
    .fence_create = cpu_device_fence_create,
    .fence_destroy = cpu_device_fence_destroy,
    .fence_mark = cpu_device_fence_mark,
    .fence_follow = cpu_device_fence_follow,
    .timestamp = zi_cpu_stream_timestamp,
    .timestamps_flush = cpu_device_timestamps_flush,
    .captured = cpu_device_captured,
    .forget = cpu_device_forget,
    .destroy = cpu_device_destroy,
};

zero_status zi_cpu_device_create(zi_device *device)
{
    *device = (zi_device){0};
    cpu_device *self = NULL;
    ZI_TRY(zi_calloc(1, sizeof *self, (void **)&self));
    const zero_status status = zi_cpu_stream_create_host(&self->host);
    if (status != ZERO_OK) {
        cpu_device_destroy(self);
        return status;
    }
    *device = (zi_device){.ops = &cpu_ops, .self = self};
    return ZERO_OK;
}

void zi_device_destroy(zi_device *device)
{
    if (device->ops != NULL) {
        device->ops->destroy(device->self);
    }
    *device = (zi_device){0};
}
