/* Owns what every file of this folder asks of a group: whether it has failed, with what, which call
 * of NCCL is under way, and how its communicator ends.
 *
 * A group's communicator is blocking: a call returns when it is done, without a thread of NCCL's
 * own, and waits for other ranks where NCCL connects them. The base's is not, so that it and what
 * is split off it are made within the deadline.
 *
 * ncclCommAbort does two things. It tells the communicator's kernels, and whoever waits in a call,
 * to leave; and it frees the communicator, where it waits for all that is on the GPU and for every
 * graph that holds a call to be destroyed. Of a blocking communicator it does not wait for calls
 * under way on other threads. Within a group of calls the second part comes with ncclGroupEnd. So
 * an abort tells, waits until the call has been left, and only then frees (docs/decisions/074).
 *
 * Invariants: an error of a group stays, or one nearer to the cause takes its place. Each end has a
 * thread of its own, since one abort may wait for kernels that the next would tell to leave, or for
 * the same abort on other ranks of the host; nobody waits for it longer than ZI_NCCL_END_MS. */
#include "comm/nccl/nccl_state.h"

#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/thread.h"
#include "device/cuda/cuda_device.h"

/* Looks at NCCL's progress before sleeping between them. */
#define YIELDS 256
#define SLEEP_NS 50000

/* ---- failure ---- */

zero_status zi_nccl_check(zi_nccl_group *group)
{
    zi_failure failure;
    if (!zi_failure_get(&group->failure, &failure)) {
        return ZERO_OK;
    }
    const zero_error error = zi_failure_error(&failure, ZI_FAILURE_NO_RANK);
    return zi_error_adopt(&error);
}

bool zi_nccl_set_error(zi_nccl_group *group, const zero_error *error)
{
    const zi_failure failure = zi_failure_of_all(error);
    return zi_failure_set(&group->failure, &failure);
}

void zi_nccl_fail(zi_nccl_group *group, const zero_error *error)
{
    if (zi_nccl_set_error(group, error)) {
        group->comm->ops->abort(group->comm, error);
    }
}

/* ---- calls ---- */

zero_status zi_nccl_result(zi_nccl_group *group, ncclResult_t result, const char *call)
{
    if (result == ncclSuccess) {
        return ZERO_OK;
    }
    const char *detail = group->handle->api->get_last_error(NULL); /* of the process */
    ZI_FAIL_NATIVE(ZERO_ERR_COMM, (int)result, "group %s: %s: %.60s%s%.110s", group->base.name,
                   call, group->handle->api->get_error_string(result),
                   detail != NULL && detail[0] != '\0' ? ": " : "", detail != NULL ? detail : "");
}

zero_status zi_nccl_late(const zi_nccl_group *group, const char *call)
{
    char silent[ZI_SILENCE_TEXT_BYTES];
    (void)zi_silence_text(group->comm->silence, silent, sizeof silent);
    ZI_FAIL(ZERO_ERR_TIMEOUT, "group %s, rank %u: %s of %u members did not finish within %u ms%s",
            group->base.name, group->comm->rank, call, group->base.size, group->deadline_ms,
            silent[0] != '\0' ? silent
                              : "; a rank has died, has no GPU of its own, or cannot be reached "
                                "(NCCL_DEBUG=INFO says more)");
}

zero_status zi_nccl_enter(zi_nccl_group *group, const char *call)
{
    (void)pthread_mutex_lock(&group->handle->mutex);
    const zero_status status = zi_nccl_check(group);
    if (status != ZERO_OK) {
        (void)pthread_mutex_unlock(&group->handle->mutex);
        return status;
    }
    atomic_store(&group->call, call);
    atomic_store(&group->called_ns, zi_clock_ns());
    return ZERO_OK;
}

void zi_nccl_leave(zi_nccl_group *group)
{
    atomic_store(&group->called_ns, 0);
    (void)pthread_mutex_unlock(&group->handle->mutex);
}

void zi_nccl_pause(uint32_t rounds)
{
    zi_deadline_pause(rounds, YIELDS, SLEEP_NS);
}

/* The group's own error, or another rank's. */
static zero_status check_world(zi_nccl_group *group)
{
    ZI_TRY(zi_nccl_check(group));
    zi_comm *comm = group->comm;
    return comm->ops->check != NULL ? comm->ops->check(comm) : ZERO_OK;
}

static zero_status ask_state(zi_nccl_group *group, ncclResult_t *state)
{
    ZI_TRY(zi_nccl_enter(group, "ncclCommGetAsyncError"));
    const ncclResult_t result =
        group->handle->api->comm_get_async_error(group->handle->comm, state);
    zi_nccl_leave(group);
    return zi_nccl_result(group, result, "ncclCommGetAsyncError");
}

zero_status zi_nccl_wait_of(zi_nccl_group *parent, zi_nccl_group *group, ncclResult_t result,
                            const char *call)
{
    const uint64_t until_ns = zi_deadline_in_ms(group->deadline_ms);
    for (uint32_t rounds = 0; result == ncclInProgress; rounds++) {
        ZI_TRY(check_world(group));
        if (zi_clock_ns() > until_ns) {
            return zi_nccl_late(group, call);
        }
        zi_nccl_pause(rounds);
        ZI_TRY(ask_state(parent, &result));
    }
    /* A call that an abort has ended has the error that brought the abort. */
    ZI_TRY(zi_nccl_check(group));
    return zi_nccl_result(group, result, call);
}

zero_status zi_nccl_wait(zi_nccl_group *group, ncclResult_t result, const char *call)
{
    return zi_nccl_wait_of(group, group, result, call);
}

/* ---- the end of a communicator ---- */

zero_status zi_nccl_handle_open(zi_nccl_group *group)
{
    ZI_TRY(zi_calloc(1, sizeof *group->handle, (void **)&group->handle));
    zi_nccl_handle *handle = group->handle;
    (void)pthread_mutex_init(&handle->mutex, NULL);
    atomic_init(&handle->owners, 1);
    ZI_TRY(zi_nccl_api_get(&handle->api, &group->version));
    return zi_cuda_check(cudaGetDevice(&handle->ordinal), "cudaGetDevice");
}

static void nccl_state_release(zi_nccl_handle *handle)
{
    if (atomic_fetch_sub_explicit(&handle->owners, 1, memory_order_acq_rel) == 1) {
        (void)pthread_mutex_destroy(&handle->mutex);
        zi_free(handle);
    }
}

/* Wait until nobody is in a call; the group has failed, so nobody enters another. */
static void await_calls(zi_nccl_handle *handle)
{
    (void)pthread_mutex_lock(&handle->mutex);
    (void)pthread_mutex_unlock(&handle->mutex);
}

static void abort_blocking(zi_nccl_handle *handle)
{
    (void)handle->api->group_start();
    (void)handle->api->comm_abort(handle->comm);
    await_calls(handle);
    (void)handle->api->group_end();
}

/* Of a base, whose calls wait for nobody. It goes before its child: until then NCCL may write to
 * that, and the base may point at what is being split off. */
static void abort_base(zi_nccl_handle *handle)
{
    await_calls(handle);
    if (handle->comm != NULL) {
        (void)handle->api->comm_abort(handle->comm);
    }
    if (handle->child != NULL) {
        (void)handle->api->comm_abort(handle->child);
    }
}

ncclResult_t zi_nccl_deregister(const zi_nccl_handle *handle,
                                const zi_nccl_registration *registration)
{
    return handle->windows ? handle->api->comm_window_deregister(handle->comm, registration->handle)
                           : handle->api->comm_deregister(handle->comm, registration->handle);
}

/* Destroy the communicator. What is registered goes first; false when that fails. */
static bool nccl_state_destroy(zi_nccl_handle *handle)
{
    while (handle->registered_count != 0) {
        const zi_nccl_registration *last = &handle->registered[handle->registered_count - 1];
        if (zi_nccl_deregister(handle, last) != ncclSuccess) {
            return false;
        }
        handle->registered_count--;
    }
    (void)handle->api->comm_destroy(handle->comm);
    return true;
}

static void *end_main(void *argument)
{
    zi_nccl_handle *handle = argument;
    /* Freeing must not spoil a graph that another thread captures. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)cudaSetDevice(handle->ordinal);
    if (handle->aborts || !nccl_state_destroy(handle)) {
        (handle->blocking ? abort_blocking : abort_base)(handle);
    }
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    atomic_store_explicit(&handle->over, 1, memory_order_release);
    nccl_state_release(handle);
    return NULL;
}

void zi_nccl_begin_end(zi_nccl_group *group)
{
    zi_nccl_handle *handle = group->handle;
    pthread_t thread;
    if (handle->ending) {
        return;
    }
    handle->ending = true;
    handle->aborts = zi_failure_get(&group->failure, NULL);
    atomic_store_explicit(&handle->owners, 2, memory_order_relaxed);
    if (zi_thread_start(&thread, end_main, handle) == ZERO_OK) {
        (void)pthread_detach(thread);
    } else {
        (void)end_main(handle);
    }
}

/* Until the end that the watcher begins, or has begun, is over; false: not within ZI_NCCL_END_MS.
 */
static bool await_end(const zi_nccl_group *group)
{
    const uint64_t until_ns = zi_deadline_in_ms(ZI_NCCL_END_MS);
    const zi_nccl_handle *handle = group->handle;
    uint32_t rounds = 0;
    while (atomic_load_explicit(&handle->over, memory_order_acquire) == 0) {
        if (zi_clock_ns() > until_ns) {
            return false;
        }
        zi_nccl_pause(rounds++);
    }
    return true;
}

zero_status zi_nccl_break_off(zi_nccl_group *base)
{
    const zero_error error = *zero_last_error();
    (void)zi_nccl_set_error(base, &error);
    (void)await_end(base);
    return zi_error_adopt(&error);
}

void zi_nccl_handle_close(zi_nccl_group *group)
{
    zi_nccl_handle *handle = group->handle;
    if (handle == NULL) {
        return;
    }
    if (handle->comm != NULL) {
        zi_nccl_begin_end(group);
    }
    if (handle->ending && !await_end(group)) {
        zi_log(ZERO_LOG_WARN,
               "group %s: NCCL did not give its communicator back within %d s, and keeps it; "
               "destroy graphs before their engine",
               group->base.name, ZI_NCCL_END_MS / 1000);
    }
    nccl_state_release(handle);
    group->handle = NULL;
}
