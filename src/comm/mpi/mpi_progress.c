/* Owns the thread that makes a comm's MPI calls. Invariants: only the thread touches `active` and
 * MPI's requests; what the mutex guards is marked at each field; an op that is DONE is never
 * touched again; once `broken` is set no MPI call is made. */
#include "comm/mpi/mpi_progress.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"

#define NS_PER_MS UINT64_C(1000000)
/* Rounds without sleeping; then pauses as long as a small message takes on a network. */
#define YIELDS 50
#define PAUSE_NS 50000
/* How long the thread may take to end an op after its deadline, before it counts as stuck. */
#define ANSWER_MS 2000
#define NOTIFY_MS 200
/* Between two checks of whether the others live. */
#define POLL_MS 100
/* How long messages under way may take to end after the deadline of their op. */
#define WITHDRAW_MS 100
#define NOTICE_TAG 1
#define NOTICES_MAX 64
/* Group number of the op that sends a notice: notices of others do not end it. */
#define NOTIFYING UINT64_MAX

/* The message that a rank sends when it fails. */
typedef struct notice {
    uint64_t group_id;
    zi_failure failure;
} notice;

struct zi_mpi_progress {
    zi_mpi_handle world;
    uint32_t own; /* world rank */
    zi_mpi_poll_fn poll;
    void *poll_user;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t posted_cond;  /* signalled by posters: posted, give_up, stop */
    pthread_cond_t done_cond;    /* signalled by the thread: an op is DONE */
    zi_mpi_op *posted;           /* mutex */
    bool stop;                   /* mutex */
    bool broken;                 /* mutex */
    bool stuck;                  /* mutex */
    zi_mpi_op *active;           /* the thread's */
    uint32_t notice_count;       /* the thread's */
    notice notices[NOTICES_MAX]; /* the thread's: those received */
    notice incoming;             /* the thread's */
    zi_mpi_handle incoming_request;
    pthread_mutex_t notify_mutex; /* guards the rest */
    bool unsent;                  /* the last notice may still be read by MPI: no other is sent */
    zi_mpi_op notify_op;
    notice outgoing;
    const uint32_t *notify_members;
    uint32_t notify_size;
    zi_mpi_handle notify_requests[]; /* one a rank */
};

zero_status zi_mpi_error(int code, const char *call)
{
    char text[181];
    (void)zi_mpi->error_string(code, text, sizeof text);
    ZI_FAIL_NATIVE(ZERO_ERR_COMM, code, "%s: %s", call, text);
}

static void mpi_progress_finish(zi_mpi_progress *progress, zi_mpi_op *op, const zero_error *error)
{
    (void)pthread_mutex_lock(&progress->mutex);
    op->error = *error;
    op->state = ZI_MPI_OP_DONE;
    (void)pthread_cond_broadcast(&progress->done_cond);
    (void)pthread_mutex_unlock(&progress->mutex);
}

static void finish_ok(zi_mpi_progress *progress, zi_mpi_op *op)
{
    const zero_error none = {.status = ZERO_OK};
    mpi_progress_finish(progress, op, &none);
}

static void finish_code(zi_mpi_progress *progress, zi_mpi_op *op, int code, const char *call)
{
    (void)zi_mpi_error(code, call);
    mpi_progress_finish(progress, op, zero_last_error());
}

/* Mark which requests are open, and cancel the receives among them. Returns the number of open
 * ones. */
static uint32_t cancel_open(zi_mpi_op *op)
{
    uint32_t open = 0;
    for (uint32_t i = 0; i < op->request_count; i++) {
        const bool late = op->requests[i].word != 0;
        if (op->late != NULL) {
            op->late[i] = late;
        }
        if (late && i < op->receive_count && !op->collective) {
            (void)zi_mpi->cancel(&op->requests[i]);
        }
        open += late;
    }
    return open;
}

/* Test the open requests once more. Returns the number of those that stay open. */
static uint32_t test_open(zi_mpi_op *op)
{
    uint32_t open = 0;
    for (uint32_t i = 0; i < op->request_count; i++) {
        int done = 1;
        if (op->requests[i].word != 0) {
            (void)zi_mpi->test(&op->requests[i], &done);
        }
        if (done) {
            op->requests[i].word = 0; /* which a failed one may not be */
        }
        open += !done;
    }
    return open;
}

/* Cancel the op's open requests. Small sends complete by themselves, and receives that no message
 * has matched can be cancelled. A collective, or a long message under way, cannot: MPI may read or
 * write its buffers whenever it is called, and they are about to be freed, so MPI is not called
 * again. Sends of notices are left to MPI, since their buffer stays. */
static void withdraw(zi_mpi_progress *progress, zi_mpi_op *op)
{
    uint32_t open = cancel_open(op);
    const uint64_t until_ns = zi_deadline_in_ms(WITHDRAW_MS);
    while (open != 0 && !op->collective && zi_clock_ns() < until_ns) {
        open = test_open(op);
        (void)sched_yield();
    }
    if (op->group_id == NOTIFYING) {
        for (uint32_t i = 0; i < op->request_count && open != 0; i++) {
            if (op->requests[i].word != 0) {
                (void)zi_mpi->request_free(&op->requests[i]);
            }
        }
    } else if (open != 0) {
        (void)pthread_mutex_lock(&progress->mutex);
        progress->broken = true;
        (void)pthread_mutex_unlock(&progress->mutex);
    }
}

static const notice *notice_about(const zi_mpi_progress *progress, const zi_mpi_op *op)
{
    for (uint32_t i = 0; i < progress->notice_count && op->group_id != NOTIFYING; i++) {
        const notice *about = &progress->notices[i];
        if (about->group_id == 0 || about->group_id == op->group_id) {
            return about;
        }
    }
    return NULL;
}

static int listen_for_notice(zi_mpi_progress *progress)
{
    return zi_mpi->irecv(&progress->incoming, (int)sizeof progress->incoming, ZI_MPI_ANY_SOURCE,
                         NOTICE_TAG, progress->world, &progress->incoming_request);
}

/* Keep a notice if it is the first about its group: all members of a group may send one. When the
 * list is full the last one counts for everything: rather too much stops than too little. */
static void keep_notice(zi_mpi_progress *progress)
{
    notice *about = &progress->incoming;
    zi_failure_received(&about->failure);
    for (uint32_t i = 0; i < progress->notice_count; i++) {
        if (progress->notices[i].group_id == about->group_id) {
            return;
        }
    }
    if (progress->notice_count == NOTICES_MAX) {
        progress->notices[NOTICES_MAX - 1].group_id = 0;
        return;
    }
    progress->notices[progress->notice_count++] = *about;
}

/* Receive the notices that have arrived. True if there was one. */
static bool poll_notices(zi_mpi_progress *progress)
{
    int arrived = 0;
    if (progress->incoming_request.word == 0 ||
        zi_mpi->test(&progress->incoming_request, &arrived) != ZI_MPI_SUCCESS || !arrived) {
        return false;
    }
    keep_notice(progress);
    if (listen_for_notice(progress) != ZI_MPI_SUCCESS) {
        progress->incoming_request.word = 0;
    }
    return true;
}

static bool given_up(zi_mpi_progress *progress, const zi_mpi_op *op)
{
    (void)pthread_mutex_lock(&progress->mutex);
    const bool give_up = op->give_up;
    (void)pthread_mutex_unlock(&progress->mutex);
    return give_up;
}

/* Advance one active op. True when it is done and belongs to its poster again. */
static bool advance(zi_mpi_progress *progress, zi_mpi_op *op, bool *moved)
{
    int completed = 0;
    const int code = zi_mpi->testsome(op->requests, (int)op->request_count, &completed);
    if (code != ZI_MPI_SUCCESS) {
        withdraw(progress, op);
        finish_code(progress, op, code, "MPI_Testsome");
        return true;
    }
    *moved = *moved || completed != 0;
    bool open = false;
    for (uint32_t i = 0; i < op->request_count && !open; i++) {
        open = op->requests[i].word != 0;
    }
    /* A notice counts even if all data has arrived: the others have failed and will not go on. */
    zero_error error = {.status = ZERO_ERR_TIMEOUT};
    const notice *about = notice_about(progress, op);
    if (about == NULL && !open) {
        finish_ok(progress, op);
        return true;
    }
    if (about == NULL && !given_up(progress, op)) {
        return false;
    }
    if (about != NULL) {
        op->notified = true;
        error = zi_failure_error(&about->failure, ZI_FAILURE_NO_RANK);
    }
    withdraw(progress, op);
    mpi_progress_finish(progress, op, &error);
    return true;
}

/* Start an op. True when it is active now, false when it is done already. */
static bool mpi_progress_begin(zi_mpi_progress *progress, zi_mpi_op *op)
{
    const notice *about = notice_about(progress, op);
    if (about != NULL) {
        const zero_error error = zi_failure_error(&about->failure, ZI_FAILURE_NO_RANK);
        op->notified = true;
        mpi_progress_finish(progress, op, &error);
        return false;
    }
    for (size_t i = 0; i < op->request_capacity; i++) {
        op->requests[i].word = 0;
    }
    const int code = op->start(op);
    if (code != ZI_MPI_SUCCESS) {
        withdraw(progress, op);
        finish_code(progress, op, code, "an MPI call");
        return false;
    }
    if (op->request_count == 0) {
        finish_ok(progress, op);
        return false;
    }
    return true;
}

/* Take what was posted; false when the thread shall end. */
static bool take_posted(zi_mpi_progress *progress, zi_mpi_op **taken)
{
    (void)pthread_mutex_lock(&progress->mutex);
    if (progress->posted == NULL && progress->active == NULL && !progress->stop) {
        (void)pthread_cond_wait(&progress->posted_cond, &progress->mutex);
    }
    *taken = progress->posted;
    progress->posted = NULL;
    for (zi_mpi_op *op = *taken; op != NULL; op = op->next) {
        op->state = ZI_MPI_OP_ACTIVE;
    }
    const bool go_on = !progress->stop && !progress->broken;
    (void)pthread_mutex_unlock(&progress->mutex);
    return go_on;
}

static void activate(zi_mpi_progress *progress, zi_mpi_op *taken)
{
    while (taken != NULL) {
        zi_mpi_op *op = taken;
        taken = op->next;
        if (mpi_progress_begin(progress, op)) {
            op->next = progress->active;
            progress->active = op;
        }
    }
}

/* True when something moved. */
static bool advance_all(zi_mpi_progress *progress)
{
    bool moved = false;
    zi_mpi_op **link = &progress->active;
    while (*link != NULL) {
        zi_mpi_op *op = *link;
        zi_mpi_op *next = op->next; /* read first: a finished op belongs to its poster */
        if (advance(progress, op, &moved)) {
            *link = next;
            moved = true;
        } else {
            link = &op->next;
        }
    }
    return moved;
}

/* Fail all ops that are left. */
static void mpi_progress_drain(zi_mpi_progress *progress, zi_mpi_op *list)
{
    zero_error error;
    (void)zi_error_set(ZERO_ERR_COMM, 0, __FILE__, __LINE__,
                       "an MPI operation was given up in the middle; restart the job");
    error = *zero_last_error();
    while (list != NULL) {
        zi_mpi_op *op = list;
        list = op->next;
        mpi_progress_finish(progress, op, &error);
    }
}

static void *progress_main(void *argument)
{
    zi_mpi_progress *progress = argument;
    uint32_t idle = 0;
    zi_mpi_op *taken = NULL;
    while (take_posted(progress, &taken)) {
        idle = taken != NULL ? 0 : idle;
        while (poll_notices(progress)) {
            idle = 0;
        }
        activate(progress, taken);
        taken = NULL;
        if (advance_all(progress)) {
            idle = 0;
        } else {
            zi_deadline_pause(idle++, YIELDS, PAUSE_NS);
        }
    }
    mpi_progress_drain(progress, taken);
    mpi_progress_drain(progress, progress->active);
    progress->active = NULL;
    (void)pthread_mutex_lock(&progress->mutex);
    const bool broken = progress->broken;
    (void)pthread_mutex_unlock(&progress->mutex);
    if (!broken && progress->incoming_request.word != 0) {
        (void)zi_mpi->cancel(&progress->incoming_request);
        (void)zi_mpi->wait(&progress->incoming_request);
    }
    return NULL;
}

static void init_sync(zi_mpi_progress *progress)
{
    zi_deadline_cond_init(&progress->posted_cond);
    zi_deadline_cond_init(&progress->done_cond);
    (void)pthread_mutex_init(&progress->mutex, NULL);
    (void)pthread_mutex_init(&progress->notify_mutex, NULL);
}

static void free_progress(zi_mpi_progress *progress)
{
    (void)pthread_mutex_destroy(&progress->notify_mutex);
    (void)pthread_mutex_destroy(&progress->mutex);
    (void)pthread_cond_destroy(&progress->done_cond);
    (void)pthread_cond_destroy(&progress->posted_cond);
    zi_free(progress);
}

zero_status zi_mpi_progress_create(zi_mpi_handle world, uint32_t own, uint32_t size,
                                   zi_mpi_progress **out)
{
    *out = NULL;
    zi_mpi_progress *progress = NULL;
    ZI_TRY(zi_calloc(1, sizeof *progress + size * sizeof progress->notify_requests[0],
                     (void **)&progress));
    progress->world = world;
    progress->own = own;
    progress->incoming_request.word = 0;
    init_sync(progress);
    zero_status status = ZERO_OK;
    const int code = listen_for_notice(progress);
    if (code != ZI_MPI_SUCCESS) {
        progress->incoming_request.word = 0;
        status = zi_mpi_error(code, "MPI_Irecv");
    }
    if (status == ZERO_OK) {
        status = zi_thread_start(&progress->thread, progress_main, progress);
    }
    if (status != ZERO_OK) {
        if (progress->incoming_request.word != 0) {
            (void)zi_mpi->cancel(&progress->incoming_request);
            (void)zi_mpi->wait(&progress->incoming_request);
        }
        free_progress(progress);
        return status;
    }
    *out = progress;
    return ZERO_OK;
}

void zi_mpi_progress_on_wait(zi_mpi_progress *progress, zi_mpi_poll_fn fn, void *user)
{
    progress->poll = fn;
    progress->poll_user = user;
}

bool zi_mpi_progress_destroy(zi_mpi_progress *progress)
{
    if (progress == NULL) {
        return true;
    }
    (void)pthread_mutex_lock(&progress->mutex);
    progress->stop = true;
    const bool stuck = progress->stuck;
    (void)pthread_cond_broadcast(&progress->posted_cond);
    (void)pthread_mutex_unlock(&progress->mutex);
    if (stuck) {
        (void)pthread_detach(progress->thread);
        return false;
    }
    (void)pthread_join(progress->thread, NULL);
    free_progress(progress);
    return true;
}

/* Wait for DONE until the deadline; the mutex is held. */
static bool await_done(zi_mpi_progress *progress, const zi_mpi_op *op, uint64_t until_ns)
{
    while (op->state != ZI_MPI_OP_DONE &&
           zi_deadline_wait(&progress->done_cond, &progress->mutex, until_ns)) {
    }
    return op->state == ZI_MPI_OP_DONE;
}

/* The same, and check the others meanwhile; the mutex is held. *gone: the error that ended the
 * wait. */
static bool await_polling(zi_mpi_progress *progress, const zi_mpi_op *op, uint64_t until_ns,
                          zero_error *gone)
{
    gone->status = ZERO_OK;
    uint64_t now_ns = zi_clock_ns();
    while (now_ns < until_ns && gone->status == ZERO_OK) {
        if (await_done(progress, op, zi_min_u64(until_ns, now_ns + POLL_MS * NS_PER_MS))) {
            return true;
        }
        if (progress->poll != NULL && op->group_id != NOTIFYING) {
            const char *what = op->what != NULL ? op->what : "an operation between hosts";
            (void)pthread_mutex_unlock(&progress->mutex);
            if (progress->poll(progress->poll_user, what) != ZERO_OK) {
                *gone = *zero_last_error();
            }
            (void)pthread_mutex_lock(&progress->mutex);
        }
        now_ns = zi_clock_ns();
    }
    return op->state == ZI_MPI_OP_DONE;
}

zero_status zi_mpi_progress_run(zi_mpi_progress *progress, zi_mpi_op *op, uint32_t deadline_ms)
{
    zero_error gone = {.status = ZERO_OK};
    op->state = ZI_MPI_OP_POSTED;
    op->give_up = false;
    op->notified = false;
    op->request_count = 0;
    op->receive_count = 0;
    op->collective = false;
    op->error.status = ZERO_OK;
    (void)pthread_mutex_lock(&progress->mutex);
    bool done = false;
    if (!progress->broken && !progress->stuck && !progress->stop) {
        op->next = progress->posted;
        progress->posted = op;
        (void)pthread_cond_signal(&progress->posted_cond);
        done = await_polling(progress, op, zi_deadline_in_ms(deadline_ms), &gone);
        if (!done) {
            op->give_up = true;
            (void)pthread_cond_signal(&progress->posted_cond);
            done = await_done(progress, op, zi_deadline_in_ms(ANSWER_MS));
            progress->stuck = progress->stuck || !done;
        }
    }
    (void)pthread_mutex_unlock(&progress->mutex);
    if (!done) {
        ZI_FAIL(ZERO_ERR_COMM,
                "MPI is of no use any more after an earlier failure; restart the job");
    }
    if (op->error.status == ZERO_ERR_TIMEOUT && gone.status != ZERO_OK && !op->notified) {
        op->notified = true;
        op->error = gone;
    }
    return op->error.status == ZERO_OK ? ZERO_OK : zi_error_adopt(&op->error);
}

/* Send the notice to all members but this rank. */
static int start_notify(zi_mpi_op *op)
{
    zi_mpi_progress *progress = op->argument;
    for (uint32_t i = 0; i < progress->notify_size; i++) {
        if (progress->notify_members[i] == progress->own) {
            continue;
        }
        const int code = zi_mpi->isend(&progress->outgoing, (int)sizeof progress->outgoing,
                                       (int)progress->notify_members[i], NOTICE_TAG,
                                       progress->world, &op->requests[op->request_count++]);
        if (code != ZI_MPI_SUCCESS) {
            op->request_count--;
            return code;
        }
    }
    return ZI_MPI_SUCCESS;
}

void zi_mpi_progress_notify(zi_mpi_progress *progress, uint64_t group_id, uint32_t who,
                            const uint32_t *members, uint32_t size, const zero_error *error)
{
    /* `error` may be this thread's record, which a failed send replaces. */
    const zero_error kept = *error;
    (void)pthread_mutex_lock(&progress->notify_mutex);
    if (!progress->unsent) {
        progress->outgoing = (notice){
            .group_id = group_id,
            .failure = kept.status == ZERO_ERR_TIMEOUT ? zi_failure_of_all(&kept)
                                                       : zi_failure_of_abort(who, &kept),
        };
        progress->notify_members = members;
        progress->notify_size = size;
        progress->notify_op = (zi_mpi_op){.start = start_notify,
                                          .argument = progress,
                                          .group_id = NOTIFYING,
                                          .requests = progress->notify_requests,
                                          .request_capacity = size};
        if (zi_mpi_progress_run(progress, &progress->notify_op, NOTIFY_MS) != ZERO_OK) {
            progress->unsent = true;
        }
    }
    (void)pthread_mutex_unlock(&progress->notify_mutex);
    (void)zi_error_adopt(&kept);
}

bool zi_mpi_progress_healthy(zi_mpi_progress *progress)
{
    (void)pthread_mutex_lock(&progress->mutex);
    const bool healthy = !progress->broken && !progress->stuck;
    (void)pthread_mutex_unlock(&progress->mutex);
    return healthy;
}
