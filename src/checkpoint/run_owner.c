/* Owns the lock file of a run's directory, and the thread that touches it. Invariant: a directory
 * is owned once its lock file is locked, where the file system has locks, and has this owner's
 * text; and no longer than it has that text. */
#include "checkpoint/run_owner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/checkpoint_file.h"
#include "core/clock.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/host.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/thread.h"
#include "storage/file_lock.h"

uint64_t zi_run_beat_ns = UINT64_C(5000000000);

typedef char lock_text[ZI_FILE_LOCK_TEXT_BYTES];

typedef enum owner_state {
    OWNER_NEW,      /* nothing is known of the file */
    OWNER_WATCHING, /* somebody else's, which may be dead */
    OWNER_SIGNED,   /* without locks: somebody may have signed in the same moment */
    OWNER_OWNS
} owner_state;

struct zi_run_owner {
    char run[ZI_CHECKPOINT_PATH_BYTES];
    zi_file_lock_target lock_file;
    int file; /* -1: not open */
    owner_state state;
    uint64_t beat_ns;
    uint64_t until_ns; /* while it watches, and while others may sign */
    lock_text text;    /* the file's, then its own */
    struct timespec touched;
    bool beats; /* the thread is there */
    bool stop;  /* guarded by mutex */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t stopped;
};

/* ---- the text ---- */

/* "process 4711 on host-a" */
static void put_process(char *text, size_t bytes)
{
    char host[ZI_HOST_NAME_BYTES];
    zi_host_name(host);
    (void)snprintf(text, bytes, "process %ld on %.100s", (long)getpid(),
                   host[0] != '\0' ? host : "an unnamed host");
}

/* The first line is for people. The second one has the host, the file, and a mark that no other
 * owner has. */
static void run_owner_put_text(const zi_run_owner *owner, lock_text text)
{
    char process[192];
    char since[32] = "";
    struct stat info = {0};
    struct timespec now;
    struct tm parts;
    put_process(process, sizeof process);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)(gmtime_r(&now.tv_sec, &parts) != NULL &&
           strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", &parts) != 0);
    (void)fstat(owner->file, &info);
    uint64_t mark = zi_hash_u64(ZI_HASH_START, (uint64_t)now.tv_sec);
    mark = zi_hash_u64(mark, (uint64_t)now.tv_nsec);
    mark = zi_hash_u64(mark, zi_clock_ns());
    mark = zi_hash_u64(mark, (uint64_t)(uintptr_t)owner);
    (void)snprintf(text, ZI_FILE_LOCK_TEXT_BYTES,
                   "%s since %s\nhost %016" PRIx64 " file %" PRIu64 " mark %016" PRIx64 "\n",
                   process, since, zi_host_id(), (uint64_t)info.st_ino, mark);
}

/* Whose text is in a file, if it was signed in that file: a copy says nothing of its owner. */
static bool read_host(const zi_run_owner *owner, uint64_t *host)
{
    struct stat info;
    uint64_t number = 0;
    const char *line = strchr(owner->text, '\n');
    return line != NULL && fstat(owner->file, &info) == 0 &&
           sscanf(line, "\nhost %16" SCNx64 " file %" SCNu64, host, &number) == 2 &&
           number == (uint64_t)info.st_ino;
}

static zero_status run_owner_refuse(const zi_run_owner *owner, const char *text)
{
    lock_text line;
    char process[192];
    put_process(process, sizeof process);
    (void)snprintf(line, sizeof line, "%s", text);
    zi_file_lock_line(line);
    const size_t length = strlen(process);
    const bool own = strncmp(line, process, length) == 0 && line[length] == ' ';
    ZI_FAIL(ZERO_ERR_STATE,
            "%.60s: %s%.90s saves there; end it, or give this run a directory of its own (if it is "
            "gone, remove " ZI_RUN_LOCK_NAME ")",
            owner->run, own ? "another engine of this process, " : "",
            line[0] != '\0' ? line : "a process that has not written its name yet,");
}

/* ---- the file ---- */

/* Read the file that the name stands for now, as the server has it: a client may know an open
 * file's older state. false: another file or none. */
static bool run_owner_look(const zi_run_owner *owner, lock_text text, struct timespec *touched)
{
    struct stat ours;
    struct stat found;
    const int file = openat(owner->lock_file.directory, owner->lock_file.name,
                            O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool same = file >= 0 && fstat(owner->file, &ours) == 0 && fstat(file, &found) == 0 &&
                      ours.st_dev == found.st_dev && ours.st_ino == found.st_ino;
    text[0] = '\0';
    if (file >= 0 && !zi_file_lock_read(file, text) && same) {
        (void)zi_file_lock_read(owner->file, text);
    }
    *touched = same ? found.st_mtim : (struct timespec){0};
    (void)(file >= 0 && close(file));
    return same;
}

static zero_status run_owner_sign(zi_run_owner *owner, bool locked)
{
    run_owner_put_text(owner, owner->text);
    ZI_TRY(zi_file_lock_sign(&owner->lock_file, owner->file, owner->text));
    owner->state = locked ? OWNER_OWNS : OWNER_SIGNED;
    owner->until_ns = zi_clock_ns() + owner->beat_ns / ZI_RUN_BEATS;
    return ZERO_OK;
}

static void run_owner_watch(zi_run_owner *owner)
{
    lock_text line;
    memcpy(line, owner->text, sizeof line);
    zi_file_lock_line(line);
    zi_log(ZERO_LOG_WARN,
           "%s was left by %.150s, of which this host cannot know whether it lives: watching for "
           "%" PRIu64 " ms",
           owner->run, line, ZI_RUN_BEATS * owner->beat_ns / 1000000);
    owner->state = OWNER_WATCHING;
    owner->until_ns = zi_clock_ns() + ZI_RUN_BEATS * owner->beat_ns;
}

/* Open the file and see whose it is. */
static zero_status run_owner_take(zi_run_owner *owner)
{
    zi_file_lock_result result = ZI_FILE_LOCK_TAKEN;
    uint64_t host = 0;
    zi_file_lock_close(owner->file);
    owner->file = -1;
    ZI_TRY(zi_file_lock_take(&owner->lock_file, &owner->file, &result));
    (void)run_owner_look(owner, owner->text, &owner->touched);
    if (result == ZI_FILE_LOCK_HELD) {
        return run_owner_refuse(owner, owner->text);
    }
    const bool locked = result == ZI_FILE_LOCK_TAKEN;
    const bool left = read_host(owner, &host) && !(locked && host == zi_host_id());
    if (!left) {
        return run_owner_sign(owner, locked);
    }
    run_owner_watch(owner);
    return ZERO_OK;
}

/* The file is somebody's who may be dead. */
static zero_status watch_on(zi_run_owner *owner)
{
    lock_text text;
    struct timespec touched;
    if (!run_owner_look(owner, text, &touched)) {
        return run_owner_take(owner); /* its owner has left */
    }
    if (strcmp(text, owner->text) != 0 || touched.tv_sec != owner->touched.tv_sec ||
        touched.tv_nsec != owner->touched.tv_nsec) {
        return run_owner_refuse(owner, text);
    }
    if (zi_clock_ns() < owner->until_ns) {
        return ZERO_OK;
    }
    zi_log(ZERO_LOG_WARN, "%s is taken over: its owner has shown no sign of life", owner->run);
    return run_owner_sign(owner, false); /* who watched as long may sign in the same moment */
}

/* ---- signs of life ---- */

static void *beat(void *argument)
{
    zi_run_owner *owner = argument;
    (void)pthread_mutex_lock(&owner->mutex);
    while (!owner->stop) {
        /* Set by the server, where there is one: clocks of hosts are not compared. */
        (void)futimens(owner->file, NULL);
        const uint64_t next = zi_clock_ns() + owner->beat_ns;
        while (!owner->stop && zi_deadline_wait(&owner->stopped, &owner->mutex, next)) {
        }
    }
    (void)pthread_mutex_unlock(&owner->mutex);
    return NULL;
}

/* ---- owners ---- */

zero_status zi_run_owner_begin(const char *run, zi_run_owner **out)
{
    zi_run_owner *owner = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *owner, (void **)&owner));
    (void)pthread_mutex_init(&owner->mutex, NULL);
    zi_deadline_cond_init(&owner->stopped);
    (void)snprintf(owner->run, sizeof owner->run, "%s", run);
    owner->beat_ns = zi_run_beat_ns;
    owner->file = -1;
    owner->lock_file = (zi_file_lock_target){
        .directory = open(run, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
        .path = owner->run,
        .name = ZI_RUN_LOCK_NAME,
        .shared = true,
    };
    if (owner->lock_file.directory < 0) {
        const int native = errno;
        zi_run_owner_release(owner);
        ZI_FAIL_NATIVE(ZERO_ERR_IO, native, "opening %s: %s", run, strerror(native));
    }
    *out = owner;
    return ZERO_OK;
}

zero_status zi_run_owner_poll(zi_run_owner *owner, bool *owned)
{
    *owned = false;
    if (owner->state == OWNER_NEW) {
        ZI_TRY(run_owner_take(owner));
    } else if (owner->state == OWNER_WATCHING) {
        ZI_TRY(watch_on(owner));
    } else if (owner->state == OWNER_SIGNED && zi_clock_ns() >= owner->until_ns) {
        ZI_TRY(zi_run_owner_check(owner));
        owner->state = OWNER_OWNS;
    }
    if (owner->state == OWNER_OWNS && !owner->beats) {
        ZI_TRY(zi_thread_start(&owner->thread, beat, owner));
        owner->beats = true;
    }
    *owned = owner->state == OWNER_OWNS;
    return ZERO_OK;
}

zero_status zi_run_owner_take(const char *run, zi_run_owner **out)
{
    bool owned = false;
    ZI_TRY(zi_run_owner_begin(run, out));
    zero_status status = zi_run_owner_poll(*out, &owned);
    while (status == ZERO_OK && !owned) {
        const struct timespec pause = {.tv_nsec = 100000000};
        (void)nanosleep(&pause, NULL);
        status = zi_run_owner_poll(*out, &owned);
    }
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        zi_run_owner_release(*out);
        *out = NULL;
        return zi_error_adopt(&error);
    }
    return ZERO_OK;
}

zero_status zi_run_owner_check(const zi_run_owner *owner)
{
    lock_text text;
    struct timespec touched;
    const bool same = run_owner_look(owner, text, &touched);
    if (same && strcmp(text, owner->text) == 0) {
        return ZERO_OK;
    }
    if (text[0] != '\0') {
        return run_owner_refuse(owner, text);
    }
    ZI_FAIL(ZERO_ERR_STATE,
            "%.100s: " ZI_RUN_LOCK_NAME ", which named this process, was removed; save again",
            owner->run);
}

bool zi_run_owner_has(const zi_run_owner *owner, const char *run)
{
    struct stat ours;
    struct stat named;
    return fstat(owner->lock_file.directory, &ours) == 0 && stat(run, &named) == 0 &&
           ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
}

void zi_run_owner_release(zi_run_owner *owner)
{
    if (owner == NULL) {
        return;
    }
    if (owner->beats) {
        (void)pthread_mutex_lock(&owner->mutex);
        owner->stop = true;
        (void)pthread_cond_signal(&owner->stopped);
        (void)pthread_mutex_unlock(&owner->mutex);
        (void)pthread_join(owner->thread, NULL);
    }
    if (owner->state >= OWNER_SIGNED && zi_run_owner_check(owner) == ZERO_OK) {
        (void)unlinkat(owner->lock_file.directory, ZI_RUN_LOCK_NAME, 0);
    }
    zi_file_lock_close(owner->file);
    if (owner->lock_file.directory >= 0) {
        (void)close(owner->lock_file.directory);
    }
    (void)pthread_cond_destroy(&owner->stopped);
    (void)pthread_mutex_destroy(&owner->mutex);
    zi_free(owner);
}
