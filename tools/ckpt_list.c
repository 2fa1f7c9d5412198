/* Owns `zero ckpt ls` and `zero ckpt prune`: what there is in a run's directory. */
#include "ckpt.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checkpoint/run_owner.h"
#include "core/memory.h"

enum { WHY_BYTES = 1024 };

/* A folder in the directory that is no whole checkpoint. */
typedef struct torn_folder {
    char name[256];
    char why[WHY_BYTES];
} torn_folder;

typedef struct run_content {
    zi_checkpoint_entry *whole; /* oldest first */
    uint32_t whole_count;
    torn_folder *torn; /* by name */
    uint32_t torn_count;
    char latest[256]; /* the checkpoint that is loaded where none is named; empty: none */
} run_content;

/* ---- what there is ---- */

/* Or a link, which may lead to one. */
static bool is_folder(const char *run, const char *name)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    struct stat kind;
    return zi_checkpoint_path(path, run, name) == ZERO_OK && lstat(path, &kind) == 0 &&
           (S_ISDIR(kind.st_mode) || S_ISLNK(kind.st_mode));
}

static bool is_whole(const run_content *content, const char *name)
{
    for (uint32_t i = 0; i < content->whole_count; i++) {
        if (strcmp(content->whole[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* True if the folder was to be a checkpoint and is none; why: out. */
static bool is_torn(const char *run, const char *name, char why[WHY_BYTES])
{
    static const char part[] = ".part";
    char path[ZI_CHECKPOINT_PATH_BYTES];
    char manifest_path[ZI_CHECKPOINT_PATH_BYTES];
    zi_checkpoint_entry entry;
    zi_manifest manifest;
    struct stat kind;
    const size_t length = strlen(name);
    if (length >= sizeof part && strcmp(name + length - strlen(part), part) == 0) {
        (void)snprintf(why, WHY_BYTES, "its save did not end");
        return true;
    }
    const zero_status looked = zi_checkpoint_look(run, name, &entry);
    (void)snprintf(why, WHY_BYTES, "%s", zero_last_error()->message);
    if (zi_checkpoint_path(path, run, name) != ZERO_OK ||
        zi_checkpoint_path(manifest_path, path, ZI_MANIFEST_NAME) != ZERO_OK ||
        lstat(manifest_path, &kind) != 0) {
        return looked != ZERO_OK && looked != ZERO_ERR_INVALID_ARGUMENT; /* a link to nothing */
    }
    if (looked != ZERO_OK) {
        return true;
    }
    const bool torn = zi_manifest_read(&manifest, path) != ZERO_OK;
    (void)snprintf(why, WHY_BYTES, "%s", zero_last_error()->message);
    zi_manifest_free(&manifest);
    return torn;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const torn_folder *)left)->name, ((const torn_folder *)right)->name);
}

static int add_torn(run_content *content, const torn_folder *torn)
{
    torn_folder *more = realloc(content->torn, (content->torn_count + 1) * sizeof *content->torn);
    if (more == NULL) {
        return bench_fail("no memory for the names of %" PRIu32 " folders", content->torn_count);
    }
    content->torn = more;
    more[content->torn_count++] = *torn;
    return 0;
}

static int read_torn(const char *run, run_content *content)
{
    const struct dirent *entry;
    torn_folder torn;
    int failed = 0;
    DIR *folder = opendir(run);
    if (folder == NULL) {
        return bench_fail("%s cannot be read: %s", run, strerror(errno));
    }
    while (failed == 0 && (entry = readdir(folder)) != NULL) {
        (void)snprintf(torn.name, sizeof torn.name, "%s", entry->d_name);
        if (entry->d_name[0] != '.' && is_folder(run, torn.name) && !is_whole(content, torn.name) &&
            is_torn(run, torn.name, torn.why)) {
            failed = add_torn(content, &torn);
        }
    }
    (void)closedir(folder);
    if (content->torn_count > 0) {
        qsort(content->torn, content->torn_count, sizeof *content->torn, by_name);
    }
    return failed;
}

static void free_content(run_content *content)
{
    zi_free(content->whole);
    free(content->torn);
}

/* To be freed, whatever it returns. */
static int read_content(const char *run, run_content *content)
{
    char folder[ZI_CHECKPOINT_PATH_BYTES];
    *content = (run_content){0};
    if (CKPT_TRY(zi_checkpoint_list(run, &content->whole, &content->whole_count)) != 0) {
        return 1;
    }
    if (content->whole_count > 0 && zi_checkpoint_find(run, NULL, folder, NULL) == ZERO_OK) {
        (void)snprintf(content->latest, sizeof content->latest, "%s", strrchr(folder, '/') + 1);
    }
    return read_torn(run, content);
}

/* ---- ls ---- */

/* Read what its manifest says; false after a line on stderr: it went, or was damaged, meanwhile. */
static bool read_size(const char *run, const char *name, uint64_t *bytes, uint32_t *world)
{
    char path[ZI_CHECKPOINT_PATH_BYTES];
    zi_manifest manifest = {0};
    const bool read = zi_checkpoint_path(path, run, name) == ZERO_OK &&
                      zi_manifest_read(&manifest, path) == ZERO_OK;
    if (read) {
        *bytes = ckpt_bytes(&manifest.map, &manifest);
        *world = ckpt_ranks(&manifest);
    } else {
        (void)ckpt_fail();
    }
    zi_manifest_free(&manifest); /* also of one that was read in part */
    return read;
}

static json_t *whole_json(const ckpt_line *line, const run_content *content, json_int_t *unread)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < content->whole_count; i++) {
        const zi_checkpoint_entry *entry = &content->whole[i];
        uint64_t bytes = 0;
        uint32_t world = 0;
        if (!read_size(line->words[0], entry->name, &bytes, &world)) {
            ++*unread;
            continue;
        }
        (void)json_array_append_new(rows,
                                    json_pack("{s:s, s:I, s:s, s:I, s:I, s:I, s:b}", "name",
                                              entry->name, "step", (json_int_t)entry->head.step,
                                              "kind", entry->head.weights ? "weights" : "full",
                                              "seconds", (json_int_t)entry->seconds, "bytes",
                                              (json_int_t)bytes, "world", (json_int_t)world,
                                              "latest", strcmp(entry->name, content->latest) == 0));
    }
    return rows;
}

static json_t *torn_json(const run_content *content)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < content->torn_count; i++) {
        (void)json_array_append_new(
            rows, json_pack("{s:o, s:o}", "name", json_string_nocheck(content->torn[i].name), "why",
                            json_string_nocheck(content->torn[i].why)));
    }
    return rows;
}

int ckpt_list(const ckpt_line *line)
{
    run_content content;
    json_int_t unread = 0;
    int failed = read_content(line->words[0], &content);
    if (failed == 0) {
        json_t *whole = whole_json(line, &content, &unread);
        failed = ckpt_report(line, "ckpt_list",
                             json_pack("{s:o, s:o, s:o, s:I}", "run",
                                       json_string_nocheck(line->words[0]), "checkpoints", whole,
                                       "torn", torn_json(&content), "unread", unread));
    }
    free_content(&content);
    return failed || unread != 0;
}

/* ---- prune ---- */

typedef struct prune_told {
    const char *verb;
    uint32_t count;
} prune_told;

static void tell(void *user, const char *name)
{
    prune_told *told = user;
    printf("%s %s\n", told->verb, name);
    told->count++;
}

/* So many of each kind. Nobody else may save there meanwhile; to be told of it changes nothing. */
static int prune_owned(const ckpt_line *line, zi_checkpoint_pruned *pruned)
{
    zi_run_owner *owner = NULL;
    const char *run = line->words[0];
    if (!line->dry_run && CKPT_TRY(zi_run_owner_take(run, &owner)) != 0) {
        return 1;
    }
    const uint32_t keep = (uint32_t)line->keep;
    const int failed = CKPT_TRY(zi_checkpoint_prune(run, false, keep, pruned)) ||
                       CKPT_TRY(zi_checkpoint_prune(run, true, keep, pruned));
    zi_run_owner_release(owner);
    return failed;
}

int ckpt_prune(const ckpt_line *line)
{
    prune_told told = {.verb = line->dry_run ? "would remove" : "removed"};
    zi_checkpoint_pruned pruned = {.planned = line->dry_run, .tell = tell, .user = &told};
    if (line->keep == 0) {
        return bench_fail("how many stay? --keep N");
    }
    const int failed = prune_owned(line, &pruned);
    if (told.count == 0 && failed == 0) {
        printf("nothing to remove\n");
    }
    return ckpt_flush() || failed;
}
