/* Owns a rank's membership of the control plane: its connections, and the thread that alone reads
 * and writes them. Rank 0 has one with each other rank and listens for more, the others have one
 * with rank 0; what is said over them is the same but for joining and gathers. Invariants:
 *  - a connection is nobody until it has proved that it knows the job's key, and until then it may
 *    send one small frame within two seconds;
 *  - nothing that one connection sends or leaves undone makes the thread wait, and no number of
 *    connections keeps it from those that it has;
 *  - the first failure stays; whoever waits is woken by an answer, a failure or the deadline.
 * `mutex` guards all that the thread and callers share. */
#include "control/control_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/check.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "core/thread.h"

#define TURN_MS 100
/* How long a connection may take until either end knows the other, and how many may be about to. */
#define HELLO_NS (2000 * CONTROL_NS_PER_MS)
#define NEWCOMERS 64
/* How many are accepted in one turn. */
#define ACCEPTS 16
/* How long the listener is left alone when the process can take no connection. */
#define FULL_NS (500 * CONTROL_NS_PER_MS)
/* Between two tries to join. */
#define RETRY_NS 50000000
/* How long rank 0 may take to answer a goodbye, or a gather whose deadline has passed, and stays
 * for others after a failure; how long the thread may take to say why it could not join. */
#define ANSWER_MS 1000

/* ---- the thread ---- */

/* A free link for a new connection: that of the newcomer that has been one for longest, if need
 * be. There are more links than ranks. */
static zi_control_link *free_link(zi_control *control)
{
    zi_control_link *oldest = control->links;
    for (uint32_t i = 0; i < control->link_count; i++) {
        zi_control_link *at = &control->links[i];
        if (at->fd < 0) {
            return at;
        }
        if (oldest->proved || (!at->proved && at->opened_ns < oldest->opened_ns)) {
            oldest = at;
        }
    }
    zi_control_drop(control, oldest);
    return oldest;
}

/* Accept what has come to the listener, ACCEPTS connections at most: strangers may connect faster
 * than this accepts, and ranks do not wait for them. The mutex is not held. Returns their
 * number. */
static uint32_t accept_some(zi_control *control, int fds[ACCEPTS])
{
    uint32_t count = 0;
    while (count < ACCEPTS && (fds[count] = zi_control_accept(control->listener)) >= 0) {
        count++;
    }
    /* Connections that cannot be accepted stay in the queue, and poll would return at once for
     * them. */
    if (count < ACCEPTS && zi_control_is_full(errno, control->full_ns == 0)) {
        control->full_ns = zi_clock_ns() + FULL_NS;
    }
    return count;
}

static void challenge_some(zi_control *control, const int *fds, uint32_t count)
{
    const zi_control_frame frame = {.kind = ZI_CONTROL_CHALLENGE,
                                    .bytes = sizeof(zi_control_challenge)};
    zi_control_challenge challenge = {.magic = ZI_CONTROL_MAGIC, .version = ZI_CONTROL_VERSION};
    for (uint32_t i = 0; i < count; i++) {
        zi_control_link *link = free_link(control);
        if (zi_control_link_open(link, fds[i], ZI_CONTROL_NEW_RANK) == ZERO_OK) {
            challenge.nonce = link->nonce;
            (void)zi_control_link_put(link, frame, &challenge);
        }
    }
}

static void serve_link(zi_control *control, zi_control_link *link, bool readable)
{
    const bool fine = (!readable || zi_control_link_read(link, zi_control_take_frame, control)) &&
                      zi_control_link_send(link);
    const bool slow = !link->proved && zi_clock_ns() - link->opened_ns > HELLO_NS;
    if (!fine || slow) {
        zi_control_drop(control, link);
    }
}

static void free_control(zi_control *control)
{
    for (uint32_t i = 0; i < control->link_count; i++) {
        zi_control_link_close(&control->links[i]);
    }
    zi_control_close(control->listener);
    if (control->wake >= 0) {
        (void)close(control->wake);
    }
    (void)pthread_cond_destroy(&control->moved);
    (void)pthread_mutex_destroy(&control->mutex);
    zi_control_round_destroy(control->round);
    zi_free(control->polled);
    zi_free(control);
}

/* A rank that leaves waits for rank 0's answer, and rank 0 for the others. */
static bool control_plane_is_over(const zi_control *control)
{
    bool alone = true;
    for (uint32_t i = 0; i < control->link_count; i++) {
        alone = alone && !control->links[i].proved;
    }
    return control->end_ns != 0 && (alone || zi_clock_ns() >= control->end_ns);
}

/* Call `lost` once, for a failure of another rank. The mutex is held, but not meanwhile. */
static void control_plane_tell(zi_control *control)
{
    const zi_failure failure = control->failures[CONTROL_LOST];
    const zi_control_desc *desc = &control->desc;
    if (failure.status != ZERO_OK && failure.rank != desc->rank && desc->lost != NULL &&
        !control->told) {
        control->told = true;
        (void)pthread_mutex_unlock(&control->mutex);
        desc->lost(desc->user, &failure);
        (void)pthread_mutex_lock(&control->mutex);
    }
}

/* Wait for something to do, and do it. What is put last goes in the next turn, which begins at
 * once. False: the end has come. */
static bool turn(zi_control *control)
{
    const uint32_t count = control->link_count;
    struct pollfd *polled = control->polled;
    int fds[ACCEPTS];
    uint64_t woken = 0;
    (void)pthread_mutex_lock(&control->mutex);
    for (uint32_t i = 0; i < count; i++) {
        polled[i] = zi_control_link_poll(&control->links[i]);
    }
    (void)pthread_mutex_unlock(&control->mutex);
    const bool full = zi_clock_ns() < control->full_ns;
    polled[count] = (struct pollfd){.fd = full ? -1 : control->listener, .events = POLLIN};
    polled[count + 1] = (struct pollfd){.fd = control->wake, .events = POLLIN};
    (void)poll(polled, count + 2, TURN_MS);
    (void)!read(control->wake, &woken, sizeof woken);
    const uint32_t come = polled[count].revents != 0 ? accept_some(control, fds) : 0;
    (void)pthread_mutex_lock(&control->mutex);
    for (uint32_t i = 0; i < count; i++) {
        if (control->links[i].fd >= 0) {
            serve_link(control, &control->links[i], polled[i].revents != 0);
        }
    }
    challenge_some(control, fds, come);
    if (control->desc.rank == 0 && control->failures[CONTROL_LATE].status == ZERO_OK) {
        zi_control_settle_gather(control);
    }
    zi_control_settle_failures(control);
    zi_control_settle_silence(control);
    control_plane_tell(control);
    const bool over = control_plane_is_over(control);
    (void)pthread_mutex_unlock(&control->mutex);
    return !over;
}

static void wake_thread(const zi_control *control)
{
    const uint64_t one = 1;
    (void)!write(control->wake, &one, sizeof one);
}

/* ---- joining ---- */

/* code: errno that the connection ended with. */
static zero_status control_plane_refused(const zi_control *control,
                                         const zi_control_address *address, int code)
{
    switch (control->refusal) {
    case ZI_CONTROL_OTHER_VERSION:
        ZI_FAIL(ZERO_ERR_MISMATCH, "it serves another version of the library; install one version "
                                   "everywhere");
    case ZI_CONTROL_OTHER_JOB:
        ZI_FAIL(ZERO_ERR_COMM,
                "it serves another job; give each job its own MASTER_PORT, and all its "
                "ranks the same run id (TORCHELASTIC_RUN_ID) and ZERO_JOB_TOKEN");
    case ZI_CONTROL_OTHER_SIZE:
        ZI_FAIL(ZERO_ERR_MISMATCH,
                "it serves a world of another size than %u; set one WORLD_SIZE on all ranks",
                control->desc.size);
    case ZI_CONTROL_RANK_TAKEN:
        ZI_FAIL(ZERO_ERR_STATE, "rank %u is there already; start each rank once",
                control->desc.rank);
    default:
        if (code != 0 && code != EAGAIN) {
            ZI_FAIL_NATIVE(ZERO_ERR_COMM, code, "%s: %s%s", address->text, strerror(code),
                           code == ECONNREFUSED ? " (is rank 0 started, and on that host?)" : "");
        }
        ZI_FAIL(ZERO_ERR_COMM,
                "%s does not answer: what listens there is no libzero, or a firewall keeps the "
                "port closed; choose another MASTER_PORT, or open it",
                address->text);
    }
}

/* Connect to one address and exchange names. */
static zero_status try_address(zi_control *control, const zi_control_address *address,
                               uint64_t until_ns)
{
    zi_control_link *link = &control->links[0];
    int fd = -1;
    if (zi_clock_ns() >= until_ns) { /* perhaps nobody waits for this any more */
        ZI_FAIL(ZERO_ERR_TIMEOUT, "its address was found too late; set MASTER_ADDR to an address");
    }
    int code = zi_control_connect(address, &fd);
    if (code == 0) {
        ZI_TRY(zi_control_link_open(link, fd, ZI_CONTROL_NEW_SERVER));
        do {
            (void)turn(control);
        } while (link->fd >= 0 && !link->proved && zi_clock_ns() < until_ns);
        code = link->code;
    }
    if (!link->proved) {
        zi_control_link_close(link);
        return control_plane_refused(control, address, code);
    }
    return ZERO_OK;
}

static zero_status connect_rank_zero(zi_control *control)
{
    zi_control_address addresses[ZI_CONTROL_ADDRESSES];
    const zi_control_desc *desc = &control->desc;
    const uint64_t until_ns = zi_deadline_in_ms(desc->join_ms);
    bool final = false; /* a refusal that will not change */
    for (;;) {
        uint32_t count = 0;
        zero_status status = zi_control_resolve(&control->endpoint, addresses, &count);
        for (uint32_t i = 0; i < count && !final; i++) {
            status = try_address(control, &addresses[i], until_ns);
            if (status == ZERO_OK) {
                return ZERO_OK;
            }
            final = status == ZERO_ERR_MISMATCH || status == ZERO_ERR_STATE;
        }
        const zero_error error = *zero_last_error();
        zi_deadline_pause(0, 0, final ? 0 : RETRY_NS);
        if (final || zi_clock_ns() >= until_ns) {
            ZI_FAIL_NATIVE(final ? status : ZERO_ERR_TIMEOUT, error.native,
                           "rank %u could not join rank 0 at %.40s port %u within %u ms: %.140s",
                           desc->rank, control->endpoint.hosts, control->endpoint.port,
                           desc->join_ms, error.message);
        }
    }
}

static zero_status control_plane_check_files(uint32_t size)
{
    struct rlimit limit;
    const uint64_t wanted = (uint64_t)size + NEWCOMERS + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
        ZI_FAIL(ZERO_ERR_STATE,
                "rank 0 needs %llu open files for the connections of %u ranks, and may have %llu; "
                "raise its limit (ulimit -n)",
                (unsigned long long)wanted, size, (unsigned long long)limit.rlim_cur);
    }
    return ZERO_OK;
}

/* Names are looked up here, because the resolver's limits are not ours: who waits for this thread
 * goes on at its own deadline. */
static void *control_main(void *argument)
{
    zi_control *control = argument;
    const zero_status status = control->desc.rank == 0
                                   ? zi_control_listen(&control->endpoint, &control->listener)
                                   : connect_rank_zero(control);
    (void)pthread_mutex_lock(&control->mutex);
    const bool orphan = control->orphan;
    control->opened = true;
    control->error = *zero_last_error();
    control->error.status = status;
    (void)pthread_cond_broadcast(&control->moved);
    (void)pthread_mutex_unlock(&control->mutex);
    if (orphan) {
        (void)pthread_detach(pthread_self());
        free_control(control);
        return NULL;
    }
    while (status == ZERO_OK && turn(control)) {
    }
    for (uint32_t i = 0; i < control->link_count; i++) {
        (void)zi_control_link_send(&control->links[i]);
    }
    return NULL;
}

static zero_status control_plane_prepare(zi_control *control)
{
    const zi_control_desc *desc = &control->desc;
    ZI_TRY(zi_calloc(control->link_count + 2, sizeof *control->polled, (void **)&control->polled));
    ZI_TRY(zi_control_round_create(desc->rank, desc->size, desc->deadline_ms, &control->round));
    control->round->ranks[0].presence = ZI_CONTROL_HERE;
    control->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (control->wake < 0) {
        ZI_FAIL(ZERO_ERR_DEVICE, "eventfd: no more files; raise the limit (ulimit -n)");
    }
    return zi_thread_start(&control->thread, control_main, control);
}

/* The thread may be kept by the resolver; then it is left alone. */
static zero_status create(const zi_control_desc *desc, uint32_t link_count, uint32_t wait_ms,
                          zi_control **out)
{
    const uint64_t until_ns = zi_deadline_in_ms((uint64_t)wait_ms + ANSWER_MS);
    const size_t bytes = sizeof **out + link_count * sizeof(*out)->links[0];
    zi_control *control = NULL;
    ZI_TRY(zi_calloc(1, bytes, (void **)&control));
    control->desc = *desc;
    control->endpoint = *desc->endpoint;
    control->wake = -1;
    control->listener = -1;
    control->link_count = link_count;
    for (uint32_t i = 0; i < link_count; i++) {
        control->links[i].fd = -1;
    }
    (void)pthread_mutex_init(&control->mutex, NULL);
    zi_deadline_cond_init(&control->moved);
    zero_status status = control_plane_prepare(control);
    (void)pthread_mutex_lock(&control->mutex);
    while (status == ZERO_OK && !control->opened &&
           zi_deadline_wait(&control->moved, &control->mutex, until_ns)) {
    }
    const bool orphan = status == ZERO_OK && !control->opened;
    control->orphan = orphan;
    if (orphan) { /* the caller's objects are forgotten */
        control->desc.silence = NULL;
        control->desc.lost = NULL;
    }
    (void)pthread_mutex_unlock(&control->mutex);
    if (orphan) {
        ZI_FAIL(ZERO_ERR_TIMEOUT,
                "rank %u did not learn the address of rank 0's host, '%.60s', within %u ms: no "
                "name server answers; set MASTER_ADDR to an address",
                desc->rank, desc->endpoint->hosts, wait_ms);
    }
    if (status == ZERO_OK && control->error.status != ZERO_OK) {
        (void)pthread_join(control->thread, NULL);
        status = zi_error_adopt(&control->error);
    }
    if (status != ZERO_OK) {
        free_control(control);
        return status;
    }
    *out = control;
    return ZERO_OK;
}

zero_status zi_control_serve(zi_control_endpoint *endpoint, uint32_t size, uint32_t deadline_ms,
                             zi_control **out)
{
    const zi_control_desc desc = {.endpoint = endpoint, .size = size, .deadline_ms = deadline_ms};
    *out = NULL;
    ZI_TRY(control_plane_check_files(size));
    ZI_TRY(create(&desc, size + NEWCOMERS, deadline_ms, out));
    *endpoint = (*out)->endpoint;
    return ZERO_OK;
}

zero_status zi_control_join(const zi_control_desc *desc, zi_control **out)
{
    zi_assert((desc->rank == 0) == (desc->served != NULL));
    *out = desc->served;
    if (desc->served == NULL) {
        return create(desc, 1, desc->join_ms, out);
    }
    (void)pthread_mutex_lock(&desc->served->mutex);
    desc->served->desc = *desc;
    (void)pthread_mutex_unlock(&desc->served->mutex);
    return ZERO_OK;
}

void zi_control_leave(zi_control *control)
{
    if (control == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&control->mutex);
    uint32_t stay_ms = ANSWER_MS;
    if (control->desc.rank == 0) {
        const bool well = control->desc.served != NULL &&
                          control->failures[CONTROL_LOST].status == ZERO_OK &&
                          control->failures[CONTROL_LATE].status == ZERO_OK;
        control->round->ranks[0].presence = ZI_CONTROL_GONE;
        stay_ms = well ? control->desc.deadline_ms : stay_ms;
    } else if (control->links[0].proved) {
        (void)zi_control_link_put(&control->links[0],
                                  (zi_control_frame){.kind = ZI_CONTROL_GOODBYE}, NULL);
    }
    control->end_ns = zi_deadline_in_ms(stay_ms);
    (void)pthread_mutex_unlock(&control->mutex);
    wake_thread(control);
    (void)pthread_join(control->thread, NULL);
    free_control(control);
}

/* ---- calls ---- */

static zero_status check_gather(const zi_control *control, const char *what)
{
    char silent[ZI_SILENCE_TEXT_BYTES];
    const zi_failure *late = &control->failures[CONTROL_LATE];
    ZI_TRY(zi_control_check_lost(control));
    if (late->status == ZERO_OK) {
        return ZERO_OK;
    }
    if (late->status == ZERO_ERR_COMM) {
        ZI_FAIL(ZERO_ERR_COMM,
                "%.80s left the world while rank %u waits in %.90s; all ranks must make the same "
                "calls",
                late->message, control->desc.rank, what);
    }
    ZI_FAIL(ZERO_ERR_TIMEOUT, "%.80s did not arrive at %.90s within %u ms%s", late->message, what,
            control->desc.deadline_ms,
            zi_silence_text(control->desc.silence, silent, sizeof silent));
}

/* Wait for the answer. Rank 0 finds who is late; where it does not say so, it is late itself. The
 * mutex is held. */
static zero_status await_answer(zi_control *control, uint64_t number, const char *what)
{
    const uint64_t until_ns = zi_deadline_in_ms((uint64_t)control->desc.deadline_ms + ANSWER_MS);
    while (control->round->number == number) {
        ZI_TRY(check_gather(control, what));
        if (!zi_deadline_wait(&control->moved, &control->mutex, until_ns)) {
            (void)zi_error_set(ZERO_ERR_TIMEOUT, 0, __FILE__, __LINE__, "rank 0");
            zi_control_set_failure(control, CONTROL_LATE, zi_failure_of_all(zero_last_error()));
        }
    }
    return ZERO_OK;
}

zero_status zi_control_gather(zi_control *control, const void *mine, uint32_t bytes,
                              const char *what)
{
    zi_assert_cmp(bytes, <=, zi_control_most(control));
    (void)pthread_mutex_lock(&control->mutex);
    zero_status status = check_gather(control, what);
    if (status == ZERO_OK) {
        const uint64_t number = control->round->number;
        const zi_control_frame *frame = zi_control_round_begin(control->round, mine, bytes);
        if (frame != NULL) {
            zi_control_link_put_large(&control->links[0], frame, sizeof *frame + bytes);
        }
        wake_thread(control);
        status = await_answer(control, number, what);
    }
    (void)pthread_mutex_unlock(&control->mutex);
    return status;
}

const void *zi_control_record(const zi_control *control, uint32_t rank)
{
    return control->round->records + (size_t)rank * control->round->record_bytes;
}

void zi_control_abort(zi_control *control, const zero_error *error)
{
    (void)pthread_mutex_lock(&control->mutex);
    zi_control_set_failure(control, CONTROL_LOST, zi_failure_of_abort(control->desc.rank, error));
    zi_control_settle_failures(control); /* before a goodbye */
    (void)pthread_mutex_unlock(&control->mutex);
    wake_thread(control);
}

zero_status zi_control_check(zi_control *control)
{
    (void)pthread_mutex_lock(&control->mutex);
    const zero_status status = zi_control_check_lost(control);
    (void)pthread_mutex_unlock(&control->mutex);
    return status;
}
