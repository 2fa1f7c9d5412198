/* Ranks that go while others wait for them, in a world that MPI started: run by mpirun with 4
 * ranks, 2 to a pretended host.
 *
 *   test_mpi_departure left    the last rank leaves, the others are in a collective; and engines
 *                              whose create is refused, which spoils nothing
 *   test_mpi_departure killed  the last rank is killed; mpirun is told to let the others go on
 *   test_mpi_departure alone   the same where every rank is alone on its host
 *   test_mpi_departure stopped the last rank, alone on its host, is stopped for longer than the
 *                              deadline
 *
 * Each rank that came through says "N is fine". A check that fails ends the process. */
#include <mpi.h>

#include "comm/mpi/mpi_comm.h"
#include "comm/world.h"
#include "departure.h"
#include "engine/refusals.h"
#include "sanitizer.h"
#include "zero/log.h"

#define LONG_MS 60000
/* When all must have heard of a rank that is gone; the aim is 2 s. */
#define NEWS_MS (UNDER_SANITIZER ? 8000 : 2000)

static zero_world *make_world_for(uint32_t ranks_per_host, uint32_t deadline_ms)
{
    const zi_mpi_options options = {.ranks_per_host = ranks_per_host};
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    CHECK_OK(zi_mpi_comm_create(MPI_Comm_c2f(MPI_COMM_WORLD), deadline_ms, &options, &comm));
    CHECK_OK(zi_world_create(comm, &world));
    return world;
}

static zero_world *make_world(uint32_t ranks_per_host)
{
    return make_world_for(ranks_per_host, LONG_MS);
}

static void leave_early(uint32_t ranks_per_host, blocking_fn fn)
{
    zero_world *world = make_world(ranks_per_host);
    conf test = {0};
    blocking_open(&test, world);
    if (zero_world_rank(world) + 1 != zero_world_size(world)) {
        wait_in(world, &test, fn, "left");
    }
    conf_close(&test);
    zero_world_destroy(world);
}

/* A group that all have left, another of the same members after it, and so on: what members said
 * when they left the one is not taken for a word in the next. */
static void group_after_group(uint32_t ranks_per_host)
{
    zero_world *world = make_world(ranks_per_host);
    for (uint32_t i = 0; i < 100; i++) {
        conf test = {.plain = true};
        conf_open_all(&test, world, 4, "short");
        for (uint32_t k = 0; k < i % 3; k++) {
            conf_run(&test, (conf_shape){ZI_ALL_GATHER, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 4, 0, false,
                                         0, 1});
        }
        conf_close(&test);
    }
    zero_world_destroy(world);
}

static void refuse_creates(uint32_t ranks_per_host)
{
    zero_world *world = make_world(ranks_per_host);
    CHECK_OK(case_refusals(world, NULL));
    zero_world_destroy(world);
}

static void run_left(void)
{
    for (uint32_t ranks_per_host = 0; ranks_per_host < 3; ranks_per_host++) {
        refuse_creates(ranks_per_host);
        group_after_group(ranks_per_host);
        for (size_t i = 0; i < BLOCKING_CALLS; i++) {
            leave_early(ranks_per_host, blocking_calls[i].fn);
        }
    }
}

static void run_killed(uint32_t ranks_per_host)
{
    zero_world *world = make_world(ranks_per_host);
    const uint32_t last = zero_world_size(world) - 1;
    conf test = {0};
    blocking_open(&test, world);
    const uint64_t start_ns = zi_clock_ns();
    if (zero_world_rank(world) == last) {
        (void)kill(getpid(), SIGKILL);
    }
    const char *words = test_text("rank %u: process ", last);
    wait_in(world, &test, in_all_gather, words);
    CHECK_SAID(" died");
    const uint64_t took_ms = elapsed_ms(start_ns);
    printf("rank %u heard of it within %" PRIu64 " ms\n", zero_world_rank(world), took_ms);
    CHECK(took_ms <= NEWS_MS);
    conf_close(&test);
    zero_world_destroy(world);
}

/* When the log said that a rank is silent; 0: never. */
static _Atomic uint64_t silent_ns;

static void watch_log(void *user, zero_log_level level, const char *message)
{
    (void)user;
    if (level == ZERO_LOG_WARN && strstr(message, "rank 3 on ") != NULL &&
        strstr(message, " is silent: no heartbeat for ") != NULL) {
        atomic_store(&silent_ns, zi_clock_ns());
    }
}

static void run_stopped(void)
{
    zero_world *world = make_world_for(1, 2 * NEWS_MS);
    const uint32_t rank = zero_world_rank(world);
    const int64_t own = getpid();
    int64_t pids[4];
    conf test = {0};
    CHECK_EQ(zero_world_size(world), 4);
    zero_log_set(watch_log, NULL);
    CHECK_OK(zero_world_gather(world, &own, pids, sizeof own));
    blocking_open(&test, world);
    const uint64_t start_ns = zi_clock_ns();
    if (rank == 3) {
        (void)kill(getpid(), SIGSTOP);
    }
    zero_status status = ZERO_OK;
    while (status == ZERO_OK) {
        status = in_all_gather(world, &test);
    }
    /* Who waited for rank 3 names it; the others hear it from those. */
    CHECK(status == ZERO_ERR_TIMEOUT || status == ZERO_ERR_COMM);
    CHECK_SAID("rank 3 ");
    CHECK_SAID("; rank 3 on ");
    CHECK_SAID(" is silent: no heartbeat for ");
    const uint64_t heard_ns = atomic_load(&silent_ns);
    CHECK(heard_ns > start_ns);
    printf("rank %u logged it after %" PRIu64 " ms\n", rank, (heard_ns - start_ns) / 1000000);
    CHECK((heard_ns - start_ns) / 1000000 <= NEWS_MS);
    /* A rank that has yet to hear of the silence must not hear of the death instead. */
    for (int i = 1; rank == 0 && i < 3; i++) {
        CHECK_EQ(MPI_Recv(NULL, 0, MPI_BYTE, i, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE), MPI_SUCCESS);
    }
    if (rank == 0) {
        CHECK_EQ(kill((pid_t)pids[3], SIGKILL), 0);
    } else {
        CHECK_EQ(MPI_Send(NULL, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD), MPI_SUCCESS);
    }
    conf_close(&test);
    zero_world_destroy(world);
}

int main(int argc, char **argv)
{
    int level = 0;
    int rank = 0;
    const char *mode = argc > 1 ? argv[1] : "left";
    alarm(200);
    CHECK_EQ(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), MPI_SUCCESS);
    CHECK_EQ(MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_SUCCESS);
    if (strcmp(mode, "killed") == 0) {
        run_killed(2);
    } else if (strcmp(mode, "alone") == 0) {
        run_killed(1);
    } else if (strcmp(mode, "stopped") == 0) {
        run_stopped();
    } else {
        run_left();
        CHECK_EQ(MPI_Finalize(), MPI_SUCCESS);
    }
    printf("%d is fine\n", rank);
    fflush(stdout);
    _exit(0);
}
