/* Owns the watcher: one thread of the process that looks at all NCCL groups every few milliseconds.
 * NCCL itself tells only of network errors; a member that died or makes other calls leaves kernels
 * that spin for ever, which only their age shows. The watcher ends them.
 *
 * Invariants: communicators are aborted here, or by create and destroy of their own group, and
 * nowhere else; all groups that have failed are aborted together, and none is waited for here,
 * since an abort may wait for what others have on the GPU, or for the same abort on other ranks of
 * the host. Locks: `watch.mutex`, then a group's. */
#include <stdio.h>
#include <time.h>

#include "comm/nccl/nccl_state.h"
#include "core/check.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/thread.h"
#include "device/cuda/cuda_device.h"

#define LOOK_NS INT64_C(10000000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)

static struct {
    pthread_once_t once;
    pthread_mutex_t mutex; /* guards the rest, and every group's `next` */
    pthread_cond_t
        moved; /* `groups` became empty, or the thread has gone; on the monotonic clock */
    zi_nccl_group *groups; /* in the order in which they were made */
    pthread_t thread;
    bool running;
    bool ending; /* somebody waits for the thread to end */
} watch = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};

static void open_watch(void)
{
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&watch.moved, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

zero_status zi_nccl_mark_begin(zi_nccl_group *group, cudaStream_t stream, zi_nccl_noting *noting)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    *noting = ZI_NCCL_UNNOTED;
    ZI_TRY(zi_cuda_check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
    zero_status status = ZERO_OK;
    (void)pthread_mutex_lock(&group->mutex);
    if (capture != cudaStreamCaptureStatusNone) {
        group->captured = true;
    } else if (group->mark_count == ZI_NCCL_MARKS) {
        *noting = ZI_NCCL_JOINED;
    } else {
        const uint32_t place = (group->mark_first + group->mark_count) % ZI_NCCL_MARKS;
        *noting = ZI_NCCL_NOTED;
        status =
            zi_cuda_check(cudaEventRecord(group->marks[place].began, stream), "cudaEventRecord");
    }
    (void)pthread_mutex_unlock(&group->mutex);
    return status;
}

/* The group's mutex is held. */
static zero_status note(zi_nccl_group *group, cudaStream_t stream, bool joins,
                        const zi_collective *batch, uint32_t batch_count)
{
    const uint32_t place = group->mark_first + group->mark_count - (joins ? 1 : 0);
    zi_nccl_mark *mark = &group->marks[place % ZI_NCCL_MARKS];
    ZI_TRY(zi_cuda_check(cudaEventRecord(mark->done, stream), "cudaEventRecord"));
    if (joins) {
        mark->batches++;
        return ZERO_OK;
    }
    mark->began_ns = 0;
    mark->batches = 1;
    mark->collectives = batch_count;
    mark->first =
        batch_count != 0 ? zi_collective_terms_of(batch) : (zi_collective_terms){.kind = 0};
    group->mark_count++;
    return ZERO_OK;
}

zero_status zi_nccl_mark_end(zi_nccl_group *group, cudaStream_t stream, zi_nccl_noting noting,
                             const zi_collective *batch, uint32_t batch_count)
{
    if (noting == ZI_NCCL_UNNOTED) {
        return ZERO_OK;
    }
    (void)pthread_mutex_lock(&group->mutex);
    /* The watcher frees marks meanwhile, but only this thread takes them: the next place is still
     * the one of begin, and the mark to join may be gone. */
    const bool joins = noting == ZI_NCCL_JOINED && group->mark_count != 0;
    const zero_status status = note(group, stream, joins, batch, batch_count);
    (void)pthread_mutex_unlock(&group->mutex);
    return status;
}

/* Whether the event has fired. */
static zero_status query(cudaEvent_t event, bool *fired)
{
    const cudaError_t code = cudaEventQuery(event);
    *fired = code == cudaSuccess;
    if (code == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* it is no error, but is kept like one */
        return ZERO_OK;
    }
    return zi_cuda_check(code, "cudaEventQuery");
}

static zero_status fail_late(const zi_nccl_group *group, const zi_nccl_mark *mark)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES] = "an empty batch";
    if (mark->collectives != 0) {
        (void)zi_collective_terms_text(&mark->first, text, sizeof text);
    }
    ZI_FAIL(ZERO_TIMEOUT,
            "group %s, rank %u: %s (a batch of %u) did not finish within %u ms; a rank has died or "
            "makes other calls",
            group->base.name, group->comm->rank, text, mark->collectives, group->deadline_ms);
}

/* Free the marks of finished batches; TIMEOUT when the first that is left has run for too long. */
static zero_status look_at_marks(zi_nccl_group *group)
{
    const uint64_t now_ns = zi_clock_ns();
    while (group->mark_count != 0) {
        zi_nccl_mark *mark = &group->marks[group->mark_first];
        bool fired = false;
        ZI_TRY(query(mark->done, &fired));
        if (fired) {
            group->mark_first = (group->mark_first + 1) % ZI_NCCL_MARKS;
            group->mark_count--;
            continue;
        }
        if (mark->began_ns == 0) {
            ZI_TRY(query(mark->began, &fired));
            mark->began_ns = fired ? now_ns : 0;
        } else if (now_ns - mark->began_ns > group->deadline_ms * NS_PER_MS * mark->batches) {
            return fail_late(group, mark);
        }
        break;
    }
    return ZERO_OK;
}

/* What NCCL has found out by itself. */
static zero_status look_at_handle(zi_nccl_group *group)
{
    ncclResult_t found = ncclSuccess;
    if (group->handle == NULL) {
        return ZERO_OK;
    }
    const ncclResult_t result = group->api->comm_get_async_error(group->handle, &found);
    if (result != ncclSuccess) {
        return zi_nccl_result(group, result, "ncclCommGetAsyncError");
    }
    return found == ncclInProgress ? ZERO_OK : zi_nccl_result(group, found, "communication");
}

/* A rank that has given up lets its last words be heard for a while. */
static bool leaves_later(zi_nccl_group *group)
{
    const uint64_t leaves_ns = atomic_load_explicit(&group->leaves_ns, memory_order_acquire);
    return leaves_ns != 0 && zi_clock_ns() < leaves_ns;
}

static void look_at(zi_nccl_group *group)
{
    if (leaves_later(group)) {
        return;
    }
    (void)cudaSetDevice(group->ordinal);
    (void)pthread_mutex_lock(&group->mutex);
    zero_status status = look_at_handle(group);
    if (status == ZERO_OK) {
        status = look_at_marks(group);
    }
    (void)pthread_mutex_unlock(&group->mutex);
    if (status == ZERO_OK && group->comm->ops->check != NULL) {
        status = group->comm->ops->check(group->comm);
    }
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        zi_nccl_fail(group, &error);
    }
}

static bool has_failed(const zi_nccl_group *group)
{
    return atomic_load_explicit(&group->failed, memory_order_acquire) != 0;
}

/* No group of a world goes on once one has failed. */
static void spread_failure(zi_nccl_group *failed)
{
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (group->comm == failed->comm && !has_failed(group) && !leaves_later(group)) {
            zi_nccl_fail(group, &failed->first_error);
        }
    }
}

static void look_at_all(void)
{
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (!has_failed(group)) {
            look_at(group);
        }
    }
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (has_failed(group)) {
            spread_failure(group);
        }
    }
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (has_failed(group)) {
            zi_nccl_abort_begin(group);
        }
    }
}

static void *watch_main(void *argument)
{
    (void)argument;
    /* Asking for an event must not spoil a graph that another thread captures. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)pthread_mutex_lock(&watch.mutex);
    while (watch.groups != NULL) {
        look_at_all();
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        const int64_t ns = until.tv_nsec + LOOK_NS;
        until.tv_sec += ns / NS_PER_S;
        until.tv_nsec = ns % NS_PER_S;
        (void)pthread_cond_timedwait(&watch.moved, &watch.mutex, &until);
    }
    (void)pthread_mutex_unlock(&watch.mutex);
    return NULL;
}

zero_status zi_nccl_watch_add(zi_nccl_group *group)
{
    (void)pthread_once(&watch.once, open_watch);
    (void)pthread_mutex_lock(&watch.mutex);
    while (watch.ending) {
        (void)pthread_cond_wait(&watch.moved, &watch.mutex);
    }
    zi_nccl_group **place = &watch.groups;
    while (*place != NULL) {
        place = &(*place)->next;
    }
    *place = group;
    zero_status status = ZERO_OK;
    if (!watch.running) {
        status = zi_thread_start(&watch.thread, watch_main, NULL);
        watch.running = status == ZERO_OK;
    }
    if (status != ZERO_OK) {
        *place = NULL;
    }
    (void)pthread_mutex_unlock(&watch.mutex);
    return status;
}

void zi_nccl_watch_remove(zi_nccl_group *group)
{
    (void)pthread_mutex_lock(&watch.mutex);
    zi_nccl_group **place = &watch.groups;
    while (*place != group) {
        zi_assert(*place != NULL);
        place = &(*place)->next;
    }
    *place = group->next;
    const bool last = watch.groups == NULL;
    const pthread_t thread = watch.thread;
    watch.ending = watch.ending || last;
    (void)pthread_cond_broadcast(&watch.moved);
    (void)pthread_mutex_unlock(&watch.mutex);
    if (!last) {
        return;
    }
    (void)pthread_join(thread, NULL);
    (void)pthread_mutex_lock(&watch.mutex);
    watch.running = false;
    watch.ending = false;
    (void)pthread_cond_broadcast(&watch.moved);
    (void)pthread_mutex_unlock(&watch.mutex);
}
