/* One file of a store: without a name, its bytes reserved, opened with O_DIRECT where the file
 * system has it. */
#ifndef ZI_STORAGE_STORE_FILE_H
#define ZI_STORAGE_STORE_FILE_H

#include "storage/storage.h"
#include "storage/store_lock.h"

/* Open and reserve info->file_bytes in the open `directory`, whose lock is held, and fill the rest
 * of *info, whose path is set. */
zero_status zi_store_file_open(int directory, const zi_store_options *options,
                               const zi_store_owner *owner, zi_store_directory *info, int *fd);

/* Decide if a file system that needs these alignments is used with O_DIRECT. 0 and 0: it has none.
 * - Errors: UNSUPPORTED when it needs more than ZI_STORAGE_ALIGN. */
zero_status zi_store_direct_rule(uint32_t memory_align, uint32_t offset_align, const char *path,
                                 bool *direct);

#endif
