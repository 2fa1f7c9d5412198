/* Owns writing a file at once, and exchanging names. */
#include "format/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/error.h"

static zero_status whole_file_fail(int native, const char *doing, const char *path)
{
    ZI_FAIL_NATIVE(ZERO_ERR_IO, native, "%s %s: %s", doing, path, strerror(native));
}

static int whole_file_write_all(int file, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t count = write(file, text, bytes);
        if (count == 0 || (count < 0 && errno != EINTR)) {
            return count == 0 ? ENOSPC : errno;
        }
        text += count > 0 ? count : 0;
        bytes -= count > 0 ? (size_t)count : 0;
    }
    return fsync(file) != 0 ? errno : 0;
}

zero_status zi_whole_file_write(const char *path, const char *text, size_t bytes)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file < 0) {
        return whole_file_fail(errno, "making", path);
    }
    int failed = whole_file_write_all(file, text, bytes);
    failed = close(file) != 0 && failed == 0 ? errno : failed;
    return failed != 0 ? whole_file_fail(failed, "writing", path) : ZERO_OK;
}

zero_status zi_whole_file_replace(const char *path, const char *text, size_t bytes)
{
    static atomic_uint replaced; /* threads may replace the same file */
    char part[4096];
    const int length = snprintf(part, sizeof part, "%s.%ld-%u.part", path, (long)getpid(),
                                atomic_fetch_add(&replaced, 1));
    if (length < 0 || (size_t)length >= sizeof part) {
        return whole_file_fail(ENAMETOOLONG, "making", path);
    }
    zero_status status = zi_whole_file_write(part, text, bytes);
    if (status == ZERO_OK && rename(part, path) != 0) {
        status = whole_file_fail(errno, "renaming to", path);
    }
    if (status != ZERO_OK) {
        (void)unlink(part);
    }
    return status;
}

/* Asked of the kernel itself: not every C library has its renameat2() and RENAME_EXCHANGE. */
int zi_exchange_names(const char *one, const char *other)
{
    enum { EXCHANGE = 1 << 1 };
    return (int)syscall(SYS_renameat2, AT_FDCWD, one, AT_FDCWD, other, EXCHANGE);
}
