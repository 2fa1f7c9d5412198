/* Owns the end of communicators by force. NCCL's abort first tells the kernels of its communicator
 * to leave, then waits: for all that is on the GPU, where it frees memory, and for every graph that
 * holds a call of the communicator to be destroyed. Invariants: each abort has a thread of its own,
 * and the watcher waits for none, so that none waits for kernels that the next would have told to
 * leave; only closing a group waits for its abort, and no longer than the deadline where graphs may
 * hold it up. */
#include <stdatomic.h>

#include "comm/nccl/nccl_state.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/thread.h"
#include "device/cuda/cuda_device.h"

#define NS_PER_MS UINT64_C(1000000)

struct zi_nccl_ending {
    const zi_nccl_api *api;
    ncclComm_t handle; /* NULL: nothing has begun; guarded by the group's mutex */
    int ordinal;       /* of the GPU */
    atomic_uint over;
    atomic_uint owners; /* the group, and the thread; the last frees this */
};

zero_status zi_nccl_ending_create(zi_nccl_group *group)
{
    ZI_TRY(zi_calloc(1, sizeof *group->ending, (void **)&group->ending));
    atomic_init(&group->ending->over, 0);
    atomic_init(&group->ending->owners, 1);
    return ZERO_OK;
}

static void leave(zi_nccl_ending *ending)
{
    if (atomic_fetch_sub_explicit(&ending->owners, 1, memory_order_acq_rel) == 1) {
        zi_free(ending);
    }
}

static void *end_main(void *argument)
{
    zi_nccl_ending *ending = argument;
    /* What it frees must not spoil a graph that another thread captures. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)cudaSetDevice(ending->ordinal);
    (void)ending->api->comm_abort(ending->handle);
    atomic_store_explicit(&ending->over, 1, memory_order_release);
    leave(ending);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

/* Whether there is a communicator left to abort. */
static bool take(zi_nccl_group *group, zi_nccl_ending *ending)
{
    (void)pthread_mutex_lock(&group->mutex);
    const bool left = group->handle != NULL;
    if (left) {
        ending->api = group->api;
        ending->handle = group->handle;
        ending->ordinal = group->ordinal;
        group->handle = NULL;
    }
    (void)pthread_mutex_unlock(&group->mutex);
    return left;
}

void zi_nccl_abort_begin(zi_nccl_group *group)
{
    pthread_t thread;
    zi_nccl_ending *ending = group->ending;
    if (ending == NULL || !take(group, ending)) {
        return;
    }
    atomic_store_explicit(&ending->owners, 2, memory_order_relaxed);
    if (zi_thread_start(&thread, end_main, ending) == ZERO_OK) {
        (void)pthread_detach(thread);
    } else {
        (void)end_main(ending);
    }
}

/* Whether no communicator is left, nor being aborted. */
static bool is_over(zi_nccl_group *group)
{
    const zi_nccl_ending *ending = group->ending;
    (void)pthread_mutex_lock(&group->mutex);
    const bool over =
        group->handle == NULL &&
        (ending->handle == NULL || atomic_load_explicit(&ending->over, memory_order_acquire) != 0);
    (void)pthread_mutex_unlock(&group->mutex);
    return over;
}

void zi_nccl_abort_await(zi_nccl_group *group)
{
    for (uint32_t rounds = 0; !is_over(group); rounds++) {
        zi_nccl_pause(rounds);
    }
}

void zi_nccl_abort_finish(zi_nccl_group *group, uint64_t limit_ms)
{
    const uint64_t start_ns = zi_clock_ns();
    if (group->ending == NULL) {
        return;
    }
    zi_nccl_abort_begin(group);
    for (uint32_t rounds = 0; !is_over(group); rounds++) {
        if ((zi_clock_ns() - start_ns) / NS_PER_MS >= limit_ms) {
            break;
        }
        zi_nccl_pause(rounds);
    }
    leave(group->ending);
    group->ending = NULL;
}
