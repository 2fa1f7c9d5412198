/* Owns the fake's communicators and its lock: one for all; the fake CUDA's lock is taken within.
 * Cliques live as long as the process. */
#include "fake_nccl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_cuda.h"
#include "fake_nccl_memory.h"
#include "fake_nccl_state.h"

pthread_mutex_t fake_nccl_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic uint64_t fake_nccl_counts[FAKE_NCCL_CALLS];
#define lock fake_nccl_lock
#define calls fake_nccl_counts
#define fault fake_nccl_fault
#define allocate fake_nccl_allocate
static fake_clique *cliques;
ncclComm_t fake_nccl_comms;
static _Atomic uint64_t live;
static _Atomic uint64_t ids;
static _Atomic uint64_t faults;
uint64_t fake_nccl_sent[RANKS_MAX];
uint32_t fake_nccl_gpus_per_host;
atomic_int fake_nccl_version = NCCL_VERSION_CODE;
static atomic_bool init_held;
static atomic_bool gpu_shared; /* the last error */
static atomic_int broken_rank = -1;
static atomic_int broken_error;

/* The group of calls that the thread has open. */
static _Thread_local int depth;
static _Thread_local ncclComm_t to_free; /* those that it aborts */
static _Thread_local op_list open_list;
static _Thread_local ncclComm_t open_comm;

#define PAUSE_NS 200000
/* The pauses in which what an abort waits for must come to its end: a minute. */
#define ABORT_PAUSES 300000

/* A function of the host that holds a stream up. */
static struct {
    pthread_t helper;
    cudaStream_t stream;
    cudaEvent_t passed;
    bool active; /* guarded by `lock` */
    atomic_bool entered;
    atomic_bool open;
} gate;

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

static ncclResult_t group_start(void)
{
    depth++;
    return ncclSuccess;
}

static void sleep_a_little(void)
{
    const struct timespec span = {.tv_nsec = PAUSE_NS};
    (void)nanosleep(&span, NULL);
}

void fake_nccl_pause(void)
{
    (void)pthread_mutex_unlock(&lock);
    sleep_a_little();
    (void)pthread_mutex_lock(&lock);
}

/* As a blocking communicator: until the calls are on the stream, or it is aborted. */
static ncclResult_t issue_now(ncclComm_t comm)
{
    ncclResult_t result = ncclInProgress;
    comm->under_way++;
    while (result == ncclInProgress && !comm->aborting) {
        result = fake_nccl_calls_state(comm);
        if (result == ncclInProgress) {
            fake_nccl_pause();
        }
    }
    comm->under_way--;
    return comm->aborting ? ncclInternalError : result;
}

static void free_aborted(ncclComm_t comm);

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
    (void)pthread_mutex_lock(&lock);
    ncclResult_t result = ncclSuccess;
    if (list.count != 0) {
        result = fake_nccl_accept(comm, list);
        result = result == ncclInProgress && comm->blocking ? issue_now(comm) : result;
    }
    while (to_free != NULL) {
        const ncclComm_t next = to_free->to_free;
        free_aborted(to_free);
        to_free = next;
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

static ncclResult_t put(ncclComm_t comm, fake_op op)
{
    if (depth == 0) { /* a group of its own */
        depth++;
        const ncclResult_t result = put(comm, op);
        const ncclResult_t ended = group_end();
        return result == ncclSuccess ? ended : result;
    }
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
    const fake_op gather = {FAKE_NCCL_ALL_GATHER, send, recv, count, type, 0, stream, NULL};
    return put(comm, gather);
}

static ncclResult_t put_sum(fake_op op, ncclRedOp_t sum, ncclComm_t comm)
{
    const bool adds = op.type == ncclFloat32 || op.type == ncclBfloat16 || op.type == ncclFloat16;
    if (!adds || sum != ncclSum || op.send == NULL) {
        fault("a sum of another type, or of nothing");
        return ncclInvalidArgument;
    }
    return put(comm, op);
}

static ncclResult_t reduce_scatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    const fake_op sum = {FAKE_NCCL_REDUCE_SCATTER, send, recv, count, type, 0, stream, NULL};
    return put_sum(sum, op, comm);
}

static ncclResult_t all_reduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    const fake_op sum = {FAKE_NCCL_ALL_REDUCE, send, recv, count, type, 0, stream, NULL};
    return put_sum(sum, op, comm);
}

static ncclResult_t send_to(const void *source, size_t count, ncclDataType_t type, int peer,
                            ncclComm_t comm, cudaStream_t stream)
{
    const fake_op send = {FAKE_NCCL_SEND, source, NULL, count, type, peer, stream, NULL};
    return put(comm, send);
}

static ncclResult_t recv_from(void *target, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, cudaStream_t stream)
{
    const fake_op recv = {FAKE_NCCL_RECV, NULL, target, count, type, peer, stream, NULL};
    return put(comm, recv);
}

/* ---- communicators ---- */

static ncclResult_t get_version(int *out)
{
    *out = fake_nccl_version;
    return ncclSuccess;
}

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "fake id %llu", (unsigned long long)++ids);
    return ncclSuccess;
}

static const char *get_error_string(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "a fake error";
}

static const char *get_last_error(ncclComm_t comm)
{
    (void)comm;
    return atomic_load(&gpu_shared) ? "Duplicate GPU detected" : "a fake detail";
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
    fake_nccl_memory_join(config);
    comm->joining = true;
    comm->looks = LOOKS;
    comm->process = pthread_self();
    comm->next = fake_nccl_comms;
    fake_nccl_comms = comm;
    (void)cudaGetDevice(&comm->device);
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
    return comm->waiting.count == 0 && !comm->joining && comm->split == NULL && !comm->finalized &&
           !comm->gone && !fake_nccl_memory_waits(comm);
}

/* Two ranks of a clique are on one GPU. */
static bool shares_gpu(ncclComm_t comm)
{
    bool shared = false;
    for (int i = 0; i < comm->clique->size; i++) {
        shared = shared || (i != comm->rank && comm->clique->comms[i]->device == comm->device);
    }
    if (shared) {
        atomic_store(&gpu_shared, true);
    }
    return shared;
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
        comm->failed = !comm->joining && shares_gpu(comm) ? ncclInvalidUsage : ncclSuccess;
        return comm->joining ? ncclInProgress : comm->failed;
    }
    if (comm->rank == broken_rank) {
        return (ncclResult_t)broken_error;
    }
    if (!fake_nccl_memory_ready(comm)) {
        return ncclInProgress;
    }
    if (comm->waiting.count != 0) {
        const ncclResult_t result = fake_nccl_calls_state(comm);
        comm->failed = result == ncclInProgress ? ncclSuccess : result;
        return result;
    }
    return ncclSuccess;
}

static ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t *state)
{
    (void)pthread_mutex_lock(&lock);
    *state = state_of(comm);
    (void)pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

void fake_nccl_leave(ncclComm_t comm, bool aborted)
{
    fake_nccl_memory_leave(comm, aborted);
    comm->gone = true;
    live--;
}

/* It is over when it is for all ranks, and when no graph could issue more. */
static ncclResult_t destroy(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&lock);
    if (!fake_nccl_is_ready(comm)) {
        fault("rank %d destroys a communicator that is not ready", comm->rank);
    }
    comm->finalized = true;
    comm->clique->finalized++;
    while ((comm->clique->finalized < comm->clique->size && !comm->clique->left) ||
           fake_nccl_is_captured(comm)) {
        fake_nccl_pause();
    }
    calls[FAKE_NCCL_DESTROY]++;
    fake_nccl_leave(comm, false);
    (void)pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* An abort waits for all that its process has on the GPU, and for graphs. */
static bool is_held_up(ncclComm_t comm)
{
    bool held = fake_nccl_is_captured(comm);
    for (ncclComm_t other = fake_nccl_comms; other != NULL && !held; other = other->next) {
        held = pthread_equal(other->process, comm->process) != 0 && fake_nccl_is_stuck(other);
    }
    return held;
}

/* Free a communicator at the end of the group of calls. The lock is held, but not while it
 * waits. */
static void free_aborted(ncclComm_t comm)
{
    int pauses = 0;
    if (comm->under_way != 0) {
        fault("rank %d frees a communicator while a call of it is under way", comm->rank);
    }
    for (; is_held_up(comm) && pauses < ABORT_PAUSES; pauses++) {
        fake_nccl_pause();
    }
    if (pauses == ABORT_PAUSES) {
        fault("rank %d's abort waits for ever", comm->rank);
    }
    calls[FAKE_NCCL_ABORT]++;
    fake_nccl_leave(comm, true);
}

ncclResult_t fake_nccl_abort(ncclComm_t comm)
{
    (void)pthread_mutex_lock(&lock);
    if (comm->gone || comm->aborting) {
        fault("rank %d aborts a communicator that is gone", comm->rank);
    }
    fake_nccl_split_abort(comm);
    fake_nccl_give_up(comm);
    comm->aborting = true;
    comm->clique->left = true;
    gate.open = gate.open || comm->stalled;
    if (depth == 0) {
        free_aborted(comm);
    } else {
        comm->to_free = to_free;
        to_free = comm;
    }
    (void)pthread_mutex_unlock(&lock);
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

uint64_t fake_nccl_calls(fake_nccl_call call)
{
    return calls[call];
}

void fake_nccl_hosts(uint32_t gpus_per_host)
{
    (void)pthread_mutex_lock(&lock);
    fake_nccl_gpus_per_host = gpus_per_host;
    memset(fake_nccl_sent, 0, sizeof fake_nccl_sent);
    (void)pthread_mutex_unlock(&lock);
}

uint64_t fake_nccl_crossed(uint32_t ordinal)
{
    (void)pthread_mutex_lock(&lock);
    const uint64_t sent = fake_nccl_sent[ordinal];
    (void)pthread_mutex_unlock(&lock);
    return sent;
}

uint64_t fake_nccl_live(void)
{
    return live;
}

bool fake_nccl_check(void)
{
    return faults == 0;
}

void fake_nccl_set_version(int version)
{
    fake_nccl_version = version;
}

void fake_nccl_hold_init(bool hold)
{
    init_held = hold;
}

void fake_nccl_break(int rank, ncclResult_t error)
{
    broken_error = (int)error;
    broken_rank = rank;
}

void fake_nccl_pass_gate(ncclComm_t comm, cudaStream_t stream)
{
    if (gate.active) {
        comm->stalled = true;
        (void)cudaStreamWaitEvent(stream, gate.passed, 0);
    }
}

static void hold(void *argument)
{
    (void)argument;
    gate.entered = true;
    while (!gate.open) {
        sleep_a_little();
    }
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
    while (!gate.entered) {
        sleep_a_little();
    }
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
