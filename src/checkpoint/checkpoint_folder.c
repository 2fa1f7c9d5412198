/* Owns the folders of checkpoints in a run's directory. Invariant: a folder under its own name is a
 * whole checkpoint at any moment, and all of it was on the disk before it got that name.
 *
 *   write manifest, fsync, rename it          in NAME.part, whose files are synced
 *   fsync NAME.part
 *   write latest.part, fsync                  from here on nothing needs room
 *   NAME.part becomes NAME                    the moment
 *   fsync RUN
 *   rename latest.part to latest
 *   remove the old one
 *
 * latest.part has the hash of the manifest. So after a crash between the moment and the rename it
 * is known whether NAME is the new one, and that is the newest. This is also why nobody waits until
 * the rename is on the disk, where it comes with the next fsync of RUN at the latest. Weights alone
 * are committed without latest. */
#include "checkpoint/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/run_owner.h"
#include "core/error.h"
#include "core/memory.h"
#include "format/whole_file.h"

#define PART ".part"
#define REPLACED ".replaced"
#define REMOVED ".removed.part"
#define LATEST "latest"
#define NAME_MAX_BYTES 200

_Static_assert(sizeof((zero_error *)NULL)->message == ZI_CHECKPOINT_PASSED_BYTES,
               "a message says why one is passed over");

typedef char path_text[ZI_CHECKPOINT_PATH_BYTES];

/* ---- names ---- */

void zi_checkpoint_step_name(char *name, size_t bytes, uint64_t step)
{
    (void)snprintf(name, bytes, "step-%08" PRIu64, step);
}

static bool ends_with(const char *name, const char *end)
{
    const size_t length = strlen(name);
    const size_t bytes = strlen(end);
    return length >= bytes && strcmp(name + length - bytes, end) == 0;
}

static bool checkpoint_folder_is_name(const char *name)
{
    const size_t length = strlen(name);
    const size_t good = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789-_.");
    return length > 0 && length <= NAME_MAX_BYTES + sizeof REPLACED - 1 && good == length &&
           name[0] != '.' && !ends_with(name, PART) && strcmp(name, LATEST) != 0 &&
           strcmp(name, ZI_RUN_LOCK_NAME) != 0;
}

zero_status zi_checkpoint_check_name(const char *name)
{
    if (!checkpoint_folder_is_name(name) || strlen(name) > NAME_MAX_BYTES ||
        ends_with(name, REPLACED)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "a checkpoint cannot have the name \"%.100s\"; give 1 to %d letters, digits, '-', "
                "'_' or '.', not '.' first, not \"" PART "\" or \"" REPLACED
                "\" at the end, not \"" LATEST "\" or \"" ZI_RUN_LOCK_NAME "\"",
                name, NAME_MAX_BYTES);
    }
    return ZERO_OK;
}

/* RUN/NAME with an end. */
static zero_status checkpoint_folder_path_of(path_text path, const char *run, const char *name,
                                             const char *end)
{
    char whole[NAME_MAX_BYTES + 64];
    (void)snprintf(whole, sizeof whole, "%.*s%s", NAME_MAX_BYTES + 32, name, end);
    return zi_checkpoint_path(path, run, whole);
}

/* ---- the file system ---- */

#define FAIL_ERRNO(...) return fail_errno(errno, __FILE__, __LINE__, __VA_ARGS__)

static zero_status fail_errno(int native, const char *file, int line, const char *doing,
                              const char *path)
{
    return zi_error_set(ZERO_ERR_IO, native, file, line, "%s %s: %s", doing, path,
                        strerror(native));
}

static bool exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0;
}

/* File systems that cannot sync a folder say EINVAL; there is nothing else to do for them. */
static zero_status sync_folder(const char *path)
{
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        FAIL_ERRNO("opening", path);
    }
    const int failed = fsync(folder) != 0 && errno != EINVAL ? errno : 0;
    (void)close(folder);
    errno = failed;
    if (failed != 0) {
        FAIL_ERRNO("fsync of", path);
    }
    return ZERO_OK;
}

static zero_status rename_path(const char *from, const char *to)
{
    if (rename(from, to) != 0) {
        FAIL_ERRNO("renaming to", to);
    }
    return ZERO_OK;
}

/* What is in a folder, which has no folders itself. */
static zero_status remove_entries(DIR *folder, const char *path)
{
    path_text entry;
    for (const struct dirent *next = readdir(folder); next != NULL; next = readdir(folder)) {
        if (strcmp(next->d_name, ".") == 0 || strcmp(next->d_name, "..") == 0) {
            continue;
        }
        ZI_TRY(zi_checkpoint_path(entry, path, next->d_name));
        if (unlink(entry) != 0 && errno != ENOENT) {
            FAIL_ERRNO("removing", entry);
        }
    }
    return ZERO_OK;
}

/* A folder, if it is there. What else has its name is removed too; a link is not followed. */
static zero_status remove_folder(const char *path)
{
    const int opened = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = opened >= 0 ? fdopendir(opened) : NULL;
    if (folder == NULL && errno != ENOTDIR && errno != ELOOP && errno != ENOENT) {
        const int native = errno;
        (void)(opened >= 0 && close(opened));
        errno = native;
        FAIL_ERRNO("opening", path);
    }
    if (folder != NULL) {
        const zero_status status = remove_entries(folder, path);
        (void)closedir(folder);
        ZI_TRY(status);
    }
    if ((folder != NULL ? rmdir(path) : unlink(path)) != 0 && errno != ENOENT) {
        FAIL_ERRNO("removing", path);
    }
    return ZERO_OK;
}

/* ---- list ---- */

/* A step's folder that was moved, and linked back from a disk that is not there now. */
static zero_status check_link(const char *folder, const char *name)
{
    uint64_t step = 0;
    struct stat status;
    if (sscanf(name, "step-%20" SCNu64, &step) == 1 && lstat(folder, &status) == 0 &&
        S_ISLNK(status.st_mode) && stat(folder, &status) != 0) {
        ZI_FAIL(ZERO_ERR_CORRUPT, "%s is a link to nothing; mount or restore what it leads to",
                folder);
    }
    return ZERO_OK;
}

zero_status zi_checkpoint_look(const char *run, const char *name, zi_checkpoint_entry *entry)
{
    path_text folder;
    path_text manifest;
    struct stat link;
    struct stat status;
    *entry = (zi_checkpoint_entry){0};
    if (!checkpoint_folder_is_name(name) ||
        checkpoint_folder_path_of(folder, run, name, "") != ZERO_OK || lstat(folder, &link) != 0) {
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    ZI_TRY(check_link(folder, name));
    if (stat(folder, &status) != 0 || !S_ISDIR(status.st_mode) ||
        zi_checkpoint_path(manifest, folder, ZI_MANIFEST_NAME) != ZERO_OK) {
        return ZERO_ERR_INVALID_ARGUMENT;
    }
    entry->linked = S_ISLNK(link.st_mode);
    entry->device = (uint64_t)status.st_dev;
    entry->inode = (uint64_t)status.st_ino;
    if (lstat(manifest, &status) != 0) {
        if (errno == ENOENT) {
            return ZERO_ERR_INVALID_ARGUMENT;
        }
        FAIL_ERRNO("reading", manifest);
    }
    (void)snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->seconds = (uint64_t)status.st_mtim.tv_sec;
    return zi_manifest_read_head(folder, true, &entry->head);
}

/* Why a manifest cannot be read. */
typedef struct unread_entry {
    zero_error error;        /* OK: all can */
    char name[NAME_MAX + 1]; /* of any entry of the folder */
} unread_entry;

/* Keep the reason of the last one by name, in whatever order the folder has them, or of one of a
 * later version. */
static void keep_reason(unread_entry *unread, zero_status status, const char *name)
{
    const bool later =
        unread->error.status == ZERO_OK ||
        (unread->error.status != ZERO_ERR_UNSUPPORTED && strcmp(name, unread->name) > 0);
    if (status != ZERO_ERR_INVALID_ARGUMENT && (later || status == ZERO_ERR_UNSUPPORTED)) {
        unread->error = *zero_last_error();
        (void)snprintf(unread->name, sizeof unread->name, "%s", name);
    }
}

/* In the order of commits. Those of before they were counted come first, by step and time. */
static int compare_entries(const void *left, const void *right)
{
    const zi_checkpoint_entry *a = left;
    const zi_checkpoint_entry *b = right;
    if (a->head.commit != b->head.commit) {
        return a->head.commit > b->head.commit ? 1 : -1;
    }
    if (a->head.step != b->head.step) {
        return a->head.step > b->head.step ? 1 : -1;
    }
    if (a->seconds != b->seconds) {
        return a->seconds > b->seconds ? 1 : -1;
    }
    return strcmp(a->name, b->name);
}

/* Links that lead to one that is there: keeping N would count it twice. */
static void remove_aliases(zi_checkpoint_entry *entries, uint32_t *count)
{
    for (uint32_t i = *count; i-- > 0;) {
        bool alias = false;
        for (uint32_t j = 0; j < *count && entries[i].linked; j++) {
            alias = alias || (j != i && (!entries[j].linked || j < i) &&
                              entries[j].device == entries[i].device &&
                              entries[j].inode == entries[i].inode);
        }
        if (alias) {
            (*count)--;
            memmove(&entries[i], &entries[i + 1], (*count - i) * sizeof *entries);
        }
    }
}

/* Room for one more. */
static zero_status checkpoint_folder_grow(zi_checkpoint_entry **entries, uint32_t count)
{
    zi_checkpoint_entry *larger = NULL;
    if (count != 0 && (count & (count - 1)) != 0) {
        return ZERO_OK;
    }
    ZI_TRY(zi_calloc(count != 0 ? (size_t)count * 2 : 1, sizeof *larger, (void **)&larger));
    if (count != 0) {
        memcpy(larger, *entries, count * sizeof *larger);
    }
    zi_free(*entries);
    *entries = larger;
    return ZERO_OK;
}

/* What latest or latest.part says. */
typedef struct pointer {
    char name[NAME_MAX_BYTES + 1];
    uint64_t hash;
} pointer;

static bool read_pointer(const char *run, const char *file_name, pointer *found)
{
    path_text path;
    zi_regular_file file = {.descriptor = -1};
    char text[NAME_MAX_BYTES + 32] = {0};
    size_t bytes = sizeof text - 1;
    if (zi_checkpoint_path(path, run, file_name) != ZERO_OK) {
        return false;
    }
    const bool read = zi_checkpoint_open(&file, path) == ZERO_OK &&
                      zi_regular_file_read(&file, 0, text, &bytes) == ZERO_OK;
    zi_regular_file_close(&file);
    return read && sscanf(text, "%200[^\n]\n%16" SCNx64 "\n", found->name, &found->hash) == 2 &&
           checkpoint_folder_is_name(found->name);
}

/* Whether a folder's manifest is the one that latest.part was written for. */
static bool has_hash(const char *folder, uint64_t hash)
{
    path_text path;
    zi_regular_file file = {.descriptor = -1};
    uint64_t found = 0;
    const bool same = zi_checkpoint_path(path, folder, ZI_MANIFEST_NAME) == ZERO_OK &&
                      zi_checkpoint_open(&file, path) == ZERO_OK &&
                      zi_checkpoint_hash_file(&file, file.bytes, &found) == ZERO_OK &&
                      found == hash;
    zi_regular_file_close(&file);
    return same;
}

/* The last one that a run can go on from; NULL: there is none. */
static zi_checkpoint_entry *last_full(zi_checkpoint_entry *entries, uint32_t count)
{
    while (count > 0 && entries[count - 1].head.weights) {
        count--;
    }
    return count > 0 ? &entries[count - 1] : NULL;
}

/* The one that was committed last in this directory is the newest, whatever was copied here since,
 * and also where commits were not counted. */
static void move_latest(const char *run, zi_checkpoint_entry *entries, uint32_t count)
{
    pointer latest;
    path_text folder;
    zi_checkpoint_entry *last = last_full(entries, count);
    if (!(read_pointer(run, LATEST PART, &latest) &&
          checkpoint_folder_path_of(folder, run, latest.name, "") == ZERO_OK &&
          has_hash(folder, latest.hash)) &&
        !read_pointer(run, LATEST, &latest)) {
        return;
    }
    for (zi_checkpoint_entry *at = entries; last != NULL && at < last; at++) {
        if (strcmp(at->name, latest.name) == 0 && !at->head.weights) {
            const zi_checkpoint_entry found = *at;
            memmove(at, at + 1, (size_t)(last - at) * sizeof *at);
            *last = found;
            return;
        }
    }
}

/* unread: out, as keep_reason has it. */
static zero_status list_entries(const char *run, zi_checkpoint_entry **entries, uint32_t *count,
                                unread_entry *unread)
{
    zero_status status = ZERO_OK;
    *unread = (unread_entry){.error = {0}};
    *entries = NULL;
    *count = 0;
    DIR *folder = opendir(run);
    if (folder == NULL) {
        FAIL_ERRNO("opening", run);
    }
    for (const struct dirent *next = readdir(folder); next != NULL && status == ZERO_OK;
         next = readdir(folder)) {
        zi_checkpoint_entry entry;
        const zero_status read = zi_checkpoint_look(run, next->d_name, &entry);
        if (read != ZERO_OK) {
            keep_reason(unread, read, next->d_name);
            continue;
        }
        status = checkpoint_folder_grow(entries, *count);
        if (status == ZERO_OK) {
            (*entries)[(*count)++] = entry;
        }
    }
    (void)closedir(folder);
    if (status != ZERO_OK) {
        zi_free(*entries);
        *entries = NULL;
        *count = 0;
        return status;
    }
    if (*count != 0) {
        remove_aliases(*entries, count);
        qsort(*entries, *count, sizeof **entries, compare_entries);
        move_latest(run, *entries, *count);
    }
    return ZERO_OK;
}

zero_status zi_checkpoint_list(const char *run, zi_checkpoint_entry **entries, uint32_t *count)
{
    unread_entry unread;
    return list_entries(run, entries, count, &unread);
}

/* ---- find ---- */

/* Whether a save died after its checkpoint became whole and before it renamed latest.part, which
 * names the checkpoint. */
static bool find_unnamed(const char *run, pointer *latest)
{
    path_text folder;
    zi_checkpoint_entry entry;
    return read_pointer(run, LATEST PART, latest) &&
           checkpoint_folder_path_of(folder, run, latest->name, "") == ZERO_OK &&
           has_hash(folder, latest->hash) &&
           zi_checkpoint_look(run, latest->name, &entry) == ZERO_OK;
}

/* Whether it can be told which one was committed last, and that is whole. passed: out, why it is
 * not. */
static bool find_latest(const char *run, pointer *latest, char passed[ZI_CHECKPOINT_PASSED_BYTES])
{
    zi_checkpoint_entry entry;
    passed[0] = '\0';
    if (find_unnamed(run, latest)) {
        return true;
    }
    if (!read_pointer(run, LATEST, latest)) {
        (void)snprintf(passed, ZI_CHECKPOINT_PASSED_BYTES, LATEST " names none");
        return false;
    }
    const zero_status status = zi_checkpoint_look(run, latest->name, &entry);
    if (status != ZERO_OK) {
        const char *why =
            status != ZERO_ERR_INVALID_ARGUMENT ? zero_last_error()->message : "no manifest";
        (void)snprintf(passed, ZI_CHECKPOINT_PASSED_BYTES,
                       "%.40s, the newest, is not whole: %.180s", latest->name, why);
    } else if (entry.head.weights) {
        (void)snprintf(passed, ZI_CHECKPOINT_PASSED_BYTES, "%s has weights alone", latest->name);
    }
    return passed[0] == '\0';
}

/* An older one serves where the newest is damaged, and not where the newest is of a later version
 * of the format: nothing is wrong with it. passed: why the one that was committed last is not
 * taken.
 */
static zero_status find_newest(const char *run, char folder[ZI_CHECKPOINT_PATH_BYTES],
                               char passed[ZI_CHECKPOINT_PASSED_BYTES])
{
    zi_checkpoint_entry *entries = NULL;
    uint32_t count = 0;
    unread_entry unread;
    pointer latest;
    const zero_status status = list_entries(run, &entries, &count, &unread);
    if (status != ZERO_OK && zero_last_error()->native != ENOENT &&
        zero_last_error()->native != ENOTDIR) {
        return status;
    }
    if (unread.error.status == ZERO_ERR_UNSUPPORTED ||
        (count == 0 && unread.error.status != ZERO_OK)) {
        zi_free(entries);
        return zi_error_adopt(&unread.error);
    }
    if (count == 0) {
        ZI_FAIL_NATIVE(
            ZERO_ERR_INVALID_ARGUMENT, ENOENT,
            "%s has no whole checkpoint; name a run's directory or a checkpoint's folder", run);
    }
    const zi_checkpoint_entry *full = last_full(entries, count);
    const zi_checkpoint_entry newest = full != NULL ? *full : entries[count - 1];
    zi_free(entries);
    zi_checkpoint_entry lost;
    const bool named = read_pointer(run, LATEST, &latest) && strcmp(latest.name, newest.name) != 0;
    const bool told = named && zi_checkpoint_look(run, latest.name, &lost) != ZERO_OK;
    if (full == NULL && !told && (unread.error.status != ZERO_OK || !named)) {
        memcpy(passed, unread.error.message, ZI_CHECKPOINT_PASSED_BYTES);
    }
    return checkpoint_folder_path_of(folder, run, newest.name, "");
}

zero_status zi_checkpoint_find(const char *run, const char *name,
                               char folder[ZI_CHECKPOINT_PATH_BYTES],
                               char passed[ZI_CHECKPOINT_PASSED_BYTES])
{
    char unwanted[ZI_CHECKPOINT_PASSED_BYTES];
    zi_manifest_head head;
    pointer latest;
    passed = passed != NULL ? passed : unwanted;
    passed[0] = '\0';
    if (name != NULL && strcmp(name, LATEST) != 0) {
        if (!checkpoint_folder_is_name(name)) {
            ZI_TRY(zi_checkpoint_check_name(name));
        }
        ZI_TRY(checkpoint_folder_path_of(folder, run, name, ""));
        ZI_TRY(check_link(folder, name));
        return zi_manifest_read_head(folder, true, &head);
    }
    ZI_TRY(zi_checkpoint_path(folder, run, ZI_MANIFEST_NAME));
    if (exists(folder)) {
        (void)snprintf(folder, ZI_CHECKPOINT_PATH_BYTES, "%s", run);
        return zi_manifest_read_head(folder, true, &head);
    }
    if (find_latest(run, &latest, passed)) {
        return checkpoint_folder_path_of(folder, run, latest.name, "");
    }
    return find_newest(run, folder, passed);
}

/* ---- begin ---- */

zero_status zi_checkpoint_make_run(const char *run)
{
    path_text parent;
    struct stat status;
    if (mkdir(run, 0777) == 0) {
        ZI_TRY(zi_checkpoint_path(parent, run, ".."));
        return sync_folder(parent);
    }
    if (errno != EEXIST) {
        FAIL_ERRNO("making the directory", run);
    }
    if (stat(run, &status) != 0 || !S_ISDIR(status.st_mode)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is no directory; name another for the run", run);
    }
    return ZERO_OK;
}

/* Rename such a latest.part to latest: the next commit writes latest.part anew. */
static zero_status name_unnamed(const char *run)
{
    path_text part;
    path_text latest;
    pointer unnamed;
    if (!find_unnamed(run, &unnamed)) {
        return ZERO_OK;
    }
    ZI_TRY(checkpoint_folder_path_of(part, run, LATEST, PART));
    ZI_TRY(checkpoint_folder_path_of(latest, run, LATEST, ""));
    ZI_TRY(rename_path(part, latest));
    return sync_folder(run);
}

zero_status zi_checkpoint_begin(const char *run, const char *name, bool replace,
                                char part[ZI_CHECKPOINT_PATH_BYTES])
{
    path_text path;
    ZI_TRY(zi_checkpoint_check_name(name));
    ZI_TRY(zi_checkpoint_make_run(run));
    ZI_TRY(name_unnamed(run));
    ZI_TRY(checkpoint_folder_path_of(path, run, name, ""));
    ZI_TRY(checkpoint_folder_path_of(part, run, name, PART));
    if (!replace && exists(path)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "%s is there already; give another name or remove it, or set "
                "zero_save_options.replace where a program saves",
                path);
    }
    ZI_TRY(remove_folder(part));
    if (mkdir(part, 0777) != 0) {
        FAIL_ERRNO("making the folder", part);
    }
    return ZERO_OK;
}

void zi_checkpoint_discard(const char *run, const char *name)
{
    path_text part;
    if (checkpoint_folder_path_of(part, run, name, PART) == ZERO_OK) {
        (void)remove_folder(part);
    }
}

zero_status zi_checkpoint_commits(const char *run, uint64_t *commits)
{
    path_text path;
    DIR *folder = opendir(run);
    *commits = 0;
    if (folder == NULL) {
        FAIL_ERRNO("opening", run);
    }
    for (const struct dirent *next = readdir(folder); next != NULL; next = readdir(folder)) {
        if (checkpoint_folder_is_name(next->d_name) &&
            checkpoint_folder_path_of(path, run, next->d_name, "") == ZERO_OK) {
            const uint64_t commit = zi_manifest_commit(path);
            *commits = commit > *commits && commit < INT64_MAX ? commit : *commits;
        }
    }
    (void)closedir(folder);
    return ZERO_OK;
}

/* ---- commit ---- */

/* Paths of one commit. */
typedef struct commit_paths {
    path_text part;
    path_text final;
    path_text replaced;
    path_text latest;
    path_text latest_part;
} commit_paths;

static zero_status make_paths(commit_paths *paths, const char *run, const char *name)
{
    ZI_TRY(zi_checkpoint_check_name(name));
    ZI_TRY(checkpoint_folder_path_of(paths->part, run, name, PART));
    ZI_TRY(checkpoint_folder_path_of(paths->final, run, name, ""));
    ZI_TRY(checkpoint_folder_path_of(paths->replaced, run, name, REPLACED));
    ZI_TRY(checkpoint_folder_path_of(paths->latest, run, LATEST, ""));
    return checkpoint_folder_path_of(paths->latest_part, run, LATEST, PART);
}

static zero_status write_manifest(const commit_paths *paths, const zi_checkpoint_text *text)
{
    path_text written;
    path_text final;
    ZI_TRY(checkpoint_folder_path_of(written, paths->part, ZI_MANIFEST_NAME, PART));
    ZI_TRY(checkpoint_folder_path_of(final, paths->part, ZI_MANIFEST_NAME, ""));
    ZI_TRY(zi_whole_file_write(written, text->manifest, text->bytes));
    ZI_TRY(rename_path(written, final));
    return sync_folder(paths->part);
}

static zero_status write_latest(const commit_paths *paths, const char *name, uint64_t hash)
{
    char text[NAME_MAX_BYTES + 32];
    const int bytes = snprintf(text, sizeof text, "%s\n%016" PRIx64 "\n", name, hash);
    return zi_whole_file_write(paths->latest_part, text, (size_t)bytes);
}

/* Where the old one is, afterwards: its path, or NULL where there was none.
 *
 * A file system that cannot exchange two names needs two renames. The old one is between them under
 * a name that is listed and found like any other, so that a crash there leaves one whole. */
static zero_status publish(const commit_paths *paths, const char **old)
{
    *old = NULL;
    if (!exists(paths->final)) {
        return rename_path(paths->part, paths->final);
    }
    if (zi_exchange_names(paths->part, paths->final) == 0) {
        *old = paths->part;
        return ZERO_OK;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
        FAIL_ERRNO("exchanging", paths->final);
    }
    ZI_TRY(remove_folder(paths->replaced));
    ZI_TRY(rename_path(paths->final, paths->replaced));
    const zero_status status = rename_path(paths->part, paths->final);
    if (status != ZERO_OK) {
        (void)rename(paths->replaced, paths->final);
        return status;
    }
    *old = paths->replaced;
    return ZERO_OK;
}

/* After a failure behind the moment: as it was before. */
static void checkpoint_folder_take_back(const commit_paths *paths, const char *old)
{
    if (old == paths->part) {
        (void)zi_exchange_names(paths->part, paths->final);
    } else {
        (void)rename(paths->final, paths->part);
    }
    if (old == paths->replaced) {
        (void)rename(paths->replaced, paths->final);
    }
}

/* From the manifest to the moment, and what has to be on the disk around it. old: as publish says.
 */
static zero_status checkpoint_folder_commit(const commit_paths *paths, const char *run,
                                            const char *name, const zi_checkpoint_text *text,
                                            const char **old)
{
    const uint64_t hash = zi_checkpoint_hash(text->manifest, text->bytes);
    ZI_TRY(write_manifest(paths, text));
    ZI_TRY(text->weights ? ZERO_OK : write_latest(paths, name, hash));
    ZI_TRY(publish(paths, old));
    zero_status status = sync_folder(run);
    if (status == ZERO_OK && !text->weights) {
        status = rename_path(paths->latest_part, paths->latest);
    }
    if (status != ZERO_OK) {
        checkpoint_folder_take_back(paths, *old);
    }
    return status;
}

zero_status zi_checkpoint_commit(const char *run, const char *name, const zi_checkpoint_text *text)
{
    commit_paths *paths = NULL;
    const char *old = NULL;
    ZI_TRY(zi_calloc(1, sizeof *paths, (void **)&paths));
    zero_status status = make_paths(paths, run, name);
    status = status == ZERO_OK ? checkpoint_folder_commit(paths, run, name, text, &old) : status;
    if (status == ZERO_OK) {
        /* What stays is removed by the next save of this name. */
        (void)(old != paths->part || remove_folder(paths->part) == ZERO_OK);
        (void)remove_folder(paths->replaced);
    } else if (!text->weights) {
        (void)unlink(paths->latest_part);
    }
    zi_free(paths);
    return status;
}

/* ---- prune ---- */

/* A folder gets another name before it is emptied. So nobody sees it in part, and a save that is
 * still writing there fails instead of ending without some of its files. */
static zero_status remove_named(const char *run, const char *name)
{
    path_text path;
    path_text removed;
    ZI_TRY(zi_checkpoint_path(path, run, name));
    ZI_TRY(checkpoint_folder_path_of(removed, run, name, REMOVED));
    ZI_TRY(remove_folder(removed));
    ZI_TRY(rename_path(path, removed));
    return remove_folder(removed);
}

/* Remove a folder, unless it is only to be told. */
static zero_status prune_named(const char *run, const char *name, zi_checkpoint_pruned *pruned)
{
    if (!pruned->planned) {
        ZI_TRY(remove_named(run, name));
    }
    if (pruned->tell != NULL) {
        pruned->tell(pruned->user, name);
    }
    return ZERO_OK;
}

/* Whether a folder is what a dead save left: it is older than the newest, and whoever saves here
 * owns the directory and has no save under way. */
static bool is_left(const char *run, const char *name, const zi_checkpoint_entry *newest)
{
    path_text path;
    struct stat status;
    uint64_t step = 0;
    char end[8] = "";
    return sscanf(name, "step-%20" SCNu64 "%7s", &step, end) == 2 && strcmp(end, PART) == 0 &&
           zi_checkpoint_path(path, run, name) == ZERO_OK && lstat(path, &status) == 0 &&
           (uint64_t)status.st_mtim.tv_sec < newest->seconds;
}

static zero_status prune_left(const char *run, const zi_checkpoint_entry *newest,
                              zi_checkpoint_pruned *pruned)
{
    zero_status status = ZERO_OK;
    path_text path;
    DIR *folder = opendir(run);
    if (folder == NULL) {
        FAIL_ERRNO("opening", run);
    }
    for (const struct dirent *next = readdir(folder); next != NULL && status == ZERO_OK;
         next = readdir(folder)) {
        if (ends_with(next->d_name, REMOVED) && !pruned->planned) { /* a prune died */
            status = zi_checkpoint_path(path, run, next->d_name);
            status = status == ZERO_OK ? remove_folder(path) : status;
        } else if (is_left(run, next->d_name, newest)) {
            status = prune_named(run, next->d_name, pruned);
        }
    }
    (void)closedir(folder);
    return status;
}

zero_status zi_checkpoint_prune(const char *run, bool weights, uint32_t keep,
                                zi_checkpoint_pruned *pruned)
{
    zi_checkpoint_entry *entries = NULL;
    uint32_t count = 0;
    uint32_t of_kind = 0;
    zi_checkpoint_pruned untold = {.planned = false};
    if (keep == 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "keep is 0; at least 1 checkpoint of %s stays", run);
    }
    pruned = pruned != NULL ? pruned : &untold;
    pruned->removed = 0;
    ZI_TRY(zi_checkpoint_list(run, &entries, &count));
    for (uint32_t i = 0; i < count; i++) {
        of_kind += entries[i].head.weights == weights;
    }
    zero_status status = ZERO_OK;
    for (uint32_t i = 0; i < count && of_kind - pruned->removed > keep && status == ZERO_OK; i++) {
        if (entries[i].head.weights == weights) {
            status = prune_named(run, entries[i].name, pruned);
            pruned->removed += status == ZERO_OK;
        }
    }
    if (status == ZERO_OK && count != 0) {
        status = prune_left(run, &entries[count - 1], pruned);
    }
    zi_free(entries);
    return status;
}
