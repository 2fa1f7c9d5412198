/* Owns opening and reading the files that plans are made from. */
#include "format/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

static zero_status check_kind(zi_regular_file *file)
{
    struct stat status;
    if (fstat(file->descriptor, &status) != 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, errno, "%s: %s", file->path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is no regular file; name one", file->path);
    }
    file->bytes = (uint64_t)status.st_size;
    return ZERO_OK;
}

/* Refuse what git-lfs leaves in the place of a file that it has not fetched. */
static zero_status check_pointer(const zi_regular_file *file)
{
    static const char start[] = "version https://git-lfs.github.com/spec/";
    char text[sizeof start - 1];
    size_t bytes = sizeof text;
    ZI_TRY(zi_regular_file_read(file, 0, text, &bytes));
    if (bytes == sizeof text && memcmp(text, start, bytes) == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "%s is a pointer of git-lfs, not the file itself; fetch that with `git lfs pull`",
                file->path);
    }
    return ZERO_OK;
}

zero_status zi_regular_file_open(zi_regular_file *file, const char *path)
{
    *file = (zi_regular_file){.path = path, .descriptor = -1};
    if (path == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "path is NULL; name a file");
    }
    file->descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0) {
        ZI_FAIL_NATIVE(ZERO_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    ZI_TRY(check_kind(file));
    return check_pointer(file);
}

void zi_regular_file_close(zi_regular_file *file)
{
    if (file->descriptor >= 0) {
        (void)close(file->descriptor);
    }
    file->descriptor = -1;
}

zero_status zi_regular_file_read(const zi_regular_file *file, uint64_t at, void *target,
                                 size_t *bytes)
{
    size_t used = 0;
    while (used < *bytes) {
        const ssize_t count = pread(file->descriptor, (unsigned char *)target + used, *bytes - used,
                                    (off_t)(at + used));
        if (count < 0 && errno != EINTR) {
            ZI_FAIL_NATIVE(ZERO_ERR_IO, errno, "reading %s: %s", file->path, strerror(errno));
        }
        if (count == 0) {
            break;
        }
        used += count > 0 ? (size_t)count : 0;
    }
    *bytes = used;
    return ZERO_OK;
}
