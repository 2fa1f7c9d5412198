/* The file that says whose a directory is, for one rank. */
#ifndef ZI_STORAGE_STORE_LOCK_H
#define ZI_STORAGE_STORE_LOCK_H

#include <stdint.h>

#include "zero/status.h"

/* Whose a lock is. */
typedef struct zi_store_owner {
    uint32_t rank;
    const char *use; /* see zi_store_options; never NULL, at most 8 characters */
} zi_store_owner;

/* Room for the name of a file that an owner has in a directory: "zero-rank-3use.lock". */
#define ZI_STORE_NAME_BYTES 40

/* Lock `directory`, an open descriptor of `path`, for a rank of the calling process; *lock is open
 * until zi_store_unlock. A file whose owner is gone is taken over. STATE when it lives, and where
 * something else has the file's name: a link, another user's file, no regular file. */
zero_status zi_store_lock(int directory, const char *path, const zi_store_owner *owner, int *lock);

/* Removes the lock file. */
void zi_store_unlock(int directory, const zi_store_owner *owner, int lock);

#endif
