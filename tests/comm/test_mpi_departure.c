/* Ranks that go while others wait for them, in a world that MPI started: run by mpirun with 4
 * ranks, 2 to a pretended host.
 *
 *   test_mpi_departure left    the last rank leaves, the others are in a collective; and engines
 *                              whose create is refused, which spoils nothing
 *   test_mpi_departure killed  the last rank is killed; mpirun is told to let the others go on
 *
 * Each rank that came through says "N is fine". A check that fails ends the process. */
#include <mpi.h>

#include "comm/mpi/mpi_comm.h"
#include "comm/world.h"
#include "departure.h"
#include "engine/refusals.h"

#define LONG_MS 60000

static zero_world *make_world(uint32_t ranks_per_host)
{
    const zi_mpi_options options = {.ranks_per_host = ranks_per_host};
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    CHECK_OK(zi_mpi_comm_create(MPI_COMM_WORLD, LONG_MS, &options, &comm));
    CHECK_OK(zi_world_create(comm, &world));
    return world;
}

static void leave_early(uint32_t ranks_per_host, place_fn fn)
{
    zero_world *world = make_world(ranks_per_host);
    conf test = {0};
    place_open(&test, world);
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
        for (size_t i = 0; i < PLACES; i++) {
            leave_early(ranks_per_host, places[i].fn);
        }
    }
}

static void run_killed(void)
{
    zero_world *world = make_world(2);
    const uint32_t last = zero_world_size(world) - 1;
    conf test = {0};
    place_open(&test, world);
    if (zero_world_rank(world) == last) {
        (void)kill(getpid(), SIGKILL);
    }
    const char *words = test_text("rank %u: process ", last);
    wait_in(world, &test, in_all_gather, words);
    CHECK_SAID("died while rank");
    conf_close(&test);
    zero_world_destroy(world);
}

int main(int argc, char **argv)
{
    /* The harness's own main forks, which MPI does not take well; its checks serve here too. */
    (void)test_main;
    (void)test_last;
    int level = 0;
    int rank = 0;
    const bool killed = argc > 1 && strcmp(argv[1], "killed") == 0;
    alarm(200);
    CHECK_EQ(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), MPI_SUCCESS);
    CHECK_EQ(MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_SUCCESS);
    if (killed) {
        run_killed();
    } else {
        run_left();
        CHECK_EQ(MPI_Finalize(), MPI_SUCCESS);
    }
    printf("%d is fine\n", rank);
    fflush(stdout);
    _exit(0);
}
