/* device: the fake of the CUDA runtime itself. It must report what is wrong, whatever the order in
 * which things run, and be silent about what is right. */
#include "harness.h"

#include <pthread.h>

#include "fake_cuda.h"

#define SEEDS 40
#define BYTES 4096
#define CUDA_OK(call) CHECK_EQ((call), cudaSuccess)

static cudaStream_t open_stream(void)
{
    cudaStream_t stream = NULL;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t open_event(void)
{
    cudaEvent_t event = NULL;
    CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static unsigned char *open_memory(size_t bytes)
{
    void *memory = NULL;
    CUDA_OK(cudaMalloc(&memory, bytes));
    return memory;
}

/* Two streams, an event and device memory, set on stream a and known to be. */
typedef struct scene {
    cudaStream_t a;
    cudaStream_t b;
    cudaEvent_t event;
    unsigned char *x;
    unsigned char *y;
} scene;

static scene open_scene(void)
{
    const scene s = {open_stream(), open_stream(), open_event(), open_memory(BYTES),
                     open_memory(BYTES)};
    CUDA_OK(cudaMemsetAsync(s.x, 1, BYTES, s.a));
    CUDA_OK(cudaMemsetAsync(s.y, 2, BYTES, s.a));
    CUDA_OK(cudaStreamSynchronize(s.a));
    return s;
}

static void close_scene(const scene *s)
{
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaEventDestroy(s->event));
    CUDA_OK(cudaStreamDestroy(s->a));
    CUDA_OK(cudaStreamDestroy(s->b));
    CUDA_OK(cudaFree(s->x));
    CUDA_OK(cudaFree(s->y));
    CHECK_EQ(fake_cuda_live(), 0);
    CHECK_EQ(fake_cuda_pending(), 0);
}

static void put_fill(unsigned char *target, int byte, cudaStream_t stream)
{
    CUDA_OK(cudaMemsetAsync(target, byte, BYTES, stream));
}

static void put_copy(unsigned char *target, const unsigned char *source, cudaStream_t stream)
{
    CUDA_OK(cudaMemcpyAsync(target, source, BYTES, cudaMemcpyDeviceToDevice, stream));
}

/* Stream b goes on after all that is on stream a. */
static void put_order(const scene *s)
{
    CUDA_OK(cudaEventRecord(s->event, s->a));
    CUDA_OK(cudaStreamWaitEvent(s->b, s->event, 0));
}

/* Runs `body` under every mode and many seeds; each time so many races, of which the first says
 * `text`. */
static void expect(void (*body)(const scene *s), uint64_t races, const char *text)
{
    for (int mode = 0; mode < FAKE_CUDA_MODES; mode++) {
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            fake_cuda_start((fake_cuda_mode)mode, test_seed * SEEDS + seed);
            const scene s = open_scene();
            body(&s);
            close_scene(&s);
            if (fake_cuda_races() != races || fake_cuda_faults() != races) {
                (void)fake_cuda_check();
            }
            CHECK_EQ(fake_cuda_races(), races);
            CHECK_EQ(fake_cuda_faults(), races);
            CHECK(strstr(fake_cuda_fault_text(0), text) != NULL);
        }
    }
}

static void write_then_read(const scene *s)
{
    put_fill(s->x, 3, s->a);
    put_copy(s->y, s->x, s->b);
}

static void write_then_write(const scene *s)
{
    put_fill(s->x, 3, s->a);
    put_fill(s->x, 4, s->b);
}

static void read_then_write(const scene *s)
{
    put_copy(s->y, s->x, s->a);
    put_fill(s->x, 4, s->b);
}

TEST(a_missing_wait_is_a_race_in_every_order)
{
    expect(write_then_read, 1, "reads bytes [0, 4096)");
    expect(write_then_write, 1, "cudaMemsetAsync #1 of stream");
    expect(read_then_write, 1, "which cudaMemcpyAsync #3 of stream");
}

static void write_order_read(const scene *s)
{
    put_fill(s->x, 3, s->a);
    put_order(s);
    put_copy(s->y, s->x, s->b);
    CUDA_OK(cudaStreamSynchronize(s->b));
    unsigned char seen[BYTES];
    fake_cuda_peek(seen, s->y, BYTES);
    CHECK_EQ(seen[0], 3);
    CHECK_EQ(seen[BYTES - 1], 3);
}

static void write_order_write(const scene *s)
{
    put_fill(s->x, 3, s->a);
    put_order(s);
    put_fill(s->x, 4, s->b);
}

static void read_order_write(const scene *s)
{
    put_copy(s->y, s->x, s->a);
    put_order(s);
    put_fill(s->x, 4, s->b);
}

/* Two reads need no order; nor do halves that do not meet. */
static void reads_and_halves(const scene *s)
{
    unsigned char *half = open_memory(BYTES);
    CUDA_OK(cudaMemcpyAsync(half, s->x, BYTES / 2, cudaMemcpyDefault, s->a));
    CUDA_OK(cudaMemcpyAsync(half + BYTES / 2, s->x, BYTES / 2, cudaMemcpyDefault, s->b));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaFree(half));
}

/* Work that the host has waited for is before all that is enqueued then. */
static void order_by_the_host(const scene *s)
{
    put_fill(s->x, 3, s->a);
    CUDA_OK(cudaEventRecord(s->event, s->a));
    CUDA_OK(cudaEventSynchronize(s->event));
    put_copy(s->y, s->x, s->b);
}

static void order_by_polling(const scene *s)
{
    put_fill(s->x, 3, s->a);
    CUDA_OK(cudaEventRecord(s->event, s->a));
    while (cudaEventQuery(s->event) == cudaErrorNotReady) {
        CHECK_EQ(cudaGetLastError(), cudaErrorNotReady);
    }
    put_copy(s->y, s->x, s->b);
    while (cudaStreamQuery(s->b) == cudaErrorNotReady) {
    }
}

TEST(an_order_is_no_race_in_every_order)
{
    expect(write_order_read, 0, "");
    expect(write_order_write, 0, "");
    expect(read_order_write, 0, "");
    expect(reads_and_halves, 0, "");
    expect(order_by_the_host, 0, "");
    expect(order_by_polling, 0, "");
}

/* The wait holds for the record before it, not for one after it. */
static void record_again(const scene *s)
{
    put_fill(s->x, 3, s->a);
    put_order(s);
    put_fill(s->y, 4, s->a);
    CUDA_OK(cudaEventRecord(s->event, s->a));
    CUDA_OK(cudaMemcpyAsync(s->x, s->y, BYTES, cudaMemcpyDefault, s->b));
}

static void wait_before_any_record(const scene *s)
{
    CUDA_OK(cudaStreamWaitEvent(s->b, s->event, 0));
    put_fill(s->x, 3, s->a);
    CUDA_OK(cudaEventRecord(s->event, s->a));
    put_copy(s->y, s->x, s->b);
}

/* A record of an event on another stream says nothing of the stream it was on before. */
static void record_elsewhere(const scene *s)
{
    put_fill(s->x, 3, s->a);
    CUDA_OK(cudaEventRecord(s->event, s->a));
    CUDA_OK(cudaEventRecord(s->event, s->b));
    const cudaStream_t c = open_stream();
    CUDA_OK(cudaStreamWaitEvent(c, s->event, 0));
    put_copy(s->y, s->x, c);
    CUDA_OK(cudaStreamSynchronize(c));
    CUDA_OK(cudaStreamDestroy(c));
}

/* The set of device memory may return before it is done, and own streams do not wait for it. */
static void set_without_waiting(const scene *s)
{
    CUDA_OK(cudaMemset(s->x, 5, BYTES));
    put_copy(s->y, s->x, s->b);
}

TEST(waits_hold_for_the_record_before_them)
{
    expect(record_again, 1, "of stream");
    expect(wait_before_any_record, 1, "of stream");
    expect(record_elsewhere, 1, "of stream");
    expect(set_without_waiting, 1, "cudaMemset #");
}

/* Stream 0 and blocking streams are in order, both ways. */
static void legacy_order(const scene *s)
{
    cudaStream_t blocking = NULL;
    CUDA_OK(cudaStreamCreateWithPriority(&blocking, cudaStreamDefault, 0));
    put_fill(s->x, 3, blocking);
    CUDA_OK(cudaMemsetAsync(s->x, 4, BYTES, NULL));
    put_copy(s->y, s->x, blocking);
    CUDA_OK(cudaStreamSynchronize(NULL));
    unsigned char seen[BYTES];
    fake_cuda_peek(seen, s->x, BYTES);
    CHECK_EQ(seen[7], 4);
    CUDA_OK(cudaStreamSynchronize(blocking));
    CUDA_OK(cudaStreamDestroy(blocking));
}

TEST(the_legacy_stream_is_in_order_with_blocking_streams)
{
    expect(legacy_order, 0, "");
}

TEST(memory_never_set_is_told)
{
    const cudaStream_t stream = open_stream();
    unsigned char *x = open_memory(BYTES);
    unsigned char *y = open_memory(BYTES);
    CUDA_OK(cudaMemsetAsync(x, 0, BYTES - 1, stream));
    CUDA_OK(cudaMemcpyAsync(y, x, BYTES - 1, cudaMemcpyDefault, stream));
    CHECK_EQ(fake_cuda_faults(), 0);
    put_copy(y, x, stream);
    CHECK_EQ(fake_cuda_faults(), 1);
    CHECK_EQ(fake_cuda_races(), 0);
    CHECK(strstr(fake_cuda_fault_text(0), "unset: cudaMemcpyAsync #3") != NULL);
}

/* True when the child did not end well. */
static bool dies(void (*body)(void *argument), void *argument)
{
    fflush(NULL);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(freopen("/dev/null", "w", stderr) != NULL);
        body(argument);
        _exit(0);
    }
    int state = 0;
    while (waitpid(child, &state, 0) < 0 && errno == EINTR) {
    }
    return !WIFEXITED(state) || WEXITSTATUS(state) != 0;
}

static void touch(void *argument)
{
    volatile unsigned char *byte = argument;
    *byte = 1;
}

static void touch_in_payload(void *payload)
{
    unsigned char *const *byte = payload;
    touch(*byte);
}

/* A kernel that writes argument[BYTES], and says that it writes only what is before. */
static void overreach(void *argument)
{
    unsigned char *base = argument;
    unsigned char *byte = base + BYTES;
    const fake_cuda_range range = {base, BYTES, true};
    const fake_cuda_work work = {
        "overreach", FAKE_CUDA_KERNEL, touch_in_payload, &byte, sizeof byte, &range, 1};
    CUDA_OK(fake_cuda_enqueue(NULL, &work));
    fake_cuda_drain();
}

static void write_what_it_reads(void *argument)
{
    unsigned char *base = argument;
    const fake_cuda_range range = {base, BYTES, false};
    const fake_cuda_work work = {
        "reader", FAKE_CUDA_KERNEL, touch_in_payload, &base, sizeof base, &range, 1};
    CUDA_OK(fake_cuda_enqueue(NULL, &work));
    fake_cuda_drain();
}

static void within_reach(void *argument)
{
    unsigned char *base = argument;
    const fake_cuda_range range = {base, BYTES, true};
    const fake_cuda_work work = {
        "writer", FAKE_CUDA_KERNEL, touch_in_payload, &base, sizeof base, &range, 1};
    CUDA_OK(fake_cuda_enqueue(NULL, &work));
    fake_cuda_drain();
}

TEST(device_memory_is_out_of_reach_but_for_what_was_declared)
{
    unsigned char *memory = open_memory((size_t)4 * BYTES);
    CUDA_OK(cudaMemset(memory, 0, (size_t)4 * BYTES));
    CUDA_OK(cudaDeviceSynchronize());
    CHECK(dies(touch, memory));
    CHECK(dies(overreach, memory));
    CHECK(dies(write_what_it_reads, memory));
    CHECK(!dies(within_reach, memory));
    within_reach(memory);
    CHECK(dies(touch, memory)); /* out of reach again */
    const unsigned char given[3] = {7, 8, 9};
    unsigned char seen[3] = {0};
    CUDA_OK(cudaDeviceSynchronize());
    fake_cuda_poke(memory + 5, given, sizeof given);
    fake_cuda_peek(seen, memory + 5, sizeof seen);
    CHECK_BYTES(seen, given, sizeof given);
    CHECK(dies(touch, memory));
    CHECK(fake_cuda_check());
}

TEST(a_kernel_reaches_only_memory_of_its_device)
{
    unsigned char plain[16];
    fake_cuda_devices(2);
    unsigned char *memory = open_memory(BYTES);
    CHECK_EQ(cudaMemsetAsync(plain, 0, sizeof plain, NULL), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemsetAsync(memory + 1, 0, BYTES, NULL), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    const cudaStream_t first = open_stream();
    CUDA_OK(cudaSetDevice(1));
    const cudaEvent_t event = open_event();
    const fake_cuda_range range = {memory, BYTES, true};
    const fake_cuda_work work = {"writer", FAKE_CUDA_KERNEL, touch, memory, 1, &range, 1};
    CHECK_EQ(fake_cuda_enqueue(NULL, &work), cudaErrorInvalidValue);
    CHECK_EQ(fake_cuda_enqueue(first, &work), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaEventRecord(event, first), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
    CHECK_EQ(fake_cuda_faults(), 3);
    CHECK(strstr(fake_cuda_fault_text(0), "not memory that a device reaches") != NULL);
    CHECK(strstr(fake_cuda_fault_text(1), "beyond") != NULL);
    CHECK(strstr(fake_cuda_fault_text(2), "memory of device 0") != NULL);
}

TEST(pinned_memory_is_watched)
{
    const scene s = open_scene();
    static unsigned char pinned[BYTES];
    struct cudaPointerAttributes about;
    CUDA_OK(cudaPointerGetAttributes(&about, pinned));
    CHECK_EQ(about.type, cudaMemoryTypeUnregistered);
    CUDA_OK(cudaHostRegister(pinned, BYTES, cudaHostRegisterPortable));
    CUDA_OK(cudaPointerGetAttributes(&about, pinned + 9));
    CHECK_EQ(about.type, cudaMemoryTypeHost);
    CUDA_OK(cudaPointerGetAttributes(&about, s.x + 9));
    CHECK_EQ(about.type, cudaMemoryTypeDevice);
    /* Down, and read without waiting. */
    CUDA_OK(cudaMemcpyAsync(pinned, s.x, BYTES, cudaMemcpyDeviceToHost, s.a));
    fake_cuda_host_read(pinned + 5, 1);
    CHECK_EQ(fake_cuda_races(), 1);
    CHECK(strstr(fake_cuda_fault_text(0), "bytes [5, 6) of host range") != NULL);
    CUDA_OK(cudaStreamSynchronize(s.a));
    CHECK_EQ(pinned[5], 1);
    fake_cuda_host_read(pinned, BYTES);
    CHECK_EQ(fake_cuda_faults(), 1);
    /* Up, and overwritten before it went. */
    CUDA_OK(cudaMemcpyAsync(s.x, pinned, BYTES, cudaMemcpyHostToDevice, s.a));
    fake_cuda_host_write(pinned, 1);
    CHECK_EQ(fake_cuda_races(), 2);
    pinned[0] = 77;
    CUDA_OK(cudaStreamSynchronize(s.a));
    CHECK_EQ(fake_cuda_faults(), 3);
    CHECK(strstr(fake_cuda_fault_text(2), "changed: host memory that cudaMemcpyAsync") != NULL);
    CUDA_OK(cudaHostUnregister(pinned));
    close_scene(&s);
}

TEST(pageable_memory_is_staged_or_waited_for)
{
    fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
    const scene s = open_scene();
    unsigned char pageable[BYTES];
    memset(pageable, 9, BYTES);
    CUDA_OK(cudaMemcpyAsync(s.x, pageable, BYTES, cudaMemcpyDefault, s.a));
    memset(pageable, 8, BYTES); /* it was read */
    CHECK_EQ(fake_cuda_pending(), 1);
    CUDA_OK(cudaMemcpyAsync(pageable, s.x, BYTES, cudaMemcpyDefault, s.a));
    CHECK_EQ(pageable[100], 9);
    CHECK_EQ(fake_cuda_pending(), 0);
    CHECK_EQ(cudaMemcpyAsync(pageable, s.x, BYTES, cudaMemcpyHostToDevice, s.a),
             cudaErrorInvalidValue);
    CUDA_OK(cudaMemcpy(s.y, pageable, BYTES, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(pageable, s.y, BYTES, cudaMemcpyDeviceToHost));
    close_scene(&s);
    CHECK(fake_cuda_check());
}

TEST(what_is_pending_may_not_be_destroyed)
{
    const scene s = open_scene();
    put_fill(s.x, 3, s.a);
    CUDA_OK(cudaEventRecord(s.event, s.a));
    CUDA_OK(cudaFree(s.x));
    CUDA_OK(cudaEventDestroy(s.event));
    CUDA_OK(cudaStreamDestroy(s.a));
    CHECK_EQ(fake_cuda_faults(), 2); /* an event may go: CUDA gives it back later */
    CHECK(strstr(fake_cuda_fault_text(0), "misuse: cudaFree of allocation") != NULL);
    CHECK(strstr(fake_cuda_fault_text(1), "misuse: cudaStreamDestroy of stream") != NULL);
    CHECK_EQ(cudaStreamSynchronize(s.a), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaEventRecord(s.event, s.b), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaFree(s.y + 1), cudaErrorInvalidValue);
    CHECK_EQ(fake_cuda_faults(), 5);
}

TEST(modes_run_as_late_or_as_early_as_they_say)
{
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    const scene lazy = open_scene();
    put_fill(lazy.x, 3, lazy.a);
    put_fill(lazy.y, 3, lazy.b);
    CUDA_OK(cudaStreamSynchronize(lazy.b));
    CHECK_EQ(fake_cuda_pending(), 1);
    put_order(&lazy);
    CUDA_OK(cudaStreamSynchronize(lazy.b)); /* needs all of stream a */
    CHECK_EQ(fake_cuda_pending(), 0);
    fake_cuda_start(FAKE_CUDA_EAGER, 1);
    put_fill(lazy.x, 4, lazy.a);
    CHECK_EQ(fake_cuda_pending(), 0);
    fake_cuda_start(FAKE_CUDA_AT_SYNC, 1);
    put_fill(lazy.x, 4, lazy.a);
    put_fill(lazy.y, 4, lazy.b);
    CHECK_EQ(fake_cuda_pending(), 2);
    fake_cuda_drain();
    CHECK_EQ(fake_cuda_pending(), 0);
    close_scene(&lazy);
    CHECK(fake_cuda_check());
}

TEST(calls_are_counted_and_can_fail)
{
    fake_cuda_start(FAKE_CUDA_AT_SYNC, 1);
    const scene s = open_scene();
    const uint64_t syncs = fake_cuda_syncs();
    CHECK_EQ(syncs, 3); /* two allocations and one wait */
    put_fill(s.x, 1, s.a);
    put_order(&s);
    put_copy(s.y, s.x, s.b);
    CHECK_EQ(fake_cuda_syncs(), syncs);
    CHECK_EQ(fake_cuda_operations(FAKE_CUDA_FILL), 3);
    CHECK_EQ(fake_cuda_stream_operations(s.b, FAKE_CUDA_COPY), 1);
    CHECK_EQ(fake_cuda_stream_operations(s.a, FAKE_CUDA_COPY), 0);
    CHECK_EQ(fake_cuda_stream_operations(s.b, FAKE_CUDA_WAIT), 1);
    CHECK_EQ(fake_cuda_calls("cudaMalloc"), 2);
    fake_cuda_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    unsigned char *more = open_memory(1);
    void *none = &none;
    CHECK_EQ(cudaMalloc(&none, 1), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    CUDA_OK(cudaGetLastError());
    CHECK(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    CHECK(strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0);
    CUDA_OK(cudaFree(more));
    CUDA_OK(cudaDeviceSynchronize());
    close_scene(&s);
    CHECK(fake_cuda_check());
}

TEST(a_fault_while_running_ends_the_device)
{
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    const scene s = open_scene();
    fake_cuda_fail_operation(2);
    put_fill(s.x, 1, s.a);
    put_fill(s.x, 2, s.a);
    put_fill(s.x, 3, s.a);
    put_order(&s);
    CHECK_EQ(cudaStreamSynchronize(s.b), cudaErrorIllegalAddress);
    CHECK_EQ(fake_cuda_pending(), 0);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress); /* it stays */
    CHECK_EQ(cudaMemsetAsync(s.x, 1, 1, s.a), cudaErrorIllegalAddress);
    CHECK_EQ(cudaFree(s.x), cudaErrorIllegalAddress);
    CHECK_EQ(cudaFree(s.y), cudaErrorIllegalAddress);
    CHECK_EQ(cudaStreamDestroy(s.a), cudaErrorIllegalAddress);
    CHECK_EQ(cudaStreamDestroy(s.b), cudaErrorIllegalAddress);
    CHECK_EQ(cudaEventDestroy(s.event), cudaErrorIllegalAddress);
    CHECK_EQ(fake_cuda_live(), 0);
    CHECK(fake_cuda_check());
}

static void CUDART_CB note_and_call(void *user)
{
    cudaError_t *code = user;
    *code = cudaGetDevice(&(int){0});
}

TEST(functions_of_the_host_run_in_their_turn)
{
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    const scene s = open_scene();
    cudaError_t code = cudaSuccess;
    CUDA_OK(cudaLaunchHostFunc(s.a, note_and_call, &code));
    put_order(&s);
    CHECK_EQ(code, cudaSuccess);
    CUDA_OK(cudaStreamSynchronize(s.b));
    CHECK_EQ(code, cudaErrorNotPermitted);
    CHECK_EQ(fake_cuda_faults(), 1);
    CHECK(strstr(fake_cuda_fault_text(0), "cudaGetDevice is called from a function") != NULL);
    close_scene(&s);
}

/* ---- latches ---- */

/* Two streams meet: what each has put before is done when either goes on. */
TEST(streams_meet_at_a_latch)
{
    for (int mode = 0; mode < FAKE_CUDA_MODES; mode++) {
        fake_cuda_start((fake_cuda_mode)mode, test_seed);
        const scene s = open_scene();
        fake_cuda_latch latch = {.expected = 2};
        bool given_up = false;
        put_fill(s.x, 3, s.a);
        CUDA_OK(fake_cuda_latch_come(s.a, &latch));
        CUDA_OK(fake_cuda_latch_wait(s.a, &latch, &given_up));
        put_fill(s.x, 4, s.a);
        CHECK_EQ(cudaStreamQuery(s.a), cudaErrorNotReady); /* b has not come */
        unsigned char seen = 0;
        put_fill(s.y, 5, s.b);
        CUDA_OK(fake_cuda_latch_come(s.b, &latch));
        CHECK(fake_cuda_latch_full(&latch));
        CUDA_OK(cudaStreamSynchronize(s.a));
        CHECK_EQ(fake_cuda_pending(), 0);
        fake_cuda_peek(&seen, s.x, 1);
        CHECK_EQ(seen, 4);
        fake_cuda_latch_give_up(&latch, &given_up);
        CHECK(!given_up);
        close_scene(&s);
        CHECK(fake_cuda_check());
    }
}

/* Nobody else comes. */
TEST(a_latch_can_be_given_up)
{
    fake_cuda_start(FAKE_CUDA_LAZY, test_seed);
    const scene s = open_scene();
    fake_cuda_latch latch = {.expected = 2};
    bool given_up = false;
    CUDA_OK(fake_cuda_latch_come(s.a, &latch));
    CUDA_OK(fake_cuda_latch_wait(s.a, &latch, &given_up));
    put_fill(s.x, 4, s.a);
    CHECK_EQ(cudaStreamQuery(s.a), cudaErrorNotReady);
    fake_cuda_latch_give_up(&latch, &given_up);
    CHECK(given_up);
    CUDA_OK(cudaStreamSynchronize(s.a));
    close_scene(&s);
    CHECK(fake_cuda_check());
}

/* A rank: its own streams and memory, in a thread of its own. */
static void *run_rank(void *argument)
{
    (void)argument;
    const cudaStream_t a = open_stream();
    const cudaStream_t b = open_stream();
    const cudaEvent_t event = open_event();
    unsigned char *x = open_memory(BYTES);
    for (int round = 0; round < 100; round++) {
        CUDA_OK(cudaMemsetAsync(x, round, BYTES, a));
        CUDA_OK(cudaEventRecord(event, a));
        CUDA_OK(cudaStreamWaitEvent(b, event, 0));
        CUDA_OK(cudaMemsetAsync(x, round + 1, BYTES, b));
        CUDA_OK(cudaEventRecord(event, b));
        CUDA_OK(cudaStreamWaitEvent(a, event, 0));
    }
    CUDA_OK(cudaStreamSynchronize(a));
    unsigned char seen = 0;
    fake_cuda_peek(&seen, x, 1);
    CHECK_EQ(seen, 100);
    CUDA_OK(cudaStreamSynchronize(b));
    CUDA_OK(cudaStreamDestroy(a));
    CUDA_OK(cudaStreamDestroy(b));
    CUDA_OK(cudaEventDestroy(event));
    CUDA_OK(cudaFree(x));
    return NULL;
}

TEST(threads_share_it)
{
    for (int mode = 0; mode < FAKE_CUDA_MODES; mode++) {
        fake_cuda_start((fake_cuda_mode)mode, test_seed);
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(pthread_create(&threads[i], NULL, run_rank, NULL), 0);
        }
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
        }
        CHECK_EQ(fake_cuda_live(), 0);
        CHECK(fake_cuda_check());
    }
}
