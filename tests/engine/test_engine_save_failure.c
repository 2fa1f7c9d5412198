/* Owns the tests of saves that are in the way of something, or fail: what is saved is the state at
 * the beginning whatever the engine does meanwhile; after any failure the checkpoint before is
 * whole, the engine goes on, and nothing is left behind. */
#include "saved_runs.h"

#include "checkpoint/run_owner.h"
#include "core/fault.h"
#include "engine/save.h"
#include "reads.h"
#include "sanitizer.h"
#include "waits.h"
#include "zero/evict.h"

#define SLOW_NS UINT64_C(30000000)
#define VERY_SLOW_NS UINT64_C(1000000000) /* for a block; a step takes less */

static toy_run plain_run(zero_dtype dtype)
{
    return run_of(run_model(dtype), dtype == ZERO_DTYPE_F32 ? 0 : ZERO_DTYPE_F32, ZERO_DTYPE_F32);
}

static zero_status steps(toy_trainer *trainer, int count)
{
    for (int i = 0; i < count; i++) {
        TOY_TRY(run_step(trainer));
    }
    return ZERO_OK;
}

/* Check that what was saved under a name has these bits. */
static zero_status check_saved(toy_trainer *trainer, const char *name, const toy_state *expected)
{
    const zero_load_options options = run_load_options(name);
    TOY_TRY(zero_load(trainer->engine, &options, NULL));
    return toy_collect_same(trainer, expected, name);
}

static void slow_down(const toy_trainer *trainer, uint64_t ns)
{
    CHECK_OK(zero_world_barrier(trainer->world));
    zi_fault_slow(ZI_FAULT_IO, ns);
}

/* ---- meanwhile ---- */

static zero_status poll_active(const toy_trainer *trainer, bool *written)
{
    zero_save_progress progress = zero_save_progress_init();
    TOY_TRY(zero_save_poll(trainer->engine, &progress));
    CHECK_EQ(progress.active, 1);
    CHECK(progress.written_bytes <= progress.staged_bytes);
    CHECK(progress.staged_bytes <= progress.bytes && progress.bytes != 0);
    CHECK_EQ(progress.result, ZERO_OK);
    *written = progress.written != 0;
    return ZERO_OK;
}

/* Steps, writes from outside, a fill and an eviction while the disk is slow. */
static zero_status change_meanwhile(toy_trainer *trainer)
{
    toy_state half;
    const zero_save_options options = run_save_options("meanwhile");
    const uint32_t turn = *(const uint32_t *)trainer->user;
    bool written = false;
    TOY_TRY(steps(trainer, RUN_HALF));
    TOY_TRY(toy_collect(trainer, &half));
    slow_down(trainer, SLOW_NS);
    TOY_TRY(zero_save_begin(trainer->engine, &options));
    TOY_TRY(poll_active(trainer, &written));
    CHECK(!written);
    if (turn == 0) {
        TOY_TRY(steps(trainer, 2));
    } else if (turn == 1) {
        TOY_TRY(zero_engine_fill(trainer->engine, toy_fill, NULL));
    } else if (turn == 2) {
        zero_shard shard;
        float values[1024] = {0};
        TOY_TRY(zero_shard_range(trainer->engine, 0, ZERO_ROLE_MOMENT2, &shard));
        TOY_TRY(zero_shard_write(trainer->engine, 0, ZERO_ROLE_MOMENT2, shard.first, shard.count,
                                 values));
    } else {
        TOY_TRY(zero_engine_evict(trainer->engine, ZERO_EVICT_STATE, ZERO_TIER_DISK));
    }
    slow_down(trainer, 0);
    TOY_TRY(zero_save_end(trainer->engine));
    if (turn == 3) {
        TOY_TRY(zero_engine_restore(trainer->engine));
    }
    TOY_TRY(check_saved(trainer, "meanwhile", &half));
    toy_state_free(&half);
    return ZERO_OK;
}

TEST(what_is_saved_is_the_state_at_the_beginning)
{
    toy_run run = plain_run(ZERO_DTYPE_BF16);
    rig_folders(1, 0);
    run_directory_make();
    run.options.disk_directories = rig_paths;
    run.options.disk_directory_count = 1;
    for (uint32_t turn = 0; turn < 4; turn++) {
        run.options.stage = turn % 2 == 0 ? ZERO_STAGE_3 : ZERO_STAGE_1;
        CHECK_OK(toy_on_ranks(2, &run, change_meanwhile, &turn));
    }
}

/* More state than the ring holds, so the next update waits for the disk; and the same with memory
 * for all of it, where it does not. */
static zero_status train_on(toy_trainer *trainer)
{
    toy_state half;
    toy_state whole;
    const zero_save_options options = run_save_options("large");
    bool written = false;
    TOY_TRY(toy_train(trainer));
    TOY_TRY(toy_collect(trainer, &half));
    const bool staged = trainer->run->tuning.save_staging_bytes != 0;
    slow_down(trainer, staged ? VERY_SLOW_NS : SLOW_NS / 3);
    TOY_TRY(zero_save_begin(trainer->engine, &options));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_wait(trainer));
    TOY_TRY(poll_active(trainer, &written));
    CHECK(!staged || !written || UNDER_SANITIZER);
    slow_down(trainer, 0);
    TOY_TRY(zero_save_end(trainer->engine));
    TOY_TRY(toy_collect(trainer, &whole));
    TOY_TRY(check_saved(trainer, "large", &half));
    trainer->step--;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_collect_same(trainer, &whole, "a step taken again"));
    toy_state_free(&half);
    toy_state_free(&whole);
    return ZERO_OK;
}

TEST(more_state_than_memory_to_stage_it)
{
    toy_run run = toy_run_equal(3, 1000000, ZERO_DTYPE_F32);
    run.steps = 1;
    run_directory_make();
    CHECK_OK(toy_on_ranks(1, &run, train_on, NULL));
    run.tuning.save_staging_bytes = UINT64_C(64) << 20;
    CHECK_OK(toy_on_ranks(1, &run, train_on, NULL));
}

/* ---- a second save ---- */

static zero_status save_twice(toy_trainer *trainer)
{
    zero_save_options first = run_save_options("first");
    zero_save_options second = run_save_options("second");
    toy_state half;
    TOY_TRY(steps(trainer, 2));
    TOY_TRY(toy_collect(trainer, &half));
    slow_down(trainer, SLOW_NS);
    TOY_TRY(zero_save_begin(trainer->engine, &first));
    second.refuse_busy = 1;
    CHECK_FAILS(zero_save_begin(trainer->engine, &second), ZERO_ERR_STATE,
                "the save of \"first\" is under way");
    TOY_TRY(steps(trainer, 1));
    second.refuse_busy = 0;
    TOY_TRY(zero_save_begin(trainer->engine, &second));
    slow_down(trainer, 0);
    TOY_TRY(zero_save_end(trainer->engine));
    TOY_TRY(zero_save_end(trainer->engine)); /* of none */
    TOY_TRY(check_saved(trainer, "first", &half));
    toy_state_free(&half);
    first.replace = 0;
    CHECK_FAILS(zero_save(trainer->engine, &first), ZERO_ERR_STATE, "first");
    return run_step(trainer);
}

TEST(a_second_save_waits_or_is_refused)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &run, save_twice, NULL));
}

/* ---- failures ---- */

/* One more step than the failed save's, and the checkpoint of before. */
static zero_status goes_on(toy_trainer *trainer, const toy_state *before, const toy_state *after)
{
    TOY_TRY(zero_save_end(trainer->engine)); /* there is none */
    TOY_TRY(run_step(trainer));
    TOY_TRY(toy_collect_same(trainer, after, "after a save that failed"));
    trainer->step--;
    return check_saved(trainer, "before", before);
}

typedef struct failing {
    zi_fault_kind kind;
    uint64_t nth;
    uint64_t failed;
    zero_status wanted; /* on the rank itself */
    bool loads;
} failing;

static zero_status try_save(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("torn");
    TOY_TRY(zero_save_begin(trainer->engine, &options));
    return zero_save_end(trainer->engine);
}

/* Every n-th event fails once: the save fails on all ranks or on none. */
static zero_status fail_nth(toy_trainer *trainer)
{
    failing *f = trainer->user;
    toy_state before;
    toy_state after;
    const zero_save_options options = run_save_options("before");
    TOY_TRY(steps(trainer, 2));
    TOY_TRY(zero_save(trainer->engine, &options));
    TOY_TRY(toy_collect(trainer, &before));
    TOY_TRY(run_step(trainer));
    TOY_TRY(toy_collect(trainer, &after));
    TOY_TRY(check_saved(trainer, "before", &before));
    trainer->step--;
    for (bool over = false; !over;) {
        TOY_TRY(zero_world_barrier(trainer->world));
        if (trainer->rank == 0) {
            zi_fault_arm(f->kind, ++f->nth);
        }
        TOY_TRY(zero_world_barrier(trainer->world));
        const zero_status status = try_save(trainer);
        const zero_error error = *zero_last_error();
        uint64_t mine = status == ZERO_OK;
        uint64_t all[8] = {0};
        TOY_TRY(zero_world_gather(trainer->world, &mine, all, sizeof mine));
        over = zi_fault_count(f->kind) < f->nth;
        TOY_TRY(zero_world_barrier(trainer->world));
        zi_fault_arm(f->kind, 0);
        for (uint32_t r = 0; r < trainer->ranks; r++) {
            CHECK_EQ(all[r], mine);
        }
        CHECK(status == ZERO_OK || status == f->wanted || status == ZERO_ERR_INVALID_ARGUMENT);
        CHECK(!over || status == ZERO_OK);
        if (status != ZERO_OK) {
            if (trainer->rank == 0) {
                f->failed++;
            }
            CHECK(error.message[0] != '\0');
            TOY_TRY(goes_on(trainer, &before, &after));
        }
    }
    toy_state_free(&before);
    toy_state_free(&after);
    return ZERO_OK;
}

static void fail_each(zi_fault_kind kind, zero_status wanted, uint64_t at_least)
{
    const toy_run run = plain_run(ZERO_DTYPE_BF16);
    run_directory_make();
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        failing f = {.kind = kind, .wanted = wanted};
        CHECK_OK(toy_on_ranks(ranks, &run, fail_nth, &f));
        CHECK(f.failed >= at_least);
    }
}

TEST_CALL(every_access_may_fail, fail_each(ZI_FAULT_IO, ZERO_ERR_IO, 8));
TEST_CALL(every_allocation_may_fail, fail_each(ZI_FAULT_ALLOC, ZERO_ERR_OUT_OF_MEMORY, 8));
TEST_CALL(every_thread_may_fail, fail_each(ZI_FAULT_THREAD, ZERO_ERR_DEVICE, 2));

static zero_status poll_failure(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("fails");
    zero_save_progress progress = zero_save_progress_init();
    TOY_TRY(steps(trainer, 2));
    zero_status begun = ZERO_ERR_IO; /* as long as it is a header that cannot be written */
    for (uint64_t nth = 1; begun == ZERO_ERR_IO; nth++) {
        zi_fault_arm(ZI_FAULT_IO, nth);
        begun = zero_save_begin(trainer->engine, &options);
    }
    TOY_TRY(begun);
    while (progress.written == 0) {
        TOY_TRY(zero_save_poll(trainer->engine, &progress));
    }
    CHECK_EQ(progress.result, ZERO_ERR_IO);
    CHECK_FAILS(zero_save_end(trainer->engine), ZERO_ERR_IO, "writing");
    zi_fault_arm(ZI_FAULT_IO, 0);
    TOY_TRY(zero_save_poll(trainer->engine, &progress));
    CHECK_EQ(progress.active, 0);
    CHECK_EQ(progress.result, ZERO_OK);
    return ZERO_OK;
}

TEST(a_failure_is_polled)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(toy_on_ranks(1, &run, poll_failure, NULL));
}

/* ---- a full disk ---- */

static zero_status fill_disk(toy_trainer *trainer)
{
    toy_state before;
    toy_state after;
    const zero_save_options options = run_save_options("before");
    TOY_TRY(steps(trainer, 2));
    TOY_TRY(zero_save(trainer->engine, &options));
    TOY_TRY(toy_collect(trainer, &before));
    TOY_TRY(run_step(trainer));
    TOY_TRY(toy_collect(trainer, &after));
    TOY_TRY(check_saved(trainer, "before", &before));
    trainer->step--;
    CHECK_FAILS(try_save(trainer), ZERO_ERR_IO, "No space left on device");
    CHECK(strstr(zero_last_error()->message, ".safetensors") != NULL);
    const zero_status status = goes_on(trainer, &before, &after);
    toy_state_free(&before);
    toy_state_free(&after);
    return status;
}

TEST(a_full_disk_leaves_the_checkpoint_before)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    if (mount("tmpfs", run_directory, "tmpfs", 0, "size=112k") != 0) {
        SKIP("mounting a small file system is not allowed here");
    }
    CHECK_OK(toy_on_ranks(2, &run, fill_disk, NULL));
    CHECK_EQ(umount2(run_directory, MNT_DETACH), 0);
}

/* ---- an end in the middle ---- */

static zero_status begin_only(toy_trainer *trainer)
{
    const zero_save_options before = run_save_options("before");
    const zero_save_options torn = run_save_options("torn");
    TOY_TRY(steps(trainer, 1));
    TOY_TRY(zero_save(trainer->engine, &before));
    slow_down(trainer, SLOW_NS);
    return zero_save_begin(trainer->engine, &torn);
}

static zero_status load_newest(toy_trainer *trainer)
{
    const zero_load_options options = run_load_options(NULL);
    zero_load_report report = zero_load_report_init();
    TOY_TRY(zero_load(trainer->engine, &options, &report));
    CHECK(strstr(report.folder, "/before") != NULL);
    const zero_load_options torn = run_load_options("torn");
    CHECK_FAILS(zero_load(trainer->engine, &torn, NULL), ZERO_ERR_INVALID_ARGUMENT, "torn");
    return ZERO_OK;
}

TEST(an_engine_may_end_during_a_save)
{
    const toy_run run = plain_run(ZERO_DTYPE_BF16);
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &run, begin_only, NULL));
    zi_fault_slow(ZI_FAULT_IO, 0);
    CHECK_OK(toy_on_ranks(2, &run, load_newest, NULL));
}

/* ---- one rank has all the work ---- */

/* Rank 1 has nothing to write, and waits for longer than a collective may. */
static zero_status wait_long(toy_trainer *trainer)
{
    const zero_save_options options = run_save_options("long");
    slow_down(trainer, 700000000);
    TOY_TRY(zero_save(trainer->engine, &options));
    slow_down(trainer, 0);
    return toy_step(trainer);
}

static zero_status wait_long_on_rank(zero_world *world, void *user)
{
    toy_trainer trainer;
    TOY_TRY(toy_open(&trainer, user, world));
    const zero_status status = wait_long(&trainer);
    toy_close(&trainer);
    return status;
}

TEST(no_deadline_passes_while_a_disk_is_slow)
{
    toy_run run = toy_run_equal(1, 100, ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(zero_world_run(2, 1200, wait_long_on_rank, &run));
}

/* ---- many saves ---- */

static uint64_t held_kib(void)
{
    char line[256];
    uint64_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "VmRSS: %" SCNu64, &kib);
    }
    (void)fclose(file);
    return kib;
}

static zero_status save_often(toy_trainer *trainer)
{
    zero_save_options options = run_save_options(NULL);
    unsigned descriptors = 0;
    uint64_t kib = 0;
    options.keep = 2;
    TOY_TRY(steps(trainer, 1));
    for (int i = 0; i < 200; i++) {
        TOY_TRY(zero_save(trainer->engine, &options));
        zi_save_await_prune(trainer->engine);
        if (i == 20) {
            descriptors = rig_entries("/proc/self/fd");
            kib = held_kib();
        }
        if (i % 50 == 0) {
            TOY_TRY(run_step(trainer));
        }
    }
    CHECK_EQ(rig_entries("/proc/self/fd"), descriptors);
    /* Sanitizers keep what was freed. */
    CHECK(UNDER_SANITIZER || held_kib() < kib + 2048);
    return ZERO_OK;
}

TEST(many_saves_hold_nothing)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(toy_on_ranks(1, &run, save_often, NULL));
    CHECK_EQ(rig_entries(run_directory), 3); /* two, and the name of the newest */
}

/* The resources that the process holds while all its ranks wait. */
typedef struct holding {
    unsigned descriptors;
    unsigned threads;
    uint64_t kib;
} holding;

/* Counts what is held, or compares it with what was. A thread that was joined is in /proc for a
 * moment more. */
static zero_status hold(toy_trainer *trainer, bool compare)
{
    holding *held = trainer->user;
    zi_save_await_prune(trainer->engine);
    TOY_TRY(zero_world_barrier(trainer->world));
    if (trainer->rank == 0 && !compare) {
        sleep_ms(100);
        *held = (holding){rig_entries("/proc/self/fd"), rig_entries("/proc/self/task"), held_kib()};
    } else if (trainer->rank == 0) {
        AWAIT(rig_entries("/proc/self/task") <= held->threads);
        CHECK_EQ(rig_entries("/proc/self/fd"), held->descriptors);
        CHECK(UNDER_SANITIZER || held_kib() < held->kib + 2048);
    }
    return zero_world_barrier(trainer->world);
}

/* With memory to stage in that the engine has from its beginning, and steps meanwhile. */
static zero_status save_often_meanwhile(toy_trainer *trainer)
{
    zero_save_options options = run_save_options(NULL);
    options.keep = 2;
    TOY_TRY(steps(trainer, 1));
    for (int i = 0; i < 120; i++) {
        TOY_TRY(zero_save_begin(trainer->engine, &options));
        TOY_TRY(i % 10 == 0 ? run_step(trainer) : ZERO_OK);
        TOY_TRY(zero_save_end(trainer->engine));
        if (i == 20) {
            TOY_TRY(hold(trainer, false));
        }
    }
    return hold(trainer, true);
}

REAL_TEST(many_saves_meanwhile_hold_nothing)
{
    toy_run run = plain_run(ZERO_DTYPE_BF16);
    holding held = {0};
    run_directory_make();
    run.tuning.save_staging_bytes = UINT64_C(64) << 20;
    CHECK_OK(toy_on_ranks(2, &run, save_often_meanwhile, &held));
    CHECK(held.threads > 2 && held.descriptors != 0);
    CHECK_EQ(rig_entries(run_directory), 3);
}

/* ---- one owner ---- */

#define LOCK ZI_RUN_LOCK_NAME

/* Another job, which lives until it is killed. */
static pid_t start_owner(void)
{
    int ends[2];
    char letter = 0;
    CHECK(pipe(ends) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        zi_run_owner *owner = NULL;
        CHECK_OK(zi_run_owner_take(run_directory, &owner));
        CHECK(write(ends[1], "o", 1) == 1);
        (void)alarm(60); /* if the test has failed */
        (void)pause();
        _exit(0);
    }
    CHECK(pid > 0 && close(ends[1]) == 0 && read(ends[0], &letter, 1) == 1 && letter == 'o');
    CHECK(close(ends[0]) == 0);
    return pid;
}

static bool is_owned(const char *directory)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/" LOCK, directory);
    return access(path, F_OK) == 0;
}

/* While the other job lives, and after its death; then the directory is this engine's. */
static zero_status save_beside(toy_trainer *trainer)
{
    const pid_t other = *(const pid_t *)trainer->user;
    const zero_save_options options = run_save_options("mine");
    char says[64];
    (void)snprintf(says, sizeof says, "process %ld on ", (long)other);
    TOY_TRY(steps(trainer, 1));
    CHECK_FAILS(zero_save(trainer->engine, &options), ZERO_ERR_STATE, says);
    CHECK_SAID("saves there");
    TOY_TRY(steps(trainer, 1));
    CHECK_OK(zero_world_barrier(trainer->world));
    if (trainer->rank == 0) {
        CHECK_EQ(rig_entries(run_directory), 1); /* the other job's */
        CHECK(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
    }
    TOY_TRY(zero_save(trainer->engine, &options));
    if (trainer->rank == 0) {
        zi_run_owner *owner = NULL;
        CHECK_FAILS(zi_run_owner_take(run_directory, &owner), ZERO_ERR_STATE, "another engine");
        CHECK(is_owned(run_directory));
    }
    return zero_world_barrier(trainer->world);
}

TEST(a_run_of_another_job_is_refused)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    pid_t other = start_owner();
    CHECK_OK(toy_on_ranks(2, &run, save_beside, &other));
    CHECK_EQ(rig_entries(run_directory), 2); /* the checkpoint, and the name of the newest */
}

/* Several directories are one engine's. Weights alone make no run: theirs is free again at once. */
static zero_status save_to_several(toy_trainer *trainer)
{
    static const char *const other = "several-export";
    zero_save_options options = run_save_options("all");
    TOY_TRY(steps(trainer, 1));
    TOY_TRY(zero_save(trainer->engine, &options));
    options.directory = other;
    options.params_only = 1;
    TOY_TRY(zero_save(trainer->engine, &options));
    CHECK(is_owned(run_directory) && !is_owned(other));
    options.directory = run_directory;
    TOY_TRY(zero_save(trainer->engine, &options));
    CHECK(is_owned(run_directory));
    options.directory = other;
    options.params_only = 0;
    TOY_TRY(zero_save(trainer->engine, &options));
    CHECK(is_owned(run_directory) && is_owned(other));
    return ZERO_OK;
}

TEST(an_engine_owns_all_its_directories)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(toy_on_ranks(1, &run, save_to_several, NULL));
    CHECK(!is_owned(run_directory) && !is_owned("several-export"));
    CHECK_EQ(nftw("several-export", run_remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* As a job of another host would have left it. */
static void sign_elsewhere(void)
{
    char path[4096];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/" LOCK, run_directory);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fstat(fileno(file), &info) == 0);
    (void)fprintf(file, "process 7 on elsewhere since now\nhost 1 file %llu mark 2\n",
                  (unsigned long long)info.st_ino);
    CHECK(fclose(file) == 0);
}

/* Rank 0 watches for longer than a collective may take. */
static zero_status save_after_watching(zero_world *world, void *user)
{
    toy_trainer trainer;
    const zero_save_options options = run_save_options("after");
    TOY_TRY(toy_open(&trainer, user, world));
    const zero_status status = zero_save(trainer.engine, &options);
    toy_close(&trainer);
    return status;
}

TEST(no_deadline_passes_while_an_owner_is_watched)
{
    toy_run run = toy_run_equal(1, 100, ZERO_DTYPE_F32);
    run_directory_make();
    sign_elsewhere();
    zi_run_beat_ns = UINT64_C(300000000);
    const uint64_t begun = zi_clock_ns();
    CHECK_OK(zero_world_run(2, 1000, save_after_watching, &run));
    CHECK(zi_clock_ns() - begun > ZI_RUN_BEATS * zi_run_beat_ns);
    CHECK_EQ(rig_entries(run_directory), 2);
}

/* By a job that took this one, which stood still, for dead. Nothing of it is touched any more. */
static zero_status lose_the_run(toy_trainer *trainer)
{
    const zero_save_options before = run_save_options("before");
    const zero_save_options torn = run_save_options("torn");
    TOY_TRY(steps(trainer, 1));
    TOY_TRY(zero_save(trainer->engine, &before));
    TOY_TRY(zero_save_begin(trainer->engine, &torn));
    if (trainer->rank == 0) {
        sign_elsewhere();
    }
    CHECK_FAILS(zero_save_end(trainer->engine), ZERO_ERR_STATE, "process 7 on elsewhere");
    CHECK_EQ(rig_entries(run_directory), 4); /* before, latest, torn.part and the lock */
    return run_step(trainer);
}

TEST(a_run_that_was_lost_is_left_alone)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &run, lose_the_run, NULL));
    CHECK_EQ(rig_entries(run_directory), 4);
    CHECK(is_owned(run_directory));
}

/* ---- what is refused ---- */

static zero_status misuse(toy_trainer *trainer)
{
    zero_save_options options = run_save_options("a/b");
    CHECK_FAILS(zero_save(trainer->engine, &options), ZERO_ERR_INVALID_ARGUMENT, "a/b");
    options = run_save_options("name");
    options.directory = "./no-such-parent/run";
    CHECK_FAILS(zero_save(trainer->engine, &options), ZERO_ERR_IO, "no-such-parent");
    options = run_save_options("name");
    options.keep = trainer->rank;
    CHECK_FAILS(zero_save(trainer->engine, &options), ZERO_ERR_INVALID_ARGUMENT,
                "different options of a save");
    options = run_save_options("name");
    options.user.bytes_count = (UINT64_C(1) << 20) + 1;
    options.user.bytes = &options;
    CHECK_FAILS(zero_save(trainer->engine, &options), ZERO_ERR_INVALID_ARGUMENT,
                "bytes_count 1048577");
    options = run_save_options("name");
    options.params_only = trainer->rank == 1;
    CHECK_FAILS(zero_save(trainer->engine, &options), ZERO_ERR_INVALID_ARGUMENT,
                "different options of a save");
    CHECK_EQ(rig_entries(run_directory), 0);
    return run_step(trainer);
}

TEST(what_is_refused_changes_nothing)
{
    const toy_run run = plain_run(ZERO_DTYPE_F32);
    run_directory_make();
    CHECK_OK(toy_on_ranks(2, &run, misuse, NULL));
}
