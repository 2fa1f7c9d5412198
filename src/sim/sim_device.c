/* Owns the simulated device: streams and events as virtual times.
 *
 * A stream has two tracks: of what issues its work, and of what runs it. On a CPU both are its
 * worker thread. On a GPU the caller's thread issues, or the stream's own where the device is
 * queued. Invariant: an operation runs no earlier than it is issued, and no track goes back. */
#include "sim/sim_device.h"

#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

struct zi_stream {
    zi_sim_machine *machine;
    bool host;        /* the thread that runs now */
    bool runs_itself; /* on a GPU */
    bool issues;      /* it has a thread */
    zi_sim_track runs;
    zi_sim_track thread;
};

typedef struct event_point {
    const zi_sim_track *track; /* NULL: never recorded */
    uint64_t ns;
} event_point;

struct zi_event {
    event_point issued;
    event_point ran;
};

/* The track that issues the stream's work, and has come to the thread that runs now. */
static zi_sim_track *issuer_of(zi_stream *stream)
{
    zi_sim_track *thread = stream->machine->thread;
    if (!stream->issues) {
        return thread;
    }
    if (thread != &stream->thread) { /* else it is a task of its own that issues */
        zi_sim_track_wait(&stream->thread, thread, thread->now_ns);
    }
    return &stream->thread;
}

/* The track that runs the stream's next work, and has come to the point where that is issued. */
static zi_sim_track *runner_of(zi_stream *stream)
{
    zi_sim_track *issuer = issuer_of(stream);
    if (!stream->runs_itself) {
        return issuer;
    }
    zi_sim_track_wait(&stream->runs, issuer, issuer->now_ns);
    return &stream->runs;
}

static void sim_device_await(zi_sim_track *track, const event_point *point, uint64_t *waited_ns)
{
    const uint64_t before_ns = track->now_ns;
    if (point->track != NULL && point->track != track) {
        zi_sim_track_wait(track, point->track, point->ns);
        if (waited_ns != NULL) {
            *waited_ns += track->now_ns - before_ns;
        }
    }
}

zero_status zi_sim_put(zi_stream *stream, const zi_sim_load *load, uint64_t late_ns,
                       zero_sim_cause cause)
{
    zi_sim_track *runner = runner_of(stream);
    uint64_t end_ns = 0;
    zi_sim_track_work(runner, runner->now_ns + late_ns, ZERO_SIM_RANKS);
    ZI_TRY(zi_sim_book(stream->machine, load, runner->now_ns, &end_ns));
    zi_sim_track_work(runner, end_ns, cause);
    return ZERO_OK;
}

void zi_sim_put_compute(zi_stream *stream, uint64_t ns)
{
    zi_sim_track *runner = runner_of(stream);
    if (zi_sim_computes(stream->machine, runner->now_ns, ns)) {
        zi_sim_track_work(runner, runner->now_ns + ns, ZERO_SIM_OTHER);
    }
}

const zi_sim_track *zi_sim_stream_track(zi_stream *stream)
{
    return runner_of(stream);
}

zero_stream zi_sim_stream_native(zi_stream *stream)
{
    return (zero_stream){stream->host ? NULL : stream};
}

/* ---- memory ---- */

static zero_status sim_device_memory_alloc(void *self, size_t bytes, void **out)
{
    return zi_sim_alloc(((zi_sim_device *)self)->machine, ZERO_TIER_DEVICE, bytes, out);
}

static zero_status sim_device_host_alloc(void *self, size_t bytes, void **out)
{
    return zi_sim_alloc(((zi_sim_device *)self)->machine, ZERO_TIER_HOST, bytes, out);
}

static void sim_device_memory_free(void *self, void *pointer, size_t bytes)
{
    (void)bytes;
    zi_sim_free(((zi_sim_device *)self)->machine, pointer);
}

static zero_status sim_device_host_map(void *self, void *pointer, size_t bytes)
{
    (void)self;
    (void)pointer;
    (void)bytes;
    return ZERO_OK;
}

static void sim_device_host_unmap(void *self, void *pointer)
{
    (void)self;
    (void)pointer;
}

/* ---- streams and events ---- */

static zero_status make_stream(zi_sim_machine *machine, bool host, bool issues, zi_stream **out)
{
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof **out, (void **)out));
    (*out)->machine = machine;
    (*out)->host = host;
    (*out)->issues = issues;
    (*out)->runs_itself = !host && !machine->host_memory;
    return ZERO_OK;
}

static zero_status sim_device_stream_create(void *self, const char *name, zi_stream **out)
{
    const zi_sim_device *device = self;
    const bool issues = device->machine->host_memory || device->queued;
    (void)name;
    return make_stream(device->machine, false, issues, out);
}

static void sim_device_stream_destroy(void *self, zi_stream *stream)
{
    (void)self;
    zi_free(stream);
}

zero_status zi_sim_stream_create(zi_sim_device *device, zi_stream **out)
{
    *out = device->host;
    return device->machine->host_memory ? ZERO_OK : make_stream(device->machine, false, false, out);
}

void zi_sim_stream_destroy(zi_stream *stream)
{
    if (stream != NULL && !stream->host) {
        zi_free(stream);
    }
}

static zero_status sim_device_stream_wrap(void *self, zero_stream native, zi_stream **out)
{
    const zi_sim_device *device = self;
    *out = native.native != NULL ? native.native : device->host;
    return ZERO_OK;
}

static zero_status sim_device_event_create(void *self, zi_event **out)
{
    (void)self;
    return zi_calloc(1, sizeof **out, (void **)out);
}

static void sim_device_event_destroy(void *self, zi_event *event)
{
    (void)self;
    zi_free(event);
}

static zero_status sim_device_event_record(void *self, zi_event *event, zi_stream *stream)
{
    const zi_sim_track *runner = runner_of(stream);
    const zi_sim_track *issuer = issuer_of(stream);
    (void)self;
    event->issued = (event_point){issuer, issuer->now_ns};
    event->ran = (event_point){runner, runner->now_ns};
    return ZERO_OK;
}

static zero_status sim_device_stream_wait(void *self, zi_stream *stream, zi_event *event,
                                          uint64_t *waited_ns)
{
    (void)self;
    sim_device_await(issuer_of(stream), &event->issued, NULL);
    sim_device_await(runner_of(stream), &event->ran, stream->host ? waited_ns : NULL);
    return ZERO_OK;
}

static zero_status sim_device_event_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    const zi_sim_device *device = self;
    sim_device_await(device->machine->thread, &event->ran, waited_ns);
    return ZERO_OK;
}

static zero_status sim_device_issue_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    const zi_sim_device *device = self;
    sim_device_await(device->machine->thread, &event->issued, waited_ns);
    return ZERO_OK;
}

static zero_status sim_device_task(void *self, zi_stream *stream, zi_task_fn fn,
                                   const void *argument, size_t bytes)
{
    zi_sim_machine *machine = ((zi_sim_device *)self)->machine;
    _Alignas(16) unsigned char copy[ZI_TASK_ARGUMENT_BYTES];
    zi_sim_track *caller = machine->thread;
    memcpy(copy, argument, bytes);
    machine->thread = issuer_of(stream);
    const zero_status status = fn(copy);
    machine->thread = caller;
    return status;
}

/* A copy is the device's own where that is a GPU, and so is a fill but on the host's stream. */
static zero_status sim_device_move(zi_stream *stream, void *target, const void *source,
                                   size_t bytes, zero_sim_cause cause)
{
    const zi_sim_machine *machine = stream->machine;
    zi_sim_load load = {0};
    const bool on_host = machine->host_memory || (stream->host && source == NULL);
    zi_sim_load_add(machine, on_host, target, 0, bytes, &load);
    if (source != NULL) {
        zi_sim_load_add(machine, on_host, source, bytes, 0, &load);
    }
    return zi_sim_put(stream, &load, 0, cause);
}

static zero_status sim_device_fill(void *self, zi_stream *stream, void *target, int byte,
                                   size_t bytes)
{
    (void)self;
    (void)byte;
    return bytes == 0 ? ZERO_OK : sim_device_move(stream, target, NULL, bytes, ZERO_SIM_OTHER);
}

static zero_status sim_device_copy(void *self, zi_stream *stream, void *target, const void *source,
                                   size_t bytes)
{
    (void)self;
    return bytes == 0 ? ZERO_OK : sim_device_move(stream, target, source, bytes, ZERO_SIM_COPY);
}

static zero_status sim_device_drain(void *self, zi_stream *stream)
{
    const zi_sim_track *runner = runner_of(stream);
    zi_sim_track *issuer = issuer_of(stream);
    (void)self;
    if (runner != issuer) {
        zi_sim_track_wait(issuer, runner, runner->now_ns);
    }
    return ZERO_OK;
}

/* ---- what only several ranks in one process, and graphs, need ---- */

static zero_status sim_device_fence_create(void *self, zi_fence **out)
{
    (void)self;
    *out = NULL;
    return ZERO_OK;
}

static void sim_device_fence_destroy(void *self, zi_fence *fence)
{
    (void)self;
    (void)fence;
}

static zero_status sim_device_fence_mark(void *self, zi_fence *fence, zi_stream *stream)
{
    (void)self;
    (void)fence;
    (void)stream;
    return ZERO_OK;
}

static zero_status sim_device_fence_follow(void *self, zi_stream *stream, const zi_fence *fence)
{
    (void)self;
    (void)stream;
    (void)fence;
    return ZERO_OK;
}

/* Virtual times are known at once. */
static zero_status sim_device_timestamp(void *self, zi_stream *stream, uint64_t *ns)
{
    (void)self;
    zi_timestamp_set(ns, runner_of(stream)->now_ns);
    return ZERO_OK;
}

static zero_status sim_device_timestamps_flush(void *self)
{
    (void)self;
    return ZERO_OK;
}

static zero_status sim_device_captured(void *self, zi_stream *stream, bool *out)
{
    (void)self;
    (void)stream;
    *out = false;
    ZI_FAIL(ZERO_ERR_UNSUPPORTED, "a simulated step cannot be captured into a graph");
}

static void sim_device_forget(void *self)
{
    (void)self;
}

/* Its owner closes it. */
static void sim_device_destroy(void *self)
{
    (void)self;
}

static void sim_device_issue_on_threads(void *self)
{
    ((zi_sim_device *)self)->queued = true;
}

static const zi_device_ops device_ops = {
    .struct_bytes = sizeof(zi_device_ops),
    .name = "simulated",

    .memory_alloc = sim_device_memory_alloc,
    .memory_free = sim_device_memory_free,
    .host_alloc = sim_device_host_alloc,
    .host_free = sim_device_memory_free,
    .host_map = sim_device_host_map,
    .host_unmap = sim_device_host_unmap,
    .stream_create = sim_device_stream_create,
    .stream_destroy = sim_device_stream_destroy,
    .stream_wrap = sim_device_stream_wrap,
    .event_create = sim_device_event_create,
    .event_destroy = sim_device_event_destroy,
    .event_record = sim_device_event_record,
    .stream_wait = sim_device_stream_wait,
    .event_wait = sim_device_event_wait,
    .issue_wait = sim_device_issue_wait,
    .task = sim_device_task,
    .task_always = sim_device_task,
    .fill = sim_device_fill,
    .copy = sim_device_copy,
    .drain = sim_device_drain,
    .fence_create = sim_device_fence_create,
    .fence_destroy = sim_device_fence_destroy,
    .fence_mark = sim_device_fence_mark,
    .fence_follow = sim_device_fence_follow,
    .timestamp = sim_device_timestamp,
    .timestamps_flush = sim_device_timestamps_flush,
    .captured = sim_device_captured,
    .forget = sim_device_forget,
    .destroy = sim_device_destroy,
    .issue_on_threads = sim_device_issue_on_threads,
};

zero_status zi_sim_device_open(zi_sim_machine *machine, zi_sim_device *device)
{
    *device = (zi_sim_device){.machine = machine, .ops = device_ops};
    device->ops.host_memory = machine->host_memory;
    device->device = (zi_device){.ops = &device->ops, .self = device};
    return make_stream(machine, true, false, &device->host);
}

void zi_sim_device_close(zi_sim_device *device)
{
    zi_free(device->host);
}
