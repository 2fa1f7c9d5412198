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
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/run_folder.h"
#include "core/error.h"
#include "core/memory.h"
#include "format/whole_file.h"

/* ---- begin ---- */

zero_status zi_checkpoint_make_run(const char *run)
{
    run_path parent;
    struct stat status;
    if (mkdir(run, 0777) == 0) {
        ZI_TRY(zi_checkpoint_path(parent, run, ".."));
        return zi_run_sync(parent);
    }
    if (errno != EEXIST) {
        RUN_FAIL_ERRNO("making the directory", run);
    }
    if (stat(run, &status) != 0 || !S_ISDIR(status.st_mode)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "%s is no directory; name another for the run", run);
    }
    return ZERO_OK;
}

/* Rename such a latest.part to latest: the next commit writes latest.part anew. */
static zero_status name_unnamed(const char *run)
{
    run_path part;
    run_path latest;
    run_pointer unnamed;
    if (!zi_checkpoint_unnamed(run, &unnamed)) {
        return ZERO_OK;
    }
    ZI_TRY(zi_run_path(part, run, RUN_LATEST, RUN_PART));
    ZI_TRY(zi_run_path(latest, run, RUN_LATEST, ""));
    ZI_TRY(zi_run_rename(part, latest));
    return zi_run_sync(run);
}

zero_status zi_checkpoint_begin(const char *run, const char *name, bool replace,
                                char part[ZI_CHECKPOINT_PATH_BYTES])
{
    run_path path;
    ZI_TRY(zi_checkpoint_check_name(name));
    ZI_TRY(zi_checkpoint_make_run(run));
    ZI_TRY(name_unnamed(run));
    ZI_TRY(zi_run_path(path, run, name, ""));
    ZI_TRY(zi_run_path(part, run, name, RUN_PART));
    if (!replace && zi_run_exists(path)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "%s is there already; give another name or remove it, or set "
                "zero_save_options.replace where a program saves",
                path);
    }
    ZI_TRY(zi_run_remove(part));
    if (mkdir(part, 0777) != 0) {
        RUN_FAIL_ERRNO("making the folder", part);
    }
    return ZERO_OK;
}

void zi_checkpoint_discard(const char *run, const char *name)
{
    run_path part;
    if (zi_run_path(part, run, name, RUN_PART) == ZERO_OK) {
        (void)zi_run_remove(part);
    }
}

/* ---- commit ---- */

/* Paths of one commit. */
typedef struct commit_paths {
    run_path part;
    run_path final;
    run_path replaced;
    run_path latest;
    run_path latest_part;
} commit_paths;

static zero_status make_paths(commit_paths *paths, const char *run, const char *name)
{
    ZI_TRY(zi_checkpoint_check_name(name));
    ZI_TRY(zi_run_path(paths->part, run, name, RUN_PART));
    ZI_TRY(zi_run_path(paths->final, run, name, ""));
    ZI_TRY(zi_run_path(paths->replaced, run, name, RUN_REPLACED));
    ZI_TRY(zi_run_path(paths->latest, run, RUN_LATEST, ""));
    return zi_run_path(paths->latest_part, run, RUN_LATEST, RUN_PART);
}

static zero_status write_manifest(const commit_paths *paths, const zi_checkpoint_text *text)
{
    run_path written;
    run_path final;
    ZI_TRY(zi_run_path(written, paths->part, ZI_MANIFEST_NAME, RUN_PART));
    ZI_TRY(zi_run_path(final, paths->part, ZI_MANIFEST_NAME, ""));
    ZI_TRY(zi_whole_file_write(written, text->manifest, text->bytes));
    ZI_TRY(zi_run_rename(written, final));
    return zi_run_sync(paths->part);
}

static zero_status write_latest(const commit_paths *paths, const char *name, uint64_t hash)
{
    char text[RUN_NAME_BYTES + 32];
    const int bytes = snprintf(text, sizeof text, "%s\n%016" PRIx64 "\n", name, hash);
    return zi_whole_file_write(paths->latest_part, text, (size_t)bytes);
}

/* Give a checkpoint its name. *old: the path of the old one afterwards, or NULL where there was
 * none.
 *
 * A file system that cannot exchange two names needs two renames. The old one is between them under
 * a name that is listed and found like any other, so that a crash there leaves one whole. */
static zero_status publish(const commit_paths *paths, const char **old)
{
    *old = NULL;
    if (!zi_run_exists(paths->final)) {
        return zi_run_rename(paths->part, paths->final);
    }
    if (zi_exchange_names(paths->part, paths->final) == 0) {
        *old = paths->part;
        return ZERO_OK;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) {
        RUN_FAIL_ERRNO("exchanging", paths->final);
    }
    ZI_TRY(zi_run_remove(paths->replaced));
    ZI_TRY(zi_run_rename(paths->final, paths->replaced));
    const zero_status status = zi_run_rename(paths->part, paths->final);
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
    zero_status status = zi_run_sync(run);
    if (status == ZERO_OK && !text->weights) {
        status = zi_run_rename(paths->latest_part, paths->latest);
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
        /* Files that stay are removed by the next save of this name. */
        (void)(old != paths->part || zi_run_remove(paths->part) == ZERO_OK);
        (void)zi_run_remove(paths->replaced);
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
    run_path path;
    run_path removed;
    ZI_TRY(zi_checkpoint_path(path, run, name));
    ZI_TRY(zi_run_path(removed, run, name, RUN_REMOVED));
    ZI_TRY(zi_run_remove(removed));
    ZI_TRY(zi_run_rename(path, removed));
    return zi_run_remove(removed);
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

/* True if a folder is what a dead save left: it is older than the newest, and whoever saves here
 * owns the directory and has no save under way. */
static bool is_left(const char *run, const char *name, const zi_checkpoint_entry *newest)
{
    run_path path;
    struct stat status;
    uint64_t step = 0;
    char end[8] = "";
    return sscanf(name, "step-%20" SCNu64 "%7s", &step, end) == 2 && strcmp(end, RUN_PART) == 0 &&
           zi_checkpoint_path(path, run, name) == ZERO_OK && lstat(path, &status) == 0 &&
           (uint64_t)status.st_mtim.tv_sec < newest->seconds;
}

static zero_status prune_left(const char *run, const zi_checkpoint_entry *newest,
                              zi_checkpoint_pruned *pruned)
{
    zero_status status = ZERO_OK;
    run_path path;
    DIR *folder = opendir(run);
    if (folder == NULL) {
        RUN_FAIL_ERRNO("opening", run);
    }
    for (const struct dirent *next = readdir(folder); next != NULL && status == ZERO_OK;
         next = readdir(folder)) {
        if (zi_run_name_ends(next->d_name, RUN_REMOVED) && !pruned->planned) { /* a prune died */
            status = zi_checkpoint_path(path, run, next->d_name);
            status = status == ZERO_OK ? zi_run_remove(path) : status;
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
