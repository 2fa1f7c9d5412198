/* Owns threads that call pread and pwrite, for machines without io_uring. `lock` guards the lists
 * `asked` and `done`, the counts and stop. Invariant: a segment is in one list or with one thread.
 * The lists are linked through the segments, so they hold whatever a queue has in flight. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"
#include "storage/io_backend.h"

#define THREADS_MAX 64

typedef struct segment_list {
    zi_io_segment *first;
    zi_io_segment **end;
} segment_list;

typedef struct posix_backend {
    pthread_mutex_t lock;
    pthread_cond_t work;     /* signalled by the owner: segments in `asked`, or stop */
    pthread_cond_t complete; /* signalled by threads: `wanted` segments are in `done` */
    segment_list staged;     /* the owner's alone, until flush */
    uint32_t staged_count;
    segment_list asked;
    segment_list done;
    uint32_t done_count;
    uint32_t wanted; /* completions that the owner sleeps for; 0: it does not sleep */
    bool stop;
    uint32_t started;
    uint32_t thread_count;
    pthread_t threads[THREADS_MAX];
} posix_backend;

static void list_clear(segment_list *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static void list_add(segment_list *list, zi_io_segment *segment)
{
    segment->link = NULL;
    *list->end = segment;
    list->end = &segment->link;
}

static zi_io_segment *list_take(segment_list *list)
{
    zi_io_segment *segment = list->first;
    if (segment != NULL) {
        list->first = segment->link;
        if (list->first == NULL) {
            list->end = &list->first;
        }
    }
    return segment;
}

static void run_segment(zi_io_segment *segment)
{
    const ssize_t moved =
        segment->kind == ZI_IO_READ
            ? pread(segment->fd, segment->memory, segment->bytes, (off_t)segment->offset)
            : pwrite(segment->fd, segment->memory, segment->bytes, (off_t)segment->offset);
    segment->result = moved < 0 ? -errno : (int32_t)moved;
}

static void *thread_run(void *argument)
{
    posix_backend *self = argument;
    (void)pthread_mutex_lock(&self->lock);
    for (;;) {
        zi_io_segment *segment = list_take(&self->asked);
        if (segment == NULL) {
            if (self->stop) {
                break;
            }
            (void)pthread_cond_wait(&self->work, &self->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&self->lock);
        run_segment(segment);
        (void)pthread_mutex_lock(&self->lock);
        list_add(&self->done, segment);
        self->done_count++;
        if (self->wanted != 0 && self->done_count >= self->wanted) {
            (void)pthread_cond_signal(&self->complete);
        }
    }
    (void)pthread_mutex_unlock(&self->lock);
    return NULL;
}

static void posix_put(void *self_, zi_io_segment *segment)
{
    posix_backend *self = self_;
    list_add(&self->staged, segment);
    self->staged_count++;
}

static void posix_flush(void *self_)
{
    posix_backend *self = self_;
    if (self->staged_count == 0) {
        return;
    }
    (void)pthread_mutex_lock(&self->lock);
    while (self->staged.first != NULL) {
        list_add(&self->asked, list_take(&self->staged));
        (void)pthread_cond_signal(&self->work);
    }
    (void)pthread_mutex_unlock(&self->lock);
    self->staged_count = 0;
}

static struct timespec deadline_after(uint64_t ns)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    const uint64_t sum = (uint64_t)at.tv_nsec + ns % UINT64_C(1000000000);
    at.tv_sec += (time_t)(ns / UINT64_C(1000000000) + sum / UINT64_C(1000000000));
    at.tv_nsec = (long)(sum % UINT64_C(1000000000));
    return at;
}

static int posix_reap(void *self_, zi_io_segment **done, uint32_t done_max, uint32_t want,
                      uint64_t timeout_ns)
{
    posix_backend *self = self_;
    posix_flush(self);
    (void)pthread_mutex_lock(&self->lock);
    if (timeout_ns > 0 && self->done_count < want) {
        const struct timespec until = deadline_after(timeout_ns);
        self->wanted = want;
        int code = 0;
        while (self->done_count < want && code == 0) {
            code = pthread_cond_timedwait(&self->complete, &self->lock, &until);
        }
        self->wanted = 0;
    }
    uint32_t count = 0;
    while (count < done_max && self->done.first != NULL) {
        done[count++] = list_take(&self->done);
    }
    self->done_count -= count;
    (void)pthread_mutex_unlock(&self->lock);
    return (int)count;
}

static void posix_destroy(void *self_)
{
    posix_backend *self = self_;
    (void)pthread_mutex_lock(&self->lock);
    self->stop = true;
    (void)pthread_cond_broadcast(&self->work);
    (void)pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < self->started; i++) {
        (void)pthread_join(self->threads[i], NULL);
    }
    (void)pthread_cond_destroy(&self->complete);
    (void)pthread_cond_destroy(&self->work);
    (void)pthread_mutex_destroy(&self->lock);
    zi_free(self);
}

static const zi_io_backend_ops posix_ops = {
    .struct_bytes = sizeof(zi_io_backend_ops),
    .name = "posix",
    .put = posix_put,
    .flush = posix_flush,
    .reap = posix_reap,
    .destroy = posix_destroy,
};

zero_status zi_posix_create(const zi_io_setup *setup, zi_io_backend_kind kind,
                            zi_io_backend *backend, zi_io_report *report)
{
    (void)kind;
    posix_backend *self = NULL;
    ZI_TRY(zi_calloc(1, sizeof *self, (void **)&self));
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->work, NULL);
    (void)pthread_cond_init(&self->complete, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    list_clear(&self->staged);
    list_clear(&self->asked);
    list_clear(&self->done);
    self->thread_count = (uint32_t)zi_min_u64(setup->depth, THREADS_MAX);
    zero_status status = ZERO_OK;
    while (self->started < self->thread_count && status == ZERO_OK) {
        status = zi_thread_start(&self->threads[self->started], thread_run, self);
        self->started += status == ZERO_OK;
    }
    if (status != ZERO_OK) {
        posix_destroy(self);
        return status;
    }
    (void)snprintf(report->flags, sizeof report->flags, "%u threads", self->thread_count);
    *backend = (zi_io_backend){&posix_ops, self};
    return ZERO_OK;
}
