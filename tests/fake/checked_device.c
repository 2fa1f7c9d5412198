/* Owns the checked device's table. */
#include "checked_device.h"

#include <stdlib.h>

#include "checked_stream.h"

typedef struct checked_event {
    zi_event *inner;
    checked_record *last;
} checked_event;

typedef struct checked_fence {
    zi_fence *inner; /* NULL: the device needs none */
    uint32_t timeline;
    race_clock clock;
} checked_fence;

typedef struct checked_state {
    zi_device_ops ops; /* this device's */
    zi_device inner;
    bool borrowed;
    uint64_t epoch;
    checked_stream *wrapped;
} checked_state;

static const zi_device *inner_of(const void *self)
{
    return &((const checked_state *)self)->inner;
}

static checked_stream *stream_of(zi_stream *stream)
{
    return (checked_stream *)stream;
}

static checked_event *event_of(zi_event *event)
{
    return (checked_event *)event;
}

/* ---- memory ---- */

static void watch(void *pointer, size_t bytes)
{
    const race_access who = race_line_next(checked_lock(), "an allocation");
    (void)race_region_add(pointer, bytes, RACE_HOST, &who);
    checked_unlock();
}

static void unwatch(void *pointer)
{
    race_access pending;
    const race_line *line = checked_lock();
    race_region *region = race_region_of(pointer);
    if (region != NULL) {
        const race_range all = {region->base, region->bytes, true};
        if (!race_region_settled(region, &all, &line->clock, true, &pending)) {
            race_fault(RACE_MISUSE, "%s is freed, which %s may still use", race_region_text(region),
                       race_access_text(pending));
        }
        race_region_remove(region);
    }
    checked_unlock();
}

static zero_status watched(zero_status status, void *const *out, size_t bytes)
{
    if (status == ZERO_OK && bytes != 0) {
        watch(*out, bytes);
    }
    return status;
}

static zero_status memory_alloc(void *self, size_t bytes, void **out)
{
    const zi_device *inner = inner_of(self);
    return watched(inner->ops->memory_alloc(inner->self, bytes, out), out, bytes);
}

static void memory_free(void *self, void *pointer, size_t bytes)
{
    const zi_device *inner = inner_of(self);
    unwatch(pointer);
    inner->ops->memory_free(inner->self, pointer, bytes);
}

static zero_status host_alloc(void *self, size_t bytes, void **out)
{
    const zi_device *inner = inner_of(self);
    return watched(inner->ops->host_alloc(inner->self, bytes, out), out, bytes);
}

static void host_free(void *self, void *pointer, size_t bytes)
{
    const zi_device *inner = inner_of(self);
    unwatch(pointer);
    inner->ops->host_free(inner->self, pointer, bytes);
}

static zero_status host_map(void *self, void *pointer, size_t bytes)
{
    const zi_device *inner = inner_of(self);
    return inner->ops->host_map(inner->self, pointer, bytes);
}

static void host_unmap(void *self, void *pointer)
{
    const zi_device *inner = inner_of(self);
    inner->ops->host_unmap(inner->self, pointer);
}

/* A kind of world has one table; a wrapped one is found by what it wraps. */
#define COMM_KINDS 4
static struct {
    const zi_comm_ops *plain;
    zi_comm_ops checked;
} comm_kinds[COMM_KINDS];

static const zi_comm_ops *plain_ops(const zi_comm *comm)
{
    uint32_t i = 0;
    while (comm->ops != &comm_kinds[i].checked) {
        i++;
    }
    return comm_kinds[i].plain;
}

static zero_status comm_alloc(zi_comm *comm, size_t bytes, void **out)
{
    return watched(plain_ops(comm)->memory_alloc(comm, bytes, out), out, bytes);
}

static void comm_free(zi_comm *comm, void *pointer, size_t bytes)
{
    unwatch(pointer);
    plain_ops(comm)->memory_free(comm, pointer, bytes);
}

void checked_comm(zi_comm *comm)
{
    (void)checked_lock();
    uint32_t i = 0;
    while (i < COMM_KINDS && comm_kinds[i].plain != NULL && comm_kinds[i].plain != comm->ops &&
           &comm_kinds[i].checked != comm->ops) {
        i++;
    }
    if (i == COMM_KINDS) {
        abort();
    }
    if (comm_kinds[i].plain == NULL) {
        comm_kinds[i].plain = comm->ops;
        comm_kinds[i].checked = *comm->ops;
        comm_kinds[i].checked.memory_alloc = comm_alloc;
        comm_kinds[i].checked.memory_free = comm_free;
    }
    comm->ops = &comm_kinds[i].checked;
    checked_unlock();
}

/* ---- streams ---- */

static zero_status stream_create(void *self, const char *name, zi_stream **out)
{
    const zi_device *inner = inner_of(self);
    const zero_status status = inner->ops->stream_create(inner->self, name, out);
    if (status == ZERO_OK) {
        (void)checked_lock();
        *out = (zi_stream *)checked_stream_open(*out, name);
        checked_unlock();
    }
    return status;
}

static void stream_destroy(void *self, zi_stream *stream)
{
    const zi_device *inner = inner_of(self);
    if (stream != NULL) {
        inner->ops->stream_destroy(inner->self, stream_of(stream)->inner);
        checked_stream_close(stream_of(stream));
    }
}

/* Tasks may ask for the host's stream, too. */
static zero_status stream_wrap(void *self, zero_stream native, zi_stream **out)
{
    checked_state *device = self;
    checked_stream *stream = checked_caller_find(native.native);
    zi_stream *inner = NULL;
    *out = (zi_stream *)stream;
    if (stream != NULL) {
        return ZERO_OK;
    }
    const zero_status status = device->inner.ops->stream_wrap(device->inner.self, native, &inner);
    if (status != ZERO_OK) {
        return status;
    }
    (void)checked_lock();
    stream = checked_stream_find(device->wrapped, native.native);
    if (stream == NULL) {
        stream = checked_stream_open(inner, native.native == NULL ? NULL : "the caller");
        stream->native = native.native;
        stream->next = device->wrapped;
        device->wrapped = stream;
    }
    if (stream->inner != inner) {
        stream->inner = inner;
    }
    checked_unlock();
    *out = (zi_stream *)stream;
    return ZERO_OK;
}

/* ---- events ---- */

static zero_status event_create(void *self, zi_event **out)
{
    const zi_device *inner = inner_of(self);
    zi_event *event = NULL;
    const zero_status status = inner->ops->event_create(inner->self, &event);
    checked_event *made = status == ZERO_OK ? race_allocate(sizeof *made) : NULL;
    if (made != NULL) {
        made->inner = event;
    }
    *out = (zi_event *)made;
    return status;
}

static void event_destroy(void *self, zi_event *event)
{
    const zi_device *inner = inner_of(self);
    if (event != NULL) {
        inner->ops->event_destroy(inner->self, event_of(event)->inner);
        for (checked_record *r = event_of(event)->last; r != NULL;) {
            checked_record *next = r->next;
            free(r->clock.seen);
            free(r);
            r = next;
        }
        free(event);
    }
}

/* The last record, unless it is forgotten. */
static checked_record *record_of(const checked_state *device, zi_event *event)
{
    checked_record *record = event_of(event)->last;
    return record != NULL && record->epoch == device->epoch ? record : NULL;
}

static zero_status event_record(void *self, zi_event *event, zi_stream *stream)
{
    const zi_device *inner = inner_of(self);
    checked_record *record = race_allocate(sizeof *record);
    record->next = event_of(event)->last;
    record->epoch = ((const checked_state *)self)->epoch;
    event_of(event)->last = record;
    checked_put(inner, stream_of(stream),
                &(checked_turn){.what = "event_record", .record = record});
    return inner->ops->event_record(inner->self, event_of(event)->inner, stream_of(stream)->inner);
}

static zero_status stream_wait(void *self, zi_stream *stream, zi_event *event, uint64_t *waited_ns)
{
    const zi_device *inner = inner_of(self);
    const checked_turn turn = {.what = "stream_wait", .awaited = record_of(self, event)};
    const zero_status status = inner->ops->stream_wait(inner->self, stream_of(stream)->inner,
                                                       event_of(event)->inner, waited_ns);
    if (turn.awaited != NULL) {
        checked_put(inner, stream_of(stream), &turn);
    }
    return status;
}

static zero_status event_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    const zi_device *inner = inner_of(self);
    const checked_record *record = record_of(self, event);
    const zero_status status =
        inner->ops->event_wait(inner->self, event_of(event)->inner, waited_ns);
    if (record != NULL) {
        checked_follow(checked_lock(), record->timeline, &record->clock);
        checked_unlock();
    }
    return status;
}

/* Says nothing of what has run. */
static zero_status issue_wait(void *self, zi_event *event, uint64_t *waited_ns)
{
    const zi_device *inner = inner_of(self);
    return inner->ops->issue_wait(inner->self, event_of(event)->inner, waited_ns);
}

/* ---- tasks, fills and copies ---- */

static zero_status task(void *self, zi_stream *stream, zi_task_fn fn, const void *argument,
                        size_t bytes)
{
    const zi_device *inner = inner_of(self);
    return checked_task(inner, inner->ops->task, stream_of(stream), fn, argument, bytes);
}

static zero_status task_always(void *self, zi_stream *stream, zi_task_fn fn, const void *argument,
                               size_t bytes)
{
    const zi_device *inner = inner_of(self);
    return checked_task(inner, inner->ops->task_always, stream_of(stream), fn, argument, bytes);
}

static zero_status fill(void *self, zi_stream *stream, void *target, int byte, size_t bytes)
{
    const zi_device *inner = inner_of(self);
    const race_range range = {target, bytes, true};
    checked_put(inner, stream_of(stream), &(checked_turn){"fill", &range, 1, NULL, NULL});
    return inner->ops->fill(inner->self, stream_of(stream)->inner, target, byte, bytes);
}

static zero_status copy(void *self, zi_stream *stream, void *target, const void *source,
                        size_t bytes)
{
    const zi_device *inner = inner_of(self);
    const race_range ranges[] = {{source, bytes, false}, {target, bytes, true}};
    checked_put(inner, stream_of(stream), &(checked_turn){"copy", ranges, 2, NULL, NULL});
    return inner->ops->copy(inner->self, stream_of(stream)->inner, target, source, bytes);
}

static zero_status drain(void *self, zi_stream *stream)
{
    const zi_device *inner = inner_of(self);
    return inner->ops->drain(inner->self, stream_of(stream)->inner);
}

/* ---- fences ---- */

static zero_status fence_create(void *self, zi_fence **out)
{
    const zi_device *inner = inner_of(self);
    zi_fence *fence = NULL;
    const zero_status status = inner->ops->fence_create(inner->self, &fence);
    checked_fence *made = status == ZERO_OK ? race_allocate(sizeof *made) : NULL;
    if (made != NULL) {
        made->inner = fence;
    }
    *out = (zi_fence *)made;
    return status;
}

static void fence_destroy(void *self, zi_fence *fence)
{
    const zi_device *inner = inner_of(self);
    checked_fence *mine = (checked_fence *)fence;
    if (mine != NULL) {
        inner->ops->fence_destroy(inner->self, mine->inner);
        free(mine->clock.seen);
        free(mine);
    }
}

static zero_status fence_mark(void *self, zi_fence *fence, zi_stream *stream)
{
    const zi_device *inner = inner_of(self);
    checked_fence *mine = (checked_fence *)fence;
    (void)checked_lock();
    race_line *line = checked_line(stream_of(stream));
    (void)race_line_next(line, "fence_mark");
    mine->timeline = line->timeline;
    race_clock_copy(&mine->clock, &line->clock);
    checked_unlock();
    return inner->ops->fence_mark(inner->self, mine->inner, stream_of(stream)->inner);
}

static zero_status fence_follow(void *self, zi_stream *stream, const zi_fence *fence)
{
    const zi_device *inner = inner_of(self);
    const checked_fence *theirs = (const checked_fence *)fence;
    (void)checked_lock();
    checked_follow(checked_line(stream_of(stream)), theirs->timeline, &theirs->clock);
    checked_unlock();
    return inner->ops->fence_follow(inner->self, stream_of(stream)->inner, theirs->inner);
}

/* ---- the rest ---- */

/* A time is no access, and orders nothing. */
static zero_status timestamp(void *self, zi_stream *stream, uint64_t *ns)
{
    const zi_device *inner = inner_of(self);
    return inner->ops->timestamp(inner->self, stream_of(stream)->inner, ns);
}

static zero_status timestamps_flush(void *self)
{
    const zi_device *inner = inner_of(self);
    return inner->ops->timestamps_flush(inner->self);
}

static zero_status captured(void *self, zi_stream *stream, bool *out)
{
    const zi_device *inner = inner_of(self);
    return inner->ops->captured(inner->self, stream_of(stream)->inner, out);
}

static void forget(void *self)
{
    checked_state *device = self;
    device->epoch++;
    device->inner.ops->forget(device->inner.self);
}

static void destroy(void *self)
{
    checked_state *device = self;
    if (device == NULL) {
        return;
    }
    while (device->wrapped != NULL) {
        checked_stream *stream = device->wrapped;
        device->wrapped = stream->next;
        checked_stream_close(stream);
    }
    if (!device->borrowed) {
        zi_device_destroy(&device->inner);
    }
    free(device);
}

static const zi_device_ops checked_ops = {
    .struct_bytes = sizeof(zi_device_ops),
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .host_map = host_map,
    .host_unmap = host_unmap,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_wrap = stream_wrap,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .stream_wait = stream_wait,
    .event_wait = event_wait,
    .issue_wait = issue_wait,
    .task = task,
    .task_always = task_always,
    .fill = fill,
    .copy = copy,
    .drain = drain,
    .fence_create = fence_create,
    .fence_destroy = fence_destroy,
    .fence_mark = fence_mark,
    .fence_follow = fence_follow,
    .timestamp = timestamp,
    .timestamps_flush = timestamps_flush,
    .captured = captured,
    .forget = forget,
    .destroy = destroy,
};

static checked_state *wrap(const zi_device *inner, zi_device *checked)
{
    checked_state *device = race_allocate(sizeof *device);
    device->inner = *inner;
    device->ops = checked_ops;
    device->ops.name = inner->ops->name;
    device->ops.host_memory = inner->ops->host_memory;
    device->ops.stream_text = inner->ops->stream_text;
    device->ops.capture_text = inner->ops->capture_text;
    *checked = (zi_device){.ops = &device->ops, .self = device};
    return device;
}

void checked_device(zi_device *device, bool own_memory)
{
    checked_state *state = wrap(device, device);
    state->ops.host_memory = state->ops.host_memory && !own_memory;
}

void checked_device_borrow(const zi_device *device, zi_device *checked)
{
    wrap(device, checked)->borrowed = true;
}

const zi_device *checked_device_inner(const zi_device *checked)
{
    return &((checked_state *)checked->self)->inner;
}
