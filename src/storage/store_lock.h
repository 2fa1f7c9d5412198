/* The file that says whose a directory is, for one rank. */
#ifndef ZI_STORAGE_STORE_LOCK_H
#define ZI_STORAGE_STORE_LOCK_H

#include <stdint.h>

#include "zero/status.h"

/* Lock `directory`, an open descriptor of `path`, for a rank of the calling process; *lock is open
 * until zi_store_unlock. A file whose owner is gone is taken over. STATE when it lives. */
zero_status zi_store_lock(int directory, const char *path, uint32_t rank, int *lock);

/* Removes the lock file. */
void zi_store_unlock(int directory, uint32_t rank, int lock);

#endif
