/* Owns the fake's communicators and what their ranks have issued. Lock: one for all; the fake
 * CUDA's lock is taken within. What kernels touch when they run is guarded by the fake CUDA's lock,
 * under which they run. Cliques and rounds live as long as the process. */
#include "fake_nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "fake_nccl_memory.h"
#include "fake_nccl_state.h"

pthread_mutex_t fake_nccl_lock = PTHREAD_MUTEX_INITIALIZER;
uint64_t fake_nccl_counts[FAKE_NCCL_CALLS];
#define lock fake_nccl_lock
#define calls fake_nccl_counts
#define fault fake_nccl_fault
#define allocate fake_nccl_allocate
static fake_clique *cliques;
static uint64_t live;
static uint64_t ids;
static uint64_t faults;
static int version = NCCL_VERSION_CODE;
static bool init_held;
static int broken_rank = -1;
static ncclResult_t broken_error;

/* The group of calls that the thread has open. */
static _Thread_local int depth;
static _Thread_local op_list open_list;
static _Thread_local ncclComm_t open_comm;

/* A function of the host that holds a stream up. */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    pthread_t helper;
    cudaStream_t stream;
    cudaEvent_t passed;
    bool active; /* guarded by `lock` */
    bool entered;
    bool open;
} gate = {.mutex = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

void fake_nccl_fault(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "fake NCCL: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    faults++;
}

void *fake_nccl_allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

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
    const fake_cuda_work work = {.name = "nccl send",
                                 .kind = FAKE_CUDA_KERNEL,
                                 .run = run_copy,
                                 .payload = &copy,
                                 .payload_bytes = sizeof copy,
                                 .ranges = &range,
                                 .range_count = 1};
    return fake_cuda_enqueue(op->stream, &work) == cudaSuccess ? ncclSuccess
                                                               : ncclUnhandledCudaError;
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

/* What the receive at `index` of rank's list matches. */
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
    return a->call == b->call && a->count == b->count && a->type == b->type && a->sum == b->sum;
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

static void run_sum(const result_payload *result, size_t first)
{
    const fake_round *round = result->round;
    const fake_op *op = &round->lists[result->rank].ops[result->index];
    for (size_t e = 0; e < op->count; e++) {
        float sum = 0.0f;
        for (int i = 0; i < round->size; i++) {
            float value = 0.0f;
            const fake_op *sent = like(round, result->rank, result->index, i);
            memcpy(&value, sent->sent + (first + e) * sizeof value, sizeof value);
            sum += value;
        }
        memcpy((unsigned char *)op->recv + e * sizeof sum, &sum, sizeof sum);
    }
}

static void free_round(fake_round *round)
{
    for (int i = 0; i < round->size; i++) {
        for (size_t k = 0; k < round->lists[i].count; k++) {
            free(round->lists[i].ops[k].sent);
        }
        free(round->lists[i].ops);
        round->lists[i] = (op_list){0};
    }
}

static void run_result(void *payload)
{
    const result_payload *result = payload;
    fake_round *round = result->round;
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
    if (--round->left == 0) {
        free_round(round);
    }
}

static void put_result(fake_round *round, int rank, size_t index)
{
    const fake_op *op = &round->lists[rank].ops[index];
    const result_payload result = {round, rank, index};
    const fake_cuda_range range = {op->recv, received_bytes(op, round->size), true};
    const fake_cuda_work work = {.name = "nccl result",
                                 .kind = FAKE_CUDA_KERNEL,
                                 .run = run_result,
                                 .payload = &result,
                                 .payload_bytes = sizeof result,
                                 .ranges = &range,
                                 .range_count = 1};
    (void)fake_cuda_enqueue(op->stream, &work);
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

/* All ranks have issued their calls: let this rank's stream follow them. */
static void complete(ncclComm_t comm)
{
    fake_round *round = comm->pending;
    const op_list *list = &round->lists[comm->rank];
    const uint64_t turn = (comm->issued - 1) % EVENTS;
    const cudaStream_t stream = list->ops[0].stream;
    comm->pending = NULL;
    if (!matches(round, comm->rank)) {
        fault("rank %d's calls do not match those of the others", comm->rank);
        return;
    }
    for (int i = 0; i < round->size; i++) {
        (void)cudaStreamWaitEvent(stream, comm->clique->comms[i]->sent[turn], 0);
    }
    if (gate.active) {
        (void)cudaStreamWaitEvent(stream, gate.passed, 0);
    }
    const size_t count = list->count; /* the list goes when the last result has run */
    for (size_t i = 0; i < count; i++) {
        put_result(round, comm->rank, i);
    }
}

static fake_round *round_of(fake_clique *clique, uint64_t number)
{
    if (number == clique->round_count) {
        fake_round *round = allocate(sizeof *round);
        round->size = clique->size;
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

static ncclResult_t issue(ncclComm_t comm, op_list list)
{
    fake_round *round = round_of(comm->clique, comm->issued);
    if (!fake_nccl_is_ready(comm)) {
        fault("rank %d issues calls on a communicator that is not ready", comm->rank);
        return ncclInvalidUsage;
    }
    calls[FAKE_NCCL_GROUP]++;
    for (size_t i = 0; i < list.count; i++) {
        calls[list.ops[i].call]++;
        const fake_op *op = &list.ops[i];
        const fake_nccl_use use = {comm,
                                   op->call,
                                   {op->send, op->recv},
                                   {sent_bytes(op, round->size), received_bytes(op, round->size)}};
        faults += fake_nccl_memory_use(&use) ? 0 : 1;
        const ncclResult_t result = put_sent(&list.ops[i], round->size);
        if (result != ncclSuccess) {
            return result;
        }
    }
    round->lists[comm->rank] = list;
    round->left += list.count;
    const cudaEvent_t sent = comm->sent[comm->issued % EVENTS];
    if (cudaEventRecord(sent, list.ops[0].stream) != cudaSuccess) {
        return ncclUnhandledCudaError;
    }
    comm->issued++;
    comm->pending = round;
    comm->looks = LOOKS;
    round->arrived++;
    return ncclInProgress;
}

static ncclResult_t group_start(void)
{
    depth++;
    return ncclSuccess;
}

static ncclResult_t group_end(void)
{
    if (depth-- != 1) {
        fault("groups of calls are nested");
        return ncclInvalidUsage;
    }
    const op_list list = open_list;
    const ncclComm_t comm = open_comm;
    open_list = (op_list){0};
    open_comm = NULL;
    if (list.count == 0) {
        return ncclSuccess;
    }
    (void)pthread_mutex_lock(&lock);
    const ncclResult_t result = issue(comm, list);
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static ncclResult_t put(ncclComm_t comm, fake_op op)
{
    if (depth != 1 || (open_comm != NULL && open_comm != comm)) {
        fault("a call outside a group, or of another communicator than the group's");
        return ncclInvalidUsage;
    }
    if (open_list.count != 0 && open_list.ops[0].stream != op.stream) {
        fault("a group of calls over several streams");
        return ncclInvalidUsage;
    }
    if (open_list.count == open_list.room) {
        open_list.room = open_list.room * 2 + 8;
        open_list.ops = realloc(open_list.ops, open_list.room * sizeof op);
        if (open_list.ops == NULL) {
            abort();
        }
    }
    open_comm = comm;
    open_list.ops[open_list.count++] = op;
    return ncclSuccess;
}

static ncclResult_t all_gather(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclComm_t comm, cudaStream_t stream)
{
    return put(comm, (fake_op){.call = FAKE_NCCL_ALL_GATHER,
                               .send = send,
                               .recv = recv,
                               .count = count,
                               .type = type,
                               .stream = stream});
}

static ncclResult_t put_sum(fake_nccl_call call, const void *send, void *recv, size_t count,
                            ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream)
{
    if (type != ncclFloat32 || op != ncclSum || send == NULL) {
        fault("a sum that is not one of fp32, or of nothing");
        return ncclInvalidArgument;
    }
    return put(comm, (fake_op){.call = call,
                               .send = send,
                               .recv = recv,
                               .count = count,
                               .type = type,
                               .sum = op,
                               .stream = stream});
}

static ncclResult_t reduce_scatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return put_sum(FAKE_NCCL_REDUCE_SCATTER, send, recv, count, type, op, comm, stream);
}

static ncclResult_t all_reduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return put_sum(FAKE_NCCL_ALL_REDUCE, send, recv, count, type, op, comm, stream);
}

static ncclResult_t send_to(const void *source, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream)
{
    return put(comm, (fake_op){.call = FAKE_NCCL_SEND,
                               .send = source,
                               .count = count,
                               .type = type,
                               .peer = peer,
                               .stream = stream});
}

static ncclResult_t recv_from(void *target, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, cudaStream_t stream)
{
    return put(comm, (fake_op){.call = FAKE_NCCL_RECV,
                               .recv = target,
                               .count = count,
                               .type = type,
                               .peer = peer,
                               .stream = stream});
}

/* ---- communicators ---- */

static ncclResult_t get_version(int *out)
{
    *out = version;
    return ncclSuccess;
}

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
    (void)pthread_mutex_lock(&lock);
    const char *meeting = getenv("NCCL_COMM_ID");
    memset(id, 0, sizeof *id);
    if (meeting != NULL) {
        (void)snprintf(id->internal, sizeof id->internal, "fake id at %s", meeting);
    } else {
        (void)snprintf(id->internal, sizeof id->internal, "fake id %llu",
                       (unsigned long long)++ids);
    }
    (void)pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static const char *get_error_string(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "a fake error";
}

static const char *get_last_error(ncclComm_t comm)
{
    (void)comm;
    return "a fake detail";
}

/* One that everybody has joined is over: an id at a port is used again. */
fake_clique *fake_nccl_clique(const char *id, int size)
{
    fake_clique *clique = cliques;
    while (clique != NULL && (strcmp(clique->id, id) != 0 || clique->joined == clique->size)) {
        clique = clique->next;
    }
    if (clique == NULL) {
        clique = allocate(sizeof *clique);
        (void)snprintf(clique->id, sizeof clique->id, "%s", id);
        clique->size = size;
        clique->next = cliques;
        cliques = clique;
    }
    return clique;
}

ncclComm_t fake_nccl_join(fake_clique *clique, int rank, const ncclConfig_t *config)
{
    ncclComm_t comm = allocate(sizeof *comm);
    comm->clique = clique;
    comm->rank = rank;
    comm->blocking = config->blocking != 0;
    faults += fake_nccl_memory_join(comm, clique, rank, clique->size, config) ? 0 : 1;
    comm->joining = true;
    comm->looks = LOOKS;
    (void)cudaGetDevice(&comm->device);
    for (int i = 0; i < EVENTS; i++) {
        (void)cudaEventCreateWithFlags(&comm->sent[i], cudaEventDisableTiming);
    }
    clique->comms[rank] = comm;
    clique->joined++;
    live++;
    return comm;
}

static ncclResult_t init(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    (void)pthread_mutex_lock(&lock);
    fake_clique *clique = fake_nccl_clique(id.internal, size);
    if (strncmp(id.internal, "fake id ", 8) != 0 || clique->size != size || size > RANKS_MAX ||
        rank < 0 || rank >= size || clique->comms[rank] != NULL || config->blocking != 0) {
        fault("rank %d of %d cannot join", rank, size);
        (void)pthread_mutex_unlock(&lock);
        return ncclInvalidArgument;
    }
    *out = fake_nccl_join(clique, rank, config);
    calls[FAKE_NCCL_INIT]++;
    (void)pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

bool fake_nccl_is_ready(ncclComm_t comm)
{
    return comm->pending == NULL && !comm->joining && comm->split == NULL && !comm->finalized &&
           !comm->gone;
}

/* Move the communicator on as far as it goes. */
static ncclResult_t state_of(ncclComm_t comm)
{
    if (comm->gone) {
        fault("rank %d uses a communicator that is gone", comm->rank);
        return ncclInvalidArgument;
    }
    if (comm->looks > 0) {
        comm->looks--;
        return ncclInProgress;
    }
    if (comm->split != NULL) {
        return fake_nccl_split_state(comm);
    }
    if (comm->failed != ncclSuccess) {
        return comm->failed;
    }
    if (comm->joining) {
        comm->joining = init_held || comm->clique->joined < comm->clique->size;
        return comm->joining ? ncclInProgress : ncclSuccess;
    }
    if (comm->rank == broken_rank) {
        return broken_error;
    }
    if (!fake_nccl_memory_ready(comm)) {
        return ncclInProgress;
    }
    if (comm->pending != NULL && comm->pending->arrived == comm->clique->size) {
        complete(comm);
    }
    return comm->pending != NULL ? ncclInProgress : ncclSuccess;
}

static ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t *state)
{
    (void)pthread_mutex_lock(&lock);
    *state = state_of(comm);
    (void)pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static ncclResult_t finalize(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&lock);
    if (!fake_nccl_is_ready(comm)) {
        fault("rank %d finalizes a communicator that is not ready", comm->rank);
    }
    comm->finalized = true;
    comm->looks = LOOKS;
    calls[FAKE_NCCL_FINALIZE]++;
    (void)pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

/* Events go with the last rank: others may still have to wait for them. */
void fake_nccl_leave(ncclComm_t comm, bool aborted)
{
    fake_clique *clique = comm->clique;
    faults += fake_nccl_memory_leave(comm, aborted) ? 0 : 1;
    comm->gone = true;
    live--;
    clique->left++;
    for (int i = 0; i < EVENTS * clique->size; i++) {
        if (clique->left == clique->size && !clique->stuck) {
            (void)cudaEventDestroy(clique->comms[i / EVENTS]->sent[i % EVENTS]);
        }
    }
}

static ncclResult_t destroy(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&lock);
    if (!comm->finalized || comm->gone) {
        fault("rank %d destroys a communicator that is not finalized", comm->rank);
    }
    calls[FAKE_NCCL_DESTROY]++;
    fake_nccl_leave(comm, false);
    (void)pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t fake_nccl_abort(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&lock);
    if (comm->gone) {
        fault("rank %d aborts a communicator that is gone", comm->rank);
    }
    fake_nccl_split_abort(comm);
    comm->clique->stuck = comm->clique->stuck || comm->issued != 0;
    calls[FAKE_NCCL_ABORT]++;
    fake_nccl_leave(comm, true);
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_mutex_lock(&gate.mutex);
    gate.open = true;
    (void)pthread_cond_broadcast(&gate.moved);
    (void)pthread_mutex_unlock(&gate.mutex);
    return ncclSuccess;
}

const zi_nccl_api *fake_nccl_api(void)
{
    static const zi_nccl_api api = {
        .get_version = get_version,
        .get_unique_id = get_unique_id,
        .get_error_string = get_error_string,
        .get_last_error = get_last_error,
        .comm_init_rank_config = init,
        .comm_get_async_error = get_async_error,
        .comm_abort = fake_nccl_abort,
        .comm_split = fake_nccl_split,
        .comm_count = fake_nccl_count,
        .comm_user_rank = fake_nccl_user_rank,
        .comm_cu_device = fake_nccl_cu_device,
        .comm_finalize = finalize,
        .comm_destroy = destroy,
        .group_start = group_start,
        .group_end = group_end,
        .all_gather = all_gather,
        .reduce_scatter = reduce_scatter,
        .all_reduce = all_reduce,
        .send = send_to,
        .recv = recv_from,
        FAKE_NCCL_MEMORY_CALLS,
    };
    return &api;
}

/* ---- what tests control and count ---- */

static uint64_t read_locked(const uint64_t *value)
{
    (void)pthread_mutex_lock(&lock);
    const uint64_t result = *value;
    (void)pthread_mutex_unlock(&lock);
    return result;
}

uint64_t fake_nccl_calls(fake_nccl_call call)
{
    return read_locked(&calls[call]);
}

uint64_t fake_nccl_live(void)
{
    return read_locked(&live);
}

bool fake_nccl_check(void)
{
    return read_locked(&faults) == 0 && fake_nccl_memory_check();
}

void fake_nccl_set_version(int value)
{
    version = value;
}

void fake_nccl_hold_init(bool hold)
{
    (void)pthread_mutex_lock(&lock);
    init_held = hold;
    (void)pthread_mutex_unlock(&lock);
}

void fake_nccl_break(int rank, ncclResult_t error)
{
    (void)pthread_mutex_lock(&lock);
    broken_rank = rank;
    broken_error = error;
    (void)pthread_mutex_unlock(&lock);
}

static void hold(void *argument)
{
    (void)argument;
    (void)pthread_mutex_lock(&gate.mutex);
    gate.entered = true;
    (void)pthread_cond_broadcast(&gate.moved);
    while (!gate.open) {
        (void)pthread_cond_wait(&gate.moved, &gate.mutex);
    }
    (void)pthread_mutex_unlock(&gate.mutex);
}

static void *run_gate(void *argument)
{
    (void)argument;
    (void)cudaStreamSynchronize(gate.stream);
    return NULL;
}

void fake_nccl_stall(void)
{
    gate.entered = false;
    gate.open = false;
    (void)cudaStreamCreateWithFlags(&gate.stream, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&gate.passed, cudaEventDisableTiming);
    (void)cudaLaunchHostFunc(gate.stream, hold, NULL);
    (void)cudaEventRecord(gate.passed, gate.stream);
    if (pthread_create(&gate.helper, NULL, run_gate, NULL) != 0) {
        abort();
    }
    (void)pthread_mutex_lock(&gate.mutex);
    while (!gate.entered) {
        (void)pthread_cond_wait(&gate.moved, &gate.mutex);
    }
    (void)pthread_mutex_unlock(&gate.mutex);
    (void)pthread_mutex_lock(&lock);
    gate.active = true;
    (void)pthread_mutex_unlock(&lock);
}

void fake_nccl_unstall(void)
{
    (void)pthread_join(gate.helper, NULL);
    (void)pthread_mutex_lock(&lock);
    gate.active = false;
    (void)pthread_mutex_unlock(&lock);
    (void)cudaEventDestroy(gate.passed);
    (void)cudaStreamDestroy(gate.stream);
}
