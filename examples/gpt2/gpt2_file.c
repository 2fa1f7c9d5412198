/* Owns the descriptors of a run's files. Invariant: between two calls a file on disk holds all that
 * was added and what closes it, or all before the addition that failed. */
#include "gpt2_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool fail(gpt2_file *file, const char *path, int why, gpt2_error *error)
{
    if (file->file >= 0) {
        (void)close(file->file);
    }
    *file = (gpt2_file){.file = -1};
    return gpt2_fail(error, "cannot write %s: %s", path,
                     why == ENXIO ? "it is a pipe or device that nobody reads" : strerror(why));
}

/* Standard output under another name: an own description of it would have a place of its own, and
 * the two would write over each other. */
static bool is_standard_output(const struct stat *about)
{
    struct stat output;
    return fstat(STDOUT_FILENO, &output) == 0 && output.st_dev == about->st_dev &&
           output.st_ino == about->st_ino;
}

bool gpt2_file_open(gpt2_file *file, const char *path, uint64_t keep, gpt2_error *error)
{
    *file = (gpt2_file){.file = -1};
    if (path == NULL) {
        return true;
    }
    struct stat about;
    file->path = path;
    file->closing = "";
    /* O_NONBLOCK: a pipe without a reader is ENXIO instead of a wait. */
    file->file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file->file < 0 || fstat(file->file, &about) != 0) {
        return fail(file, path, errno, error);
    }
    if (is_standard_output(&about)) {
        (void)close(file->file);
        file->file = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
        return file->file >= 0 || fail(file, path, errno, error);
    }
    file->rewinds = S_ISREG(about.st_mode);
    file->bytes = file->rewinds ? keep : 0;
    const int flags = fcntl(file->file, F_GETFL);
    if (flags < 0 || fcntl(file->file, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
        (file->rewinds && ftruncate(file->file, (off_t)keep) != 0)) {
        return fail(file, path, errno, error);
    }
    return true;
}

/* All of it, at `offset` of a file on disk. 0 or an errno. */
static int write_all(const gpt2_file *file, const char *text, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t count =
            file->rewinds ? pwrite(file->file, text + done, bytes - done, (off_t)(offset + done))
                          : write(file->file, text + done, bytes - done);
        if (count < 0 && errno != EINTR) {
            return errno;
        }
        done += count < 0 ? 0 : (size_t)count;
    }
    return 0;
}

/* In one write, so that nothing can come between the addition and what closes it. */
static int add_closed(gpt2_file *file, const char *text, size_t bytes, const char *closing)
{
    const size_t closing_bytes = strlen(closing);
    char *all = malloc(bytes + closing_bytes + 1);
    if (all == NULL) {
        return ENOMEM;
    }
    memcpy(all, text, bytes);
    memcpy(all + bytes, closing, closing_bytes + 1);
    const int why = write_all(file, all, bytes + closing_bytes, file->bytes);
    free(all);
    if (why == 0 && bytes + closing_bytes < strlen(file->closing) &&
        ftruncate(file->file, (off_t)(file->bytes + bytes + closing_bytes)) != 0) {
        return errno;
    }
    return why;
}

bool gpt2_file_add(gpt2_file *file, const char *text, size_t bytes, const char *closing,
                   gpt2_error *error)
{
    if (file->file < 0) {
        return true;
    }
    const int why =
        file->rewinds ? add_closed(file, text, bytes, closing) : write_all(file, text, bytes, 0);
    if (why != 0 && file->rewinds) {
        /* Back to the document before: its bytes had their place. */
        const size_t old = strlen(file->closing);
        (void)write_all(file, file->closing, old, file->bytes);
        const int cut = ftruncate(file->file, (off_t)(file->bytes + old));
        (void)cut; /* the first failure is what is reported */
    }
    if (why != 0) {
        return fail(file, file->path, why, error);
    }
    file->bytes += bytes;
    file->closing = closing;
    return true;
}

bool gpt2_file_close(gpt2_file *file, gpt2_error *error)
{
    if (file->file < 0) {
        return true;
    }
    int why = file->rewinds ? 0 : write_all(file, file->closing, strlen(file->closing), 0);
    if (close(file->file) != 0 && why == 0) {
        why = errno;
    }
    file->file = -1;
    return why == 0 || fail(file, file->path, why, error);
}
