/* Owns the tests of what a save asks of the file system: all that is named is on the disk before,
 * and where direct access is refused the log says so. The calls go through this program, which
 * writes down their order or changes their answers; the linker puts it in between (--wrap). */
#include "saved_runs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/vfs.h>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/manifest.h"
#include "zero/log.h"

#define EVENTS_MAX 4096
#define NAME_BYTES 64
#define NONE ((size_t)-1)
#define WAIT_SECONDS 20
#define TMPFS 0x01021994

/* ---- the calls ---- */

typedef enum deed { MADE, WROTE, SYNCS, SYNCED, NAMED } deed;

/* WROTE and SYNCED are written down at the call's end, all else at its beginning: so a sync whose
 * SYNCS comes behind a WROTE has put these bytes on the disk by its SYNCED. */
typedef struct event {
    deed does;
    char name[NAME_BYTES]; /* the path's last part */
} event;

static event events[EVENTS_MAX];
static size_t event_count;
static size_t made_count;
static size_t made_synced; /* files of those, which have been synced since their header */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t synced = PTHREAD_COND_INITIALIZER;
static atomic_bool ordering;       /* events are written down */
static atomic_bool refuses_open;   /* O_DIRECT, when a file is opened */
static atomic_bool refuses_writes; /* that are direct */
static _Thread_local bool is_main;

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* The last one before `end`; NONE: there is none. With the mutex, or when no thread is left. */
static size_t last_event(deed does, const char *name, size_t end)
{
    while (end-- > 0) {
        if (events[end].does == does && strcmp(events[end].name, name) == 0) {
            return end;
        }
    }
    return NONE;
}

static void write_down(deed does, const char *path)
{
    const char *name = last_part(path);
    (void)pthread_mutex_lock(&mutex);
    CHECK(event_count < EVENTS_MAX);
    if (does == MADE) {
        made_count++;
    } else if (does == SYNCED && last_event(MADE, name, event_count) != NONE &&
               last_event(SYNCED, name, event_count) == NONE) {
        made_synced++;
        (void)pthread_cond_broadcast(&synced);
    }
    events[event_count].does = does;
    (void)snprintf(events[event_count++].name, NAME_BYTES, "%s", name);
    (void)pthread_mutex_unlock(&mutex);
}

static void write_down_file(deed does, int file)
{
    char path[ZI_CHECKPOINT_PATH_BYTES] = "";
    if (ordering) {
        CHECK(readlink(test_text("/proc/self/fd/%d", file), path, sizeof path - 1) > 0);
        write_down(does, path);
    }
}

/* What the writer's threads write comes when whoever made the files has put them on the disk: else
 * that sync could do by chance what the one behind the last write is there for. */
static void await_made_files(void)
{
    struct timespec end;
    (void)clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_SECONDS;
    (void)pthread_mutex_lock(&mutex);
    while (made_synced < made_count) {
        if (pthread_cond_timedwait(&synced, &mutex, &end) != 0) {
            TEST_FAIL("%zu of %zu files are on the disk", made_synced, made_count);
        }
    }
    (void)pthread_mutex_unlock(&mutex);
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
    if (refuses_open && (flags & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    const int file = __real_open64(path, flags, 0666);
    if (ordering && file >= 0 && (flags & O_CREAT) != 0 && strstr(path, ".part/") != NULL) {
        write_down(MADE, path);
    }
    return file;
}

ssize_t __real_pwrite64(int file, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite64(int file, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite64(int file, const void *data, size_t bytes, off_t at)
{
    if (refuses_writes && (fcntl(file, F_GETFL) & O_DIRECT) != 0) {
        errno = EINVAL;
        return -1;
    }
    if (ordering && !is_main) {
        await_made_files();
    }
    const ssize_t wrote = __real_pwrite64(file, data, bytes, at);
    write_down_file(WROTE, file);
    return wrote;
}

#define WRAP_SYNC(name)                       \
    int __real_##name(int file);              \
    int __wrap_##name(int file);              \
    int __wrap_##name(int file)               \
    {                                         \
        write_down_file(SYNCS, file);         \
        const int code = __real_##name(file); \
        if (code == 0) {                      \
            write_down_file(SYNCED, file);    \
        }                                     \
        return code;                          \
    }                                         \
    _Static_assert(true, #name)

WRAP_SYNC(fsync);
WRAP_SYNC(fdatasync);

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    if (ordering) {
        write_down(NAMED, to);
    }
    return __real_rename(from, to);
}

/* ---- a save ---- */

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
    ordering = false;
    CHECK_OK(toy_open(&trainer, run, NULL));
    CHECK_OK(zero_load(trainer.engine, &load, NULL));
    CHECK_OK(toy_collect_same(&trainer, &state, "what was saved"));
    toy_state_free(&state);
    toy_close(&trainer);
}

/* ---- the order ---- */

/* All that was written of it is on the disk before the event `named`. */
static void check_synced(const char *name, size_t named)
{
    const size_t wrote = last_event(WROTE, name, event_count);
    const size_t ended = last_event(SYNCED, name, named);
    const size_t began = ended != NONE ? last_event(SYNCS, name, ended) : NONE;
    if (wrote == NONE || wrote > named || began == NONE || began < wrote) {
        TEST_FAIL("%s: the last write is call %zd, the last sync %zd to %zd, the manifest's name "
                  "%zd",
                  name, (ssize_t)wrote, (ssize_t)began, (ssize_t)ended, (ssize_t)named);
    }
}

TEST(what_a_save_names_is_on_the_disk)
{
    const toy_run run = small_run();
    uint32_t files = 0;
    run_directory_make();
    is_main = true;
    ordering = true;
    save_and_load(&run, 1);
    const size_t named = last_event(NAMED, ZI_MANIFEST_NAME, event_count);
    const size_t published = last_event(NAMED, "one", event_count);
    CHECK(named != NONE && published != NONE && named < published);
    for (size_t i = 0; i < event_count; i++) {
        const char *name = events[i].name;
        const char *end = strstr(name, ".safetensors");
        if (events[i].does == MADE && (end != NULL || strcmp(name, ZI_SUMS_NAME) == 0)) {
            check_synced(name, named);
            files++;
        }
    }
    CHECK_EQ(files, 5); /* parameters, masters, two moments, sums */
    /* And so are the names. */
    const size_t ended = last_event(SYNCED, "one.part", published);
    CHECK(ended != NONE && last_event(SYNCS, "one.part", ended) > named);
    CHECK(last_event(SYNCS, "one.part", ended) != NONE);
}

/* ---- direct access ---- */

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

/* Whether a file in the folder can be opened for direct access. */
static bool grants_direct(const char *folder)
{
    const char *path = test_text("%s/probe", folder);
    const int file = __real_open64(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_DIRECT, 0666);
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
    refuses_open = true;
    count_warnings_of(1, 1);
    count_warnings_of(3, 3);
}

TEST(direct_writes_that_are_refused_are_logged_once)
{
    run_directory_make();
    if (!grants_direct(run_directory)) {
        SKIP("the build's file system refuses O_DIRECT");
    }
    refuses_writes = true;
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
    run_directory = rig_folder(true);
    CHECK_EQ(atexit(run_directory_remove), 0);
    count_warnings_of(1, grants_direct(run_directory) ? 0 : 1);
    refuses_open = true;
    count_warnings_of(1, 1);
}
