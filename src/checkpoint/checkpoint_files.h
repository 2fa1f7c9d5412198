/* The files of a checkpoint that is being saved: one rank makes them, and looks at the sums that
 * all ranks have written. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_FILES_H
#define ZI_CHECKPOINT_CHECKPOINT_FILES_H

#include "checkpoint/checkpoint_map.h"
#include "zero/status.h"

/* Make the files in their folder, with their headers and all of their size reserved: so a full disk
 * is known before anything is copied. header_hash: out, by file: XXH3 of the first data_at bytes.
 * Errors: IO with the path; OUT_OF_MEMORY. */
zero_status zi_checkpoint_files_make(const char *folder, const zi_checkpoint_map *map,
                                     uint64_t *header_hash);
/* Put what that wrote on the disk. Errors: IO. */
zero_status zi_checkpoint_files_sync(const char *folder, const zi_checkpoint_map *map);
/* XXH3 of the sums. Errors: IO; OUT_OF_MEMORY. */
zero_status zi_checkpoint_sums_hash(const char *folder, const zi_checkpoint_map *map,
                                    uint64_t *hash);

#endif
