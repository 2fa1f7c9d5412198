/* Owns the end of communicators by force. NCCL's abort first tells the kernels of its communicator
 * to leave, then waits: for all that is on the GPU, where it frees memory, and for every graph that
 * holds a call of the communicator to be destroyed. Invariants: each abort has a thread of its own,
 * so that none waits for kernels that the next would have told to leave; nobody waits for the abort
 * of what was captured. */
#include "comm/nccl/nccl_state.h"
#include "core/memory.h"
#include "core/thread.h"
#include "device/cuda/cuda_device.h"

struct zi_nccl_ending {
    const zi_nccl_api *api;
    ncclComm_t handle;
    int ordinal; /* of the GPU */
    pthread_t thread;
    bool begun; /* on `thread`, which is joined */
    bool alone; /* the thread frees this; its group may be gone */
};

zero_status zi_nccl_ending_create(zi_nccl_group *group)
{
    return zi_calloc(1, sizeof *group->ending, (void **)&group->ending);
}

static void *end_main(void *argument)
{
    zi_nccl_ending *ending = argument;
    const bool alone = ending->alone;
    (void)cudaSetDevice(ending->ordinal);
    (void)ending->api->comm_abort(ending->handle);
    if (alone) {
        zi_free(ending);
    }
    return NULL;
}

/* Whether there is a communicator left to abort. */
static bool take(zi_nccl_group *group, zi_nccl_ending *ending)
{
    (void)pthread_mutex_lock(&group->mutex);
    ending->api = group->api;
    ending->handle = group->handle;
    ending->ordinal = group->ordinal;
    ending->alone = group->captured;
    group->handle = NULL;
    (void)pthread_mutex_unlock(&group->mutex);
    return ending->handle != NULL;
}

void zi_nccl_abort_begin(zi_nccl_group *group)
{
    pthread_t thread;
    zi_nccl_ending *ending = group->ending;
    if (ending == NULL || ending->begun || !take(group, ending)) {
        return;
    }
    const bool alone = ending->alone;
    if (alone) {
        group->ending = NULL;
    }
    if (zi_thread_start(&thread, end_main, ending) != ZERO_OK) {
        (void)end_main(ending);
    } else if (alone) {
        (void)pthread_detach(thread);
    } else {
        ending->thread = thread;
        ending->begun = true;
    }
}

void zi_nccl_abort_end(zi_nccl_group *group)
{
    if (group->ending != NULL && group->ending->begun) {
        (void)pthread_join(group->ending->thread, NULL);
        group->ending->begun = false;
    }
    (void)pthread_mutex_lock(&group->mutex);
    atomic_store_explicit(&group->ended, group->handle == NULL, memory_order_release);
    (void)pthread_mutex_unlock(&group->mutex);
}

void zi_nccl_abort_await(zi_nccl_group *group)
{
    for (uint32_t rounds = 0; atomic_load_explicit(&group->ended, memory_order_acquire) == 0;
         rounds++) {
        zi_nccl_pause(rounds);
    }
}
