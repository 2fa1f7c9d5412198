/* Owns the tests of saves and loads that share blocks of the file system with state on disk. They
 * mount a file system that can, XFS in a file, which this process alone sees; and one that cannot
 * serves for the refusal. */
#include "saved_runs.h"

#include <sched.h>
#include <sys/statvfs.h>

#include "core/fault.h"
#include "zero/log.h"

#define UNITS 3
#define UNIT_COUNT ((uint64_t)9 << 16) /* whole pages in every role, no whole stripes */
#define STATE_BYTES (UNITS * UNIT_COUNT * 12)
#define MIB ((uint64_t)1 << 20)
#define GRAIN ((uint64_t)48 << 10) /* whole pages of each role in an extent of the state */
#define COPY_BYTES ((size_t)1 << 20)

/* ---- a file system ---- */

static char *outside; /* the folder of its file and of the point where it is mounted */
static char *inside;  /* a folder of it */
static char *disk;    /* another, of stores */

static void unmount(void)
{
    (void)umount2(test_text("%s/mounted", outside), MNT_DETACH);
    CHECK(rmdir(test_text("%s/mounted", outside)) == 0);
    CHECK(unlink(test_text("%s/image", outside)) == 0);
    rig_remove(outside);
    free(disk);
    free(inside);
}

static char *folder_of(const char *name)
{
    char *path = calloc(1, 128);
    CHECK(path != NULL);
    (void)snprintf(path, 128, "%s/mounted/%s", outside, name);
    CHECK(mkdir(path, 0700) == 0);
    return path;
}

static int shell(const char *command)
{
    return system(command);
}

static unsigned warnings;

static void count_warning(void *user, zero_log_level level, const char *message)
{
    (void)user;
    if (strstr(message, "not shared") != NULL) {
        CHECK(outside == NULL); /* if one is mounted, all that lies alike can be */
        CHECK_EQ(level, ZERO_LOG_WARN);
        warnings++;
    }
}

/* run_directory and `disk` are on it; false: not allowed here. */
static bool mount_reflinks(void)
{
    outside = rig_folder(false);
    const bool mounted =
        unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        shell(test_text("cd %s && PATH=$PATH:/usr/sbin:/sbin && truncate -s 320M image && "
                        "mkdir mounted && mkfs.xfs -q -m reflink=1 image >/dev/null 2>&1 && "
                        "mount -o loop image mounted >/dev/null 2>&1",
                        outside)) == 0;
    if (!mounted) {
        (void)unlink(test_text("%s/image", outside));
        (void)rmdir(test_text("%s/mounted", outside));
        rig_remove(outside);
        outside = NULL;
        return false;
    }
    CHECK_EQ(atexit(unmount), 0);
    inside = folder_of("run");
    disk = folder_of("disk");
    run_directory = inside;
    zero_log_set(count_warning, NULL);
    return true;
}

#define MOUNT_OR_SKIP()                                                                       \
    do {                                                                                      \
        if (!mount_reflinks()) {                                                              \
            SKIP("no XFS can be mounted: needs root, a loop device and mkfs.xfs (xfsprogs)"); \
        }                                                                                     \
    } while (0)

static uint64_t free_bytes(void)
{
    struct statvfs info;
    CHECK(statvfs(inside, &info) == 0);
    return (uint64_t)info.f_bavail * info.f_frsize;
}

/* Take all but so many bytes. */
static void fill_up(uint64_t left)
{
    const char *path = test_text("%s/mounted/filler", outside);
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    for (int64_t more; (more = (int64_t)(free_bytes() - left)) > (int64_t)MIB;) {
        CHECK(fallocate(file, 0, lseek(file, 0, SEEK_END), more / 2) == 0);
    }
    CHECK(close(file) == 0);
}

static void make_room(void)
{
    CHECK(unlink(test_text("%s/mounted/filler", outside)) == 0);
}

/* ---- saves ---- */

static toy_run large_run(const char *const *directories, uint32_t count)
{
    toy_run run = toy_run_equal(UNITS, UNIT_COUNT, ZERO_DTYPE_BF16);
    run.flavour = TOY_INTEGER;
    run.options.stage = ZERO_STAGE_1;
    toy_run_tiers(&run, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    toy_run_disk(&run, directories, count);
    run.tuning.extent_bytes = 64 * GRAIN;
    return run;
}

/* State lies in another way in each of four turns: over stripes, with moments in bf16, with
 * parameters on disk too, with updates that are speculative. */
#define TURNS 4
static toy_run run_of_turn(const char *const *directories, uint32_t turn, uint64_t extent_bytes)
{
    toy_run run = large_run(directories, turn % 2 + 1);
    run.tuning.extent_bytes = extent_bytes;
    run.options.moment_dtype = turn == 1 ? ZERO_DTYPE_BF16 : ZERO_DTYPE_F32;
    if (turn == 2) {
        run.options.stage = ZERO_STAGE_3;
        run.options.tier[ZERO_ROLE_PARAM] = ZERO_TIER_DISK;
    }
    if (turn == 3) {
        run.tuning.speculative_step = 1;
        run.predicted = true;
    }
    return run;
}

/* Of one of two ranks, on disk. */
static uint64_t bytes_of_turn(uint32_t turn)
{
    return STATE_BYTES / 2 * (turn == 1 ? 8 : turn == 2 ? 14 : 12) / 12;
}

static zero_save_options reflink_options(const char *name)
{
    zero_save_options options = run_save_options(name);
    options.reflink = 1;
    return options;
}

/* Begin, end; bytes that this rank shares. */
static uint64_t save_shared(toy_trainer *trainer, const char *name)
{
    const zero_save_options options = reflink_options(name);
    zero_save_progress progress = zero_save_progress_init();
    CHECK_OK(zero_save_begin(trainer->engine, &options));
    while (!progress.written) {
        CHECK_OK(zero_save_poll(trainer->engine, &progress));
        (void)usleep(1000);
    }
    CHECK_OK(zero_save_end(trainer->engine));
    CHECK(progress.shared_bytes <= progress.written_bytes);
    return progress.shared_bytes;
}

static void files_same(const char *left, const char *right)
{
    CHECK_EQ(shell(test_text("for file in %s/%s/*.safetensors %s/%s/sums.bin; do "
                             "cmp $file %s/%s/${file##*/} || exit 1; done",
                             inside, left, inside, left, inside, right)),
             0);
}

/* An engine that loads it has these bits. */
static void loads_as(const toy_run *run, const char *name, const toy_state *expected)
{
    const zero_load_options load = run_load_options(name);
    toy_trainer trainer;
    CHECK_OK(toy_open(&trainer, run, NULL));
    CHECK_OK(zero_load(trainer.engine, &load, NULL));
    CHECK_OK(toy_collect_same(&trainer, expected, name));
    toy_close(&trainer);
}

/* An engine whose state is on disk: one step was taken. */
static void open_stepped(toy_trainer *trainer, const toy_run *run, toy_state *state)
{
    CHECK_OK(toy_open(trainer, run, NULL));
    CHECK_OK(toy_step(trainer));
    CHECK_OK(toy_collect(trainer, state));
}

/* Steps after the save overwrite what was shared, and neither side sees the other. */
TEST(state_on_disk_is_shared_with_the_checkpoint)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    const toy_run run = large_run(&directory, 1);
    const zero_save_options copied = run_save_options("copied");
    toy_trainer trainer;
    toy_state saved;
    toy_state later;
    open_stepped(&trainer, &run, &saved);
    const uint64_t before = free_bytes();
    CHECK_EQ(save_shared(&trainer, "shared"), STATE_BYTES);
    CHECK(before - free_bytes() < STATE_BYTES / 3); /* parameters, sums */
    CHECK_OK(zero_save(trainer.engine, &copied));
    CHECK(before - free_bytes() > STATE_BYTES);
    CHECK_OK(toy_step(&trainer));
    CHECK_EQ(save_shared(&trainer, "second"), STATE_BYTES);
    CHECK_OK(toy_step(&trainer));
    CHECK_OK(toy_collect(&trainer, &later));
    files_same("shared", "copied");
    toy_close(&trainer);
    loads_as(&run, "shared", &saved);
    const zero_load_options load = run_load_options("second");
    CHECK_OK(toy_open(&trainer, &run, NULL));
    CHECK_OK(zero_load(trainer.engine, &load, NULL));
    trainer.step = 2;
    CHECK_OK(toy_step(&trainer));
    CHECK_OK(toy_collect_same(&trainer, &later, "trained on from the second"));
    toy_state_free(&saved);
    toy_state_free(&later);
    toy_close(&trainer);
}

/* Stripes, parameters on disk, several ranks, speculative updates: what lies alike is shared, and
 * the files are those of copies. */
static zero_status save_both_ways(toy_trainer *trainer)
{
    const zero_save_options copied = run_save_options("copied");
    uint64_t *shared = trainer->user;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_step(trainer));
    shared[trainer->rank] = save_shared(trainer, "shared");
    TOY_TRY(zero_save(trainer->engine, &copied));
    TOY_TRY(toy_step(trainer)); /* overwrites what is shared */
    TOY_TRY(toy_step(trainer)); /* and this one waits until it has */
    TOY_TRY(toy_wait(trainer));
    TOY_TRY(zero_world_barrier(trainer->world));
    if (trainer->rank == 0) {
        files_same("shared", "copied");
    }
    return zero_world_barrier(trainer->world);
}

TEST(files_are_those_of_copies_however_state_lies)
{
    MOUNT_OR_SKIP();
    const char *const directories[] = {disk, folder_of("other")};
    uint64_t shared[2] = {0};
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        const toy_run run = run_of_turn(directories, turn, 64 * GRAIN);
        if (!IN_SAMPLE(turn + turn / 2)) {
            continue;
        }
        CHECK_OK(toy_on_ranks(2, &run, save_both_ways, shared));
        const uint64_t bytes = bytes_of_turn(turn);
        /* A stripe is of 2 MiB, and a range of less than 256 KiB is copied. */
        CHECK(shared[0] > bytes / 4 * 3 && shared[0] <= bytes);
        CHECK(shared[1] > bytes / 4 * 3 && shared[1] <= bytes);
    }
    free((char *)(uintptr_t)directories[1]);
}

/* ---- loads ---- */

/* Bytes that this rank shares. */
static uint64_t load_shared(toy_trainer *trainer, const char *name)
{
    zero_load_options options = run_load_options(name);
    zero_load_report report = zero_load_report_init();
    options.reflink = 1;
    CHECK_OK(zero_load(trainer->engine, &options, &report));
    return report.shared_bytes;
}

/* The store gives its own blocks back, and steps after the load leave the checkpoint as it is. */
TEST(state_on_disk_shares_what_it_is_loaded_from)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    const toy_run run = large_run(&directory, 1);
    const zero_save_options options = run_save_options("one");
    toy_trainer trainer;
    toy_state saved;
    toy_state later;
    open_stepped(&trainer, &run, &saved);
    CHECK_OK(zero_save(trainer.engine, &options));
    CHECK_OK(toy_step(&trainer));
    CHECK_OK(toy_collect(&trainer, &later));
    toy_close(&trainer);
    for (uint32_t turn = 0; turn < 2; turn++) {
        CHECK_OK(toy_open(&trainer, &run, NULL));
        const uint64_t before = free_bytes();
        CHECK_EQ(load_shared(&trainer, "one"), STATE_BYTES);
        CHECK(free_bytes() - before > STATE_BYTES / 10 * 9);
        CHECK_OK(toy_collect_same(&trainer, &saved, "loaded"));
        trainer.step = 1;
        CHECK_OK(toy_step(&trainer));
        CHECK_OK(toy_collect_same(&trainer, &later, "trained on"));
        CHECK(free_bytes() < before + STATE_BYTES / 10);
        toy_close(&trainer);
    }
    loads_as(&run, "one", &saved);
    toy_state_free(&saved);
    toy_state_free(&later);
}

/* Into an engine that has trained on, and the same once more without sharing. */
static zero_status load_both_ways(toy_trainer *trainer)
{
    const zero_load_options written = run_load_options("saved");
    uint64_t *shared = trainer->user;
    toy_state later;
    shared[trainer->rank] = load_shared(trainer, "saved");
    trainer->step = 2;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_collect(trainer, &later));
    TOY_TRY(zero_load(trainer->engine, &written, NULL));
    trainer->step = 2;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_collect_same(trainer, &later, "loaded without sharing"));
    toy_state_free(&later);
    return ZERO_OK;
}

static zero_status save_and_load_both_ways(toy_trainer *trainer)
{
    const zero_save_options copied = run_save_options("saved");
    toy_state saved;
    TOY_TRY(toy_step(trainer));
    TOY_TRY(toy_step(trainer));
    TOY_TRY(zero_save(trainer->engine, &copied));
    TOY_TRY(toy_collect(trainer, &saved));
    TOY_TRY(toy_step(trainer));
    (void)load_shared(trainer, "saved");
    TOY_TRY(toy_collect_same(trainer, &saved, "shared"));
    toy_state_free(&saved);
    return load_both_ways(trainer);
}

TEST(loads_are_those_of_copies_however_state_lies)
{
    MOUNT_OR_SKIP();
    const char *const directories[] = {disk, folder_of("other")};
    /* More extents than the window holds, which are written before they are filled in; twins that
     * cross stripes; and whole ones. */
    const uint64_t extent_bytes[TURNS] = {16 * GRAIN, 70 * GRAIN, 64 * GRAIN, 64 * GRAIN};
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint64_t shared[3] = {0};
        const toy_run run = run_of_turn(directories, turn, extent_bytes[turn]);
        if (!IN_SAMPLE(turn + turn / 2)) {
            continue;
        }
        CHECK_OK(toy_on_ranks(2, &run, save_and_load_both_ways, shared));
        const uint64_t bytes = bytes_of_turn(turn);
        CHECK(shared[0] > bytes / 4 * 3 && shared[0] <= bytes);
        CHECK(shared[1] > bytes / 4 * 3 && shared[1] <= bytes);
        if (turn % 2 == 0) {
            CHECK_OK(toy_on_ranks(1, &run, load_both_ways, shared));
            CHECK(shared[0] > bytes / 4 * 6 && shared[0] <= 2 * bytes);
        } else {
            CHECK_OK(toy_on_ranks(3, &run, load_both_ways, shared));
        }
    }
    free((char *)(uintptr_t)directories[1]);
}

/* Tensors of any size, most of them no whole pages, in extents that are whole pages or not. */
TEST(tensors_of_any_size_are_saved_and_loaded_alike)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    uint64_t shared[2] = {0};
    toy_model *model = toy_model_new();
    const uint64_t counts[] = {1 << 18, 129, 300000, 1 << 20, 77, 0, 500009};
    for (uint32_t u = 0; u < sizeof counts / sizeof counts[0]; u++) {
        (void)toy_model_layer(model, "unit", u);
        (void)toy_model_tensor(model, u % 2 == 0 ? 768 : 77, 0, ZERO_DTYPE_BF16, 0);
        (void)toy_model_tensor(model, counts[u], 0, ZERO_DTYPE_BF16, 0);
        (void)toy_model_tensor(model, counts[u] / 3, 0, ZERO_DTYPE_F32, 0);
    }
    toy_run run = run_of(model, ZERO_DTYPE_F32, ZERO_DTYPE_F32);
    toy_run_tiers(&run, ZERO_ROLE_MASTER, ZERO_TIER_DISK);
    toy_run_disk(&run, &directory, 1);
    for (uint32_t turn = 0; turn < 2; turn++) {
        if (!IN_SAMPLE(turn + 1)) {
            continue;
        }
        run.tuning.extent_bytes = turn == 0 ? 6 * MIB : 5 * MIB;
        CHECK_OK(toy_on_ranks(1, &run, save_both_ways, shared));
        CHECK(shared[0] != 0);
        CHECK_OK(toy_on_ranks(2, &run, save_both_ways, shared));
        CHECK_OK(toy_on_ranks(turn + 1, &run, save_and_load_both_ways, shared));
        CHECK(turn != 0 || shared[0] != 0);
    }
}

/* All units in one extent, in whole pages of each role; those of scales are too few to share. */
TEST(small_states_are_saved_and_loaded_alike)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    uint64_t shared = 0;
    toy_run run = large_run(&directory, 1);
    run.options.master_dtype = ZERO_DTYPE_REMAINDER16;
    run.options.moment_dtype = ZERO_DTYPE_I8;
    run.tuning.extent_bytes = 16 * MIB;
    CHECK_OK(toy_on_ranks(1, &run, save_both_ways, &shared));
    CHECK_EQ(shared, UNITS * UNIT_COUNT * 4);
    CHECK_OK(toy_on_ranks(1, &run, save_and_load_both_ways, &shared));
    CHECK_EQ(shared, UNITS * UNIT_COUNT * 4);
}

/* Values that are not loaded are not shared: moments of a new run, and values of another type. */
TEST(what_is_not_the_files_own_is_written)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    toy_run run = large_run(&directory, 1);
    const zero_save_options options = run_save_options("one");
    zero_load_options load = run_load_options("one");
    zero_load_report report = zero_load_report_init();
    toy_trainer trainer;
    toy_state saved;
    toy_state fresh;
    open_stepped(&trainer, &run, &saved);
    CHECK_OK(zero_save(trainer.engine, &options));
    load.params_only = 1;
    CHECK_OK(zero_load(trainer.engine, &load, NULL));
    CHECK_OK(toy_collect(&trainer, &fresh));
    CHECK_OK(toy_step(&trainer));
    load.reflink = 1;
    CHECK_OK(zero_load(trainer.engine, &load, &report));
    CHECK_EQ(report.shared_bytes, STATE_BYTES / 3);
    CHECK_OK(toy_collect_same(&trainer, &fresh, "parameters alone"));
    toy_close(&trainer);
    load.params_only = 0;
    run.options.moment_dtype = ZERO_DTYPE_BF16;
    CHECK_OK(toy_open(&trainer, &run, NULL));
    CHECK_OK(zero_load(trainer.engine, &load, &report));
    CHECK_EQ(report.shared_bytes, STATE_BYTES / 3);
    CHECK_OK(toy_step(&trainer));
    CHECK_OK(toy_wait(&trainer));
    toy_close(&trainer);
    toy_state_free(&saved);
    toy_state_free(&fresh);
}

/* Damage in a page that would be shared is found before anything is trained on. */
TEST(a_damaged_page_is_not_taken)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    const toy_run run = large_run(&directory, 1);
    const zero_save_options options = run_save_options("one");
    zero_load_options load = run_load_options("one");
    const unsigned char wrong[] = "wrong";
    toy_trainer trainer;
    toy_state saved;
    open_stepped(&trainer, &run, &saved);
    CHECK_OK(zero_save(trainer.engine, &options));
    const int file = open(test_text("%s/one/moment1.safetensors", inside), O_WRONLY | O_CLOEXEC);
    CHECK(pwrite(file, wrong, sizeof wrong, 5 * (off_t)MIB) == (ssize_t)sizeof wrong);
    CHECK(close(file) == 0);
    load.reflink = 1;
    CHECK_FAILS(zero_load(trainer.engine, &load, NULL), ZERO_ERR_CORRUPT, "moment1.safetensors");
    toy_close(&trainer);
    toy_state_free(&saved);
}

/* A new engine loads, and the n-th event fails. How many there were. */
static uint64_t load_failing(const toy_run *run, zi_fault_kind kind, uint64_t nth,
                             const toy_state *expected)
{
    zero_load_options options = run_load_options("one");
    toy_trainer trainer;
    options.reflink = 1;
    CHECK_OK(toy_open(&trainer, run, NULL));
    zi_fault_arm(kind, nth);
    const zero_status status = zero_load(trainer.engine, &options, NULL);
    const uint64_t count = zi_fault_count(kind);
    zi_fault_arm(kind, 0);
    CHECK(status == ZERO_OK || zero_last_error()->message[0] != '\0');
    CHECK(status != ZERO_OK || count < nth || kind == ZI_FAULT_ALLOC);
    if (status == ZERO_OK) {
        CHECK_OK(toy_collect_same(&trainer, expected, "loaded"));
    }
    toy_close(&trainer);
    return count;
}

TEST(a_load_that_fails_leaves_the_checkpoint)
{
    MOUNT_OR_SKIP();
    static const zi_fault_kind kinds[] = {ZI_FAULT_IO, ZI_FAULT_ALLOC};
    const char *const directory = disk;
    toy_run run = large_run(&directory, 1);
    const zero_save_options options = run_save_options("one");
    toy_trainer trainer;
    toy_state saved;
    run.tuning.extent_bytes = 16 * GRAIN;
    open_stepped(&trainer, &run, &saved);
    CHECK_OK(zero_save(trainer.engine, &options));
    toy_close(&trainer);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        const uint64_t all = load_failing(&run, kinds[k], UINT64_MAX, &saved);
        CHECK(all != 0);
        for (uint64_t nth = 1; nth <= all; nth += all / 8 + 1) {
            (void)load_failing(&run, kinds[k], nth, &saved);
        }
    }
    loads_as(&run, "one", &saved);
    toy_state_free(&saved);
}

/* ---- a full disk ---- */

/* Files are reserved before anything is shared, so the updates that follow have the room. */
TEST(updates_have_the_room_that_a_save_reserved)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    const toy_run run = large_run(&directory, 1);
    const zero_save_options second = reflink_options("second");
    toy_trainer trainer;
    toy_state saved;
    open_stepped(&trainer, &run, &saved);
    fill_up(STATE_BYTES + 12 * MIB); /* with parameters of 6 MiB and what the file system takes */
    CHECK_EQ(save_shared(&trainer, "first"), STATE_BYTES);
    CHECK_OK(toy_step(&trainer));
    CHECK_OK(toy_wait(&trainer));
    /* And now they are used up. */
    CHECK_FAILS(zero_save(trainer.engine, &second), ZERO_ERR_IO, "No space left");
    CHECK_OK(toy_step(&trainer));
    CHECK_OK(toy_wait(&trainer));
    toy_close(&trainer);
    loads_as(&run, "first", &saved);
    toy_state_free(&saved);
}

/* As the option's documentation says. */
TEST(an_update_whose_room_others_take_fails_and_the_checkpoint_stays)
{
    MOUNT_OR_SKIP();
    const char *const directory = disk;
    const toy_run run = large_run(&directory, 1);
    toy_trainer trainer;
    toy_state saved;
    open_stepped(&trainer, &run, &saved);
    CHECK_EQ(save_shared(&trainer, "first"), STATE_BYTES);
    fill_up(4 * MIB);
    zero_status status = ZERO_OK;
    for (int i = 0; i < 2 && status == ZERO_OK; i++) { /* the second one waits for the first */
        status = toy_step(&trainer);
        status = status == ZERO_OK ? toy_wait(&trainer) : status;
    }
    CHECK_EQ(status, ZERO_ERR_IO);
    CHECK(strstr(zero_last_error()->message, "No space left") != NULL);
    toy_close(&trainer);
    make_room();
    loads_as(&run, "first", &saved);
    toy_state_free(&saved);
}

/* ---- refused ---- */

/* No file system shares blocks with another one. */
TEST(what_cannot_be_shared_is_written_and_logged_once)
{
    rig_folders(1, 0);
    run_directory = rig_folder(true);
    CHECK_EQ(atexit(run_directory_remove), 0);
    const toy_run run = large_run(rig_paths, 1);
    toy_trainer trainer;
    toy_state saved;
    zero_log_set(count_warning, NULL);
    open_stepped(&trainer, &run, &saved);
    CHECK_EQ(save_shared(&trainer, "one"), 0);
    CHECK_EQ(warnings, 1);
    CHECK_OK(toy_step(&trainer));
    CHECK_EQ(load_shared(&trainer, "one"), 0);
    CHECK_EQ(warnings, 2);
    CHECK_OK(toy_collect_same(&trainer, &saved, "written"));
    toy_close(&trainer);
    loads_as(&run, "one", &saved);
    toy_state_free(&saved);
    zero_log_set(NULL, NULL);
}
