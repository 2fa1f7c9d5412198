/* Owns the way from the caller's communicator to a base of our own: one split of it, and nothing
 * else. Invariant: the caller's is never aborted, finalised or destroyed here. So a split that does
 * not finish cannot be ended; what NCCL may still write to is left to it. */
#include <errno.h>
#include <time.h>

#include "comm/nccl/nccl_base.h"
#include "comm/nccl/nccl_world.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/thread.h"
#include "device/cuda/cuda_device.h"

#define NS_PER_MS UINT64_C(1000000)
#define MS_PER_S 1000

/* A split on a thread of its own, since a blocking communicator's takes as long as it takes. */
typedef struct loan {
    const zi_nccl_api *api;
    ncclComm_t parent;
    ncclComm_t child; /* NCCL writes it until the parent is no longer in progress */
    int rank;
    int ordinal;
    pthread_mutex_t mutex; /* guards the rest */
    pthread_cond_t moved;  /* `done`; on the monotonic clock */
    ncclResult_t result;
    bool done;      /* the call has returned */
    bool abandoned; /* whoever is last frees the loan */
    struct loan *next;
} loan;

/* Loans whose split may be under way for ever, once they are abandoned: NCCL may still write there.
 */
static struct {
    pthread_mutex_t mutex;
    loan *loans;
} lost = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void lose(loan *l)
{
    (void)pthread_mutex_lock(&lost.mutex);
    l->next = lost.loans;
    lost.loans = l;
    (void)pthread_mutex_unlock(&lost.mutex);
}

static void free_loan(loan *l)
{
    (void)pthread_cond_destroy(&l->moved);
    (void)pthread_mutex_destroy(&l->mutex);
    zi_free(l);
}

static void *split_main(void *argument)
{
    loan *l = argument;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    (void)cudaSetDevice(l->ordinal);
    const ncclResult_t result = l->api->comm_split(l->parent, 0, l->rank, &l->child, &config);
    (void)pthread_mutex_lock(&l->mutex);
    l->result = result;
    l->done = true;
    const bool abandoned = l->abandoned;
    (void)pthread_cond_signal(&l->moved);
    (void)pthread_mutex_unlock(&l->mutex);
    if (abandoned && l->child != NULL) {
        (void)l->api->comm_abort(l->child);
    }
    if (abandoned) {
        free_loan(l);
    }
    return NULL;
}

static zero_status open_loan(const zi_nccl_group *base, ncclComm_t parent, loan **out)
{
    pthread_condattr_t attributes;
    ZI_TRY(zi_calloc(1, sizeof **out, (void **)out));
    loan *l = *out;
    l->api = base->api;
    l->parent = parent;
    l->rank = (int)base->base.rank;
    l->ordinal = base->ordinal;
    (void)pthread_mutex_init(&l->mutex, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&l->moved, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    return ZERO_OK;
}

static zero_status late(const zi_nccl_group *base)
{
    ZI_FAIL(ZERO_TIMEOUT,
            "rank %u: ncclCommSplit of the caller's communicator did not finish within %u ms; not "
            "all %u ranks called zero_world_create_nccl, and the communicator is good for nothing "
            "but ncclCommAbort now",
            base->base.rank, base->deadline_ms, base->base.size);
}

/* False after the deadline. */
static bool await_call(loan *l, const struct timespec *until)
{
    (void)pthread_mutex_lock(&l->mutex);
    int code = 0;
    while (!l->done && code != ETIMEDOUT) {
        code = pthread_cond_timedwait(&l->moved, &l->mutex, until);
    }
    const bool done = l->done;
    l->abandoned = !done;
    (void)pthread_mutex_unlock(&l->mutex);
    return done;
}

/* Wait until the communicator is no longer in progress; *state tells what it is instead. */
static bool await_state(const zi_nccl_api *api, ncclComm_t comm, uint64_t until_ns,
                        ncclResult_t *state)
{
    *state = ncclInProgress;
    for (uint32_t rounds = 0; *state == ncclInProgress; rounds++) {
        const ncclResult_t result = api->comm_get_async_error(comm, state);
        *state = result != ncclSuccess ? result : *state;
        if (*state == ncclInProgress && zi_clock_ns() > until_ns) {
            return false;
        }
        if (*state == ncclInProgress) {
            zi_nccl_pause(rounds);
        }
    }
    return true;
}

/* The split is over, as NCCL sees it. */
static zero_status end_split(zi_nccl_group *base, loan *l, ncclResult_t state)
{
    ncclComm_t child = l->child;
    free_loan(l);
    if (state != ncclSuccess && child != NULL) {
        (void)base->api->comm_abort(child);
    }
    ZI_TRY(zi_nccl_result(base, state, "ncclCommSplit of the caller's communicator"));
    if (child == NULL) {
        ZI_FAIL(ZERO_COMM, "ncclCommSplit of the caller's communicator made none");
    }
    (void)pthread_mutex_lock(&base->mutex);
    base->handle = child;
    (void)pthread_mutex_unlock(&base->mutex);
    return zi_nccl_wait(base, ncclInProgress, "ncclCommSplit of the caller's communicator");
}

static zero_status split(zi_nccl_group *base, ncclComm_t parent)
{
    loan *l = NULL;
    pthread_t thread;
    ncclResult_t state = ncclSuccess;
    const uint64_t until_ns = zi_clock_ns() + base->deadline_ms * NS_PER_MS;
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += base->deadline_ms / MS_PER_S + 1;
    ZI_TRY(open_loan(base, parent, &l));
    const zero_status started = zi_thread_start(&thread, split_main, l);
    if (started != ZERO_OK) {
        free_loan(l);
        return started;
    }
    if (!await_call(l, &until)) {
        (void)pthread_detach(thread);
        return late(base);
    }
    (void)pthread_join(thread, NULL);
    if (l->result != ncclSuccess && l->result != ncclInProgress) {
        return end_split(base, l, l->result);
    }
    if (!await_state(base->api, parent, until_ns, &state)) {
        lose(l);
        return late(base);
    }
    return end_split(base, l, state);
}

zero_status zi_nccl_base_borrow(zi_comm *comm, ncclComm_t parent)
{
    zi_nccl_group *base = NULL;
    zero_status status = zi_nccl_base_open(comm, comm->deadline_ms, &base);
    if (status == ZERO_OK) {
        status = split(base, parent);
    }
    return zi_nccl_base_keep(comm, base, status);
}

static zero_status ask(const zi_nccl_api *api, ncclResult_t result, const char *call)
{
    if (result != ncclSuccess) {
        ZI_FAIL_NATIVE(ZERO_COMM, (int)result, "%s of the caller's communicator: %.100s", call,
                       api->get_error_string(result));
    }
    return ZERO_OK;
}

zero_status zi_nccl_borrowed_place(ncclComm_t comm, uint32_t deadline_ms, zi_nccl_place *place)
{
    const zi_nccl_api *api = NULL;
    ncclResult_t state = ncclSuccess;
    int version = 0;
    int rank = 0;
    int size = 0;
    int device = 0;
    int current = 0;
    ZI_TRY(zi_nccl_api_get(&api, &version));
    if (!await_state(api, comm, zi_clock_ns() + deadline_ms * NS_PER_MS, &state)) {
        ZI_FAIL(ZERO_TIMEOUT, "the caller's communicator was still in progress after %u ms",
                deadline_ms);
    }
    ZI_TRY(ask(api, state, "the state"));
    ZI_TRY(ask(api, api->comm_user_rank(comm, &rank), "ncclCommUserRank"));
    ZI_TRY(ask(api, api->comm_count(comm, &size), "ncclCommCount"));
    ZI_TRY(ask(api, api->comm_cu_device(comm, &device), "ncclCommCuDevice"));
    ZI_TRY(zi_cuda_check(cudaGetDevice(&current), "cudaGetDevice"));
    if (current != device) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "comm is of GPU %d but GPU %d is current; call cudaSetDevice(%d) first", device,
                current, device);
    }
    *place = (zi_nccl_place){.rank = (uint32_t)rank, .size = (uint32_t)size, .borrowed = comm};
    return ZERO_OK;
}
