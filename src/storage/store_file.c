/* Owns how a store's file is made. Invariants: the file has a name only between its creation and
 * its removal two calls later, under the directory's lock, so whoever holds the lock may remove
 * what a process killed in between has left; all bytes are reserved, but where the file system
 * cannot, which the note of the directory says. */
#include "storage/store_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"

#define TMPFS_KIND 0x01021994
#define RAMFS_KIND 0x858458f6

/* Add to the directory's note, and log. */
static void store_file_note(zi_store_directory *info, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void store_file_note(zi_store_directory *info, const char *format, ...)
{
    char text[sizeof info->note];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const size_t used = strlen(info->note);
    (void)snprintf(info->note + used, sizeof info->note - used, "%s%s", used > 0 ? "; " : "", text);
    zi_log(ZERO_LOG_WARN, "storage: %s; in the directory %s", text, info->path);
}

static void swap_name(const zi_store_owner *owner, char *name, size_t name_bytes)
{
    (void)snprintf(name, name_bytes, "zero-rank-%u%s.swap", owner->rank, owner->use);
}

/* The file has a name for an instant. A file of that name is a leftover, since the lock is ours. */
static int open_unlinked(int directory, const zi_store_owner *owner)
{
    char name[ZI_STORE_NAME_BYTES];
    swap_name(owner, name, sizeof name);
    const int fd =
        openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && unlinkat(directory, name, 0) != 0) {
        const int code = errno;
        (void)close(fd);
        errno = code;
        return -1;
    }
    return fd;
}

static zero_status remove_leftover(int directory, const zi_store_owner *owner, const char *path)
{
    char name[ZI_STORE_NAME_BYTES];
    swap_name(owner, name, sizeof name);
    if (unlinkat(directory, name, 0) == 0) {
        zi_log(ZERO_LOG_INFO, "storage: removed %s, left by a killed process, in %s", name, path);
        return ZERO_OK;
    }
    if (errno != ENOENT) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, errno, "cannot remove the leftover %s: %s; in the directory %s",
                       name, strerror(errno), path);
    }
    return ZERO_OK;
}

static zero_status open_nameless(int directory, const zi_store_options *options,
                                 const zi_store_owner *owner, const char *path, int *fd)
{
    int code = EOPNOTSUPP;
    if (!options->named) {
        *fd = openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        code = *fd < 0 ? errno : 0;
    }
    /* EISDIR: a kernel that does not know the flag. */
    if (code == EOPNOTSUPP || code == EISDIR || code == ENOENT || code == EINVAL) {
        *fd = open_unlinked(directory, owner);
        code = *fd < 0 ? errno : 0;
    }
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "cannot make a file: %s; in the directory %s",
                       strerror(code), path);
    }
    return ZERO_OK;
}

static uint64_t free_bytes(int fd)
{
    struct statvfs info;
    return fstatvfs(fd, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : 0;
}

static zero_status too_full(int code, uint64_t had, const zi_store_directory *info)
{
    ZI_FAIL_NATIVE(ZERO_ERR_OUT_OF_MEMORY, code,
                   "%" PRIu64 " bytes wanted on disk, %" PRIu64
                   " free (%s); make room or give more directories: %s",
                   info->file_bytes, had, strerror(code), info->path);
}

static zero_status store_file_reserve(int fd, zi_store_directory *info)
{
    /* Asked first: a refused reservation may hold what it got until the file is closed. */
    const uint64_t had = free_bytes(fd);
    int code = 0;
    do {
        code = fallocate(fd, 0, 0, (off_t)info->file_bytes) == 0 ? 0 : errno;
    } while (code == EINTR);
    info->reserved = code == 0;
    if (code == EOPNOTSUPP || code == ENOSYS) {
        if (had < info->file_bytes) {
            return too_full(ENOSPC, had, info);
        }
        code = ftruncate(fd, (off_t)info->file_bytes) == 0 ? 0 : errno;
        store_file_note(info, "the file system cannot reserve space");
    }
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        return too_full(code, had, info);
    }
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, code,
                       "cannot reserve %" PRIu64 " bytes: %s; in the directory %s",
                       info->file_bytes, strerror(code), info->path);
    }
    return ZERO_OK;
}

zero_status zi_store_direct_rule(uint32_t memory_align, uint32_t offset_align, const char *path,
                                 bool *direct)
{
    *direct = memory_align != 0 && offset_align != 0;
    if (memory_align > ZI_STORAGE_ALIGN || offset_align > ZI_STORAGE_ALIGN) {
        *direct = false;
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "direct I/O here wants memory aligned to %u and offsets to %u bytes, above %" PRIu64
                "; use another file system: %s",
                memory_align, offset_align, ZI_STORAGE_ALIGN, path);
    }
    return ZERO_OK;
}

/* Ask the file system if it has direct I/O; *direct is true where it reports nothing. */
static zero_status ask_direct(int fd, const char *path, bool *direct)
{
    *direct = true;
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
        (info.stx_mask & STATX_DIOALIGN) != 0) {
        return zi_store_direct_rule(info.stx_dio_mem_align, info.stx_dio_offset_align, path,
                                    direct);
    }
#else
    (void)fd;
    (void)path;
#endif
    return ZERO_OK;
}

/* 0 or an errno: some file systems take the flag and refuse the access. */
static int try_read(int fd, void *page)
{
    ssize_t moved = 0;
    do {
        moved = pread(fd, page, ZI_STORAGE_ALIGN, 0);
    } while (moved < 0 && errno == EINTR);
    return moved < 0 ? errno : 0;
}

static zero_status go_direct(int fd, zi_store_directory *info)
{
    bool direct = false;
    ZI_TRY(ask_direct(fd, info->path, &direct));
    if (!direct) {
        store_file_note(info, "buffered: the file system has no direct I/O");
        return ZERO_OK;
    }
    void *page = NULL;
    ZI_TRY(zi_pages_alloc(ZI_STORAGE_ALIGN, &page));
    const int flags = fcntl(fd, F_GETFL);
    int code = fcntl(fd, F_SETFL, flags | O_DIRECT) == 0 ? try_read(fd, page) : errno;
    info->direct = code == 0;
    if (code != 0 && fcntl(fd, F_SETFL, flags) == 0 && code == EINVAL) {
        store_file_note(info, "buffered: O_DIRECT is refused (%s)", strerror(code));
        code = 0;
    }
    zi_pages_free(page, ZI_STORAGE_ALIGN);
    if (code != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, code, "a first read fails: %s; in the directory %s",
                       strerror(code), info->path);
    }
    return ZERO_OK;
}

static bool is_in_memory(int fd)
{
    struct statfs info;
    return fstatfs(fd, &info) == 0 &&
           ((uint32_t)info.f_type == TMPFS_KIND || (uint32_t)info.f_type == RAMFS_KIND);
}

zero_status zi_store_file_open(int directory, const zi_store_options *options,
                               const zi_store_owner *owner, zi_store_directory *info, int *fd)
{
    ZI_TRY(remove_leftover(directory, owner, info->path));
    ZI_TRY(open_nameless(directory, options, owner, info->path, fd));
    info->in_memory = is_in_memory(*fd);
    zero_status status = info->file_bytes > 0 ? store_file_reserve(*fd, info) : ZERO_OK;
    if (status == ZERO_OK && !options->buffered) {
        status = go_direct(*fd, info);
    }
    if (status != ZERO_OK) {
        (void)close(*fd);
        *fd = -1;
    }
    return status;
}
