/* Owns the lock file of a directory. Invariant: whoever holds the lock of the file of that name
 * owns the directory for its rank; the text in the file only names the owner in error messages. The
 * kernel drops the lock with the process, so a killed owner never blocks the next one. */
#include "storage/store_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

/* An owner removes the name when it leaves, so the name may be gone once the file is locked. */
#define ATTEMPTS 100

static void lock_name(const zi_store_owner *owner, char *name, size_t name_bytes)
{
    (void)snprintf(name, name_bytes, "zero-rank-%u%s.lock", owner->rank, owner->use);
}

/* The first line of a file. Bytes that are not printable become '?', since it goes to terminals and
 * logs whoever wrote it. */
static void read_line(int file, char *text, size_t text_bytes)
{
    const ssize_t bytes = pread(file, text, text_bytes - 1, 0);
    text[bytes > 0 ? bytes : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    for (char *c = text; *c != '\0'; c++) {
        *c = *c >= ' ' && *c <= '~' ? *c : '?';
    }
}

static zero_status refuse(int lock, const char *path, uint32_t rank)
{
    char text[128] = {0};
    read_line(lock, text, sizeof text);
    ZI_FAIL(ZERO_STATE,
            "rank %u's place is taken by %s; end it or give each job a directory of its own: %s",
            rank, text[0] != '\0' ? text : "a process that has not written its pid yet", path);
}

static zero_status cannot(int code, const char *what, const char *path)
{
    ZI_FAIL_NATIVE(ZERO_IO, code, "cannot %s the lock file: %s; in the directory %s", what,
                   strerror(code), path);
}

/* A file is written to only if it is a regular one of this user's without other names. */
static zero_status check_ours(int lock, const char *name, const char *path)
{
    struct stat info;
    if (fstat(lock, &info) != 0) {
        return cannot(errno, "look at", path);
    }
    /* 0 links: its owner is just removing it. */
    if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || info.st_nlink > 1) {
        ZI_FAIL(ZERO_STATE,
                "%s is not a lock file of this user (%s, user %lu, %lu links); remove it, or give "
                "each user a directory of their own: %s",
                name, S_ISREG(info.st_mode) ? "regular file" : "no regular file",
                (unsigned long)info.st_uid, (unsigned long)info.st_nlink, path);
    }
    return ZERO_OK;
}

/* Open the lock file, or make it. Links are not followed, and a FIFO does not block. */
static zero_status open_lock(int directory, const char *name, const char *path, int *lock)
{
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    *lock = openat(directory, name, flags, 0600);
    if (*lock < 0 && errno == ELOOP) {
        ZI_FAIL_NATIVE(ZERO_STATE, ELOOP,
                       "%s is a symbolic link, which a lock file never is; remove it: %s", name,
                       path);
    }
    if (*lock < 0) {
        return cannot(errno, "open", path);
    }
    const zero_status status = check_ours(*lock, name, path);
    if (status != ZERO_OK) {
        (void)close(*lock);
        *lock = -1;
    }
    return status;
}

/* True while `name` stands for the open file. */
static bool still_named(int directory, const char *name, int lock)
{
    struct stat ours;
    struct stat named;
    return fstat(lock, &ours) == 0 && fstatat(directory, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

static zero_status sign(int lock, const char *path)
{
    char host[64] = "unknown";
    char text[128];
    (void)gethostname(host, sizeof host - 1);
    host[sizeof host - 1] = '\0';
    const int bytes = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
    /* An older one may be readable by all, and a mask may have left us nothing. */
    if (fchmod(lock, 0600) != 0 || ftruncate(lock, 0) != 0 ||
        pwrite(lock, text, (size_t)bytes, 0) != bytes) {
        return cannot(errno != 0 ? errno : EIO, "write", path);
    }
    return ZERO_OK;
}

zero_status zi_store_lock(int directory, const char *path, const zi_store_owner *owner, int *lock)
{
    char name[ZI_STORE_NAME_BYTES];
    lock_name(owner, name, sizeof name);
    *lock = -1;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int fd = -1;
        ZI_TRY(open_lock(directory, name, path, &fd));
        zero_status status = ZERO_OK;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            status =
                errno == EWOULDBLOCK ? refuse(fd, path, owner->rank) : cannot(errno, "lock", path);
        } else if (!still_named(directory, name, fd)) {
            (void)close(fd);
            continue;
        } else {
            status = sign(fd, path);
        }
        if (status != ZERO_OK) {
            (void)close(fd);
            return status;
        }
        *lock = fd;
        return ZERO_OK;
    }
    return cannot(ESTALE, "keep", path);
}

void zi_store_unlock(int directory, const zi_store_owner *owner, int lock)
{
    char name[ZI_STORE_NAME_BYTES];
    lock_name(owner, name, sizeof name);
    (void)unlinkat(directory, name, 0);
    (void)close(lock);
}
