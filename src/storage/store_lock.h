/* The lock file that names the owner of a directory, for one rank. */
#ifndef ZI_STORAGE_STORE_LOCK_H
#define ZI_STORAGE_STORE_LOCK_H

#include <stdint.h>

#include "zero/status.h"

/* Who owns a lock. */
typedef struct zi_store_owner {
    uint32_t rank;
    const char *use; /* see zi_store_options; never NULL, at most 8 characters */
} zi_store_owner;

/* Bytes of the name of a file that an owner has in a directory: "zero-rank-3use.lock". */
#define ZI_STORE_NAME_BYTES 40

/* Lock a directory for a rank of the calling process. A lock file whose owner is gone is taken
 * over.
 * - directory: an open descriptor of `path`.
 * - lock: out; a descriptor, open until zi_store_unlock.
 * - Errors: STATE when the owner lives, and where something else has the file's name: a link,
 *   another user's file, no regular file. */
zero_status zi_store_lock(int directory, const char *path, const zi_store_owner *owner, int *lock);

/* Removes the lock file. */
void zi_store_unlock(int directory, const zi_store_owner *owner, int lock);

#endif
