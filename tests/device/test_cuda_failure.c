/* device: what the CUDA device does when something fails, that its host calls never wait unasked,
 * that destroy gives everything back, and more GPUs than one; over the fake CUDA runtime. */
#include "cuda_rig.h"

#include "core/fault.h"
#include "kernels/cuda/launch.h"

/* ---- failure ---- */

static void body_failing_direct(rig *r)
{
    CHECK_FAILS(OPS->task(SELF, r->a, fail, &(int){7}, sizeof(int)), ZERO_ERR_COMM,
                "task 7 failed");
    CHECK_FAILS(OPS->fill(SELF, r->a, r->x + 1, 0, BYTES), ZERO_ERR_DEVICE, "cudaMemsetAsync");
}

static void body_failing_queued(rig *r)
{
    zi_stream *host = NULL;
    bool ran = false;
    bool *flag = &ran;
    CHECK_OK(OPS->stream_wrap(SELF, zero_stream_host(), &host));
    CHECK_OK(OPS->task(SELF, r->a, fail, &(int){7}, sizeof(int)));
    CHECK_OK(OPS->task(SELF, r->a, fail, &(int){8}, sizeof(int)));
    CHECK_OK(OPS->task(SELF, r->a, set_flag, &flag, sizeof flag));
    fill(r, r->a, r->x, 1);
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    fill(r, r->b, r->x, 2);
    CHECK_OK(OPS->event_record(SELF, r->after, r->b));
    CHECK_FAILS(OPS->event_wait(SELF, r->after, NULL), ZERO_ERR_COMM, "task 7 failed");
    CHECK_FAILS(OPS->issue_wait(SELF, r->event, NULL), ZERO_ERR_COMM, "task 7 failed");
    CHECK_FAILS(OPS->stream_wait(SELF, host, r->event, NULL), ZERO_ERR_COMM, "task 7 failed");
    CHECK(!ran);
    CHECK_EQ(fake_cuda_operations(FAKE_CUDA_FILL), 2); /* those that zeroed the memory */
}

static void body_failing(rig *r)
{
    if (r->queued) {
        body_failing_queued(r);
        return;
    }
    body_failing_direct(r);
    CHECK_EQ(fake_cuda_faults(), 1); /* the fill beyond the end */
    fake_cuda_start(FAKE_CUDA_AT_SYNC, 1);
}

TEST(a_task_that_fails_tells_who_waits_or_calls)
{
    on_both(body_failing);
}

static void body_device_end(rig *r)
{
    fake_cuda_fail_operation(1);
    zero_status status = OPS->fill(SELF, r->a, r->x, 1, BYTES);
    if (status == ZERO_OK) { /* it did not run at once */
        status = OPS->event_record(SELF, r->event, r->a);
    }
    if (status == ZERO_OK) {
        status = OPS->event_wait(SELF, r->event, NULL);
    }
    CHECK_FAILS(status, ZERO_ERR_DEVICE, "an illegal memory access was encountered");
    CHECK_FAILS(OPS->memory_alloc(SELF, BYTES, &(void *){NULL}), ZERO_ERR_DEVICE,
                "cudaGetDevice: ");
}

/* In a process of its own: the device does not come back. */
static void end_device(bool queued, fake_cuda_mode mode)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        fake_cuda_start(mode, test_seed);
        rig r = open_rig(queued);
        body_device_end(&r);
        close_rig(&r);
        CHECK(fake_cuda_check());
        _exit(0);
    }
    int state = 0;
    CHECK_EQ(waitpid(child, &state, 0), child);
    CHECK(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

TEST(the_devices_end_is_told_and_destroy_works)
{
    for (int kind = 0; kind < 2 * FAKE_CUDA_MODES; kind++) {
        end_device(kind % 2 == 1, (fake_cuda_mode)(kind / 2));
    }
}

TEST(a_machine_without_a_gpu_is_told)
{
    zi_device device;
    fake_cuda_devices(0);
    CHECK_FAILS(zi_cuda_device_create(&device), ZERO_ERR_DEVICE, "cudaErrorNoDevice");
    CHECK(device.ops == NULL);
    CHECK_EQ(fake_cuda_live(), 0);
}

/* All that an engine makes, until something fails; then all of it is given back. */
static zero_status make_everything(bool queued)
{
    rig room = {.queued = queued};
    rig *r = &room;
    void *memory = NULL;
    void *pinned = NULL;
    zero_status status = zi_cuda_device_create(&r->device);
    if (status == ZERO_OK && queued) {
        zi_device_issue_on_threads(&r->device);
    }
    if (status != ZERO_OK) {
        CHECK(r->device.ops == NULL);
        return status;
    }
    status = OPS->stream_create(SELF, "a", &r->a);
    if (status == ZERO_OK) {
        status = OPS->event_create(SELF, &r->event);
    }
    if (status == ZERO_OK) {
        status = OPS->memory_alloc(SELF, BYTES, &memory);
    }
    if (status == ZERO_OK) {
        status = OPS->host_alloc(SELF, BYTES, &pinned);
    }
    if (status == ZERO_OK) {
        status = OPS->event_record(SELF, r->event, r->a);
    }
    if (status == ZERO_OK) {
        status = OPS->event_wait(SELF, r->event, NULL);
    }
    OPS->stream_destroy(SELF, r->a);
    OPS->event_destroy(SELF, r->event);
    OPS->memory_free(SELF, memory, BYTES);
    OPS->host_free(SELF, pinned, BYTES);
    zi_device_destroy(&r->device);
    return status;
}

static void fail_call(bool queued, const char *name, cudaError_t code, zero_status expected)
{
    char said[64];
    (void)snprintf(said, sizeof said, "%s: ", name);
    for (uint64_t nth = 1;; nth++) {
        fake_cuda_start(FAKE_CUDA_RANDOM, test_seed + nth);
        fake_cuda_fail(name, nth, code);
        const zero_status status = make_everything(queued);
        CHECK_EQ(fake_cuda_live(), 0);
        /* Who could not wait gives back what may be in use. */
        CHECK(strcmp(name, "cudaDeviceSynchronize") == 0 || fake_cuda_check());
        if (status == ZERO_OK) {
            CHECK(nth > 1); /* it is called at all */
            break;
        }
        CHECK_EQ(status, expected);
        CHECK(strstr(zero_last_error()->message, said) != NULL);
        CHECK_EQ(zero_last_error()->native, code);
        CHECK_EQ(cudaGetLastError(), cudaSuccess);
    }
}

TEST(every_call_may_fail)
{
    for (int queued = 0; queued < 2; queued++) {
        fail_call(queued, "cudaGetDeviceCount", cudaErrorInsufficientDriver, ZERO_ERR_DEVICE);
        fail_call(queued, "cudaGetDevice", cudaErrorNoDevice, ZERO_ERR_DEVICE);
        fail_call(queued, "cudaStreamCreateWithFlags", cudaErrorMemoryAllocation,
                  ZERO_ERR_OUT_OF_MEMORY);
        fail_call(queued, "cudaEventCreateWithFlags", cudaErrorMemoryAllocation,
                  ZERO_ERR_OUT_OF_MEMORY);
        fail_call(queued, "cudaMalloc", cudaErrorMemoryAllocation, ZERO_ERR_OUT_OF_MEMORY);
        fail_call(queued, "cudaMemset", cudaErrorInvalidValue, ZERO_ERR_DEVICE);
        fail_call(queued, "cudaDeviceSynchronize", cudaErrorLaunchFailure, ZERO_ERR_DEVICE);
        fail_call(queued, "cudaHostRegister", cudaErrorMemoryAllocation, ZERO_ERR_OUT_OF_MEMORY);
        fail_call(queued, "cudaEventRecord", cudaErrorLaunchFailure, ZERO_ERR_DEVICE);
        fail_call(queued, "cudaEventSynchronize", cudaErrorLaunchFailure, ZERO_ERR_DEVICE);
    }
    fail_call(true, "cudaSetDevice", cudaErrorInvalidDevice, ZERO_ERR_DEVICE);
}

TEST(every_allocation_and_thread_may_fail)
{
    const zi_fault_kind kinds[2] = {ZI_FAULT_ALLOC, ZI_FAULT_THREAD};
    for (int kind = 0; kind < 2; kind++) {
        for (uint64_t nth = 1;; nth++) {
            zi_fault_arm(kinds[kind], nth);
            const zero_status status = make_everything(true);
            zi_fault_arm(kinds[kind], 0);
            CHECK_EQ(fake_cuda_live(), 0);
            CHECK(fake_cuda_check());
            if (status == ZERO_OK) {
                CHECK(nth > 1);
                break;
            }
            CHECK_EQ(status, kind == 0 ? ZERO_ERR_OUT_OF_MEMORY : ZERO_ERR_DEVICE);
        }
    }
}

/* ---- the host does not wait ---- */

static void body_enqueue_only(rig *r)
{
    void *pinned = NULL;
    bool ran = false;
    bool *flag = &ran;
    CHECK_OK(OPS->host_alloc(SELF, BYTES, &pinned));
    const uint64_t syncs = fake_cuda_syncs();
    fill(r, r->a, r->x, 1);
    copy(r, r->a, pinned, r->x);
    copy(r, r->a, r->y, pinned);
    CHECK_OK(OPS->task(SELF, r->a, set_flag, &flag, sizeof flag));
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, r->b, r->event, NULL));
    copy(r, r->b, r->x, r->y);
    CHECK_OK(OPS->event_record(SELF, r->after, r->b));
    CHECK_OK(OPS->issue_wait(SELF, r->after, NULL));
    CHECK(ran);
    CHECK_EQ(fake_cuda_syncs(), syncs);
    finish(r, r->b);
    OPS->host_free(SELF, pinned, BYTES);
}

TEST(putting_work_never_waits_for_the_gpu)
{
    on_both(body_enqueue_only);
}

/* Work is put, and the streams go: they wait for it. */
static void body_destroy_pending(rig *r)
{
    zi_stream *c = NULL;
    zi_event *event = NULL;
    CHECK_OK(OPS->stream_create(SELF, "c", &c));
    CHECK_OK(OPS->event_create(SELF, &event));
    fill(r, r->a, r->x, 1);
    CHECK_OK(OPS->event_record(SELF, event, r->a));
    CHECK_OK(OPS->stream_wait(SELF, c, event, NULL));
    copy(r, c, r->y, r->x);
    OPS->stream_destroy(SELF, c);
    check_byte(r->y, 1); /* all that it needed has run, and the host knows */
    OPS->event_destroy(SELF, event);
    fill(r, r->b, r->y, 2);
    fill(r, r->a, r->x, 2);
}

TEST(destroy_waits_for_what_is_pending)
{
    on_both(body_destroy_pending);
    rig empty = open_rig(true);
    rig *r = &empty;
    OPS->stream_destroy(SELF, NULL);
    OPS->event_destroy(SELF, NULL);
    OPS->fence_destroy(SELF, NULL);
    zi_device_destroy(&(zi_device){0});
    close_rig(r);
}

static void body_drain(rig *r)
{
    fill(r, r->a, r->x, 1);
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->issue_wait(SELF, r->event, NULL));
    CHECK_OK(OPS->drain(SELF, r->a));
    check_byte(r->x, 1);
}

TEST(drain_blocks_until_all_has_run)
{
    on_both(body_drain);
}

/* ---- several GPUs ---- */

typedef struct cast_argument {
    cudaStream_t stream;
    unsigned char *target;
    const unsigned char *source;
} cast_argument;

/* A kernel: refused by CUDA unless the stream's GPU is the thread's. */
static zero_status cast_bytes(void *argument)
{
    const cast_argument *a = argument;
    CHECK_EQ(zi_cuda_load_fold(), cudaSuccess);
    return zi_cuda_check(zi_cuda_launch_cast(a->stream, a->target, ZERO_DTYPE_F32, a->source,
                                             ZERO_DTYPE_F32, BYTES / sizeof(float)),
                         "launch of cast");
}

static void body_second_gpu(rig *r)
{
    struct cudaPointerAttributes about;
    CHECK_EQ(cudaPointerGetAttributes(&about, r->x), cudaSuccess);
    CHECK_EQ(about.device, 1);
    const cast_argument cast = {zi_cuda_stream_native(r->a), r->y, r->x};
    CHECK_OK(OPS->task(SELF, r->a, cast_bytes, &cast, sizeof cast));
    finish(r, r->a);
    CHECK_EQ(fake_cuda_operations(FAKE_CUDA_KERNEL), 1);
}

TEST(a_device_is_the_gpu_that_was_current)
{
    fake_cuda_devices(2);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    on_both(body_second_gpu);
}

typedef struct fence_task {
    rig *r;
    zi_stream *stream;
    zi_fence *fence;
} fence_task;

static zero_status mark(void *argument)
{
    const fence_task *t = argument;
    const rig *r = t->r;
    return OPS->fence_mark(SELF, t->fence, t->stream);
}

static zero_status follow(void *argument)
{
    const fence_task *t = argument;
    const rig *r = t->r;
    return OPS->fence_follow(SELF, t->stream, t->fence);
}

/* A rank fills x and marks; returns when the mark is with the driver. */
static void put_mark(rig *r, zi_fence *fence)
{
    const fence_task marks = {r, r->a, fence};
    fill(r, r->a, r->x, 6);
    CHECK_OK(OPS->task(SELF, r->a, mark, &marks, sizeof marks));
    CHECK_OK(OPS->event_record(SELF, r->event, r->a));
    CHECK_OK(OPS->issue_wait(SELF, r->event, NULL));
}

/* Another rank follows, and reads what the first wrote: by a copy and by a kernel. */
static void put_follow(rig *r, zi_fence *fence, const unsigned char *source)
{
    const fence_task follows = {r, r->a, fence};
    const cast_argument cast = {zi_cuda_stream_native(r->a), r->y, source};
    CHECK_OK(OPS->task(SELF, r->a, follow, &follows, sizeof follows));
    copy(r, r->a, r->x, source);
    CHECK_OK(OPS->task(SELF, r->a, cast_bytes, &cast, sizeof cast));
}

static rig open_on(int gpu, bool queued)
{
    CHECK_EQ(cudaSetDevice(gpu), cudaSuccess);
    return open_rig(queued);
}

static void two_ranks(bool queued)
{
    rig second = open_on(1, queued);
    rig first = open_on(0, queued);
    zi_fence *fence = NULL;
    CHECK_OK(first.device.ops->fence_create(first.device.self, &fence));
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(cudaSetDevice(0), cudaSuccess);
        put_mark(&first, fence);
        CHECK_EQ(cudaSetDevice(1), cudaSuccess);
        put_follow(&second, fence, first.x);
        finish(&second, second.a);
        check_byte(second.x, 6);
        check_byte(second.y, 6);
    }
    finish(&first, first.a);
    first.device.ops->fence_destroy(first.device.self, fence);
    give_back(&first);
    close_rig(&second);
}

TEST(a_fence_orders_the_streams_of_two_ranks)
{
    fake_cuda_devices(2);
    for (int kind = 0; kind < 2 * FAKE_CUDA_MODES; kind++) {
        fake_cuda_start((fake_cuda_mode)(kind / 2), test_seed);
        two_ranks(kind % 2 == 1);
        CHECK(fake_cuda_check());
    }
}

TEST(gpus_that_cannot_read_each_other_are_told)
{
    fake_cuda_devices(2);
    fake_cuda_peers(false);
    const rig second = open_on(1, false);
    const rig first = open_on(0, false);
    zi_fence *fence = NULL;
    CHECK_OK(first.device.ops->fence_create(first.device.self, &fence));
    CHECK_OK(first.device.ops->fence_mark(first.device.self, fence, first.a));
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_FAILS(second.device.ops->fence_follow(second.device.self, second.a, fence),
                ZERO_ERR_UNSUPPORTED, "GPU 1 cannot read the memory of GPU 0");
    finish(&first, first.a);
    first.device.ops->fence_destroy(first.device.self, fence);
    give_back(&first);
    close_rig(&second);
    CHECK(fake_cuda_check());
}
