/* Owns the fake NCCL's splits, and communicators that a test lends to the library. */
#include <stdio.h>
#include <string.h>

#include "fake_cuda.h"
#include "fake_nccl_state.h"

static atomic_bool held;
static atomic_int failing_rank = -1;

void fake_nccl_hold_split(bool hold)
{
    held = hold;
}

void fake_nccl_fail_split(int rank)
{
    failing_rank = rank;
}

static fake_split *split_of(fake_clique *clique, uint64_t number)
{
    fake_split *split = clique->splits;
    while (split != NULL && split->number != number) {
        split = split->next;
    }
    if (split == NULL) {
        split = fake_nccl_allocate(sizeof *split);
        split->number = number;
        split->next = clique->splits;
        clique->splits = split;
    }
    return split;
}

/* This rank's communicator of those that the split comes to. */
static ncclComm_t child_of(ncclComm_t comm)
{
    const fake_split *split = comm->split;
    const int color = split->colors[comm->rank];
    const int key = split->keys[comm->rank];
    char id[NCCL_UNIQUE_ID_BYTES];
    int size = 0;
    int rank = 0;
    for (int i = 0; i < comm->clique->size; i++) {
        const bool before = split->keys[i] < key || (split->keys[i] == key && i < comm->rank);
        size += split->colors[i] == color;
        rank += split->colors[i] == color && before;
    }
    (void)snprintf(id, sizeof id, "fake split %p %llu %d", (void *)comm->clique,
                   (unsigned long long)split->number, color);
    ncclComm_t child = fake_nccl_join(fake_nccl_clique(id, size), rank, &comm->child_config);
    child->device = comm->device;
    child->process = comm->process;
    return child;
}

static ncclResult_t fail(ncclComm_t comm)
{
    comm->split->broken = true;
    comm->split = NULL;
    comm->failed = ncclSystemError;
    *comm->child_at = fake_nccl_join(fake_nccl_clique("fake failure", 1), 0, &comm->child_config);
    (*comm->child_at)->failed = ncclSystemError;
    failing_rank = -1;
    return comm->failed;
}

ncclResult_t fake_nccl_split_state(ncclComm_t comm)
{
    fake_split *split = comm->split;
    if (comm->rank == failing_rank) {
        return fail(comm);
    }
    if (held || failing_rank >= 0 || split->broken || split->arrived < comm->clique->size) {
        return ncclInProgress;
    }
    if (split->colors[comm->rank] != NCCL_SPLIT_NOCOLOR && comm->child == NULL) {
        comm->child = child_of(comm);
    }
    if (comm->child != NULL && comm->child->clique->joined < comm->child->clique->size) {
        return ncclInProgress;
    }
    if (comm->child != NULL) {
        comm->child->joining = false;
        comm->child->looks = comm->child->blocking ? 0 : LOOKS;
    }
    *comm->child_at = comm->child;
    comm->child = NULL;
    comm->split = NULL;
    return ncclSuccess;
}

void fake_nccl_split_abort(ncclComm_t comm)
{
    if (comm->child != NULL) {
        fake_nccl_leave(comm->child, true);
        comm->child = NULL;
    }
    comm->split = NULL;
}

/* As a blocking communicator: until it is done or the communicator is aborted. */
static ncclResult_t wait_for(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress && comm->split != NULL) {
        state = fake_nccl_split_state(comm);
        if (state == ncclInProgress) {
            fake_nccl_pause();
        }
    }
    return state == ncclInProgress ? ncclInternalError : state;
}

ncclResult_t fake_nccl_split(ncclComm_t comm, int color, int key, ncclComm_t *child,
                             ncclConfig_t *config)
{
    ncclResult_t result = ncclSuccess;
    (void)pthread_mutex_lock(&fake_nccl_lock);
    fake_nccl_counts[FAKE_NCCL_SPLIT]++;
    if (fake_nccl_is_ready(comm) && config != NULL && (color >= 0 || color == NCCL_SPLIT_NOCOLOR)) {
        fake_split *split = split_of(comm->clique, comm->split_count++);
        split->colors[comm->rank] = color;
        split->keys[comm->rank] = key;
        split->arrived++;
        comm->split = split;
        comm->child_at = child;
        comm->child_config = *config;
        comm->looks = LOOKS;
        *child = NULL;
        result = comm->blocking ? wait_for(comm) : ncclSuccess;
    } else {
        fake_nccl_fault("rank %d splits a communicator that is not ready", comm->rank);
        result = ncclInvalidUsage;
    }
    (void)pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

/* Tell what a communicator is asked for, which is there once it is connected. */
static ncclResult_t tell(ncclComm_t comm, const int *value, int *out)
{
    (void)pthread_mutex_lock(&fake_nccl_lock);
    const bool good = fake_nccl_is_ready(comm);
    *out = *value;
    if (!good) {
        fake_nccl_fault("rank %d of a communicator that is not ready is asked for", comm->rank);
    }
    (void)pthread_mutex_unlock(&fake_nccl_lock);
    return good ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t fake_nccl_count(ncclComm_t comm, int *count)
{
    return tell(comm, &comm->clique->size, count);
}

ncclResult_t fake_nccl_user_rank(ncclComm_t comm, int *rank)
{
    return tell(comm, &comm->rank, rank);
}

ncclResult_t fake_nccl_cu_device(ncclComm_t comm, int *device)
{
    return tell(comm, &comm->device, device);
}

/* Its state, once it is not in progress any more. */
static ncclResult_t await(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        (void)fake_nccl_api()->comm_get_async_error(comm, &state);
    }
    return state;
}

ncclComm_t fake_nccl_lend(const char *name, int size, int rank, bool blocking)
{
    char id[NCCL_UNIQUE_ID_BYTES];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    (void)snprintf(id, sizeof id, "fake loan %s", name);
    (void)pthread_mutex_lock(&fake_nccl_lock);
    ncclComm_t comm = fake_nccl_join(fake_nccl_clique(id, size), rank, &config);
    (void)pthread_mutex_unlock(&fake_nccl_lock);
    if (blocking) {
        (void)await(comm);
    }
    return comm;
}

void fake_nccl_take_back(ncclComm_t comm)
{
    const ncclResult_t state = await(comm);
    (void)pthread_mutex_lock(&fake_nccl_lock);
    if (state != ncclSuccess || comm->gone || comm->finalized || comm->issued != 0) {
        fake_nccl_fault("rank %d: a communicator that was lent is not as it was", comm->rank);
    }
    fake_nccl_leave(comm, false);
    (void)pthread_mutex_unlock(&fake_nccl_lock);
}
