/* Owns the names in a run's directory, and what is done to one of them. */
#include "checkpoint/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/run_owner.h"

/* ---- names ---- */

void zi_checkpoint_step_name(char *name, size_t bytes, uint64_t step)
{
    (void)snprintf(name, bytes, "step-%08" PRIu64, step);
}

bool zi_run_name_ends(const char *name, const char *end)
{
    const size_t length = strlen(name);
    const size_t bytes = strlen(end);
    return length >= bytes && strcmp(name + length - bytes, end) == 0;
}

bool zi_run_is_name(const char *name)
{
    const size_t length = strlen(name);
    const size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789-_.");
    return length > 0 && length <= RUN_NAME_BYTES + sizeof RUN_REPLACED - 1 && good == length &&
           name[0] != '.' && !zi_run_name_ends(name, RUN_PART) && strcmp(name, RUN_LATEST) != 0 &&
           strcmp(name, ZI_RUN_LOCK_NAME) != 0;
}

zero_status zi_checkpoint_check_name(const char *name)
{
    if (!zi_run_is_name(name) || strlen(name) > RUN_NAME_BYTES ||
        zi_run_name_ends(name, RUN_REPLACED)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a checkpoint cannot have the name \"%.100s\"; give 1 to %d letters, digits, '-', "
                "'_' or '.', not '.' first, not \"" RUN_PART "\" or \"" RUN_REPLACED
                "\" at the end, not \"" RUN_LATEST "\" or \"" ZI_RUN_LOCK_NAME "\"",
                name, RUN_NAME_BYTES);
    }
    return ZERO_OK;
}

zero_status zi_run_path(run_path path, const char *run, const char *name, const char *end)
{
    char whole[RUN_NAME_BYTES + 64];
    (void)snprintf(whole, sizeof whole, "%.*s%s", RUN_NAME_BYTES + 32, name, end);
    return zi_checkpoint_path(path, run, whole);
}

/* ---- the file system ---- */

zero_status zi_run_fail(int native, const char *file, int line, const char *doing, const char *path)
{
    return zi_error_set(ZERO_ERR_IO, native, file, line, "%s %s: %s", doing, path,
                        strerror(native));
}

bool zi_run_exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0;
}

zero_status zi_run_sync(const char *path)
{
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        RUN_FAIL_ERRNO("opening", path);
    }
    const int failed = fsync(folder) != 0 && errno != EINVAL ? errno : 0;
    (void)close(folder);
    errno = failed;
    if (failed != 0) {
        RUN_FAIL_ERRNO("fsync of", path);
    }
    return ZERO_OK;
}

zero_status zi_run_rename(const char *from, const char *to)
{
    if (rename(from, to) != 0) {
        RUN_FAIL_ERRNO("renaming to", to);
    }
    return ZERO_OK;
}

/* Remove the entries of a folder, which has no folders itself. */
static zero_status remove_entries(DIR *folder, const char *path)
{
    run_path entry;
    for (const struct dirent *next = readdir(folder); next != NULL; next = readdir(folder)) {
        if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0) {
            continue;
        }
        ZI_TRY(zi_checkpoint_path(entry, path, next->d_name));
        if (unlink(entry) != 0 && errno != ENOENT) {
            RUN_FAIL_ERRNO("removing", entry);
        }
    }
    return ZERO_OK;
}

zero_status zi_run_remove(const char *path)
{
    const int opened = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = opened >= 0 ? fdopendir(opened) : NULL;
    if (folder == NULL && errno != ENOTDIR && errno != ELOOP && errno != ENOENT) {
        const int native = errno;
        (void)(opened >= 0 && close(opened));
        errno = native;
        RUN_FAIL_ERRNO("opening", path);
    }
    if (folder != NULL) {
        const zero_status status = remove_entries(folder, path);
        (void)closedir(folder);
        ZI_TRY(status);
    }
    if ((folder != NULL ? rmdir(path) : unlink(path)) != 0 && errno != ENOENT) {
        RUN_FAIL_ERRNO("removing", path);
    }
    return ZERO_OK;
}

/* ---- pointers ---- */

bool zi_run_pointer(const char *run, const char *file_name, run_pointer *found)
{
    run_path path;
    zi_regular_file file = {.descriptor = -1};
    char text[RUN_NAME_BYTES + 32] = {0};
    size_t bytes = sizeof text - 1;
    if (zi_checkpoint_path(path, run, file_name) != ZERO_OK) {
        return false;
    }
    const bool read = zi_checkpoint_open(&file, path) == ZERO_OK &&
                      zi_regular_file_read(&file, 0, text, &bytes) == ZERO_OK;
    zi_regular_file_close(&file);
    return read && sscanf(text, "%200[^\n]\n%16" SCNx64 "\n", found->name, &found->hash) == 2 &&
           zi_run_is_name(found->name);
}

bool zi_run_has_hash(const char *folder, uint64_t hash)
{
    run_path path;
    zi_regular_file file = {.descriptor = -1};
    uint64_t found = 0;
    const bool same = zi_checkpoint_path(path, folder, ZI_MANIFEST_NAME) == ZERO_OK &&
                      zi_checkpoint_open(&file, path) == ZERO_OK &&
                      zi_checkpoint_hash_file(&file, file.bytes, &found) == ZERO_OK &&
                      found == hash;
    zi_regular_file_close(&file);
    return same;
}
