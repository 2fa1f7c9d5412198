/* Owns the watcher, one thread of the process that checks all NCCL groups every few milliseconds,
 * and the marks of batches under way. NCCL itself reports network errors only. Where a member has
 * died or makes other calls, kernels spin for ever and calls that connect never return: the watcher
 * finds both by their age and lets the group fail.
 *
 * Invariants: the watcher waits for nobody, neither for a call under way nor for the end of a
 * communicator (nccl_state.c). Groups that have failed are ended together. Locks: `watch.mutex`,
 * then a handle's. */
#include <stdatomic.h>

#include "comm/nccl/nccl_state.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/thread.h"
#include "device/cuda/cuda_device.h"

/* Between two checks of all groups. */
#define CHECK_MS 10
#define NS_PER_MS UINT64_C(1000000)

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
    zi_deadline_cond_init(&watch.moved);
}

/* ---- batches under way ---- */

zero_status zi_nccl_mark_begin(zi_nccl_group *group, cudaStream_t stream, zi_nccl_marking *marking)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    *marking = ZI_NCCL_UNMARKED;
    ZI_TRY(zi_cuda_check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing"));
    zero_status status = ZERO_OK;
    if (capture != cudaStreamCaptureStatusNone) {
        return ZERO_OK;
    }
    (void)pthread_mutex_lock(&group->handle->mutex);
    if (group->mark_count == ZI_NCCL_MARKS) {
        *marking = ZI_NCCL_LAST_MARK;
    } else {
        const uint32_t place = (group->mark_first + group->mark_count) % ZI_NCCL_MARKS;
        *marking = ZI_NCCL_OWN_MARK;
        status =
            zi_cuda_check(cudaEventRecord(group->marks[place].began, stream), "cudaEventRecord");
    }
    (void)pthread_mutex_unlock(&group->handle->mutex);
    return status;
}

/* The handle's mutex is held. */
static zero_status record_end(zi_nccl_group *group, cudaStream_t stream, bool joins,
                              const zi_collective *batch, uint32_t batch_count, uint64_t number)
{
    const uint32_t place = group->mark_first + group->mark_count - (joins ? 1 : 0);
    zi_nccl_mark *mark = &group->marks[place % ZI_NCCL_MARKS];
    ZI_TRY(zi_cuda_check(cudaEventRecord(mark->done, stream), "cudaEventRecord"));
    mark->last = number;
    if (joins) {
        mark->batches++;
        return ZERO_OK;
    }
    mark->began_ns = 0;
    mark->batches = 1;
    mark->number = number;
    mark->collectives = batch_count;
    mark->first =
        batch_count != 0 ? zi_collective_terms_of(batch) : (zi_collective_terms){.kind = 0};
    group->mark_count++;
    return ZERO_OK;
}

zero_status zi_nccl_mark_end(zi_nccl_group *group, cudaStream_t stream, zi_nccl_marking marking,
                             const zi_collective *batch, uint32_t batch_count, uint64_t number)
{
    if (marking == ZI_NCCL_UNMARKED) {
        zi_recorder_end(&group->base.recorder, number, ZI_RECORD_CAPTURED);
        return ZERO_OK;
    }
    (void)pthread_mutex_lock(&group->handle->mutex);
    /* The watcher frees marks meanwhile, but only this thread takes them. So the next free one is
     * still that of begin; the last mark may be gone. */
    const bool joins = marking == ZI_NCCL_LAST_MARK && group->mark_count != 0;
    const zero_status status = record_end(group, stream, joins, batch, batch_count, number);
    (void)pthread_mutex_unlock(&group->handle->mutex);
    return status;
}

/* ---- the watcher ---- */

/* *fired: whether the event has fired. */
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

static zero_status nccl_watch_fail_late(const zi_nccl_group *group, const zi_nccl_mark *mark)
{
    char text[ZI_COLLECTIVE_TEXT_BYTES] = "an empty batch";
    if (mark->collectives != 0) {
        (void)zi_collective_terms_text(&mark->first, text, sizeof text);
    }
    char silent[ZI_SILENCE_TEXT_BYTES];
    (void)zi_silence_text(group->comm->silence, silent, sizeof silent);
    ZI_FAIL(ZERO_ERR_TIMEOUT, "group %s, rank %u: %s (a batch of %u) did not finish within %u ms%s",
            group->base.name, group->comm->rank, text, mark->collectives, group->deadline_ms,
            silent[0] != '\0' ? silent : "; a rank has died or makes other calls");
}

/* Free the marks of finished batches, and record what became of them; TIMEOUT when the first of the
 * others has run for too long. */
static zero_status check_marks(zi_nccl_group *group)
{
    const uint64_t now_ns = zi_clock_ns();
    while (group->mark_count != 0) {
        zi_nccl_mark *mark = &group->marks[group->mark_first];
        bool fired = false;
        ZI_TRY(query(mark->done, &fired));
        if (fired) {
            for (uint64_t number = mark->number; number <= mark->last; number++) {
                zi_recorder_end(&group->base.recorder, number, ZI_RECORD_DONE);
            }
            group->mark_first = (group->mark_first + 1) % ZI_NCCL_MARKS;
            group->mark_count--;
            continue;
        }
        if (mark->began_ns == 0) {
            ZI_TRY(query(mark->began, &fired));
            mark->began_ns = fired ? now_ns : 0;
            if (fired) {
                zi_recorder_start(&group->base.recorder, mark->number);
            }
        } else if (now_ns - mark->began_ns > group->deadline_ms * NS_PER_MS * mark->batches) {
            zi_recorder_end(&group->base.recorder, mark->number, ZI_RECORD_FAILED);
            return nccl_watch_fail_late(group, mark);
        }
        break;
    }
    return ZERO_OK;
}

/* The errors that NCCL reports itself. */
static zero_status nccl_watch_check_handle(zi_nccl_group *group)
{
    ncclResult_t found = ncclSuccess;
    if (group->handle->comm == NULL) {
        return ZERO_OK;
    }
    const ncclResult_t result =
        group->handle->api->comm_get_async_error(group->handle->comm, &found);
    if (result != ncclSuccess) {
        return zi_nccl_result(group, result, "ncclCommGetAsyncError");
    }
    return found == ncclInProgress ? ZERO_OK : zi_nccl_result(group, found, "communication");
}

/* TIMEOUT when a call of NCCL has been under way for too long. */
static zero_status nccl_watch_check_call(const zi_nccl_group *group)
{
    const uint64_t called_ns = atomic_load(&group->called_ns);
    const uint64_t now_ns = zi_clock_ns();
    return called_ns != 0 && now_ns > called_ns + group->deadline_ms * NS_PER_MS
               ? zi_nccl_late(group, atomic_load(&group->call))
               : ZERO_OK;
}

static void nccl_watch_check_group(zi_nccl_group *group)
{
    zero_status status = nccl_watch_check_call(group);
    if (status == ZERO_OK && pthread_mutex_trylock(&group->handle->mutex) == 0) {
        (void)cudaSetDevice(group->handle->ordinal);
        status = nccl_watch_check_handle(group);
        status = status == ZERO_OK ? check_marks(group) : status;
        (void)pthread_mutex_unlock(&group->handle->mutex);
    }
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
    return zi_failure_get(&group->failure, NULL);
}

/* When one group of a world fails, all of them fail. */
static void spread_failure(zi_nccl_group *failed)
{
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (group->comm == failed->comm && !has_failed(group)) {
            (void)zi_nccl_check(failed);
            const zero_error error = *zero_last_error();
            zi_nccl_fail(group, &error);
        }
    }
}

static void spread_failures(void)
{
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (has_failed(group)) {
            spread_failure(group);
        }
    }
}

static void check_all(void)
{
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (!has_failed(group)) {
            nccl_watch_check_group(group);
        }
    }
    spread_failures();
    for (zi_nccl_group *group = watch.groups; group != NULL; group = group->next) {
        if (has_failed(group)) {
            zi_nccl_begin_end(group);
        }
    }
}

static void *watch_main(void *argument)
{
    (void)argument;
    /* A query of an event must not spoil a graph that another thread captures. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)pthread_mutex_lock(&watch.mutex);
    while (watch.groups != NULL) {
        check_all();
        (void)zi_deadline_wait(&watch.moved, &watch.mutex, zi_deadline_in_ms(CHECK_MS));
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
    /* A group that is closed right after its failure takes with it what the others have yet to be
     * told: they would be destroyed as if nothing had happened, which waits for the other ranks. */
    spread_failures();
    zi_nccl_group **place = &watch.groups;
    while (*place != NULL && *place != group) {
        place = &(*place)->next;
    }
    const bool found = *place != NULL;
    *place = found ? group->next : NULL;
    const bool last = found && watch.groups == NULL;
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
