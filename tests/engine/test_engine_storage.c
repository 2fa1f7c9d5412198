/* Owns the tests of what an engine makes of its disks: whatever fails below, a run gives the bits
 * of one without disks or ends on every rank with the disk's error; a way that is refused is
 * replaced and named; a directory has one owner, and nothing of it outlives a killed one; and a
 * thousand steps take nothing.
 *
 * The engine takes no backend, so the linker hands zi_window_create to the wrapper below (--wrap),
 * which puts tests/storage/faulty_backend.c beneath the I/O window. Unlike preloaded reads and
 * writes it strikes the n-th access whatever backend a machine has, and the library needs no seam
 * for it. */
#include "storage/storage_rig.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <time.h>

#include "core/memory.h"
#include "offload/window.h"
#include "reads.h"
#include "refuse_call.h"
#include "storage/faulty_backend.h"
#include "toy.h"

#define RANKS 2
#define MESSAGE_BYTES sizeof(((zero_error *)NULL)->message)

/* The backend that is to go beneath the next window of this thread; NULL: the machine's. */
static _Thread_local faulty *beneath;

zero_status __real_zi_window_create(const zi_window_desc *desc, zi_window **out);
zero_status __wrap_zi_window_create(const zi_window_desc *desc, zi_window **out);

zero_status __wrap_zi_window_create(const zi_window_desc *desc, zi_window **out)
{
    zi_window_desc with = *desc;
    zi_io_backend backend;
    if (beneath != NULL) {
        faulty_open(beneath, desc->store, &backend);
        with.backend = &backend;
    }
    return __real_zi_window_create(&with, out);
}

static char *folder;

static void close_folder(void)
{
    rig_remove(folder); /* which must be empty */
    folder = NULL;
}

/* All optimizer state on disk, in ranges so small that there are many and the I/O window is
 * offloaded smaller than all. */
static toy_run disk_run(toy_run run)
{
    toy_run_tiers(&run, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    toy_run_disk(&run, (const char *const *)&folder, 1);
    run.tuning.extent_bytes = 8192;
    run.steps = 3;
    return run;
}

static toy_run memory_run(const toy_run *run)
{
    toy_run plain = *run;
    toy_run_tiers(&plain, ZERO_ROLE_MASTER, ZERO_TIER_DEVICE);
    plain.tuning.speculative_step = 0;
    plain.predicted = false;
    return plain;
}

/* ---- faults below the library ---- */

typedef struct fault_run {
    const toy_run *run;
    toy_state plain[RANKS]; /* that each rank collects without a fault */
    faulty below[RANKS];
    zero_status status[RANKS];
    char message[RANKS][MESSAGE_BYTES]; /* of the error that stopped the rank */
} fault_run;

static zero_status train_plain(zero_world *world, void *user)
{
    fault_run *f = user;
    const toy_run plain = memory_run(f->run);
    return toy_train_collect(&plain, world, &f->plain[zero_world_rank(world)]);
}

static zero_status take_steps(toy_trainer *trainer)
{
    for (uint32_t s = 0; s < trainer->run->steps; s++) {
        TOY_TRY(toy_step_or_skip(trainer, false));
    }
    return ZERO_OK;
}

/* A rank that is stopped repeats why, and its engine can be destroyed. */
static zero_status train_over_faults(zero_world *world, void *user)
{
    fault_run *f = user;
    const uint32_t rank = zero_world_rank(world);
    toy_trainer trainer;
    toy_state state;
    memset(&state, 0, sizeof state);
    beneath = &f->below[rank];
    zero_status status = toy_open(&trainer, f->run, world);
    const bool opened = status == ZERO_OK;
    status = opened ? take_steps(&trainer) : status;
    status = status == ZERO_OK ? toy_collect(&trainer, &state) : status;
    f->status[rank] = status;
    if (status == ZERO_OK) {
        toy_state_same(f->run->model, &f->plain[rank], &state, "device and disk with a fault");
    } else {
        memcpy(f->message[rank], zero_last_error()->message, MESSAGE_BYTES);
    }
    if (status != ZERO_OK && opened) {
        /* The collecting is the test's own: what ends that reaches the engine in its next call. */
        CHECK(toy_step(&trainer) != ZERO_OK);
        CHECK_FAILS(toy_step(&trainer), ZERO_ERR_POISONED, " of the file ");
    }
    toy_state_free(&state);
    if (opened) {
        toy_close(&trainer);
    }
    return ZERO_OK;
}

/* Both ranks say the same: which disk, where on it, and why. */
static void check_stopped(const fault_run *f, const char *code)
{
    const char *cause[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(f->status[rank] == ZERO_ERR_IO || f->status[rank] == ZERO_ERR_COMM ||
              f->status[rank] == ZERO_ERR_CORRUPT);
        cause[rank] = strstr(f->message[rank], " bytes at ");
        if (cause[rank] == NULL || strstr(cause[rank], folder) == NULL ||
            strstr(cause[rank], code) == NULL) {
            TEST_FAIL("rank %d: no offset, \"%s\" or \"%s\" in: %s", rank, code, folder,
                      f->message[rank]);
        }
    }
    if (strcmp(cause[0], cause[1]) != 0) {
        TEST_FAIL("ranks say \"%s\" and \"%s\"", f->message[0], f->message[1]);
    }
}

/* A fault of `kind` at the n-th access of one rank; false once a run has fewer. */
static bool strike(fault_run *f, int kind, int nth, const char *code)
{
    const int struck = (kind + nth) % RANKS;
    for (int rank = 0; rank < RANKS; rank++) {
        f->below[rank] = (faulty){.hold_file = -1};
    }
    f->below[struck].nth = nth;
    f->below[struck].kind = kind;
    const zero_status status = zero_world_run(RANKS, TOY_DEADLINE_MS, train_over_faults, f);
    CHECK_EQ(rig_entries(folder), 0);
    if (f->below[struck].faults == 0 || code == NULL) {
        CHECK_OK(status);
        CHECK(f->status[0] == ZERO_OK && f->status[1] == ZERO_OK);
        return f->below[struck].faults != 0;
    }
    /* A file that ends early is damage where it is read. */
    CHECK(status == ZERO_ERR_IO || (status == ZERO_ERR_CORRUPT && kind == FAULTY_NOTHING));
    check_stopped(f, code);
    return true;
}

/* Under a sanitizer, which takes many times as long, each kind meets every fifth access. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STRIDE 5
#else
#define STRIDE 1
#endif

/* A fault that is the same at every access comes to the same at every one; code: what a run that
 * ends says, NULL: it goes on. */
static void strike_every(int kind, const char *code, bool predicted)
{
    static fault_run f;
    folder = rig_folder(true);
    toy_run run = disk_run(toy_run_equal(3, 1800, ZERO_DTYPE_BF16));
    run.steps = 2;
    run.tuning.speculative_step = predicted;
    run.predicted = predicted;
    run.params.max_norm = 1e-3f; /* the speculative updates of what is predicted are dropped */
    f = (fault_run){.run = &run};
    CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, train_plain, &f));
    int nth = 1 + kind % STRIDE;
    while (strike(&f, kind, nth, code)) {
        nth += STRIDE;
    }
    printf("  %d accesses\n", f.below[0].segments);
    CHECK(nth > 20);
    toy_state_free(&f.plain[0]);
    toy_state_free(&f.plain[1]);
    close_folder();
}

TEST_CALL(an_io_error_stops_every_rank_by_name, strike_every(FAULTY_ERRNO + EIO, "errno 5", false));
TEST_CALL(an_io_error_stops_every_rank_that_updates_during_backward,
          strike_every(FAULTY_ERRNO + EIO, "errno 5", true));
TEST_CALL(a_disk_that_fills_up_stops_every_rank_by_name,
          strike_every(FAULTY_ERRNO + ENOSPC, "errno 28", false));
TEST_CALL(a_file_that_ends_early_stops_every_rank_by_name,
          strike_every(FAULTY_NOTHING, "in the directory", false));

/* A third of all accesses, and answers in any order. */
TEST(a_storm_changes_nothing)
{
    static fault_run f;
    folder = rig_folder(true);
    toy_run run = disk_run(toy_run_equal(4, 2000, ZERO_DTYPE_F16));
    run.options.stage = ZERO_STAGE_1;
    run.steps = 12;
    f = (fault_run){.run = &run};
    CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, train_plain, &f));
    for (int rank = 0; rank < RANKS; rank++) {
        f.below[rank] = (faulty){
            .hold_file = -1, .seed = test_seed + (uint64_t)rank, .percent = 33, .shuffle = true};
    }
    CHECK_OK(zero_world_run(RANKS, TOY_DEADLINE_MS, train_over_faults, &f));
    CHECK(f.below[0].faults > 10 && f.below[1].faults > 10);
    toy_state_free(&f.plain[0]);
    toy_state_free(&f.plain[1]);
    close_folder();
}

/* ---- what a machine refuses ---- */

/* Train once more and compare; how the disk was reached. */
static zero_disk_path train_and_tell(const toy_run *run)
{
    toy_trainer trainer;
    toy_state plain;
    const toy_run in_memory = memory_run(run);
    CHECK_OK(toy_train_collect(&in_memory, NULL, &plain));
    CHECK_OK(toy_open(&trainer, run, NULL));
    const zero_disk_path path = engine_disk_path(trainer.engine);
    CHECK_OK(take_steps(&trainer));
    CHECK_OK(toy_collect_same(&trainer, &plain, "device and disk"));
    toy_close(&trainer);
    toy_state_free(&plain);
    printf("  %s%s%s\n", path.text, path.refused[0] != 0 ? "; refused: " : "", path.refused);
    return path;
}

static void check_refused(const zero_disk_path *path, const char *text)
{
    if (strstr(path->refused, text) == NULL) {
        TEST_FAIL("\"%s\" is not in: %s", text, path->refused);
    }
}

/* Skips where the best way is not to be had anyway. */
static void need_best(const toy_run *run)
{
    const zero_disk_path path = train_and_tell(run);
    if (path.backend != ZERO_IO_BACKEND_FIXED || path.registered_bytes == 0) {
        close_folder();
        SKIP("io_uring with registered memory is refused here without our doing");
    }
    CHECK_EQ(path.registered_bytes, path.window_bytes);
}

typedef struct refusal {
    long call;
    int code;
    zero_io_backend backend;
    const char *text;
} refusal;

/* In a process each, since a filter stays. */
static void refuse_one(const toy_run *run, const refusal *r)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        refuse_call(r->call, r->code);
        const zero_disk_path path = train_and_tell(run);
        CHECK_EQ(path.backend, r->backend);
        CHECK_EQ(path.registered_bytes, 0);
        check_refused(&path, r->text);
        fflush(NULL);
        _exit(0);
    }
    int code = 0;
    CHECK(waitpid(child, &code, 0) == child);
    if (WIFEXITED(code) && WEXITSTATUS(code) == 77) {
        close_folder();
        SKIP("system calls cannot be filtered here");
    }
    CHECK_EQ(code, 0);
}

REAL_TEST(without_io_uring_the_bits_are_the_same)
{
    static const refusal refusals[] = {
        {SYS_io_uring_setup, EPERM, ZERO_IO_BACKEND_POSIX, "uring: io_uring_setup: Operation not"},
        {SYS_io_uring_setup, ENOSYS, ZERO_IO_BACKEND_POSIX, "fixed: io_uring_setup: Function not"},
        {SYS_io_uring_register, EINVAL, ZERO_IO_BACKEND_URING, "fixed: registering files"},
    };
    folder = rig_folder(false);
    const toy_run run = disk_run(toy_run_mixed(ZERO_DTYPE_BF16));
    need_best(&run);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        refuse_one(&run, &refusals[i]);
    }
    close_folder();
}

/* A file system that knows no O_DIRECT, as tmpfs before Linux 6.6. */
TEST(without_direct_access_the_bits_are_the_same)
{
    refuse_direct();
    folder = rig_folder(false);
    const toy_run run = disk_run(toy_run_mixed(ZERO_DTYPE_BF16));
    const zero_disk_path path = train_and_tell(&run);
    CHECK_EQ(path.direct, 0);
    CHECK(strstr(path.text, "buffered") != NULL);
    check_refused(&path, "O_DIRECT is refused (Invalid argument)");
    check_refused(&path, folder);
    close_folder();
}

TEST(on_tmpfs_the_bits_are_the_same)
{
    folder = rig_folder(true);
    const int file = open(folder, O_TMPFILE | O_RDWR, 0600);
    CHECK(file >= 0);
    const bool direct = fcntl(file, F_SETFL, O_DIRECT) == 0;
    CHECK(close(file) == 0);
    const toy_run run = disk_run(toy_run_mixed(ZERO_DTYPE_BF16));
    const zero_disk_path path = train_and_tell(&run);
    CHECK_EQ(path.direct, direct);
    CHECK_EQ(strstr(path.refused, "buffered") != NULL, !direct);
    close_folder();
}

/* The I/O window of 1 MiB does not fit into the 64 KiB that may be locked. */
REAL_TEST(with_little_locked_memory_the_bits_are_the_same)
{
    folder = rig_folder(false);
    CHECK(chmod(folder, 0777) == 0);
    toy_run run = disk_run(toy_run_equal(4, 100000, ZERO_DTYPE_BF16));
    run.tuning.extent_bytes = 256 << 10;
    run.tuning.io_window = 4;
    need_best(&run);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {64 << 10, 64 << 10};
        CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
        if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) {
            SKIP("cannot become a user to whom the limit applies");
        }
        const zero_disk_path path = train_and_tell(&run);
        CHECK(path.registered_bytes < path.window_bytes);
        CHECK(path.backend != ZERO_IO_BACKEND_FIXED || strstr(path.text, "ulimit -l") != NULL);
        fflush(NULL);
        _exit(0);
    }
    int code = 0;
    CHECK(waitpid(child, &code, 0) == child);
    close_folder();
    if (WIFEXITED(code) && WEXITSTATUS(code) == 77) {
        SKIP("cannot become a user to whom the limit applies");
    }
    CHECK_EQ(code, 0);
}

TEST(nothing_on_disk_has_no_path)
{
    toy_trainer trainer;
    const toy_run run = toy_run_mixed(ZERO_DTYPE_BF16);
    CHECK_OK(toy_open(&trainer, &run, NULL));
    const zero_disk_path path = engine_disk_path(trainer.engine);
    CHECK_EQ(path.backend, ZERO_IO_BACKEND_NONE);
    CHECK_EQ(path.window_bytes + path.registered_bytes, 0);
    CHECK(strstr(path.text, "nothing on disk") != NULL);
    toy_close(&trainer);
}

/* ---- whose a directory is ---- */

/* Trains for ever; one byte to `tell` when the first step is over. */
static void train_until_killed(const toy_run *run, int tell)
{
    toy_trainer trainer;
    CHECK_OK(toy_open(&trainer, run, NULL));
    CHECK_OK(toy_step_or_skip(&trainer, false));
    CHECK(write(tell, "1", 1) == 1);
    for (;;) {
        CHECK_OK(toy_step(&trainer));
    }
}

static pid_t start_job(const toy_run *run)
{
    int ends[2];
    char byte = 0;
    fflush(NULL);
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        train_until_killed(run, ends[1]);
    }
    CHECK(close(ends[1]) == 0);
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK(close(ends[0]) == 0);
    return child;
}

static void refuse_second(const toy_run *run, pid_t owner)
{
    toy_trainer second;
    char pid[32];
    (void)snprintf(pid, sizeof pid, "%d", (int)owner);
    CHECK_FAILS(toy_open(&second, run, NULL), ZERO_ERR_STATE, pid);
    CHECK(strstr(zero_last_error()->message, folder) != NULL);
}

static void kill_after(pid_t child, long ms)
{
    const struct timespec span = {.tv_nsec = ms * 1000000};
    int code = 0;
    (void)nanosleep(&span, NULL);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &code, 0) == child);
    CHECK(WIFSIGNALED(code) && WTERMSIG(code) == SIGKILL);
}

static uint64_t free_blocks(void)
{
    struct statvfs info;
    CHECK(statvfs(folder, &info) == 0);
    return info.f_bfree;
}

/* Once the process is gone; with io_uring the kernel lets go of its files a moment later. */
static bool is_given_back(uint64_t before)
{
    for (int tries = 0; tries < 1000; tries++) {
        if (before - free_blocks() <= 2) { /* the lock's file */
            return true;
        }
        (void)usleep(10000);
    }
    return false;
}

/* A small file system of this process alone, so that its free space is ours; false: not allowed. */
static bool mount_folder(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", folder, "tmpfs", 0, "size=16m") == 0;
}

static void kill_and_follow(bool mounted)
{
    const uint64_t before = free_blocks();
    const toy_run run = disk_run(toy_run_equal(4, 30000, ZERO_DTYPE_BF16));
    for (long round = 0; round < 4; round++) {
        const pid_t child = start_job(&run);
        CHECK(!mounted || free_blocks() < before);
        refuse_second(&run, child);
        kill_after(child, 3 * round);
        CHECK(rig_entries(folder) <= 1); /* the lock's file of one line */
        CHECK(!mounted || is_given_back(before));
        (void)train_and_tell(&run);
        CHECK_EQ(rig_entries(folder), 0);
        CHECK(!mounted || free_blocks() == before);
    }
}

TEST(a_killed_job_leaves_its_directory_to_the_next)
{
    folder = rig_folder(false);
    kill_and_follow(false);
    close_folder();
}

TEST(a_killed_job_leaves_no_space_taken)
{
    folder = rig_folder(false);
    if (!mount_folder()) {
        close_folder();
        SKIP("mounting a small file system is not allowed here");
    }
    kill_and_follow(true);
    CHECK(umount2(folder, MNT_DETACH) == 0); /* io_uring may still hold a file */
    close_folder();
}

TEST(a_disk_too_small_is_refused_with_the_shortfall)
{
    toy_trainer trainer;
    char text[128];
    folder = rig_folder(false);
    if (!mount_folder()) {
        close_folder();
        SKIP("mounting a small file system is not allowed here");
    }
    const uint64_t before = free_blocks();
    const toy_run run = disk_run(toy_run_equal(4, 500000, ZERO_DTYPE_BF16));
    const uint64_t wanted = toy_planned(&run, 1).tier_bytes[ZERO_TIER_DISK];
    (void)snprintf(text, sizeof text, "%" PRIu64 " bytes wanted on disk, %" PRIu64 " free", wanted,
                   16 * MIB - PAGE); /* the lock's file has a page */
    CHECK_FAILS(toy_open(&trainer, &run, NULL), ZERO_ERR_OUT_OF_MEMORY, text);
    CHECK(strstr(zero_last_error()->message, folder) != NULL);
    CHECK_EQ(free_blocks(), before);
    CHECK(umount2(folder, MNT_DETACH) == 0);
    close_folder();
}

/* ---- a thousand steps ---- */

static uint64_t resident_pages(void)
{
    unsigned long whole = 0;
    unsigned long resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu %lu", &whole, &resident) == 2);
    CHECK(fclose(file) == 0);
    return resident;
}

static void steps(toy_trainer *trainer, int count)
{
    for (int i = 0; i < count; i++) {
        CHECK_OK(toy_step(trainer));
    }
    CHECK_OK(toy_wait(trainer));
}

TEST(a_thousand_steps_take_nothing)
{
    toy_trainer trainer;
    folder = rig_folder(false);
    const toy_run run = disk_run(toy_run_equal(2, 1500, ZERO_DTYPE_BF16));
    CHECK_OK(toy_open(&trainer, &run, NULL));
    steps(&trainer, 100);
    const unsigned descriptors = rig_descriptors();
    const uint64_t calls = zi_memory_calls();
    const uint64_t pages = resident_pages();
    steps(&trainer, 1000);
    CHECK_EQ(rig_descriptors(), descriptors);
    CHECK_EQ(zi_memory_calls(), calls);
    const uint64_t more = resident_pages() - pages;
    printf("  %u descriptors, %" PRId64 " pages more\n", descriptors, (int64_t)more);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    CHECK((int64_t)more < 256); /* a KiB a step would show */
#endif
    const zero_stats stats = engine_stats(trainer.engine);
    CHECK(stats.disk_read_bytes > 1000 * 8192 && stats.disk_write_bytes > 1000 * 8192);
    toy_close(&trainer);
    close_folder();
}

TEST(engines_leave_no_descriptors)
{
    folder = rig_folder(true);
    const toy_run run = disk_run(toy_run_mixed(ZERO_DTYPE_BF16));
    const unsigned before = rig_descriptors();
    for (int i = 0; i < 20; i++) {
        toy_trainer trainer;
        CHECK_OK(toy_open(&trainer, &run, NULL));
        steps(&trainer, 1);
        toy_close(&trainer);
        CHECK_EQ(rig_descriptors(), before);
    }
    close_folder();
}
