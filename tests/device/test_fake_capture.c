/* device: the CUDA runtime's double keeps CUDA's rules for captures, and launches run what was
 * captured, in the graph's order. */
#include "harness.h"

#include <string.h>

#include "fake_cuda.h"

#define BYTES 256

static cudaStream_t open_stream(void)
{
    cudaStream_t stream = NULL;
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static cudaEvent_t open_event(void)
{
    cudaEvent_t event = NULL;
    CHECK_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
}

static unsigned char *open_memory(void)
{
    void *memory = NULL;
    CHECK_EQ(cudaMalloc(&memory, BYTES), cudaSuccess);
    return memory;
}

static void add_one(void *payload)
{
    unsigned char *const *target = payload;
    for (int i = 0; i < BYTES; i++) {
        (*target)[i]++;
    }
}

static cudaError_t launch_add(cudaStream_t stream, unsigned char *target)
{
    const fake_cuda_range ranges[] = {{target, BYTES, false}, {target, BYTES, true}};
    const fake_cuda_work work = {
        "add", FAKE_CUDA_KERNEL, add_one, &target, sizeof(unsigned char *), ranges, 2};
    return fake_cuda_enqueue(stream, &work);
}

static void begin(cudaStream_t stream)
{
    CHECK_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
}

static void set_zero(cudaStream_t stream, unsigned char *target)
{
    CHECK_EQ(cudaMemsetAsync(target, 0, BYTES, stream), cudaSuccess);
}

/* `to` goes on after `from`. */
static cudaError_t pass(cudaStream_t from, cudaStream_t to, cudaEvent_t event)
{
    const cudaError_t code = cudaEventRecord(event, from);
    return code != cudaSuccess ? code : cudaStreamWaitEvent(to, event, 0);
}

/* add on a, a copy of what it gave on b, add on a; unless `ordered`, the last add does not wait for
 * the copy. */
static cudaGraphExec_t make_graph(cudaStream_t a, unsigned char *first, unsigned char *second,
                                  bool ordered)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t graph_exec = NULL;
    const cudaStream_t b = open_stream();
    const cudaEvent_t event = open_event();
    begin(a);
    CHECK_EQ(launch_add(a, first), cudaSuccess);
    CHECK_EQ(pass(a, b, event), cudaSuccess);
    CHECK_EQ(cudaMemcpyAsync(second, first, BYTES, cudaMemcpyDefault, b), cudaSuccess);
    if (ordered) {
        CHECK_EQ(pass(b, a, event), cudaSuccess);
    }
    CHECK_EQ(launch_add(a, first), cudaSuccess);
    CHECK_EQ(pass(b, a, event), cudaSuccess);
    CHECK_EQ(cudaStreamEndCapture(a, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&graph_exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return graph_exec;
}

TEST(launches_run_what_was_captured)
{
    for (int mode = 0; mode < FAKE_CUDA_MODES; mode++) {
        fake_cuda_start((fake_cuda_mode)mode, 1);
        unsigned char seen[BYTES];
        unsigned char *first = open_memory();
        unsigned char *second = open_memory();
        const cudaStream_t a = open_stream();
        const cudaGraphExec_t graph_exec = make_graph(a, first, second, true);
        set_zero(a, first);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(cudaGraphLaunch(graph_exec, a), cudaSuccess);
        }
        CHECK_EQ(launch_add(a, second), cudaSuccess);
        CHECK_EQ(cudaStreamSynchronize(a), cudaSuccess);
        fake_cuda_peek(seen, first, BYTES);
        CHECK_EQ(seen[0], 6);
        fake_cuda_peek(seen, second, BYTES);
        CHECK_EQ(seen[BYTES - 1], 6); /* 5 before the last add, and one */
        CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
        CHECK(fake_cuda_check());
    }
}

TEST(races_inside_a_graph_and_beside_it)
{
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    unsigned char *first = open_memory();
    unsigned char *second = open_memory();
    const cudaStream_t a = open_stream();
    const cudaGraphExec_t racy = make_graph(a, first, second, false);
    set_zero(a, first);
    CHECK_EQ(fake_cuda_races(), 0);
    CHECK_EQ(cudaGraphLaunch(racy, a), cudaSuccess);
    CHECK(fake_cuda_races() > 0);
    const cudaGraphExec_t right = make_graph(a, first, second, true);
    const uint64_t before = fake_cuda_races();
    CHECK_EQ(cudaGraphLaunch(right, a), cudaSuccess);
    CHECK_EQ(fake_cuda_races(), before);
    CHECK_EQ(launch_add(open_stream(), first), cudaSuccess);
    CHECK(fake_cuda_races() > before);
}

TEST(a_capture_stands_alone)
{
    cudaGraph_t graph = NULL;
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    unsigned char *memory = open_memory();
    const cudaStream_t a = open_stream();
    const cudaStream_t b = open_stream();
    const cudaEvent_t event = open_event();
    CHECK_EQ(cudaEventRecord(event, b), cudaSuccess);
    begin(a);
    CHECK_EQ(cudaStreamWaitEvent(a, event, 0), cudaErrorStreamCaptureIsolation);
    CHECK_EQ(launch_add(a, memory), cudaErrorStreamCaptureInvalidated);
    CHECK_EQ(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(graph == NULL);
    begin(a);
    CHECK_EQ(cudaEventRecord(event, a), cudaSuccess);
    CHECK_EQ(cudaStreamEndCapture(a, &graph), cudaSuccess);
    CHECK_EQ(cudaStreamWaitEvent(b, event, 0), cudaErrorCapturedEvent);
    CHECK_EQ(cudaEventRecord(event, b), cudaSuccess);
    CHECK_EQ(cudaStreamWaitEvent(a, event, 0), cudaSuccess);
    CHECK_EQ(fake_cuda_faults(), 2);
}

/* Let a host call something in a capture, and check what it is told. */
static void ask(cudaError_t (*call)(cudaStream_t stream, cudaEvent_t event), cudaError_t expected)
{
    cudaGraph_t graph = NULL;
    const cudaStream_t a = open_stream();
    const cudaEvent_t event = open_event();
    begin(a);
    CHECK_EQ(cudaEventRecord(event, a), cudaSuccess);
    CHECK_EQ(call(a, event), expected);
    CHECK_EQ(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureInvalidated);
}

static cudaError_t synchronize(cudaStream_t stream, cudaEvent_t event)
{
    (void)event;
    return cudaStreamSynchronize(stream);
}

static cudaError_t query(cudaStream_t stream, cudaEvent_t event)
{
    (void)event;
    return cudaStreamQuery(stream);
}

static cudaError_t synchronize_event(cudaStream_t stream, cudaEvent_t event)
{
    (void)stream;
    return cudaEventSynchronize(event);
}

static cudaError_t query_event(cudaStream_t stream, cudaEvent_t event)
{
    (void)stream;
    return cudaEventQuery(event);
}

static cudaError_t allocate(cudaStream_t stream, cudaEvent_t event)
{
    void *memory = NULL;
    (void)stream;
    (void)event;
    return cudaMalloc(&memory, BYTES);
}

TEST(nobody_asks_inside_a_capture)
{
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    ask(synchronize, cudaErrorStreamCaptureUnsupported);
    ask(query, cudaErrorStreamCaptureUnsupported);
    ask(synchronize_event, cudaErrorCapturedEvent);
    ask(query_event, cudaErrorCapturedEvent);
    ask(allocate, cudaErrorStreamCaptureUnsupported);
    CHECK_EQ(fake_cuda_faults(), 5);
}

TEST(streams_must_be_joined)
{
    cudaGraph_t graph = NULL;
    enum cudaStreamCaptureStatus status;
    fake_cuda_start(FAKE_CUDA_LAZY, 1);
    unsigned char *memory = open_memory();
    const cudaStream_t a = open_stream();
    const cudaStream_t b = open_stream();
    const cudaEvent_t event = open_event();
    CHECK_EQ(cudaStreamBeginCapture(0, cudaStreamCaptureModeThreadLocal),
             cudaErrorStreamCaptureUnsupported);
    CHECK_EQ(cudaStreamEndCapture(a, &graph), cudaErrorIllegalState);
    begin(a);
    CHECK_EQ(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
    CHECK_EQ(pass(a, b, event), cudaSuccess);
    CHECK_EQ(cudaStreamIsCapturing(b, &status), cudaSuccess);
    CHECK_EQ(status, cudaStreamCaptureStatusActive);
    CHECK_EQ(launch_add(b, memory), cudaSuccess);
    CHECK_EQ(cudaStreamEndCapture(a, &graph), cudaErrorStreamCaptureUnjoined);
    CHECK_EQ(cudaStreamIsCapturing(b, &status), cudaSuccess);
    CHECK_EQ(status, cudaStreamCaptureStatusNone);
    begin(a);
    CHECK_EQ(pass(a, b, event), cudaSuccess);
    CHECK_EQ(cudaStreamEndCapture(b, &graph), cudaErrorStreamCaptureUnmatched);
}

static cudaError_t add_at_launch(cudaStream_t stream, void *user)
{
    return launch_add(stream, user);
}

/* Work that a library enqueues when a graph is launched stands where it was captured. */
TEST(a_library_enqueues_at_each_launch)
{
    cudaGraph_t graph = NULL;
    cudaGraph_t held = NULL;
    cudaGraphExec_t graph_exec = NULL;
    fake_cuda_start(FAKE_CUDA_RANDOM, test_seed);
    unsigned char *memory = open_memory();
    unsigned char seen = 0;
    const cudaStream_t a = open_stream();
    set_zero(a, memory);
    CHECK_EQ(fake_cuda_at_launch(a, add_at_launch, memory, &held), cudaErrorIllegalState);
    begin(a);
    CHECK_EQ(launch_add(a, memory), cudaSuccess);
    CHECK_EQ(fake_cuda_at_launch(a, add_at_launch, memory, &held), cudaSuccess);
    CHECK(fake_cuda_graph_lives(held));
    CHECK_EQ(launch_add(a, memory), cudaSuccess);
    CHECK_EQ(cudaStreamEndCapture(a, &graph), cudaSuccess);
    CHECK_EQ(cudaGraphInstantiate(&graph_exec, graph, 0), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(graph_exec, a), cudaSuccess);
    CHECK_EQ(cudaGraphLaunch(graph_exec, a), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(a), cudaSuccess);
    fake_cuda_peek(&seen, memory, 1);
    CHECK_EQ(seen, 6);
    CHECK_EQ(held, graph);
    CHECK_EQ(cudaGraphDestroy(graph), cudaSuccess);
    CHECK(fake_cuda_graph_lives(held));
    CHECK_EQ(cudaGraphExecDestroy(graph_exec), cudaSuccess);
    CHECK(!fake_cuda_graph_lives(held));
    CHECK(fake_cuda_check());
}
