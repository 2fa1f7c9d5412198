/* Owns the fake's streams: what is enqueued, in which order it runs, and what the host knows.
 * Invariant: an operation waits only for operations enqueued before it, so something can always
 * run; and every clock that is joined belongs to what is done, or awaited in the stream. */
#include "fake_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/clock.h"

#define STREAM_MAGIC UINT32_C(0x57e4a3d1)
#define EVENT_MAGIC UINT32_C(0xe7e2b90c)

struct fake_operation {
    fake_operation *next;
    const char *name;
    fake_cuda_kind kind;
    uint64_t number; /* in its stream */
    uint64_t order;  /* in all streams */
    cudaStream_t awaited;
    uint64_t awaited_number;
    const fake_cuda_latch *latch; /* or this, unless... */
    const bool *given_up;         /* ...that is set */
    void (*run)(void *payload);
    void *payload;
    fake_cuda_range *ranges;
    size_t range_count;
    cudaEvent_t recorded; /* NULL: it is no record */
    bool watched;         /* the host memory it reads has this hash until it runs */
    uint64_t hash;
};

/* Adaptive: who holds it does so briefly, and ranks that are threads ask for it all the time. */
fake_state fake = {.mutex = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP,
                   .moved = PTHREAD_COND_INITIALIZER,
                   .random = 1,
                   .guards = true,
                   .devices = 1,
                   .host_node = -1};
_Thread_local int fake_device;
_Thread_local bool fake_in_host_function;
_Thread_local const race_clock *fake_task_clock;

void fake_give_up(const char *what)
{
    (void)fprintf(stderr, "fake CUDA: %s\n", what);
    abort();
}

/* ---- handles ---- */

cudaStream_t fake_stream_add(int device, bool blocking, bool legacy)
{
    cudaStream_t stream = race_allocate(sizeof *stream);
    char name[32];
    (void)snprintf(name, sizeof name, "stream 0 of device %d", device);
    stream->magic = STREAM_MAGIC;
    race_line_open(&stream->line, name);
    stream->done = stream->line.number;
    if (!legacy) {
        (void)snprintf(name, sizeof name, "stream %u", stream->line.timeline);
        race_line_rename(&stream->line, name);
    }
    stream->device = device;
    stream->blocking = blocking;
    stream->legacy = legacy;
    stream->alive = true;
    stream->connection = fake.connections == 0 ? 0 : fake.connected[device]++ % fake.connections;
    stream->next = fake.streams;
    fake.streams = stream;
    return stream;
}

void fake_stream_retire(cudaStream_t stream)
{
    cudaStream_t *link = &fake.streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    stream->next_retired = fake.retired;
    fake.retired = stream;
    race_line_close(&stream->line);
    for (int kind = 0; kind < FAKE_CUDA_KINDS; kind++) {
        fake.retired_operations[kind] += stream->operations[kind];
    }
}

cudaError_t fake_stream_find(cudaStream_t handle, cudaStream_t *out)
{
    if (handle == NULL || handle == cudaStreamLegacy) {
        cudaStream_t *legacy = &fake.legacy[fake_device];
        if (*legacy == NULL) {
            *legacy = fake_stream_add(fake_device, true, true);
        }
        *out = *legacy;
        return cudaSuccess;
    }
    if (handle == cudaStreamPerThread || handle->magic != STREAM_MAGIC || !handle->alive) {
        race_fault(RACE_MISUSE, "a handle that is no stream, or that of one destroyed");
        return cudaErrorInvalidResourceHandle;
    }
    *out = handle;
    return cudaSuccess;
}

cudaError_t fake_event_find(cudaEvent_t handle, cudaEvent_t *out)
{
    if (handle == NULL || handle->magic != EVENT_MAGIC || !handle->alive) {
        race_fault(RACE_MISUSE, "a handle that is no event, or that of one destroyed");
        return cudaErrorInvalidResourceHandle;
    }
    *out = handle;
    return cudaSuccess;
}

cudaError_t fake_enter_stream(const char *call, cudaStream_t handle, cudaStream_t *out)
{
    const cudaError_t code = fake_enter(call);
    return code == cudaSuccess ? fake_stream_find(handle, out) : code;
}

cudaError_t fake_enter_event(const char *call, cudaEvent_t handle, cudaEvent_t *out)
{
    const cudaError_t code = fake_enter(call);
    return code == cudaSuccess ? fake_event_find(handle, out) : code;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    const cudaError_t code = fake_enter("cudaEventCreateWithFlags");
    if (code == cudaSuccess) {
        cudaEvent_t made = race_allocate(sizeof *made);
        made->magic = EVENT_MAGIC;
        made->device = fake_device;
        made->alive = true;
        made->timed = (flags & cudaEventDisableTiming) == 0;
        made->next = fake.events;
        fake.events = made;
        *event = made;
    }
    return fake_leave(code);
}

/* ---- enqueueing ---- */

const race_clock *fake_host_clock(void)
{
    race_clock *clock = &fake.effective;
    race_clock_copy(clock, fake_task_clock != NULL ? fake_task_clock : &fake.host.clock);
    race_clock_join(clock, &fake.known_in_task);
    return clock;
}

static race_clock *known(void)
{
    return fake_task_clock != NULL ? &fake.known_in_task : &fake.host.clock;
}

void fake_host_learn(const race_clock *clock)
{
    race_clock_join(known(), clock);
}

race_access fake_host_access(const char *what)
{
    const race_access access = {what, fake.host.timeline, ++fake.host.number};
    race_clock_set(known(), access.timeline, access.number);
    return access;
}

static fake_operation *append(cudaStream_t stream, const char *name, fake_cuda_kind kind)
{
    fake_operation *operation = race_allocate(sizeof *operation);
    operation->name = name;
    operation->kind = kind;
    race_clock_join(&stream->line.clock, fake_host_clock());
    operation->number = race_line_next(&stream->line, name).number;
    operation->order = ++fake.enqueued;
    if (stream->last == NULL) {
        stream->first = operation;
    } else {
        stream->last->next = operation;
    }
    stream->last = operation;
    return operation;
}

static void append_wait(cudaStream_t stream, cudaStream_t awaited, uint64_t number,
                        const race_clock *clock)
{
    fake_operation *operation = append(stream, "cudaStreamWaitEvent", FAKE_CUDA_WAIT);
    operation->awaited = awaited;
    operation->awaited_number = number;
    race_clock_join(&stream->line.clock, clock);
}

void fake_stream_order(cudaStream_t stream)
{
    for (cudaStream_t other = fake.streams; stream->blocking && other != NULL;
         other = other->next) {
        const bool concerned = other != stream && other->blocking &&
                               other->device == stream->device && (other->legacy || stream->legacy);
        if (concerned && !race_line_settled(&other->line, &stream->line.clock)) {
            append_wait(stream, other, other->line.number, &other->line.clock);
        }
    }
}

/* A copy may go from or to pageable memory; nothing else may leave the regions. */
static cudaError_t check_reach(cudaStream_t stream, const fake_cuda_work *work)
{
    for (size_t i = 0; i < work->range_count; i++) {
        const fake_cuda_range *range = &work->ranges[i];
        if (range->bytes == 0) {
            continue;
        }
        const race_region *region = race_region_of(range->pointer);
        const bool pageable = region == NULL && work->kind == FAKE_CUDA_COPY;
        if (!pageable && race_region_of_range(range->pointer, range->bytes) == NULL) {
            race_fault(RACE_MISUSE, "%s: %zu bytes at %p %s", work->name, range->bytes,
                       range->pointer,
                       region == NULL ? "are not memory that a device reaches"
                                      : "reach beyond their allocation");
            return cudaErrorInvalidValue;
        }
        if (work->kind == FAKE_CUDA_KERNEL && region->by_copy) {
            race_fault(RACE_MISUSE, "%s reaches for host memory that is not mapped", work->name);
            return cudaErrorInvalidValue;
        }
        if (work->kind == FAKE_CUDA_KERNEL && region->device != RACE_HOST &&
            region->device != stream->device && !fake.peers[stream->device][region->device]) {
            race_fault(RACE_MISUSE, "%s on device %d reaches for memory of device %d", work->name,
                       stream->device, region->device);
            return cudaErrorInvalidValue;
        }
    }
    return cudaSuccess;
}

/* FNV-1a, but by words, and what is high in a product comes down again. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t count)
{
    for (size_t b = 0; b < count; b += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + b, count - b < sizeof word ? count - b : sizeof word);
        hash = (hash ^ word) * UINT64_C(0x100000001b3);
        hash ^= hash >> 32;
    }
    return hash;
}

/* Over the host memory that the operation reads. */
static uint64_t hash_host_reads(const fake_operation *operation)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < operation->range_count; i++) {
        const fake_cuda_range *range = &operation->ranges[i];
        const race_region *region = race_region_of(range->pointer);
        if (range->write || region == NULL || region->device != RACE_HOST) {
            continue;
        }
        hash = hash_bytes(hash, range->pointer, range->bytes);
    }
    return hash;
}

/* Host memory can be watched when nothing is pending that may still write it. */
static void watch_host_reads(fake_operation *operation)
{
    bool found = false;
    for (size_t i = 0; i < operation->range_count; i++) {
        const fake_cuda_range *range = &operation->ranges[i];
        const race_region *region = range->bytes == 0 ? NULL : race_region_of(range->pointer);
        if (range->write || region == NULL || region->device != RACE_HOST) {
            continue;
        }
        race_access pending;
        if (!race_region_settled(region, range, fake_host_clock(), false, &pending)) {
            return;
        }
        found = true;
    }
    operation->watched = found;
    operation->hash = found ? hash_host_reads(operation) : 0;
}

void fake_work_copy(const fake_cuda_work *work, void **payload, fake_cuda_range **ranges)
{
    *payload = race_allocate(work->payload_bytes + 1);
    if (work->payload_bytes > 0) {
        memcpy(*payload, work->payload, work->payload_bytes);
    }
    *ranges = race_allocate((work->range_count + 1) * sizeof work->ranges[0]);
    for (size_t i = 0; i < work->range_count; i++) {
        (*ranges)[i] = work->ranges[i];
    }
}

cudaError_t fake_stream_put(cudaStream_t stream, const fake_cuda_work *work)
{
    bool captured = false;
    cudaError_t code = check_reach(stream, work);
    if (code == cudaSuccess) {
        code = fake_capture_put(stream, work, &captured);
    }
    if (code != cudaSuccess || captured) {
        return code;
    }
    fake_stream_order(stream);
    fake_operation *operation = append(stream, work->name, work->kind);
    stream->operations[work->kind]++;
    operation->run = work->run;
    fake_work_copy(work, &operation->payload, &operation->ranges);
    operation->range_count = work->range_count;
    watch_host_reads(operation);
    const race_access who = {work->name, stream->line.timeline, operation->number};
    race_note(&stream->line.clock, who, operation->ranges, operation->range_count);
    return cudaSuccess;
}

void fake_stream_record(cudaStream_t stream, cudaEvent_t event)
{
    fake_stream_order(stream);
    fake_operation *operation = append(stream, "cudaEventRecord", FAKE_CUDA_RECORD);
    stream->operations[FAKE_CUDA_RECORD]++;
    operation->recorded = event;
    event->stream = stream;
    event->number = operation->number;
    /* Not a join: the record before this one may belong to another stream. */
    race_clock_copy(&event->clock, &stream->line.clock);
}

void fake_stream_await(cudaStream_t stream, cudaEvent_t event)
{
    fake_stream_order(stream);
    stream->operations[FAKE_CUDA_WAIT]++;
    if (event->stream != NULL) {
        append_wait(stream, event->stream, event->number, &event->clock);
    }
}

void fake_stream_follow(cudaStream_t stream, cudaStream_t other, uint64_t number,
                        const race_clock *clock)
{
    append_wait(stream, other, number, clock);
}

/* ---- latches ---- */

cudaError_t fake_cuda_latch_come(cudaStream_t stream, fake_cuda_latch *latch)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream("fake_cuda_latch_come", stream, &found);
    if (code == cudaSuccess) {
        latch->streams[latch->count] = found;
        latch->numbers[latch->count++] = found->line.number;
        (void)pthread_cond_broadcast(&fake.moved);
    }
    return fake_leave(code);
}

cudaError_t fake_cuda_latch_wait(cudaStream_t stream, const fake_cuda_latch *latch,
                                 const bool *given_up)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream("fake_cuda_latch_wait", stream, &found);
    if (code == cudaSuccess) {
        fake_operation *operation = append(found, "a latch", FAKE_CUDA_WAIT);
        operation->latch = latch;
        operation->given_up = given_up;
    }
    return fake_leave(code);
}

void fake_cuda_latch_give_up(const fake_cuda_latch *latch, bool *given_up)
{
    fake_lock();
    if (!fake_cuda_latch_full(latch)) {
        *given_up = true;
        (void)pthread_cond_broadcast(&fake.moved);
    }
    fake_unlock();
}

bool fake_cuda_latch_full(const fake_cuda_latch *latch)
{
    return latch->count == latch->expected;
}

/* The first stream that has come and has not run so far, or NULL. */
static cudaStream_t behind(const fake_cuda_latch *latch)
{
    for (uint32_t i = 0; i < latch->count; i++) {
        if (latch->streams[i]->done < latch->numbers[i]) {
            return latch->streams[i];
        }
    }
    return NULL;
}

/* ---- running ---- */

static uint64_t draw(uint64_t bound)
{
    fake.random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = fake.random;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (x ^ (x >> 31)) % bound;
}

/* The pages of a range of guarded memory: false when it is none. */
static bool pages_of(const fake_cuda_range *range, unsigned char **first, size_t *bytes)
{
    const race_region *region = range->bytes == 0 ? NULL : race_region_of(range->pointer);
    if (region == NULL || !region->guarded) {
        return false;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t offset = (size_t)((uintptr_t)range->pointer - (uintptr_t)region->base);
    const size_t begin = offset / page * page;
    const size_t end = (offset + range->bytes + page - 1) / page * page;
    *first = region->base + begin;
    *bytes = end - begin;
    return true;
}

static void protect(const fake_cuda_range *range, int protection)
{
    unsigned char *first = NULL;
    size_t bytes = 0;
    if (pages_of(range, &first, &bytes) && mprotect(first, bytes, protection) != 0) {
        fake_give_up("mprotect failed");
    }
}

static bool is_inside(const fake_cuda_range *range, const fake_cuda_range *other)
{
    const uintptr_t begin = (uintptr_t)range->pointer;
    const uintptr_t other_begin = (uintptr_t)other->pointer;
    return begin >= other_begin && begin + range->bytes <= other_begin + other->bytes;
}

/* True if a range needs no opening of its own, as another one does it: what is read and written
 * stands among them twice. Of two that are the same the first counts. */
static bool is_opened_by_another(const fake_cuda_range *ranges, size_t range_count, size_t i)
{
    for (size_t j = 0; j < range_count; j++) {
        const bool first = ranges[j].write != ranges[i].write
                               ? ranges[j].write
                               : j < i || !is_inside(&ranges[j], &ranges[i]);
        if (j != i && first && is_inside(&ranges[i], &ranges[j])) {
            return true;
        }
    }
    return false;
}

void fake_open_ranges(const fake_cuda_range *ranges, size_t range_count)
{
    /* Reads first, so that a page that is also written stays writable. */
    for (int write = 0; write < 2; write++) {
        for (size_t i = 0; i < range_count; i++) {
            if (ranges[i].write == (write != 0) && !is_opened_by_another(ranges, range_count, i)) {
                protect(&ranges[i], write != 0 ? PROT_READ | PROT_WRITE : PROT_READ);
            }
        }
    }
}

void fake_close_ranges(const fake_cuda_range *ranges, size_t range_count)
{
    for (size_t i = 0; i < range_count; i++) {
        if (!is_opened_by_another(ranges, range_count, i)) {
            protect(&ranges[i], PROT_NONE);
        }
    }
}

static void release(fake_operation *operation)
{
    free(operation->payload);
    free(operation->ranges);
    free(operation);
}

/* The device's end: nothing that is pending will run. */
static void drop_everything(void)
{
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        while (stream->first != NULL) {
            fake_operation *operation = stream->first;
            stream->first = operation->next;
            release(operation);
        }
        stream->last = NULL;
        stream->done = stream->line.number;
    }
}

static void run_work(cudaStream_t stream, const fake_operation *operation)
{
    if (operation->watched && hash_host_reads(operation) != operation->hash) {
        race_fault(RACE_CHANGED,
                   "host memory that %s reads was written by the host before the operation ran",
                   race_access_text(
                       (race_access){operation->name, stream->line.timeline, operation->number}));
    }
    fake.ran++;
    if (fake.ran == fake.fail_at) {
        fake.sticky = cudaErrorIllegalAddress;
        return;
    }
    fake_open_ranges(operation->ranges, operation->range_count);
    operation->run(operation->payload);
    fake_close_ranges(operation->ranges, operation->range_count);
}

static void run_host_function(cudaStream_t stream, const fake_operation *operation)
{
    stream->running = true;
    fake.host_running++;
    fake_unlock();
    fake_in_host_function = true;
    operation->run(operation->payload);
    fake_in_host_function = false;
    fake_lock();
    fake.host_running--;
    stream->running = false;
    (void)pthread_cond_broadcast(&fake.moved);
}

static bool blocked(const fake_operation *operation)
{
    if (operation->latch != NULL) {
        return !*operation->given_up &&
               (!fake_cuda_latch_full(operation->latch) || behind(operation->latch) != NULL);
    }
    return operation->kind == FAKE_CUDA_WAIT &&
           operation->awaited->done < operation->awaited_number;
}

/* Of the streams that share the connection, the one whose operation is next there; NULL: it is this
 * one's. */
static cudaStream_t holder(cudaStream_t stream)
{
    cudaStream_t found = stream;
    for (cudaStream_t other = fake.connections == 0 ? NULL : fake.streams; other != NULL;
         other = other->next) {
        const bool shares =
            other->device == stream->device && other->connection == stream->connection;
        if (shares && other->first != NULL && other->first->order < found->first->order) {
            found = other;
        }
    }
    return found != stream ? found : NULL;
}

static bool runnable(cudaStream_t stream)
{
    return stream->first != NULL && !stream->running && !blocked(stream->first) &&
           holder(stream) == NULL;
}

/* Any stream whose first operation can run, or NULL. */
static cudaStream_t any_runnable(void)
{
    uint64_t count = 0;
    cudaStream_t chosen = NULL;
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        if (runnable(stream) && draw(++count) == 0) {
            chosen = stream;
        }
    }
    return chosen;
}

/* The stream that the stream's first operation waits for: itself where it can run; NULL where
 * another thread must come to a latch. */
static cudaStream_t waits_for(cudaStream_t stream)
{
    if (stream->first == NULL || stream->running) {
        return stream;
    }
    cudaStream_t held = holder(stream);
    if (held != NULL || !blocked(stream->first)) {
        return held != NULL ? held : stream;
    }
    return stream->first->latch != NULL ? behind(stream->first->latch) : stream->first->awaited;
}

/* The stream whose first operation has to run next for this one to move on. NULL while a function
 * of the host must return first, or another thread come to a latch: *elsewhere says so. It does
 * too where connections are held in a circle, until whoever waits for a rank gives up. */
static cudaStream_t needed(cudaStream_t stream, bool *elsewhere)
{
    enum { FAR = 10000 }; /* more than a chain of streams has, so a circle */
    *elsewhere = false;
    for (int i = 0; i < FAR; i++) {
        cudaStream_t next = waits_for(stream);
        if (next == stream) {
            return runnable(stream) ? stream : NULL;
        }
        if (next == NULL) {
            break;
        }
        stream = next;
    }
    *elsewhere = true;
    return NULL;
}

/* The event may have been recorded again since. */
static void note_time(cudaStream_t stream, const fake_operation *operation)
{
    cudaEvent_t event = operation->recorded;
    if (event != NULL && event->stream == stream && event->number == operation->number) {
        event->ns = zi_clock_ns();
    }
}

static void run_head(cudaStream_t stream)
{
    fake_operation *operation = stream->first;
    stream->first = operation->next;
    if (stream->first == NULL) {
        stream->last = NULL;
    }
    if (operation->kind == FAKE_CUDA_HOST_FN) {
        run_host_function(stream, operation);
    } else if (operation->run != NULL) {
        run_work(stream, operation);
    }
    note_time(stream, operation);
    if (stream->done < operation->number) {
        stream->done = operation->number;
    }
    release(operation);
    if (fake.sticky != cudaSuccess) {
        drop_everything();
    }
}

void fake_run_toward(cudaStream_t stream, uint64_t number)
{
    bool elsewhere = false;
    cudaStream_t next = stream->done < number ? needed(stream, &elsewhere) : NULL;
    if (next != NULL) {
        run_head(next);
    }
}

/* patient: wait for threads that have yet to come to a latch; else stop there. */
static void run_until(cudaStream_t stream, uint64_t number, bool patient)
{
    while (stream->done < number) {
        bool elsewhere = false;
        cudaStream_t next = needed(stream, &elsewhere);
        next = fake.mode == FAKE_CUDA_LAZY ? next : any_runnable();
        if (next != NULL) {
            run_head(next);
        } else if (elsewhere && !patient) {
            return;
        } else if (fake.host_running > 0 || elsewhere) {
            (void)pthread_cond_wait(&fake.moved, &fake.mutex);
        } else {
            fake_give_up("somebody waits for what nobody has enqueued");
        }
    }
}

void fake_run_until(cudaStream_t stream, uint64_t number)
{
    run_until(stream, number, true);
}

void fake_run_device(int device)
{
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        if (stream->device == device) {
            run_until(stream, stream->line.number, false);
        }
    }
}

void fake_host_wait_device(int device)
{
    for (cudaStream_t stream = fake.streams; stream != NULL; stream = stream->next) {
        if (stream->device == device) {
            race_clock known = {0};
            const uint64_t number = stream->line.number;
            race_clock_join(&known, &stream->line.clock);
            run_until(stream, number, false);
            if (stream->done >= number) {
                fake_host_learn(&known);
            }
            free(known.seen);
        }
    }
}

void fake_host_wait(cudaStream_t stream, uint64_t number, const race_clock *clock)
{
    /* A copy: other threads may go on while a function of the host runs. */
    race_clock known = {0};
    race_clock_join(&known, clock);
    fake_run_until(stream, number);
    fake_host_learn(&known);
    free(known.seen);
}

void fake_run_by_mode(void)
{
    const uint64_t most = fake.mode == FAKE_CUDA_EAGER    ? UINT64_MAX
                          : fake.mode == FAKE_CUDA_RANDOM ? draw(4)
                                                          : 0;
    for (uint64_t i = 0; i < most && fake.sticky == cudaSuccess; i++) {
        cudaStream_t stream = any_runnable();
        if (stream == NULL) {
            break;
        }
        run_head(stream);
    }
}
