/* Folders of checkpoints in a run's directory, and how a whole one comes to be.
 *
 *     RUN/step-00000042        a whole checkpoint
 *     RUN/step-00000050.part   one that is being written, or was when its writer died: never read
 *     RUN/latest               the name of the newest, replaced by rename
 *
 * A save writes into NAME.part. The last thing it does there is to rename the manifest to its name,
 * once every file is on the disk. Then NAME.part becomes NAME by rename; where there was a NAME
 * already the two are exchanged, and the old one is removed. Folders and the directory are synced
 * in between, so at any moment one of both is whole. docs/checkpoint-format.md has every step. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_FOLDER_H
#define ZI_CHECKPOINT_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/manifest.h"
#include "zero/status.h"

/* "step-00000042". A name that a caller gives is at most 200 bytes of letters, digits, '-', '_' and
 * '.', does not begin with '.', does not end in ".part" or ".replaced", and is not "latest":
 * INVALID_ARGUMENT. */
void zi_checkpoint_step_name(char *name, size_t bytes, uint64_t step);
zero_status zi_checkpoint_check_name(const char *name);

/* Make RUN, whose parent exists. Errors: IO; INVALID_ARGUMENT where it is no directory. */
zero_status zi_checkpoint_make_run(const char *run);

/* Whoever calls what follows owns RUN (checkpoint/run_owner.h), but for those that only read. */

/* Make RUN, as above, and an empty NAME.part in it; what a dead save left there is
 * removed. Where it died before it renamed latest.part, that is renamed now. One rank calls. part:
 * out, its path. Errors: IO with the path; STATE where NAME is there and replace is false. */
zero_status zi_checkpoint_begin(const char *run, const char *name, bool replace,
                                char part[ZI_CHECKPOINT_PATH_BYTES]);
/* The highest number of a commit in RUN: the next one has one more. Errors: IO. */
zero_status zi_checkpoint_commits(const char *run, uint64_t *commits);

/* The text of a manifest, and the kind of its checkpoint. */
typedef struct zi_checkpoint_text {
    const char *manifest;
    size_t bytes;
    bool weights; /* no run goes on from it, and RUN/latest names another */
} zi_checkpoint_text;

/* All files of NAME.part are written and synced: write the manifest, and make the folder NAME and,
 * if it is not of weights alone, the newest. One rank calls. After an error NAME is as it was.
 * Errors: IO. */
zero_status zi_checkpoint_commit(const char *run, const char *name, const zi_checkpoint_text *text);
/* Remove NAME.part. Failures are ignored: the next save of that name tries again. */
void zi_checkpoint_discard(const char *run, const char *name);

/* A whole checkpoint in a run's directory, or a link to one. */
typedef struct zi_checkpoint_entry {
    char name[256];
    zi_manifest_head head;
    uint64_t seconds; /* since 1970: when it was committed */
    bool linked;
    uint64_t device; /* of the folder, with the next: two links may lead to one */
    uint64_t inode;
} zi_checkpoint_entry;

/* Check that RUN/NAME is a whole checkpoint: its manifest is as it was written, and the files that
 * it names are there. Errors: those of zi_manifest_read_head; CORRUPT for a link to nothing that
 * has the name of a step. INVALID_ARGUMENT: it is none. */
zero_status zi_checkpoint_look(const char *run, const char *name, zi_checkpoint_entry *entry);
/* The whole checkpoints of a directory in the order in which they were committed, the newest last.
 * A link to another one of them is not among them. *entries: zi_free gives it back. Errors: IO. */
zero_status zi_checkpoint_list(const char *run, zi_checkpoint_entry **entries, uint32_t *count);
/* The folder of the checkpoint `name`; NULL or "latest": the one that RUN/latest names, or, where
 * that is not whole, the newest whole one that a run can go on from; where there is none, the
 * newest of weights alone. passed: out, NULL or why the one that was committed last is not taken;
 * "" if it is. `run` may itself be a checkpoint, and name NULL. Errors: INVALID_ARGUMENT naming the
 * directory where there is none; what a manifest says where there are some and none can be read;
 * UNSUPPORTED where one of a later version may be the newest. */
#define ZI_CHECKPOINT_PASSED_BYTES 256
zero_status zi_checkpoint_find(const char *run, const char *name,
                               char folder[ZI_CHECKPOINT_PATH_BYTES],
                               char passed[ZI_CHECKPOINT_PASSED_BYTES]);
/* The options of a prune, and the checkpoints that it removes. */
typedef struct zi_checkpoint_pruned {
    bool planned;                               /* in: nothing is removed, only told */
    void (*tell)(void *user, const char *name); /* in: NULL, or called with each folder's name */
    void *user;                                 /* in: for that */
    uint32_t removed;                           /* out: whole checkpoints */
} zi_checkpoint_pruned;

/* Remove the oldest whole checkpoints of a kind, of weights alone or of all the state, but `keep`,
 * at least 1. The other kind does not count. What dead saves and prunes left is removed too. Of a
 * link the link is removed. pruned: may be NULL. Errors: IO. */
zero_status zi_checkpoint_prune(const char *run, bool weights, uint32_t keep,
                                zi_checkpoint_pruned *pruned);

#endif
