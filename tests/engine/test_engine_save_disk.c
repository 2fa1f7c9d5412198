/* Owns the tests of what a save says where direct access is refused: when files are opened, or by
 * the first write (tests/machine/machine_files.h). What a save puts on the disk, and in which
 * order, is what test_engine_faults.c tries. */
#include "saved_runs.h"

#include <sys/vfs.h>

#include "machine_files.h"
#include "zero/log.h"

#define TMPFS 0x01021994

static toy_run small_run(void)
{
    toy_run run = run_of(run_model(ZERO_DTYPE_BF16), ZERO_DTYPE_F32, ZERO_DTYPE_F32);
    run.options.stage = ZERO_STAGE_1;
    return run;
}

/* After one step; a load of it has the same bits. */
static void save_and_load(const toy_run *run, uint32_t saves)
{
    const zero_save_options save = run_save_options("one");
    const zero_load_options load = run_load_options("one");
    toy_trainer trainer;
    toy_state state;
    CHECK_OK(toy_open(&trainer, run, NULL));
    CHECK_OK(run_step(&trainer));
    CHECK_OK(toy_collect(&trainer, &state));
    for (uint32_t i = 0; i < saves; i++) {
        CHECK_OK(zero_save(trainer.engine, &save));
    }
    toy_close(&trainer);
    CHECK_OK(toy_open(&trainer, run, NULL));
    CHECK_OK(zero_load(trainer.engine, &load, NULL));
    CHECK_OK(toy_collect_same(&trainer, &state, "what was saved"));
    toy_state_free(&state);
    toy_close(&trainer);
}

static unsigned warnings;

static void count_warning(void *user, zero_log_level level, const char *message)
{
    if (strstr(message, "written through the page cache") != NULL) {
        CHECK_EQ(level, ZERO_LOG_WARN);
        CHECK(strstr(message, "O_DIRECT") != NULL && strstr(message, user) != NULL);
        CHECK(strstr(message, strerror(EINVAL)) != NULL);
        warnings++;
    }
}

/* True if a file in the folder can be opened for direct access. */
static bool grants_direct(const char *folder)
{
    const char *path = test_text("%s/probe", folder);
    const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_DIRECT, 0666);
    if (file >= 0) {
        CHECK(close(file) == 0);
    }
    (void)unlink(path);
    return file >= 0;
}

static void count_warnings_of(uint32_t saves, unsigned expected)
{
    const toy_run run = small_run();
    char *folder = calloc(1, 128);
    CHECK(folder != NULL);
    (void)snprintf(folder, 128, "%s/one", run_directory);
    warnings = 0;
    zero_log_set(count_warning, folder);
    save_and_load(&run, saves);
    zero_log_set(NULL, NULL);
    CHECK_EQ(warnings, expected);
    free(folder);
}

TEST(a_save_without_direct_access_is_logged_once)
{
    run_directory_make();
    machine_files_set(&(machine_files){.refuses_open = true});
    count_warnings_of(1, 1);
    count_warnings_of(3, 3);
}

TEST(direct_writes_that_are_refused_are_logged_once)
{
    run_directory_make();
    if (!grants_direct(run_directory)) {
        SKIP("the build's file system refuses O_DIRECT");
    }
    machine_files_set(&(machine_files){.refuses_write = true});
    count_warnings_of(1, 1);
    count_warnings_of(2, 2);
}

/* Linux 6.6 and later grant it there, earlier ones refuse it. */
TEST(a_save_into_memory_is_logged_where_direct_access_is_refused)
{
    struct statfs info;
    if (statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS) {
        SKIP("/dev/shm is no tmpfs");
    }
    run_directory_make_in(true);
    count_warnings_of(1, grants_direct(run_directory) ? 0 : 1);
    machine_files_set(&(machine_files){.refuses_open = true});
    count_warnings_of(1, 1);
}
