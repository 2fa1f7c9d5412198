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
#include "conformance.h"
#include "engine/refusals.h"

#define LONG_MS 60000
/* No news may take longer, however loaded the machine; the aim is 1 s. */
#define SOON_MS 10000

static uint64_t ms_since(uint64_t start_ns)
{
    return (zi_clock_ns() - start_ns) / 1000000;
}

static zero_world *make_world(uint32_t ranks_per_host)
{
    const zi_mpi_options options = {.ranks_per_host = ranks_per_host};
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    CHECK_OK(zi_mpi_comm_create(MPI_COMM_WORLD, LONG_MS, &options, &comm));
    CHECK_OK(zi_world_create(comm, &world));
    return world;
}

typedef zero_status (*place_fn)(zero_world *world, conf *test);

static zero_status in_barrier(zero_world *world, conf *test)
{
    (void)test;
    return zero_world_barrier(world);
}

static zero_status in_memory(zero_world *world, conf *test)
{
    (void)test;
    void *piece = NULL;
    const zero_status status = world->comm->ops->memory_alloc(world->comm, ZI_PAGE_BYTES, &piece);
    world->comm->ops->memory_free(world->comm, piece, ZI_PAGE_BYTES);
    return status;
}

static zero_status in_group_create(zero_world *world, conf *test)
{
    zi_group *group = NULL;
    const zero_status status = world->comm->ops->group_create(
        world->comm, &world->kernels, test->members, test->size, "other", &group);
    zi_group_destroy(group);
    return status;
}

static zero_status in_all_gather(zero_world *world, conf *test)
{
    (void)world;
    const conf_shape shape = {ZI_ALL_GATHER, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 30000, 0, false, 0, 1};
    const zi_collective job = conf_prepare(test, &shape);
    return zi_group_submit(test->group, test->host, &job, 1);
}

static zero_status in_reduce(zero_world *world, conf *test)
{
    (void)world;
    const conf_shape shape = {ZI_ALL_REDUCE, ZERO_DTYPE_F32, ZERO_DTYPE_F32, 30000, 0, false, 0, 1};
    const zi_collective job = conf_prepare(test, &shape);
    return zi_group_submit(test->group, test->host, &job, 1);
}

static const place_fn places[] = {in_barrier, in_memory, in_group_create, in_all_gather, in_reduce};
#define PLACES (sizeof places / sizeof places[0])

/* Repeat the place until it fails: COMM with these words in it, in time. */
static void wait_in(zero_world *world, conf *test, place_fn fn, const char *words)
{
    const uint64_t start_ns = zi_clock_ns();
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && ms_since(start_ns) < SOON_MS) {
        status = fn(world, test);
    }
    if (status != ZERO_COMM || strstr(zero_last_error()->message, words) == NULL) {
        TEST_FAIL("rank %u: %s instead of COMM with \"%s\": %s", zero_world_rank(world),
                  zero_status_name(status), words,
                  status == ZERO_OK ? "" : zero_last_error()->message);
    }
    CHECK(ms_since(start_ns) < SOON_MS);
}

static void leave_early(uint32_t ranks_per_host, place_fn fn)
{
    zero_world *world = make_world(ranks_per_host);
    conf test = {0};
    conf_members_all(&test, world);
    conf_open(&test, 30000 * sizeof(float) * test.size, "big");
    CHECK_OK(zero_world_barrier(world));
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
        conf_members_all(&test, world);
        conf_open(&test, 4 * sizeof(float) * test.size, "short");
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
            leave_early(ranks_per_host, places[i]);
        }
    }
}

static void run_killed(void)
{
    zero_world *world = make_world(2);
    const uint32_t last = zero_world_size(world) - 1;
    conf test = {0};
    conf_members_all(&test, world);
    conf_open(&test, 30000 * sizeof(float) * test.size, "big");
    CHECK_OK(zero_world_barrier(world));
    if (zero_world_rank(world) == last) {
        (void)kill(getpid(), SIGKILL);
    }
    char words[32];
    snprintf(words, sizeof words, "rank %u: process ", last);
    wait_in(world, &test, in_all_gather, words);
    CHECK(strstr(zero_last_error()->message, "died while rank") != NULL);
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
