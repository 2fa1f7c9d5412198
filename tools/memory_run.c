/* Owns the ranks of a case: what they do, and what they read of their memory meanwhile. */
#include "memory_run.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEADLINE_MS 120000
#define STEPS 2

zero_engine_options memory_run_options(const bench_target *target, zero_tuning *tuning)
{
    zero_engine_options options = zero_engine_options_init();
    *tuning = zero_tuning_init();
    options.tuning = tuning;
    options.threads = 1;
    options.device = target->device;
    if (options.device == ZERO_DEVICE_CUDA) {
        tuning->transport = ZERO_TRANSPORT_PEER; /* ranks are threads here; the plan cannot know */
    }
    return options;
}

int memory_run_plan(memory_run *run)
{
    zero_plan *plan = NULL;
    run->planned = zero_memory_init();
    const int failed = BENCH_TRY(zero_plan_create(run->model, run->options, run->ranks, &plan)) ||
                       BENCH_TRY(zero_plan_memory(plan, &run->planned));
    zero_plan_destroy(plan);
    return failed;
}

/* ---- files ---- */

/* Bytes of a file that is open, nameless, and in the directory of this real path; else 0. */
static uint64_t nameless_bytes(const char *directory, int fds, const char *number)
{
    char target[4096] = "";
    struct stat info;
    const size_t length = strlen(directory);
    const bool is_there = readlinkat(fds, number, target, sizeof target - 1) > 0 &&
                          strncmp(target, directory, length) == 0 && target[length] == '/';
    return is_there && fstat((int)strtol(number, NULL, 10), &info) == 0 && S_ISREG(info.st_mode) &&
                   info.st_nlink == 0
               ? (uint64_t)info.st_size
               : 0;
}

/* An engine's files have no names, so they are found among what the process has open. */
static void read_files(memory_run *run)
{
    DIR *fds = opendir("/proc/self/fd");
    run->file_bytes = 0;
    run->files_told = fds != NULL;
    for (uint32_t i = 0; i < run->options->disk_directory_count && fds != NULL; i++) {
        char *real = realpath(run->options->disk_directories[i], NULL);
        rewinddir(fds);
        for (const struct dirent *entry = readdir(fds); entry != NULL && real != NULL;
             entry = readdir(fds)) {
            run->file_bytes += nameless_bytes(real, dirfd(fds), entry->d_name);
        }
        free(real);
    }
    if (fds != NULL) {
        (void)closedir(fds);
    }
}

/* ---- ranks ---- */

/* One step in which every unit is used forward and backward and every gradient is zero. */
static int run_step(zero_engine *engine, uint32_t units)
{
    const zero_stream host = zero_stream_host();
    const zero_step_params params = zero_step_params_init();
    int failed = BENCH_TRY(zero_micro_begin(engine, ZERO_MICRO_LAST));
    for (uint32_t i = 0; i < 2 * units && !failed; i++) {
        const bool forward = i < units;
        const zero_pass pass = forward ? ZERO_PASS_FORWARD : ZERO_PASS_BACKWARD;
        const uint32_t unit = forward ? i : 2 * units - 1 - i;
        failed = BENCH_TRY(zero_unit_acquire(engine, unit, pass, host, NULL)) ||
                 BENCH_TRY(zero_unit_release(engine, unit, host));
    }
    return failed || BENCH_TRY(zero_micro_end(engine)) ||
           BENCH_TRY(zero_step(engine, &params, host));
}

static int run_engine(memory_run *run, zero_world *world, zero_engine *engine)
{
    zero_step_result result = zero_step_result_init();
    zero_stats stats = zero_stats_init();
    memory_rank *rank = &run->by_rank[zero_world_rank(world)];
    rank->held = zero_memory_init();
    int failed = 0;
    for (uint32_t step = 0; step < STEPS && !failed; step++) {
        failed = run_step(engine, zero_model_unit_count(run->model));
    }
    failed = failed || BENCH_TRY(zero_step_wait(engine, &result)) ||
             BENCH_TRY(zero_engine_stats(engine, &stats)) ||
             BENCH_TRY(zero_engine_memory(engine, &rank->held));
    rank->device_peak_bytes = stats.device_peak_bytes;
    return failed;
}

/* Rank 0 looks at the system while all ranks wait before and after. */
static int look(memory_run *run, zero_world *world, void (*read)(memory_run *run))
{
    const int failed = BENCH_TRY(zero_world_barrier(world));
    if (zero_world_rank(world) == 0) {
        read(run);
    }
    return failed || BENCH_TRY(zero_world_barrier(world));
}

static void read_before(memory_run *run)
{
    run->used_bytes = run->target->used_start();
}

static void read_after(memory_run *run)
{
    const uint64_t most = run->target->used_most();
    run->used_bytes = most > run->used_bytes ? most - run->used_bytes : 0;
    read_files(run);
}

static zero_status run_rank(zero_world *world, void *user)
{
    memory_run *run = user;
    zero_engine *engine = NULL;
    const int failed = look(run, world, read_before) ||
                       BENCH_TRY(zero_engine_create(world, run->model, run->options, &engine)) ||
                       run_engine(run, world, engine) || look(run, world, read_after);
    const zero_status status = bench_rank_status(failed);
    zero_engine_destroy(engine);
    return status;
}

int memory_run_measure(memory_run *run)
{
    memset(run->by_rank, 0, run->ranks * sizeof *run->by_rank);
    return memory_run_plan(run) ||
           BENCH_TRY(zero_world_run(run->ranks, DEADLINE_MS, run_rank, run));
}
