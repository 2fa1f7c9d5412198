/* Names in a run's directory, and the file system's calls on them, as src/checkpoint uses them:
 * checkpoint_list.c finds whole checkpoints, checkpoint_folder.c makes and removes them. */
#ifndef ZI_CHECKPOINT_RUN_FOLDER_H
#define ZI_CHECKPOINT_RUN_FOLDER_H

#include <errno.h>

#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"

#define RUN_PART ".part"
#define RUN_REPLACED ".replaced"
#define RUN_REMOVED ".removed.part"
#define RUN_LATEST "latest"
#define RUN_NAME_BYTES 200

typedef char run_path[ZI_CHECKPOINT_PATH_BYTES];

bool zi_run_name_ends(const char *name, const char *end);
/* True if a whole checkpoint may have the name. */
bool zi_run_is_name(const char *name);
/* RUN/NAME with an end. Errors: INVALID_ARGUMENT: it is too long. */
zero_status zi_run_path(run_path path, const char *run, const char *name, const char *end);

#define RUN_FAIL_ERRNO(...) return zi_run_fail(errno, __FILE__, __LINE__, __VA_ARGS__)

/* IO: what was done to the path, and the system's reason. */
zero_status zi_run_fail(int native, const char *file, int line, const char *doing,
                        const char *path);

bool zi_run_exists(const char *path);
/* File systems that cannot sync a folder say EINVAL; there is nothing else to do for them. Errors:
 * IO, as of the next two. */
zero_status zi_run_sync(const char *path);
zero_status zi_run_rename(const char *from, const char *to);
/* A folder, if it is there, and what is in it, which are no folders. What else has its name is
 * removed too; a link is not followed. */
zero_status zi_run_remove(const char *path);

/* The content of latest or latest.part. */
typedef struct run_pointer {
    char name[RUN_NAME_BYTES + 1];
    uint64_t hash;
} run_pointer;

/* false: there is no such file, or it says something else. */
bool zi_run_pointer(const char *run, const char *file_name, run_pointer *found);
/* True if a folder's manifest is the one that latest.part was written for. */
bool zi_run_has_hash(const char *folder, uint64_t hash);
/* True if a save died after its checkpoint became whole and before it renamed latest.part, which
 * names the checkpoint. (checkpoint_list.c) */
bool zi_checkpoint_unnamed(const char *run, run_pointer *latest);

#endif
