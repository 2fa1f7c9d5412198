/* Ranks that go while others wait for them: processes that are killed, stopped or end, and ranks
 * that leave the world. The others hear of it long before the deadline, and are told who it was. */
#include <pthread.h>
#include <sys/mman.h>

#include "comm/host/process.h"
#include "departure.h"
#include "process_ranks.h"
#include "sanitizer.h"
#include "zero/log.h"

#define RANKS 3
#define GONE 2 /* the rank that goes */

/* ---- processes that are killed ---- */

/* The state that the processes of a test share. */
typedef struct common {
    blocking_fn fn;
    _Atomic pid_t gone;
    uint32_t deadline_ms;
} common;

static common *share(void)
{
    common *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    shared->deadline_ms = LONG_MS;
    return shared;
}

/* All ranks; the last is stopped or killed, and the others come through. */
static void run_but_last(rank_main fn, common *shared, bool stopped)
{
    pid_t children[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) {
        children[i] = start_rank(i, RANKS, fn, shared);
    }
    CHECK_EQ(end_of(children[0]), 0);
    CHECK_EQ(end_of(children[1]), 0);
    CHECK(!stopped || kill(children[GONE], SIGKILL) == 0);
    CHECK_EQ(end_of(children[GONE]), 128 + SIGKILL);
}

static void *kill_soon(void *unused)
{
    (void)unused;
    sleep_ms(200);
    (void)kill(getpid(), SIGKILL);
    return NULL;
}

static void be_killed(uint32_t rank, void *user)
{
    common *shared = user;
    zero_world *world = join();
    conf test = {0};
    conf_open_all(&test, world, WAIT_COUNT, "big");
    if (rank == GONE) {
        pthread_t thread;
        atomic_store(&shared->gone, getpid());
        CHECK_EQ(pthread_create(&thread, NULL, kill_soon, NULL), 0);
    }
    CHECK_OK(zero_world_barrier(world));
    const char *words = test_text("rank %d: process %d on ", GONE, (int)atomic_load(&shared->gone));
    wait_in(world, &test, shared->fn, words);
    /* It is so wherever they look next. */
    CHECK_FAILS(world->comm->ops->check(world->comm), ZERO_ERR_COMM, words);
    conf_close(&test);
    zero_world_destroy(world);
}

/* The dead one is not waited for by its parent before the others have ended: a zombie is dead. */
static void lose_one(const blocking_call *at)
{
    common *shared = share();
    shared->fn = at->fn;
    printf("  in %s\n", at->name);
    run_but_last(be_killed, shared, false);
    CHECK_EQ(names_left(), 0);
    CHECK_EQ(munmap(shared, sizeof *shared), 0);
}

TEST(a_killed_process_is_named)
{
    for (size_t i = 0; i < BLOCKING_CALLS; i++) {
        lose_one(&blocking_calls[i]);
    }
}

/* Rank 1 is killed while the ranks meet, and rank 2 never comes. */
static void meet_in_vain(uint32_t rank, void *user)
{
    common *shared = user;
    zero_world *world = NULL;
    if (rank == 1) {
        pthread_t thread;
        atomic_store(&shared->gone, getpid());
        CHECK_EQ(pthread_create(&thread, NULL, kill_soon, NULL), 0);
    }
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zero_world_create_launched(LONG_MS, &world), ZERO_ERR_COMM, "rank 1: process ");
    CHECK_SAID("died while rank 0 waited in the meeting");
    CHECK(in_time(start_ns, SOON_MS));
    CHECK(world == NULL);
}

TEST(killed_while_the_ranks_meet)
{
    common *shared = share();
    const pid_t first = start_rank(0, RANKS, meet_in_vain, shared);
    const pid_t second = start_rank(1, RANKS, meet_in_vain, shared);
    CHECK_EQ(end_of(first), 0);
    CHECK_EQ(end_of(second), 128 + SIGKILL);
    CHECK_EQ(names_left(), 0);
}

/* A process that ends well but without a word is missed as much. */
static void end_at_once(uint32_t rank, void *user)
{
    (void)user;
    zero_world *world = join();
    conf test = {0};
    CHECK_OK(zero_world_barrier(world));
    if (rank == GONE) {
        _exit(0);
    }
    wait_in(world, &test, in_barrier, "ended without zero_world_destroy");
    CHECK_SAID("rank 2: process ");
    zero_world_destroy(world);
}

TEST_CALL(a_process_that_ends_without_leaving, run_ranks(RANKS, end_at_once, NULL));

typedef struct stop_log {
    _Atomic uint64_t silent_ns; /* when the log said so; 0: never */
} stop_log;

static void watch_log(void *user, zero_log_level level, const char *message)
{
    stop_log *log = user;
    if (level == ZERO_LOG_WARN && strstr(message, "rank 2 on ") != NULL &&
        strstr(message, " is silent: stopped by a signal for 1.") != NULL) {
        atomic_store(&log->silent_ns, zi_clock_ns());
    }
}

/* One that is stopped is named by the log within 2 s of the others' wait, and late. */
static void be_stopped(uint32_t rank, void *user)
{
    const common *shared = user;
    zero_world *world = NULL;
    CHECK_OK(zero_world_create_launched(shared->deadline_ms, &world));
    CHECK_OK(zero_world_barrier(world));
    if (rank == GONE) {
        (void)raise(SIGSTOP);
        _exit(0);
    }
    stop_log log = {.silent_ns = 0};
    zero_log_set(watch_log, &log);
    const uint64_t start_ns = zi_clock_ns();
    CHECK_FAILS(zero_world_barrier(world), ZERO_ERR_TIMEOUT, "rank 2 did not");
    CHECK_SAID("; rank 2 on ");
    CHECK_SAID(" is silent: stopped by a signal for ");
    CHECK(elapsed_ms(start_ns) + 1 >= shared->deadline_ms);
    const uint64_t silent_ns = atomic_load(&log.silent_ns);
    CHECK(silent_ns > start_ns);
    printf("  named after %" PRIu64 " ms\n", (silent_ns - start_ns) / 1000000);
    CHECK((silent_ns - start_ns) / 1000000 <= (UNDER_SANITIZER ? 8000 : 2000));
    zero_log_set(NULL, NULL);
    zero_world_destroy(world);
}

TEST(a_stopped_process_is_late)
{
    common *shared = share();
    shared->deadline_ms = UNDER_SANITIZER ? 12000 : 3000;
    run_but_last(be_stopped, shared, true);
}

/* A rank may live on when the thread that ran main has ended. */
static void *live_on(void *unused)
{
    (void)unused;
    zero_world *world = join();
    const bool slow = zero_world_rank(world) == GONE;
    CHECK_OK(zero_world_barrier(world));
    sleep_ms(slow ? 1500 : 0);
    CHECK_EQ(zi_process_start((uint64_t)getpid()) != 0, 1);
    CHECK_OK(zero_world_barrier(world));
    zero_world_destroy(world);
    exit(0);
}

static void end_main(uint32_t rank, void *user)
{
    (void)user;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, live_on, NULL), 0);
    if (rank == GONE) {
        pthread_exit(NULL);
    }
    (void)pthread_join(thread, NULL);
}

TEST_CALL(a_process_whose_main_thread_has_ended, run_ranks(RANKS, end_main, NULL));

/* A number given to another process is no sign of life, nor is a process that is only late. */
TEST(process_numbers)
{
    const uint64_t own = (uint64_t)getpid();
    const uint64_t start = zi_process_start(own);
    CHECK(start != 0);
    CHECK(zi_process_alive(own, start));
    CHECK(!zi_process_alive(own, start + 1));
    const pid_t child = fork();
    if (child == 0) {
        pause();
    }
    const uint64_t born = zi_process_start((uint64_t)child);
    CHECK(zi_process_alive((uint64_t)child, born));
    CHECK_EQ(kill(child, SIGSTOP), 0);
    CHECK(zi_process_alive((uint64_t)child, born));
    CHECK_EQ(kill(child, SIGKILL), 0);
    siginfo_t end;
    CHECK_EQ(waitid(P_PID, (id_t)child, &end, WEXITED | WNOWAIT), 0);
    CHECK(!zi_process_alive((uint64_t)child, born));
    CHECK_EQ(end_of(child), 128 + SIGKILL);
    CHECK(!zi_process_alive((uint64_t)child, born));
}

/* ---- ranks that leave ---- */

/* The last rank goes home, the others wait for it. */
static zero_status leave_early(zero_world *world, void *user)
{
    const blocking_call *at = user;
    conf test = {0};
    blocking_open(&test, world);
    if (zero_world_rank(world) != GONE) {
        wait_in(world, &test, at->fn, "rank 2");
        CHECK_SAID("left");
    }
    conf_close(&test);
    return ZERO_OK;
}

static void leave_process(uint32_t rank, void *user)
{
    (void)rank;
    zero_world *world = join();
    CHECK_OK(leave_early(world, user));
    zero_world_destroy(world);
}

TEST(a_rank_that_leaves_is_named)
{
    for (size_t i = 0; i < BLOCKING_CALLS; i++) {
        blocking_call at = blocking_calls[i];
        printf("  in %s\n", at.name);
        const zero_status status = zero_world_run(RANKS, LONG_MS, leave_early, &at);
        if (status != ZERO_OK) { /* what is of the whole world fails it */
            CHECK_EQ(status, ZERO_ERR_COMM);
            CHECK_SAID("rank 2 has left the world");
        }
        run_ranks(RANKS, leave_process, &at);
    }
}

/* One that leaves last, or that nobody waits for, harms nobody. */
static zero_status part_in_turn(zero_world *world, void *user)
{
    (void)user;
    const uint32_t rank = zero_world_rank(world);
    conf test = {.world = world, .size = 2, .members = {0, 1}};
    CHECK_OK(zero_world_barrier(world));
    if (rank == GONE) {
        return ZERO_OK;
    }
    sleep_ms(50);
    test.plain = true;
    CHECK_OK(world->comm->ops->group_create(world->comm, &world->kernels, test.members, 2, "pair",
                                            &test.group));
    zi_stream *host = NULL;
    CHECK_OK(world->device.ops->stream_wrap(world->device.self, zero_stream_host(), &host));
    for (uint32_t i = 0; i < 300; i++) {
        CHECK_OK(zi_group_submit(test.group, host, NULL, 0));
        sleep_ms(i % 100 == rank ? 120 : 0);
    }
    zi_group_destroy(test.group);
    return ZERO_OK;
}

static void part_process(uint32_t rank, void *user)
{
    (void)rank;
    zero_world *world = join();
    CHECK_OK(part_in_turn(world, user));
    zero_world_destroy(world);
}

static zero_status do_nothing(zero_world *world, void *user)
{
    (void)world;
    (void)user;
    return ZERO_OK;
}

TEST(ranks_that_nobody_needs_may_leave)
{
    for (int i = 0; i < 200; i++) {
        CHECK_OK(zero_world_run(RANKS + 2, LONG_MS, do_nothing, NULL));
    }
    CHECK_OK(zero_world_run(RANKS, LONG_MS, part_in_turn, NULL));
    run_ranks(RANKS, part_process, NULL);
}
