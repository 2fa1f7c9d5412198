/* Owns locked files. Invariant: whoever holds the lock of the file of that name owns the directory;
 * where the file system has locks, the text in the file only names the owner. */
#include "storage/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/memory.h"

/* An owner removes the name when it leaves, so the name may be gone once the file is locked. */
#define ATTEMPTS 100

/* ---- forks ---- */

/* A forked child has its parent's open files, and their locks with them. It closes those at once.
 */
typedef struct held_file {
    int file;
    struct held_file *next;
} held_file;

static pthread_mutex_t held_mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the next */
static held_file *held;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void file_lock_before_fork(void)
{
    (void)pthread_mutex_lock(&held_mutex);
}

static void file_lock_after_fork(void)
{
    (void)pthread_mutex_unlock(&held_mutex);
}

static void file_lock_in_child(void)
{
    for (held_file *h = held; h != NULL; h = h->next) {
        (void)(h->file >= 0 && close(h->file));
        h->file = -1;
    }
    (void)pthread_mutex_unlock(&held_mutex);
}

static void file_lock_watch_forks(void)
{
    (void)pthread_atfork(file_lock_before_fork, file_lock_after_fork, file_lock_in_child);
}

/* openat; a child that is forked in the same moment closes it too. */
static int open_held(int directory, const char *name, int flags, mode_t mode, held_file *node)
{
    (void)pthread_once(&once, file_lock_watch_forks);
    (void)pthread_mutex_lock(&held_mutex);
    node->file = openat(directory, name, flags, mode);
    const int code = errno;
    if (node->file >= 0) {
        node->next = held;
        held = node;
    }
    (void)pthread_mutex_unlock(&held_mutex);
    errno = code;
    return node->file;
}

void zi_file_lock_close(int file)
{
    held_file *found = NULL;
    if (file < 0) {
        return;
    }
    (void)pthread_mutex_lock(&held_mutex);
    for (held_file **at = &held; *at != NULL; at = &(*at)->next) {
        if ((*at)->file == file) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    (void)close(file);
    (void)pthread_mutex_unlock(&held_mutex);
    zi_free(found);
}

/* ---- the file ---- */

static zero_status cannot(int code, const char *what, const zi_file_lock_target *target)
{
    ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "cannot %s the lock file: %s; in the directory %s", what,
                   strerror(code), target->path);
}

/* A file is written to only if it is a regular one of this user's without other names. */
static zero_status check_ours(const zi_file_lock_target *target, int file)
{
    struct stat info;
    if (fstat(file, &info) != 0) {
        return cannot(errno, "look at", target);
    }
    /* 0 links: its owner is just removing it. */
    if (!S_ISREG(info.st_mode) || (!target->shared && info.st_uid != geteuid()) ||
        info.st_nlink > 1) {
        ZI_FAIL(ZERO_ERR_STATE,
                "%s is not a lock file of this user (%s, user %lu, %lu links); remove it, or give "
                "each user a directory of their own: %s",
                target->name, S_ISREG(info.st_mode) ? "regular file" : "no regular file",
                (unsigned long)info.st_uid, (unsigned long)info.st_nlink, target->path);
    }
    return ZERO_OK;
}

/* Open the lock file, or make it. Links are not followed, and a FIFO does not block. */
static zero_status file_lock_open_file(const zi_file_lock_target *target, int *file)
{
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    held_file *node = NULL;
    ZI_TRY(zi_calloc(1, sizeof *node, (void **)&node));
    *file = open_held(target->directory, target->name, flags, target->shared ? 0666 : 0600, node);
    if (*file < 0) {
        const int code = errno;
        zi_free(node);
        if (code != ELOOP) {
            return cannot(code, "open", target);
        }
        ZI_FAIL_NATIVE(ZERO_ERR_STATE, ELOOP,
                       "%s is a symbolic link, which a lock file never is; remove it: %s",
                       target->name, target->path);
    }
    const zero_status status = check_ours(target, *file);
    if (status != ZERO_OK) {
        zi_file_lock_close(*file);
        *file = -1;
    }
    return status;
}

bool zi_file_lock_named(const zi_file_lock_target *target, int file)
{
    struct stat ours;
    struct stat named;
    return fstat(file, &ours) == 0 &&
           fstatat(target->directory, target->name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

/* Of flock: some network file systems have none, or no server that keeps them. */
static bool is_without_locks(int code)
{
    return code == ENOLCK || code == ENOSYS || code == EOPNOTSUPP || code == EINVAL;
}

zero_status zi_file_lock_take(const zi_file_lock_target *target, int *file,
                              zi_file_lock_result *result)
{
    *file = -1;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        ZI_TRY(file_lock_open_file(target, file));
        *result = ZI_FILE_LOCK_TAKEN;
        if (flock(*file, LOCK_EX | LOCK_NB) != 0) {
            const int code = errno;
            *result = code == EWOULDBLOCK ? ZI_FILE_LOCK_HELD : ZI_FILE_LOCK_UNKNOWN;
            if (code != EWOULDBLOCK && !is_without_locks(code)) {
                zi_file_lock_close(*file);
                *file = -1;
                return cannot(code, "lock", target);
            }
        }
        if (*result == ZI_FILE_LOCK_HELD || zi_file_lock_named(target, *file)) {
            return ZERO_OK;
        }
        zi_file_lock_close(*file);
        *file = -1;
    }
    return cannot(ESTALE, "keep", target);
}

bool zi_file_lock_read(int file, char text[ZI_FILE_LOCK_TEXT_BYTES])
{
    size_t used = 0;
    ssize_t bytes = 1;
    while (bytes != 0 && used < ZI_FILE_LOCK_TEXT_BYTES - 1) {
        bytes = pread(file, text + used, ZI_FILE_LOCK_TEXT_BYTES - 1 - used, (off_t)used);
        used += bytes > 0 ? (size_t)bytes : 0;
        if (bytes < 0 && errno != EINTR) {
            break;
        }
    }
    text[used] = '\0';
    return bytes >= 0;
}

void zi_file_lock_line(char *text)
{
    text[strcspn(text, "\n")] = '\0';
    for (char *c = text; *c != '\0'; c++) {
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    }
}

/* Returns 0 or an errno. */
static int file_lock_write_text(int file, const char *text)
{
    const size_t bytes = strlen(text);
    for (size_t done = 0; done < bytes;) {
        const ssize_t wrote = pwrite(file, text + done, bytes - done, (off_t)done);
        if (wrote == 0 || (wrote < 0 && errno != EINTR)) {
            return wrote == 0 ? EIO : errno;
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return 0;
}

zero_status zi_file_lock_sign(const zi_file_lock_target *target, int file, const char *text)
{
    /* An older one may be readable by all, and a mask may have left us nothing. */
    if ((!target->shared && fchmod(file, 0600) != 0) || ftruncate(file, 0) != 0) {
        return cannot(errno, "write", target);
    }
    const int code = file_lock_write_text(file, text);
    return code == 0 ? ZERO_OK : cannot(code, "write", target);
}
