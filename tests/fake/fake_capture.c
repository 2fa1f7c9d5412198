/* Owns captures and graphs: what was put on captured streams, and putting it anew at each launch.
 * Nothing is given back, as with the fake's other objects. */
#include <stdlib.h>
#include <string.h>

#include "fake_stream.h"

#define GRAPH_MAGIC UINT32_C(0x67a9c0de)
#define BRANCHES_MAX 64

typedef enum node_kind { NODE_WORK, NODE_RECORD, NODE_WAIT, NODE_CALL } node_kind;

typedef struct graph_node {
    node_kind kind;
    uint32_t branch;
    fake_cuda_work work; /* with copies of what it points to */
    cudaError_t (*call)(cudaStream_t stream, void *user);
    void *user;
    size_t record;     /* the node that a wait waits for */
    race_clock joined; /* of a record: by branch, the works before it */
    uint64_t number;   /* of a record: of the operation that the last launch made of it */
    race_clock clock;  /* and that one's clock */
} graph_node;

/* A captured stream's part. */
typedef struct graph_branch {
    cudaStream_t captured; /* NULL once the capture is over */
    cudaStream_t own;      /* on which launches put it */
    uint64_t works;
    race_clock joined; /* by branch, the works before what comes next */
} graph_branch;

/* The target of a cudaGraph_t, and of a cudaGraphExec_t. The first branch is the origin's. */
struct CUgraph_st {
    uint32_t magic;
    bool active;
    bool invalid;
    bool alive;
    bool executable_alive;
    bool relaxed; /* the mode it was begun in */
    pthread_t thread;
    int device;
    uint32_t branch_count;
    graph_branch branches[BRANCHES_MAX];
    size_t node_count;
    size_t node_room;
    graph_node *nodes;
    struct CUgraph_st *next;
};

static fake_capture *captures;
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

/* ---- capturing ---- */

static cudaError_t invalidate(fake_capture *capture, cudaError_t code, const char *why)
{
    capture->invalid = true;
    race_fault(RACE_MISUSE, "in a capture: %s", why);
    return code;
}

static uint32_t add_branch(fake_capture *capture, cudaStream_t stream)
{
    if (capture->branch_count == BRANCHES_MAX) {
        fake_give_up("more streams in a capture than there is room for");
    }
    const uint32_t branch = capture->branch_count++;
    capture->branches[branch].captured = stream;
    stream->capture = capture;
    stream->branch = branch;
    return branch;
}

static graph_node *add_node(fake_capture *capture, uint32_t branch, node_kind kind)
{
    if (capture->node_count == capture->node_room) {
        capture->node_room = capture->node_room * 2 + 64;
        capture->nodes = race_resize(capture->nodes, capture->node_room * sizeof capture->nodes[0]);
    }
    graph_node *node = &capture->nodes[capture->node_count++];
    memset(node, 0, sizeof *node);
    node->kind = kind;
    node->branch = branch;
    return node;
}

cudaError_t fake_capture_put(cudaStream_t stream, const fake_cuda_work *work, bool *captured)
{
    fake_capture *capture = stream->capture;
    if (capture == NULL) {
        return cudaSuccess;
    }
    if (capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    void *payload = NULL;
    fake_cuda_range *ranges = NULL;
    graph_branch *branch = &capture->branches[stream->branch];
    graph_node *node = add_node(capture, stream->branch, NODE_WORK);
    fake_work_copy(work, &payload, &ranges);
    node->work = *work;
    node->work.payload = payload;
    node->work.ranges = ranges;
    race_clock_set(&branch->joined, stream->branch, ++branch->works);
    *captured = true;
    return cudaSuccess;
}

bool fake_cuda_graph_lives(cudaGraph_t graph)
{
    fake_lock();
    const bool lives = graph->active || graph->alive || graph->executable_alive;
    fake_unlock();
    return lives;
}

cudaError_t fake_cuda_at_launch(cudaStream_t stream,
                                cudaError_t (*fn)(cudaStream_t stream, void *user), void *user,
                                cudaGraph_t *graph)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream("fake_cuda_at_launch", stream, &found);
    if (code == cudaSuccess && found->capture == NULL) {
        code = cudaErrorIllegalState;
    }
    if (code == cudaSuccess && found->capture->invalid) {
        code = cudaErrorStreamCaptureInvalidated;
    }
    if (code == cudaSuccess) {
        graph_branch *branch = &found->capture->branches[found->branch];
        graph_node *node = add_node(found->capture, found->branch, NODE_CALL);
        node->call = fn;
        node->user = user;
        *graph = found->capture;
        race_clock_set(&branch->joined, found->branch, ++branch->works);
    }
    return fake_leave(code);
}

cudaError_t fake_capture_record(cudaStream_t stream, cudaEvent_t event, bool *captured)
{
    fake_capture *capture = stream->capture;
    if (capture != NULL && capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    event->capture = capture;
    if (capture == NULL) {
        return cudaSuccess;
    }
    event->node = capture->node_count;
    graph_node *node = add_node(capture, stream->branch, NODE_RECORD);
    race_clock_join(&node->joined, &capture->branches[stream->branch].joined);
    *captured = true;
    return cudaSuccess;
}

cudaError_t fake_capture_await(cudaStream_t stream, cudaEvent_t event, bool *captured)
{
    fake_capture *capture = event->capture;
    if (stream->capture != NULL && stream->capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (capture == NULL) {
        return stream->capture == NULL
                   ? cudaSuccess
                   : invalidate(stream->capture, cudaErrorStreamCaptureIsolation,
                                "a wait for an event that was not recorded in it");
    }
    if (!capture->active) {
        race_fault(RACE_MISUSE, "a wait for an event recorded in a capture that is over");
        return cudaErrorCapturedEvent;
    }
    if (stream->capture == NULL && !stream->legacy) {
        (void)add_branch(capture, stream);
    }
    if (stream->capture != capture) {
        return invalidate(capture, cudaErrorStreamCaptureMerge,
                          "a wait by stream 0 or a stream of another capture");
    }
    race_clock_join(&capture->branches[stream->branch].joined, &capture->nodes[event->node].joined);
    add_node(capture, stream->branch, NODE_WAIT)->record = event->node;
    *captured = true;
    return cudaSuccess;
}

cudaError_t fake_capture_asked(cudaStream_t stream, cudaEvent_t event)
{
    if (stream != NULL && stream->capture != NULL) {
        return invalidate(stream->capture, cudaErrorStreamCaptureUnsupported,
                          "the host waits for a stream or asks for it");
    }
    if (event != NULL && event->capture != NULL) {
        return invalidate(event->capture, cudaErrorCapturedEvent,
                          "the host waits for an event or asks for it");
    }
    return cudaSuccess;
}

cudaError_t fake_capture_unsafe(const char *call)
{
    cudaError_t code = cudaSuccess;
    for (fake_capture *c = captures; c != NULL; c = c->next) {
        const bool own = pthread_equal(c->thread, pthread_self()) != 0 && !c->relaxed;
        if (c->active && own && thread_mode != cudaStreamCaptureModeRelaxed) {
            code = invalidate(c, cudaErrorStreamCaptureUnsupported, call);
        }
    }
    return code;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    const cudaError_t code = fake_enter("cudaThreadExchangeStreamCaptureMode");
    if (code == cudaSuccess) {
        const enum cudaStreamCaptureMode given = *mode;
        *mode = thread_mode;
        thread_mode = given;
    }
    return fake_leave(code);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *pCaptureStatus)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream("cudaStreamIsCapturing", stream, &found);
    if (code == cudaSuccess) {
        *pCaptureStatus = found->capture == NULL    ? cudaStreamCaptureStatusNone
                          : found->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                                    : cudaStreamCaptureStatusActive;
    }
    return fake_leave(code);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter_stream("cudaStreamBeginCapture", stream, &found);
    if (code == cudaSuccess && found->legacy) {
        code = cudaErrorStreamCaptureUnsupported;
    }
    if (code == cudaSuccess && found->capture != NULL) {
        code = cudaErrorIllegalState;
    }
    if (code == cudaSuccess) {
        fake_capture *capture = race_allocate(sizeof *capture);
        capture->magic = GRAPH_MAGIC;
        capture->active = true;
        capture->relaxed = mode == cudaStreamCaptureModeRelaxed;
        capture->thread = pthread_self();
        capture->device = found->device;
        capture->next = captures;
        captures = capture;
        (void)add_branch(capture, found);
    }
    return fake_leave(code);
}

/* Every branch's last work is before the end of the first. */
static bool all_joined(const fake_capture *capture)
{
    for (uint32_t b = 0; b < capture->branch_count; b++) {
        if (!race_clock_has(&capture->branches[0].joined, b, capture->branches[b].works)) {
            return false;
        }
    }
    return true;
}

static cudaError_t end_capture(fake_capture *capture, cudaGraph_t *graph)
{
    const bool joined = all_joined(capture);
    for (uint32_t b = 0; b < capture->branch_count; b++) {
        capture->branches[b].captured->capture = NULL;
        capture->branches[b].captured = NULL;
    }
    capture->active = false;
    if (capture->invalid) {
        return cudaErrorStreamCaptureInvalidated;
    }
    if (!joined) {
        return invalidate(capture, cudaErrorStreamCaptureUnjoined, "a stream was never joined");
    }
    capture->alive = true;
    *graph = capture;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph)
{
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter("cudaStreamEndCapture");
    if (code == cudaSuccess) {
        *pGraph = NULL;
        code = fake_stream_find(stream, &found);
    }
    if (code == cudaSuccess && found->capture == NULL) {
        code = cudaErrorIllegalState;
    }
    if (code == cudaSuccess && found->branch != 0) {
        code = invalidate(found->capture, cudaErrorStreamCaptureUnmatched,
                          "ended on another stream than it began on");
    }
    if (code == cudaSuccess && !found->capture->relaxed &&
        pthread_equal(found->capture->thread, pthread_self()) == 0) {
        code = cudaErrorStreamCaptureWrongThread;
    }
    if (code == cudaSuccess) {
        code = end_capture(found->capture, pGraph);
    }
    return fake_leave(code);
}

/* ---- launching ---- */

static bool is_graph(const struct CUgraph_st *graph)
{
    return graph != NULL && graph->magic == GRAPH_MAGIC;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags)
{
    (void)flags; /* none changes what runs */
    cudaError_t code = fake_enter("cudaGraphInstantiate");
    if (code == cudaSuccess && (!is_graph(graph) || !graph->alive)) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess) {
        for (uint32_t b = 0; b < graph->branch_count; b++) {
            graph->branches[b].own = fake_stream_add(graph->device, false, false);
            graph->branches[b].own->alive = false; /* nobody has its handle */
        }
        graph->executable_alive = true;
        *pGraphExec = (cudaGraphExec_t)graph;
    }
    return fake_leave(code);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    const cudaError_t code = fake_enter("cudaGraphDestroy");
    if (!is_graph(graph) || !graph->alive) {
        return fake_leave(cudaErrorInvalidValue);
    }
    graph->alive = false;
    return fake_leave(code);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
    struct CUgraph_st *graph = (struct CUgraph_st *)graphExec;
    const cudaError_t code = fake_enter("cudaGraphExecDestroy");
    if (!is_graph(graph) || !graph->executable_alive) {
        return fake_leave(cudaErrorInvalidValue);
    }
    graph->executable_alive = false;
    return fake_leave(code);
}

/* The stream is good for calls meanwhile; else nobody has its handle. */
static cudaError_t call_out(cudaStream_t stream, const graph_node *node)
{
    stream->alive = true;
    fake_unlock();
    const cudaError_t code = node->call(stream, node->user);
    fake_lock();
    stream->alive = false;
    return code;
}

static cudaError_t put_node(struct CUgraph_st *graph, graph_node *node)
{
    cudaStream_t stream = graph->branches[node->branch].own;
    const graph_node *record = &graph->nodes[node->record];
    switch (node->kind) {
    case NODE_WORK:
        return fake_stream_put(stream, &node->work);
    case NODE_RECORD:
        node->number = stream->line.number;
        race_clock_copy(&node->clock, &stream->line.clock);
        return cudaSuccess;
    case NODE_WAIT:
        fake_stream_follow(stream, graph->branches[record->branch].own, record->number,
                           &record->clock);
        return cudaSuccess;
    case NODE_CALL:
        return call_out(stream, node);
    }
    return cudaErrorUnknown;
}

static cudaError_t put_graph(struct CUgraph_st *graph, cudaStream_t stream)
{
    fake_stream_order(stream);
    for (uint32_t b = 0; b < graph->branch_count; b++) {
        fake_stream_follow(graph->branches[b].own, stream, stream->line.number,
                           &stream->line.clock);
    }
    for (size_t i = 0; i < graph->node_count; i++) {
        const cudaError_t code = put_node(graph, &graph->nodes[i]);
        if (code != cudaSuccess) {
            return code;
        }
    }
    for (uint32_t b = 0; b < graph->branch_count; b++) {
        cudaStream_t own = graph->branches[b].own;
        fake_stream_follow(stream, own, own->line.number, &own->line.clock);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream)
{
    struct CUgraph_st *graph = (struct CUgraph_st *)graphExec;
    cudaStream_t found = NULL;
    cudaError_t code = fake_enter("cudaGraphLaunch");
    if (code == cudaSuccess && (!is_graph(graph) || !graph->executable_alive)) {
        code = cudaErrorInvalidValue;
    }
    if (code == cudaSuccess) {
        code = fake_stream_find(stream, &found);
    }
    if (code == cudaSuccess && found->capture != NULL) {
        code = invalidate(found->capture, cudaErrorStreamCaptureUnsupported,
                          "the fake keeps no graphs in graphs");
    }
    if (code == cudaSuccess) {
        code = put_graph(graph, found);
    }
    return fake_leave(code);
}
