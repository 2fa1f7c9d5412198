/* Ranks of which one hangs, dies or goes its own way in the middle of a step, for test_hang.py:
 *
 *   hang_rank threads|launched|mpi absent|asked|dies|holds|lost FOLDER
 *
 * `threads` are all ranks, the others one of several processes. The odd rank is rank 1, and it is
 * odd when it is to gather unit 3. Files of last collectives are in FOLDER, and each rank prints
 * what it failed with. */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef HANG_MPI
#include <mpi.h>

#include "comm/mpi/mpi_comm.h"
#endif
#include "comm/world.h"
#include "toy.h"

#define RANKS 3
#define UNITS 6
#define ODD_RANK 1
#define ODD_UNIT 3
/* Of the collective that is to fail; nothing before it takes as long. */
#define SHORT_MS 4000
#define POLLS 6000 /* of 10 ms */

static const char *mode;
static const char *folder;

static bool is(const char *name)
{
    return strcmp(mode, name) == 0;
}

static void pause_10_ms(void)
{
    const struct timespec span = {.tv_nsec = 10000000};
    (void)nanosleep(&span, NULL);
}

/* Wait for so many files in the folder whose names begin and end like this. */
static void await_files(const char *begin, const char *end, uint32_t count)
{
    for (int poll = 0; poll < POLLS; poll++) {
        uint32_t found = 0;
        DIR *open = opendir(folder);
        TOY_CHECK(open != NULL, "%s cannot be read", folder);
        for (const struct dirent *at = readdir(open); at != NULL; at = readdir(open)) {
            const size_t length = strlen(at->d_name);
            found += strncmp(at->d_name, begin, strlen(begin)) == 0 && length > strlen(end) &&
                     strcmp(at->d_name + length - strlen(end), end) == 0;
        }
        (void)closedir(open);
        if (found >= count) {
            return;
        }
        pause_10_ms();
    }
    TOY_CHECK(false, "%s has too few files %s*%s", folder, begin, end);
}

/* ---- a thread that is not the rank's ---- */

typedef struct asker {
    zero_engine *engine;
    uint32_t rank;
    atomic_uint there; /* the rank is about to gather the odd unit, or hangs before it */
    pthread_t thread;
} asker;

/* True if the file says that the rank waits in the odd unit and nowhere else; the odd rank waits
 * nowhere. What NCCL has ended is seen a little later, so a file written too early has more. */
static bool says_hangs(const char *path, bool is_odd)
{
    static const char *const waits = "\"state\":\"started\",\"kind\":\"all_gather\"";
    char line[1024];
    uint32_t open = 0;
    bool found = false;
    FILE *file = fopen(path, "r");
    TOY_CHECK(file != NULL, "%s cannot be read", path);
    while (fgets(line, sizeof line, file) != NULL) {
        open += strstr(line, "\"state\":\"started\"") != NULL ||
                strstr(line, "\"state\":\"enqueued\"") != NULL;
        found = found || (strstr(line, waits) != NULL && strstr(line, "\"unit\":3") != NULL);
    }
    (void)fclose(file);
    return is_odd ? open == 0 : found && open == 1;
}

/* Write the file, again and again until the rank hangs. */
static void *ask(void *argument)
{
    asker *a = argument;
    char path[4096];
    char ready[4096 + 8];
    (void)snprintf(path, sizeof path, "%s/asked-%u.json", folder, a->rank);
    (void)snprintf(ready, sizeof ready, "%s.ready", path);
    bool hangs = false;
    for (int poll = 0; poll < POLLS && !hangs; poll++) {
        pause_10_ms();
        if (atomic_load(&a->there) != 0) {
            TOY_CHECK(zero_engine_collectives_write(a->engine, path) == ZERO_OK, "%s",
                      zero_last_error()->message);
            hangs = says_hangs(path, a->rank == ODD_RANK);
        }
    }
    TOY_CHECK(hangs, "rank %u never hung", a->rank);
    FILE *file = fopen(ready, "w");
    TOY_CHECK(file != NULL && fclose(file) == 0, "%s cannot be made", ready);
    return NULL;
}

/* ---- a rank ---- */

static zero_status odd_forward(toy_trainer *trainer, uint32_t unit)
{
    if (unit == ODD_UNIT && is("absent")) {
        await_files("collectives-", ".json", RANKS - 1);
    } else if (unit == ODD_UNIT && is("asked")) {
        await_files("asked-", ".ready", RANKS);
    } else if (unit == ODD_UNIT && is("dies")) {
        (void)raise(SIGKILL);
    } else if (unit == ODD_UNIT && is("lost")) {
        TOY_CHECK(rmdir(folder) == 0, "%s is not empty", folder);
        return ZERO_ERR_IO;
    }
    return toy_forward(trainer, unit);
}

static zero_status step(toy_trainer *trainer, asker *a)
{
    TOY_TRY(toy_micro_begin(trainer, true));
    for (uint32_t u = 0; u < UNITS; u++) {
        atomic_store(&a->there, u == ODD_UNIT ? 1 : atomic_load(&a->there));
        TOY_TRY(trainer->rank == ODD_RANK ? odd_forward(trainer, u) : toy_forward(trainer, u));
    }
    for (uint32_t u = UNITS; u-- > 0;) {
        TOY_TRY(toy_backward(trainer, u));
    }
    TOY_TRY(toy_micro_end(trainer));
    return toy_update(trainer);
}

static zero_status visit(toy_trainer *trainer, uint32_t unit, zero_pass pass)
{
    TOY_TRY(toy_acquire(trainer, unit, pass));
    return toy_release(trainer, unit, pass);
}

/* The odd rank holds a unit for which the others need the slot. NCCL does not compare what ranks
 * put on a group and moves wrong data, so nothing is read, and files are written in any case. */
static zero_status hold(toy_trainer *trainer)
{
    const zero_stream stream = toy_stream();
    TOY_TRY(toy_micro_begin(trainer, true));
    if (trainer->rank == ODD_RANK) {
        TOY_TRY(zero_unit_acquire(trainer->engine, 1, ZERO_PASS_FORWARD, stream, NULL));
    }
    for (uint32_t u = 2; u < UNITS; u++) {
        TOY_TRY(visit(trainer, u, ZERO_PASS_FORWARD));
    }
    for (uint32_t u = UNITS; u-- > 2;) {
        TOY_TRY(visit(trainer, u, ZERO_PASS_BACKWARD));
    }
    TOY_TRY(zero_engine_collectives_write(trainer->engine, NULL));
    /* Who closes its engine first lets the others fail, before they have come so far. */
    await_files("collectives-", ".json", RANKS);
    return ZERO_OK;
}

static zero_status work(zero_world *world, void *user)
{
    toy_run run = toy_run_equal(UNITS, 200, ZERO_DTYPE_F32);
    toy_trainer trainer;
    (void)user;
    run.tuning.no_prefetch = 1; /* each gather is of the unit that is acquired */
    run.tuning.param_slots = 3;
    run.tuning.hang_directory = folder;
    TOY_CHECK(toy_open(&trainer, &run, world) == ZERO_OK, "%s", zero_last_error()->message);
    TOY_CHECK(is("holds") || toy_step(&trainer) == ZERO_OK, "%s", zero_last_error()->message);
    asker a = {.engine = trainer.engine, .rank = trainer.rank};
    if (is("asked")) {
        TOY_CHECK(pthread_create(&a.thread, NULL, ask, &a) == 0, "no thread");
    }
    const zero_status status = is("holds") ? hold(&trainer) : step(&trainer, &a);
    printf("rank %u: %s: %s\n", trainer.rank, zero_status_name(status),
           status != ZERO_OK ? zero_last_error()->message : "");
    (void)fflush(stdout);
    if (is("asked")) {
        (void)pthread_join(a.thread, NULL);
    }
    toy_close(&trainer);
    return ZERO_OK;
}

static uint32_t deadline_ms(void)
{
    return is("asked") ? TOY_DEADLINE_MS : SHORT_MS;
}

static void run_launched(void)
{
    zero_world *world = NULL;
    TOY_CHECK(zero_world_create_launched(deadline_ms(), &world) == ZERO_OK, "%s",
              zero_last_error()->message);
    (void)work(world, NULL);
    zero_world_destroy(world);
}

/* Two ranks to a host, which they pretend to be on. A job in which a rank failed cannot end as MPI
 * wants it to. */
static void run_mpi(void)
{
#ifdef HANG_MPI
    const zi_mpi_options options = {.ranks_per_host = 2};
    zi_comm *comm = NULL;
    zero_world *world = NULL;
    int provided = 0;
    TOY_CHECK(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) == MPI_SUCCESS, "no MPI");
    TOY_CHECK(zi_mpi_comm_create(MPI_Comm_c2f(MPI_COMM_WORLD), deadline_ms(), &options, &comm) ==
                  ZERO_OK,
              "%s", zero_last_error()->message);
    TOY_CHECK(zi_world_create(comm, &world) == ZERO_OK, "%s", zero_last_error()->message);
    (void)work(world, NULL);
    if (!is("asked")) {
        _exit(0);
    }
    zero_world_destroy(world);
    (void)MPI_Finalize();
#endif
}

int main(int argc, char **argv)
{
    TOY_CHECK(argc == 4, "usage: hang_rank threads|launched|mpi MODE FOLDER");
    mode = argv[2];
    folder = argv[3];
    if (strcmp(argv[1], "threads") == 0) {
        const zero_status status = zero_world_run(RANKS, deadline_ms(), work, NULL);
        TOY_CHECK(status == ZERO_OK || !is("asked"), "%s", zero_last_error()->message);
    } else if (strcmp(argv[1], "launched") == 0) {
        run_launched();
    } else {
        run_mpi();
    }
    return 0;
}
