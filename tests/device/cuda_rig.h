/* A CUDA device over the fake CUDA runtime, with what its tests need: every case runs on a direct
 * and on a queued device, in every mode of the fake, for many seeds. */
#ifndef TESTS_DEVICE_CUDA_RIG_H
#define TESTS_DEVICE_CUDA_RIG_H

#include "harness.h"

#include "core/error.h"
#include "core/memory.h"
#include "device/cuda/cuda_device.h"
#include "fake_cuda.h"

#define SEEDS 8
#define BYTES ZI_PAGE_BYTES
#define OPS r->device.ops
#define SELF r->device.self

/* A device with two streams, two events and two pieces of memory. */
typedef struct rig {
    zi_device device;
    bool queued;
    zi_stream *a;
    zi_stream *b;
    zi_event *event;
    zi_event *after; /* of stream b, for whoever waits for its end */
    unsigned char *x;
    unsigned char *y;
} rig;

static inline unsigned char *alloc(const rig *r)
{
    void *memory = NULL;
    CHECK_OK(OPS->memory_alloc(SELF, BYTES, &memory));
    return memory;
}

static inline rig open_rig(bool queued)
{
    rig room = {.queued = queued};
    rig *r = &room;
    CHECK_OK(zi_cuda_device_create(&r->device));
    if (queued) {
        zi_device_issue_on_threads(&r->device);
    }
    CHECK_OK(OPS->stream_create(SELF, "a", &r->a));
    CHECK_OK(OPS->stream_create(SELF, "b", &r->b));
    CHECK_OK(OPS->event_create(SELF, &r->event));
    CHECK_OK(OPS->event_create(SELF, &r->after));
    r->x = alloc(r);
    r->y = alloc(r);
    fake_cuda_name_stream(zi_cuda_stream_native(r->a), "a");
    fake_cuda_name_stream(zi_cuda_stream_native(r->b), "b");
    return room;
}

static inline void give_back(const rig *r)
{
    OPS->stream_destroy(SELF, r->a);
    OPS->stream_destroy(SELF, r->b);
    OPS->event_destroy(SELF, r->event);
    OPS->event_destroy(SELF, r->after);
    OPS->memory_free(SELF, r->x, BYTES);
    OPS->memory_free(SELF, r->y, BYTES);
    OPS->destroy(SELF);
}

static inline void close_rig(const rig *r)
{
    give_back(r);
    CHECK_EQ(fake_cuda_live(), 0);
}

/* Runs `body` on both kinds of device, in every mode, for many seeds. */
static inline void on_both(void (*body)(rig *r))
{
    for (int kind = 0; kind < 2 * FAKE_CUDA_MODES; kind++) {
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            fake_cuda_start((fake_cuda_mode)(kind / 2), test_seed * SEEDS + seed);
            rig r = open_rig(kind % 2 == 1);
            body(&r);
            close_rig(&r);
            CHECK(fake_cuda_check());
        }
    }
}

static inline void fill(const rig *r, zi_stream *stream, unsigned char *target, int byte)
{
    CHECK_OK(OPS->fill(SELF, stream, target, byte, BYTES));
}

static inline void copy(const rig *r, zi_stream *stream, void *target, const void *source)
{
    CHECK_OK(OPS->copy(SELF, stream, target, source, BYTES));
}

/* Blocks until all that was put on the stream has run. */
static inline void finish(const rig *r, zi_stream *stream)
{
    CHECK_OK(OPS->event_record(SELF, r->after, stream));
    CHECK_OK(OPS->event_wait(SELF, r->after, NULL));
}

/* Every byte of a piece of device memory; nothing may be pending on it. */
static inline void check_byte(const unsigned char *memory, unsigned char byte)
{
    unsigned char seen[BYTES];
    unsigned char expected[BYTES];
    memset(expected, byte, BYTES);
    fake_cuda_peek(seen, memory, BYTES);
    CHECK_BYTES(seen, expected, BYTES);
}

static inline zero_status set_flag(void *argument)
{
    bool *const *flag = argument;
    **flag = true;
    return ZERO_OK;
}

static inline zero_status fail(void *argument)
{
    const int *value = argument;
    ZI_FAIL(ZERO_ERR_COMM, "task %d failed", *value);
}

#endif
