/* device: order, overlap, events and failure of the CPU's streams. */
#include "harness.h"

#include <stdatomic.h>
#include <time.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

#define OPS device.ops
#define SELF device.self

static void sleep_ms(long ms)
{
    const struct timespec span = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&span, NULL);
}

typedef struct append_argument {
    atomic_uint *log;
    uint32_t digit;
    long ms;
} append_argument;

/* log = log * 10 + digit, after a while. */
static zero_status append(void *argument)
{
    const append_argument *a = argument;
    sleep_ms(a->ms);
    atomic_store(a->log, atomic_load(a->log) * 10 + a->digit);
    return ZERO_OK;
}

static zero_status fail(void *argument)
{
    const int *value = argument;
    ZI_FAIL(ZERO_ERR_COMM, "task %d failed", *value);
}

static zi_device open_device(void)
{
    zi_device device = {0};
    CHECK_OK(zi_cpu_device_create(&device));
    return device;
}

TEST(tasks_run_in_order)
{
    zi_device device = open_device();
    zi_stream *stream = NULL;
    zi_event *event = NULL;
    atomic_uint log = 0;
    CHECK_OK(OPS->stream_create(SELF, "test", &stream));
    CHECK_OK(OPS->event_create(SELF, &event));
    CHECK(zi_cpu_event_done(event)); /* never recorded */
    for (uint32_t digit = 1; digit <= 5; digit++) {
        const append_argument a = {&log, digit, digit == 1 ? 20 : 0};
        CHECK_OK(OPS->task(SELF, stream, append, &a, sizeof a));
    }
    CHECK_OK(OPS->event_record(SELF, event, stream));
    uint64_t waited_ns = 0;
    CHECK_OK(OPS->event_wait(SELF, event, &waited_ns));
    CHECK_EQ(atomic_load(&log), 12345);
    CHECK(waited_ns > 1000000);
    CHECK(zi_cpu_event_done(event));
    OPS->stream_destroy(SELF, stream);
    OPS->event_destroy(SELF, event);
    zi_device_destroy(&device);
}

/* A time is of the stream, also after it has failed; a task asks for its own. */
typedef struct ask_argument {
    const zi_device *device;
    zi_stream *stream;
    uint64_t *ns;
} ask_argument;

static zero_status ask_within(void *argument)
{
    const ask_argument *a = argument;
    ZI_TRY(a->device->ops->timestamp(a->device->self, a->stream, a->ns));
    return *a->ns != 0 ? ZERO_OK : ZERO_ERR_STATE;
}

TEST(times_are_of_the_stream)
{
    zi_device device = open_device();
    zi_stream *stream = NULL;
    zi_stream *host = NULL;
    atomic_uint log = 0;
    uint64_t ns[5] = {0};
    const append_argument slow = {&log, 1, 20};
    CHECK_OK(OPS->stream_create(SELF, "test", &stream));
    CHECK_OK(OPS->stream_wrap(SELF, zero_stream_host(), &host));
    CHECK_OK(OPS->timestamp(SELF, host, &ns[0]));
    CHECK(ns[0] != 0 && ns[0] <= zi_clock_ns());
    CHECK_OK(OPS->timestamp(SELF, stream, &ns[1]));
    CHECK_OK(OPS->task(SELF, stream, append, &slow, sizeof slow));
    CHECK_OK(OPS->timestamp(SELF, stream, &ns[2]));
    CHECK_EQ(zi_timestamp_get(&ns[2]), 0); /* the host did not wait */
    const ask_argument within = {&device, stream, &ns[3]};
    CHECK_OK(OPS->task(SELF, stream, ask_within, &within, sizeof within));
    CHECK_OK(OPS->task(SELF, stream, fail, &(int){7}, sizeof(int)));
    CHECK_OK(OPS->timestamp(SELF, stream, &ns[4]));
    OPS->stream_destroy(SELF, stream);
    CHECK_OK(OPS->timestamps_flush(SELF));
    CHECK(ns[0] <= ns[1] && ns[1] + 20000000 <= ns[2] && ns[2] <= ns[3] && ns[3] <= ns[4]);
    zi_device_destroy(&device);
}

TEST(a_stream_waits_for_another)
{
    zi_device device = open_device();
    zi_stream *first = NULL;
    zi_stream *second = NULL;
    zi_event *event = NULL;
    atomic_uint log = 0;
    CHECK_OK(OPS->stream_create(SELF, "first", &first));
    CHECK_OK(OPS->stream_create(SELF, "second", &second));
    CHECK_OK(OPS->event_create(SELF, &event));
    const append_argument slow = {&log, 1, 30};
    const append_argument quick = {&log, 2, 0};
    CHECK_OK(OPS->task(SELF, first, append, &slow, sizeof slow));
    CHECK_OK(OPS->event_record(SELF, event, first));
    CHECK_OK(OPS->stream_wait(SELF, second, event, NULL));
    CHECK_OK(OPS->task(SELF, second, append, &quick, sizeof quick));
    CHECK_EQ(atomic_load(&log), 0); /* the host did not wait */
    OPS->stream_destroy(SELF, second);
    CHECK_EQ(atomic_load(&log), 12);
    OPS->stream_destroy(SELF, first);
    OPS->event_destroy(SELF, event);
    zi_device_destroy(&device);
}

TEST(streams_overlap)
{
    zi_device device = open_device();
    zi_stream *streams[4] = {NULL};
    atomic_uint log = 0;
    const append_argument slow = {&log, 0, 100};
    const uint64_t start_ns = zi_clock_ns();
    for (int i = 0; i < 4; i++) {
        CHECK_OK(OPS->stream_create(SELF, "overlap", &streams[i]));
        CHECK_OK(OPS->task(SELF, streams[i], append, &slow, sizeof slow));
    }
    for (int i = 0; i < 4; i++) {
        OPS->stream_destroy(SELF, streams[i]);
    }
    CHECK(zi_clock_ns() - start_ns < UINT64_C(300000000)); /* not 4 x 100 ms */
    zi_device_destroy(&device);
}

TEST(queue_longer_than_its_room)
{
    zi_device device = open_device();
    zi_stream *stream = NULL;
    unsigned char bytes[1000];
    CHECK_OK(OPS->stream_create(SELF, "long", &stream));
    for (int i = 0; i < 1000; i++) {
        CHECK_OK(OPS->fill(SELF, stream, bytes + i, i % 251, 1));
    }
    OPS->stream_destroy(SELF, stream);
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(bytes[i], i % 251);
    }
    zi_device_destroy(&device);
}

TEST(failure_travels_with_events)
{
    zi_device device = open_device();
    zi_stream *first = NULL;
    zi_stream *second = NULL;
    zi_event *bad = NULL;
    zi_event *after = NULL;
    atomic_uint log = 0;
    CHECK_OK(OPS->stream_create(SELF, "first", &first));
    CHECK_OK(OPS->stream_create(SELF, "second", &second));
    CHECK_OK(OPS->event_create(SELF, &bad));
    CHECK_OK(OPS->event_create(SELF, &after));
    const append_argument mark = {&log, 1, 0};
    CHECK_OK(OPS->task(SELF, first, fail, &(int){7}, sizeof(int)));
    CHECK_OK(OPS->task(SELF, first, fail, &(int){8}, sizeof(int)));
    CHECK_OK(OPS->task(SELF, first, append, &mark, sizeof mark));
    CHECK_OK(OPS->event_record(SELF, bad, first));
    CHECK_OK(OPS->stream_wait(SELF, second, bad, NULL));
    CHECK_OK(OPS->task(SELF, second, append, &mark, sizeof mark));
    CHECK_OK(OPS->event_record(SELF, after, second));
    CHECK_FAILS(OPS->event_wait(SELF, after, NULL), ZERO_ERR_COMM, "task 7 failed");
    CHECK_EQ(atomic_load(&log), 0); /* nothing ran after the failure */
    zi_stream *host = NULL;
    CHECK_OK(OPS->stream_wrap(SELF, zero_stream_host(), &host));
    CHECK_FAILS(OPS->stream_wait(SELF, host, bad, NULL), ZERO_ERR_COMM, "task 7 failed");
    OPS->stream_destroy(SELF, first);
    OPS->stream_destroy(SELF, second);
    OPS->event_destroy(SELF, bad);
    OPS->event_destroy(SELF, after);
    zi_device_destroy(&device);
}

TEST(the_host_stream_is_the_caller)
{
    zi_device device = open_device();
    zi_stream *host = NULL;
    zi_event *event = NULL;
    atomic_uint log = 0;
    int other = 0;
    CHECK_FAILS(OPS->stream_wrap(SELF, (zero_stream){&other}, &host), ZERO_ERR_INVALID_ARGUMENT,
                "zero_stream_host");
    CHECK_OK(OPS->stream_wrap(SELF, zero_stream_host(), &host));
    CHECK_OK(OPS->event_create(SELF, &event));
    const append_argument a = {&log, 4, 0};
    CHECK_OK(OPS->task(SELF, host, append, &a, sizeof a));
    CHECK_EQ(atomic_load(&log), 4);
    CHECK_OK(OPS->event_record(SELF, event, host));
    CHECK(zi_cpu_event_done(event));
    CHECK_FAILS(OPS->task(SELF, host, fail, &(int){1}, sizeof(int)), ZERO_ERR_COMM, "task 1");
    char target[8] = "";
    CHECK_OK(OPS->copy(SELF, host, target, "abc", 4));
    CHECK(strcmp(target, "abc") == 0);
    OPS->event_destroy(SELF, event);
    zi_device_destroy(&device);
}
