/* Single files of a checkpoint: their paths, opening them for reading, and hashes of what is in
 * them. A checkpoint's files are regular ones in its own folder. A symbolic link in their place is
 * refused, since it could lead anywhere. */
#ifndef ZI_CHECKPOINT_CHECKPOINT_FILE_H
#define ZI_CHECKPOINT_CHECKPOINT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format/regular_file.h"
#include "zero/status.h"

#define ZI_CHECKPOINT_PATH_BYTES 4096

/* Join two parts of a path. INVALID_ARGUMENT where it is too long. */
zero_status zi_checkpoint_path(char path[ZI_CHECKPOINT_PATH_BYTES], const char *folder,
                               const char *name);

/* Open a file of a checkpoint for reading; zi_regular_file_close closes it. The path stays the
 * caller's. Errors: INVALID_ARGUMENT for a symbolic link and for what is no regular file; IO. */
zero_status zi_checkpoint_open(zi_regular_file *file, const char *path);

/* Open the same file once more, to be read past the page cache. -1 and errno where that cannot be:
 * the page cache serves then. */
int zi_checkpoint_open_direct(const zi_regular_file *file);
/* Read whole pages of the file into whole pages of memory past the page cache. Returns how many
 * bytes it has read, whole pages too: fewer where the file ends or the file system refuses, and the
 * page cache has to serve for the rest. */
uint64_t zi_checkpoint_read_direct(int direct, uint64_t at, void *pages, uint64_t bytes);

/* Let whole blocks of the file system be those of another file of it too (FICLONERANGE). Errors: of
 * ioctl, as errno. */
bool zi_checkpoint_clone(int from, uint64_t from_at, int to, uint64_t to_at, uint64_t bytes);

/* The modulus of direct access to the file: memory must lie as the file does modulo this. It is
 * what the file system says, else ZI_CHECKPOINT_ALIGN. */
uint64_t zi_checkpoint_direct_align(const char *path);

/* XXH3 of 64 bits. */
uint64_t zi_checkpoint_hash(const void *data, size_t bytes);
/* The same of a file's first `bytes` bytes. Errors: CORRUPT where the file has fewer; IO;
 * OUT_OF_MEMORY. */
zero_status zi_checkpoint_hash_file(const zi_regular_file *file, uint64_t bytes, uint64_t *hash);

#endif
