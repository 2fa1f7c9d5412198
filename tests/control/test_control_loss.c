/* Ranks that are killed or stopped: every survivor names them in time. Ranks are processes, and go
 * on gathering all the while. */
#include <sys/mman.h>
#include <sys/prctl.h>

#include "control_rig.h"

#include "core/host.h"

#define RANKS 4

static void share_endpoint(zi_control_desc *desc, shared_rig *all, uint32_t rank)
{
    if (rank == 0) {
        all->endpoint = local_endpoint("127.0.0.1");
        CHECK_OK(zi_control_serve(&all->endpoint, RANKS, all->deadline_ms, &desc->served));
        atomic_store(&all->served, 1);
    }
    AWAIT(atomic_load(&all->served) == 1);
}

/* A rank: gathers until it fails or is told to stop. */
static void run_rank(shared_rig *all, uint32_t rank, uint32_t gone)
{
    zi_control_desc desc = {.endpoint = &all->endpoint,
                            .rank = rank,
                            .size = RANKS,
                            .deadline_ms = all->deadline_ms,
                            .join_ms = LONG_MS};
    log_watch watch = {.rig = all, .rank = rank};
    snprintf(watch.silent, sizeof watch.silent, "rank %u on ", gone);
    zero_log_set(watch_log, &watch);
    share_endpoint(&desc, all, rank);
    zi_control *control = NULL;
    CHECK_OK(zi_silence_create(RANKS, &desc.silence));
    CHECK_OK(zi_control_join(&desc, &control));
    zero_status status = ZERO_OK;
    uint32_t stop = 0;
    while (status == ZERO_OK && stop == 0) {
        const uint32_t mine = (uint32_t)atomic_load(&all->stop);
        status = zi_control_gather(control, &mine, sizeof mine, "a round");
        /* Rank 0's word counts, so that all make the same number of rounds. */
        stop = status == ZERO_OK ? *(const uint32_t *)zi_control_record(control, 0) : 0;
        atomic_fetch_add(&all->rounds[rank], 1);
        sleep_ms(1);
    }
    if (status == ZERO_ERR_COMM) {
        atomic_store(&all->seen_ns[rank], zi_clock_ns());
        char host[ZI_HOST_NAME_BYTES];
        zi_host_name(host);
        CHECK_SAID(test_text("rank %u: process ", gone));
        CHECK_SAID(test_text(" on %.39s died", host));
    } else if (status == ZERO_ERR_TIMEOUT) {
        CHECK_SAID(test_text("rank %u did not arrive at a round within", gone));
        CHECK_SAID(test_text("; rank %u on ", gone));
        CHECK_SAID("is silent: no heartbeat for");
    }
    zi_control_leave(control);
    zi_silence_destroy(desc.silence);
    exit(status == ZERO_OK ? 0 : 10 + (int)status);
}

static shared_rig *start_ranks(pid_t children[RANKS], uint32_t gone, uint32_t deadline_ms)
{
    shared_rig *all =
        mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    all->deadline_ms = deadline_ms;
    fflush(NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            CHECK_EQ(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
            run_rank(all, i, gone);
        }
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        AWAIT(atomic_load(&all->rounds[i]) > 20);
    }
    return all;
}

static int end_of(pid_t child)
{
    int state = 0;
    CHECK(waitpid(child, &state, 0) == child);
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

/* How long each survivor took, from when the rank went. */
static void check_times(const shared_rig *all, uint32_t gone, uint64_t went_ns, const char *what)
{
    uint64_t worst = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        const uint64_t seen_ns = atomic_load(&all->seen_ns[i]);
        if (i != gone) {
            CHECK(seen_ns > went_ns);
            worst = (seen_ns - went_ns) / 1000000 > worst ? (seen_ns - went_ns) / 1000000 : worst;
        }
    }
    printf("  rank %u %s: named by all others within %" PRIu64 " ms\n", gone, what, worst);
    CHECK(worst <= allowed_ms(SOON_MS));
}

static void lose(uint32_t gone)
{
    pid_t children[RANKS];
    shared_rig *all = start_ranks(children, gone, LONG_MS);
    const uint64_t went_ns = zi_clock_ns();
    CHECK_EQ(kill(children[gone], SIGKILL), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        CHECK_EQ(end_of(children[i]), i == gone ? 128 + SIGKILL : 10 + ZERO_ERR_COMM);
    }
    check_times(all, gone, went_ns, "was killed");
}

TEST_CALL(a_killed_rank, lose(2));
TEST_CALL(the_killed_server, lose(0));

/* Stopped for a while: silent, heard again, and nothing failed. */
static void pause_rank(uint32_t gone)
{
    pid_t children[RANKS];
    shared_rig *all = start_ranks(children, gone, LONG_MS);
    const uint64_t went_ns = zi_clock_ns();
    CHECK_EQ(kill(children[gone], SIGSTOP), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        AWAIT(i == gone || atomic_load(&all->seen_ns[i]) != 0);
    }
    check_times(all, gone, went_ns, "was stopped");
    CHECK_EQ(kill(children[gone], SIGCONT), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        AWAIT(i == gone || atomic_load(&all->back_ns[i]) != 0);
    }
    const uint32_t before = atomic_load(&all->rounds[gone]);
    AWAIT(atomic_load(&all->rounds[gone]) > before + 20);
    atomic_store(&all->stop, 1);
    for (uint32_t i = 0; i < RANKS; i++) {
        CHECK_EQ(end_of(children[i]), 0);
    }
}

TEST_CALL(a_stopped_rank, pause_rank(3));
TEST_CALL(the_stopped_server, pause_rank(0));

/* Stopped for longer than the deadline: the TIMEOUT names it, and says that it is silent. */
static void stop_rank(uint32_t gone)
{
    pid_t children[RANKS];
    /* Silence is noticed well before. */
    shared_rig *all = start_ranks(children, gone, UNDER_SANITIZER ? 6000 : 3000);
    CHECK_EQ(kill(children[gone], SIGSTOP), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        /* Rank 0 stays a second for the rank that is stopped, and the others hear it end. */
        CHECK(i == gone || end_of(children[i]) == 10 + ZERO_ERR_TIMEOUT);
        CHECK(i == gone || atomic_load(&all->seen_ns[i]) != 0);
    }
    CHECK_EQ(kill(children[gone], SIGKILL), 0);
    CHECK_EQ(end_of(children[gone]), 128 + SIGKILL);
}

TEST_CALL(a_rank_that_stays_stopped, stop_rank(1));
TEST_CALL(the_server_that_stays_stopped, stop_rank(0));
