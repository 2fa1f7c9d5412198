/* Owns what the ranks of the fake NCCL have issued: how they connect for it, what it becomes on
 * streams, and what graphs keep of it. What kernels touch when they run is guarded by the fake
 * CUDA's lock, under which they run. Rounds live as long as the process. */
#include <stdlib.h>
#include <string.h>

#include "comm/conformance_values.h"
#include "fake_nccl_state.h"

#define lock fake_nccl_lock
#define calls fake_nccl_counts
#define fault fake_nccl_fault
#define allocate fake_nccl_allocate

static size_t type_bytes(ncclDataType_t type)
{
    if (type == ncclFloat32) {
        return 4;
    }
    return type == ncclFloat16 || type == ncclBfloat16 ? 2 : 1;
}

static size_t sent_bytes(const fake_op *op, int size)
{
    const size_t parts = op->call == FAKE_NCCL_REDUCE_SCATTER ? (size_t)size : 1;
    return op->call == FAKE_NCCL_RECV ? 0 : parts * op->count * type_bytes(op->type);
}

static size_t received_bytes(const fake_op *op, int size)
{
    const size_t parts = op->call == FAKE_NCCL_ALL_GATHER ? (size_t)size : 1;
    return op->call == FAKE_NCCL_SEND ? 0 : parts * op->count * type_bytes(op->type);
}

static bool is_pair(const fake_op *op)
{
    return op->call == FAKE_NCCL_SEND || op->call == FAKE_NCCL_RECV;
}

/* ---- work on streams ---- */

/* A kernel that touches one range. */
static cudaError_t enqueue(cudaStream_t stream, const char *name, void (*run)(void *payload),
                           const void *payload, size_t payload_bytes, fake_cuda_range range)
{
    const fake_cuda_work work = {.name = name,
                                 .kind = FAKE_CUDA_KERNEL,
                                 .run = run,
                                 .payload = payload,
                                 .payload_bytes = payload_bytes,
                                 .ranges = &range,
                                 .range_count = 1};
    return fake_cuda_enqueue(stream, &work);
}

typedef struct copy_payload {
    void *target;
    const void *source;
    size_t bytes;
} copy_payload;

static void run_copy(void *payload)
{
    const copy_payload *copy = payload;
    memcpy(copy->target, copy->source, copy->bytes);
}

static ncclResult_t put_sent(fake_op *op, int size)
{
    const size_t bytes = sent_bytes(op, size);
    if (bytes == 0) {
        return ncclSuccess;
    }
    op->sent = allocate(bytes);
    const copy_payload copy = {op->sent, op->send, bytes};
    const fake_cuda_range range = {op->send, bytes, false};
    const cudaError_t code = enqueue(op->stream, "nccl send", run_copy, &copy, sizeof copy, range);
    return code == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

typedef struct result_payload {
    fake_round *round;
    int rank;
    size_t index;
} result_payload;

/* The nth send to `rank` in the list of `peer`, or NULL. */
static const fake_op *nth_send(const fake_round *round, int peer, int rank, size_t n)
{
    const op_list *list = &round->lists[peer];
    for (size_t i = 0; i < list->count; i++) {
        if (list->ops[i].call == FAKE_NCCL_SEND && list->ops[i].peer == rank && n-- == 0) {
            return &list->ops[i];
        }
    }
    return NULL;
}

/* The send that the receive at `index` of rank's list matches. */
static const fake_op *match_of(const fake_round *round, int rank, size_t index)
{
    const op_list *list = &round->lists[rank];
    size_t before = 0;
    for (size_t i = 0; i < index; i++) {
        before += list->ops[i].call == FAKE_NCCL_RECV && list->ops[i].peer == list->ops[index].peer;
    }
    return nth_send(round, list->ops[index].peer, rank, before);
}

static bool is_alike(const fake_op *a, const fake_op *b)
{
    return a->call == b->call && a->count == b->count && a->type == b->type;
}

/* Sends to `peer`, or receives from it. */
static size_t pair_count(const op_list *list, fake_nccl_call call, int peer)
{
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        count += list->ops[i].call == call && list->ops[i].peer == peer;
    }
    return count;
}

static size_t collective_count(const op_list *list)
{
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++) {
        count += !is_pair(&list->ops[i]);
    }
    return count;
}

/* The collective of rank `other` that goes with the one at `index` of rank's list. */
static const fake_op *like(const fake_round *round, int rank, size_t index, int other)
{
    const op_list mine = {round->lists[rank].ops, index, 0};
    size_t before = collective_count(&mine);
    const op_list *theirs = &round->lists[other];
    size_t at = 0;
    while (is_pair(&theirs->ops[at]) || before-- != 0) {
        at++;
    }
    return &theirs->ops[at];
}

static zero_dtype dtype_of(ncclDataType_t type)
{
    return type == ncclFloat32    ? ZERO_DTYPE_F32
           : type == ncclBfloat16 ? ZERO_DTYPE_BF16
                                  : ZERO_DTYPE_F16;
}

/* In the order of ranks; rounded to the type at every hop, as a ring does. */
static void run_sum(const result_payload *result, size_t first)
{
    const fake_round *round = result->round;
    const fake_op *op = &round->lists[result->rank].ops[result->index];
    const zero_dtype dtype = dtype_of(op->type);
    for (size_t e = 0; e < op->count; e++) {
        float sum = 0.0f;
        for (int i = 0; i < round->size; i++) {
            const fake_op *sent = like(round, result->rank, result->index, i);
            const uint32_t bits =
                value_to_bits(dtype, sum + value_load(sent->sent, dtype, first + e));
            sum = value_from_bits(dtype, bits);
        }
        value_store(op->recv, dtype, e, sum);
    }
}

static void free_list(op_list *list)
{
    for (size_t k = 0; k < list->count; k++) {
        free(list->ops[k].sent);
    }
    free(list->ops);
    *list = (op_list){0};
}

static void free_round(fake_round *round)
{
    for (int i = 0; i < round->size; i++) {
        free_list(&round->lists[i]);
    }
}

static void receive(const result_payload *result)
{
    const fake_round *round = result->round;
    const fake_op *op = &round->lists[result->rank].ops[result->index];
    const size_t bytes = op->count * type_bytes(op->type);
    if (op->call == FAKE_NCCL_ALL_GATHER) {
        for (int i = 0; i < round->size; i++) {
            memcpy((unsigned char *)op->recv + (size_t)i * bytes,
                   like(round, result->rank, result->index, i)->sent, bytes);
        }
    } else if (op->call == FAKE_NCCL_REDUCE_SCATTER) {
        run_sum(result, (size_t)result->rank * op->count);
    } else if (op->call == FAKE_NCCL_ALL_REDUCE) {
        run_sum(result, 0);
    } else if (op->call == FAKE_NCCL_RECV) {
        memcpy(op->recv, match_of(round, result->rank, result->index)->sent, bytes);
    }
}

static void run_result(void *payload)
{
    const result_payload *result = payload;
    fake_round *round = result->round;
    const bool complete = fake_cuda_latch_full(&round->latch); /* else the rank has given up */
    if (complete && !round->unlike) {
        receive(result);
    }
    if (atomic_fetch_sub(&round->left, 1) == 1 && complete) {
        free_round(round);
    }
}

static void put_result(fake_round *round, int rank, size_t index)
{
    const fake_op *op = &round->lists[rank].ops[index];
    const result_payload result = {round, rank, index};
    const fake_cuda_range range = {op->recv, received_bytes(op, round->size), true};
    (void)enqueue(op->stream, "nccl result", run_result, &result, sizeof result, range);
}

/* ---- rounds ---- */

/* All ranks make the same collectives in the same order, and each receive has its send. */
static bool matches(const fake_round *round, int rank)
{
    const op_list *mine = &round->lists[rank];
    bool good = collective_count(mine) == collective_count(&round->lists[0]);
    for (size_t i = 0; good && i < mine->count; i++) {
        const fake_op *op = &mine->ops[i];
        if (op->call == FAKE_NCCL_RECV) {
            const fake_op *sent = match_of(round, rank, i);
            good = sent != NULL && sent->count == op->count && sent->type == op->type;
        } else if (op->call == FAKE_NCCL_SEND) {
            good = pair_count(mine, FAKE_NCCL_SEND, op->peer) ==
                   pair_count(&round->lists[op->peer], FAKE_NCCL_RECV, rank);
        } else {
            good = is_alike(op, like(round, rank, i, 0));
        }
    }
    return good;
}

static fake_round *round_of(fake_clique *clique, uint64_t number)
{
    if (number == clique->round_count) {
        fake_round *round = allocate(sizeof *round);
        round->size = clique->size;
        round->latch.expected = (uint32_t)clique->size;
        round->next = clique->rounds;
        clique->rounds = round;
        clique->round_count++;
    }
    fake_round *round = clique->rounds;
    for (uint64_t last = clique->round_count - 1; last > number; last--) {
        round = round->next;
    }
    return round;
}

/* The rank's calls are the round's; the last to come looks whether all match. */
static void join_round(fake_round *round, int rank, op_list list)
{
    round->lists[rank] = list;
    atomic_fetch_add(&round->left, list.count);
    round->arrived++;
    for (int i = 0; i < round->size && round->arrived == round->size; i++) {
        if (!matches(round, i)) {
            fault("rank %d's calls do not match those of the others", i);
            round->unlike = true;
        }
    }
}

/* True if one is this rank's own part of the other, where what is sent and what is received
 * overlap. */
static bool lies_well(const fake_op *op, int rank, int size)
{
    const unsigned char *send = op->send;
    const unsigned char *recv = op->recv;
    const size_t sent = sent_bytes(op, size);
    const size_t received = received_bytes(op, size);
    if (is_pair(op) || send + sent <= recv || recv + received <= send) {
        return true;
    }
    return op->call == FAKE_NCCL_ALL_GATHER       ? send == recv + (size_t)rank * sent
           : op->call == FAKE_NCCL_REDUCE_SCATTER ? recv == send + (size_t)rank * received
                                                  : send == recv;
}

/* ---- what goes to other hosts ---- */

static int host_of(ncclComm_t comm, int rank)
{
    return comm->clique->comms[rank]->device / (int)fake_nccl_gpus_per_host;
}

static void count_crossed(ncclComm_t comm, const fake_op *op)
{
    const int size = comm->clique->size;
    uint64_t near = 0; /* ranks of this host, this one among them */
    for (int i = 0; i < size && fake_nccl_gpus_per_host != 0; i++) {
        near += host_of(comm, i) == host_of(comm, comm->rank);
    }
    if (near == 0 || near == (uint64_t)size) {
        return;
    }
    const uint64_t bytes = op->count * type_bytes(op->type);
    const uint64_t others = (uint64_t)size - 1;
    uint64_t sent = 0;
    if (op->call == FAKE_NCCL_SEND) {
        sent = host_of(comm, op->peer) != host_of(comm, comm->rank) ? bytes : 0;
    } else if (op->call == FAKE_NCCL_ALL_REDUCE) {
        sent = 2 * others * bytes / (uint64_t)size / near;
    } else if (op->call != FAKE_NCCL_RECV) {
        sent = others * bytes / near;
    }
    fake_nccl_sent[comm->device] += sent;
}

/* Put a group of calls on a stream. */
static ncclResult_t issue(ncclComm_t comm, op_list list, cudaStream_t stream)
{
    fake_round *round = round_of(comm->clique, comm->issued++);
    calls[FAKE_NCCL_GROUP]++;
    for (size_t i = 0; i < list.count; i++) {
        fake_op *op = &list.ops[i];
        calls[op->call]++;
        count_crossed(comm, op);
        op->stream = stream;
        if (!lies_well(op, comm->rank, round->size)) {
            fault("rank %d: call %d sends what it receives to, elsewhere", comm->rank,
                  (int)op->call);
        }
        const size_t bytes[] = {sent_bytes(op, round->size), received_bytes(op, round->size)};
        fake_nccl_memory_use(comm, op, bytes);
        const ncclResult_t result = put_sent(op, round->size);
        if (result != ncclSuccess) {
            return result;
        }
    }
    join_round(round, comm->rank, list);
    if (fake_cuda_latch_come(stream, &round->latch) != cudaSuccess ||
        fake_cuda_latch_wait(stream, &round->latch, &round->given_up[comm->rank]) != cudaSuccess) {
        return ncclUnhandledCudaError;
    }
    fake_nccl_pass_gate(comm, stream);
    for (size_t i = 0; i < list.count; i++) {
        put_result(round, comm->rank, i);
    }
    return ncclSuccess;
}

/* ---- in captures ---- */

/* A group of calls that a graph makes at each launch. Lives as long as the process. */
typedef struct captured_calls {
    ncclComm_t comm;
    op_list list;
    cudaGraph_t graph;
    struct captured_calls *next; /* so that none is lost */
} captured_calls;

static captured_calls *kept;

static cudaError_t issue_again(cudaStream_t stream, void *user)
{
    const captured_calls *captured = user;
    op_list list = captured->list;
    list.ops = allocate(list.count * sizeof *list.ops);
    memcpy(list.ops, captured->list.ops, list.count * sizeof *list.ops);
    (void)pthread_mutex_lock(&lock);
    ncclResult_t result = ncclInvalidUsage;
    if (captured->comm->gone) {
        fault("rank %d launches a graph of a communicator that is gone", captured->comm->rank);
    } else {
        result = issue(captured->comm, list, stream);
    }
    (void)pthread_mutex_unlock(&lock);
    return result == ncclSuccess ? cudaSuccess : cudaErrorUnknown;
}

static ncclResult_t keep(ncclComm_t comm, op_list list, cudaStream_t stream)
{
    captured_calls *captured = allocate(sizeof *captured);
    *captured = (captured_calls){.comm = comm, .list = list};
    if (fake_cuda_at_launch(stream, issue_again, captured, &captured->graph) != cudaSuccess) {
        return ncclUnhandledCudaError;
    }
    captured->next = kept;
    kept = captured;
    return ncclSuccess;
}

bool fake_nccl_is_captured(ncclComm_t comm)
{
    bool found = false;
    for (const captured_calls *c = kept; c != NULL && !found; c = c->next) {
        found = c->comm == comm && fake_cuda_graph_lives(c->graph);
    }
    return found;
}

/* ---- connecting ---- */

static int way_of(const fake_op *op, int size)
{
    const size_t bytes = sent_bytes(op, size) + received_bytes(op, size);
    return (int)(op->call - FAKE_NCCL_ALL_GATHER) * 2 + (bytes > SMALL_BYTES);
}

/* The rank is there to connect for the call. */
static void come(ncclComm_t comm, const fake_op *op)
{
    fake_clique *clique = comm->clique;
    if (op->call == FAKE_NCCL_SEND) {
        clique->sends[comm->rank][op->peer] = true;
    } else if (op->call == FAKE_NCCL_RECV) {
        clique->receives[op->peer][comm->rank] = true;
    } else {
        clique->came[way_of(op, clique->size)][comm->rank] = true;
    }
}

static bool is_connected(const ncclComm_t comm, const fake_op *op)
{
    const fake_clique *clique = comm->clique;
    if (op->call == FAKE_NCCL_SEND) {
        return clique->receives[comm->rank][op->peer];
    }
    if (op->call == FAKE_NCCL_RECV) {
        return clique->sends[op->peer][comm->rank];
    }
    bool all = true;
    for (int i = 0; i < clique->size; i++) {
        all = all && clique->came[way_of(op, clique->size)][i];
    }
    return all;
}

/* Move a group of calls on as far as it goes. */
ncclResult_t fake_nccl_calls_state(ncclComm_t comm)
{
    for (size_t i = 0; i < comm->waiting.count; i++) {
        if (!is_connected(comm, &comm->waiting.ops[i])) {
            return ncclInProgress;
        }
    }
    for (int i = 0; i < comm->clique->size; i++) {
        if (comm->clique->exchanges[i] < comm->exchange) {
            return ncclInProgress;
        }
    }
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const op_list list = comm->waiting;
    const cudaStream_t stream = list.ops[0].stream;
    comm->waiting = (op_list){0};
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) {
        return ncclUnhandledCudaError;
    }
    return capture != cudaStreamCaptureStatusNone ? keep(comm, list, stream)
                                                  : issue(comm, list, stream);
}

ncclResult_t fake_nccl_accept(ncclComm_t comm, op_list list)
{
    if (!fake_nccl_is_ready(comm)) {
        fault("rank %d issues calls on a communicator that is not ready", comm->rank);
        return ncclInvalidUsage;
    }
    for (size_t i = 0; i < list.count; i++) {
        come(comm, &list.ops[i]);
    }
    if (collective_count(&list) != 0 && fake_nccl_memory_exchanges(comm)) {
        comm->exchange = ++comm->clique->exchanges[comm->rank];
    }
    comm->waiting = list;
    comm->looks = comm->blocking ? 0 : LOOKS;
    return ncclInProgress;
}

bool fake_nccl_is_stuck(ncclComm_t comm)
{
    bool stuck = comm->stalled;
    for (const fake_round *round = comm->clique->rounds; round != NULL && !stuck;
         round = round->next) {
        stuck = round->lists[comm->rank].count != 0 && round->arrived < round->size;
    }
    return stuck && !comm->aborting && !comm->gone;
}

/* Let what waits for other ranks go on. */
void fake_nccl_give_up(ncclComm_t comm)
{
    free_list(&comm->waiting);
    for (fake_round *round = comm->clique->rounds; round != NULL; round = round->next) {
        fake_cuda_latch_give_up(&round->latch, &round->given_up[comm->rank]);
    }
}
