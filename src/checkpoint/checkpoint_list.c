/* Owns which checkpoints of a run's directory are whole, and which of them is the newest. Nothing
 * is written here. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/run_folder.h"
#include "core/memory.h"

_Static_assert(sizeof((zero_error *)NULL)->message == ZI_CHECKPOINT_PASSED_BYTES,
               "a message says why one is passed over");

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
    run_path folder;
    run_path manifest;
    struct stat link;
    struct stat status;
    *entry = (zi_checkpoint_entry){0};
    if (!zi_run_is_name(name) || zi_run_path(folder, run, name, "") != ZERO_OK ||
        lstat(folder, &link) != 0) {
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
        RUN_FAIL_ERRNO("reading", manifest);
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

/* In the order of commits; a copy from elsewhere may have the number of another. */
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
static zero_status checkpoint_list_grow(zi_checkpoint_entry **entries, uint32_t count)
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

/* The last one that a run can go on from; NULL: there is none. */
static zi_checkpoint_entry *last_full(zi_checkpoint_entry *entries, uint32_t count)
{
    while (count > 0 && entries[count - 1].head.weights) {
        count--;
    }
    return count > 0 ? &entries[count - 1] : NULL;
}

/* The one that was committed last in this directory is the newest, whatever was copied here
 * since. */
static void move_latest(const char *run, zi_checkpoint_entry *entries, uint32_t count)
{
    run_pointer latest;
    run_path folder;
    zi_checkpoint_entry *last = last_full(entries, count);
    if (!(zi_run_pointer(run, RUN_LATEST RUN_PART, &latest) &&
          zi_run_path(folder, run, latest.name, "") == ZERO_OK &&
          zi_run_has_hash(folder, latest.hash)) &&
        !zi_run_pointer(run, RUN_LATEST, &latest)) {
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
        RUN_FAIL_ERRNO("opening", run);
    }
    for (const struct dirent *next = readdir(folder); next != NULL && status == ZERO_OK;
         next = readdir(folder)) {
        zi_checkpoint_entry entry;
        const zero_status read = zi_checkpoint_look(run, next->d_name, &entry);
        if (read != ZERO_OK) {
            keep_reason(unread, read, next->d_name);
            continue;
        }
        status = checkpoint_list_grow(entries, *count);
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

bool zi_checkpoint_unnamed(const char *run, run_pointer *latest)
{
    run_path folder;
    zi_checkpoint_entry entry;
    return zi_run_pointer(run, RUN_LATEST RUN_PART, latest) &&
           zi_run_path(folder, run, latest->name, "") == ZERO_OK &&
           zi_run_has_hash(folder, latest->hash) &&
           zi_checkpoint_look(run, latest->name, &entry) == ZERO_OK;
}

/* True if it can be told which one was committed last, and that is whole. passed: out, why it is
 * not. */
static bool find_latest(const char *run, run_pointer *latest,
                        char passed[ZI_CHECKPOINT_PASSED_BYTES])
{
    zi_checkpoint_entry entry;
    passed[0] = '\0';
    if (zi_checkpoint_unnamed(run, latest)) {
        return true;
    }
    if (!zi_run_pointer(run, RUN_LATEST, latest)) {
        (void)snprintf(passed, ZI_CHECKPOINT_PASSED_BYTES, RUN_LATEST " names none");
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
    run_pointer latest;
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
    const bool named =
        zi_run_pointer(run, RUN_LATEST, &latest) && strcmp(latest.name, newest.name) != 0;
    const bool told = named && zi_checkpoint_look(run, latest.name, &lost) != ZERO_OK;
    if (full == NULL && !told && (unread.error.status != ZERO_OK || !named)) {
        memcpy(passed, unread.error.message, ZI_CHECKPOINT_PASSED_BYTES);
    }
    return zi_run_path(folder, run, newest.name, "");
}

zero_status zi_checkpoint_find(const char *run, const char *name,
                               char folder[ZI_CHECKPOINT_PATH_BYTES],
                               char passed[ZI_CHECKPOINT_PASSED_BYTES])
{
    char unwanted[ZI_CHECKPOINT_PASSED_BYTES];
    zi_manifest_head head;
    run_pointer latest;
    passed = passed != NULL ? passed : unwanted;
    passed[0] = '\0';
    if (name != NULL && strcmp(name, RUN_LATEST) != 0) {
        if (!zi_run_is_name(name)) {
            ZI_TRY(zi_checkpoint_check_name(name));
        }
        ZI_TRY(zi_run_path(folder, run, name, ""));
        ZI_TRY(check_link(folder, name));
        return zi_manifest_read_head(folder, true, &head);
    }
    ZI_TRY(zi_checkpoint_path(folder, run, ZI_MANIFEST_NAME));
    if (zi_run_exists(folder)) {
        (void)snprintf(folder, ZI_CHECKPOINT_PATH_BYTES, "%s", run);
        return zi_manifest_read_head(folder, true, &head);
    }
    if (find_latest(run, &latest, passed)) {
        return zi_run_path(folder, run, latest.name, "");
    }
    return find_newest(run, folder, passed);
}

zero_status zi_checkpoint_commits(const char *run, uint64_t *commits)
{
    run_path path;
    DIR *folder = opendir(run);
    *commits = 0;
    if (folder == NULL) {
        RUN_FAIL_ERRNO("opening", run);
    }
    for (const struct dirent *next = readdir(folder); next != NULL; next = readdir(folder)) {
        if (zi_run_is_name(next->d_name) && zi_run_path(path, run, next->d_name, "") == ZERO_OK) {
            const uint64_t commit = zi_manifest_commit(path);
            *commits = commit > *commits && commit < INT64_MAX ? commit : *commits;
        }
    }
    (void)closedir(folder);
    return ZERO_OK;
}
