/* Regular files, opened and read in part. A pipe or a device would make the reader wait, so they
 * are refused. Errors name the file. */
#ifndef ZI_FORMAT_REGULAR_FILE_H
#define ZI_FORMAT_REGULAR_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/private_api.h"
#include "zero/status.h"

typedef struct zi_regular_file {
    const char *path;
    int descriptor; /* -1: not open */
    uint64_t bytes;
} zi_regular_file;

/* Errors: INVALID_ARGUMENT for NULL and for what is no regular file; IO. */
ZI_PRIVATE_API zero_status zi_regular_file_open(zi_regular_file *file, const char *path);
/* After zi_regular_file_open, whatever it returned. */
ZI_PRIVATE_API void zi_regular_file_close(zi_regular_file *file);
/* Read from offset `at` on. bytes: in, how many; out, fewer where the file ends before. Errors: IO.
 */
zero_status zi_regular_file_read(const zi_regular_file *file, uint64_t at, void *target,
                                 size_t *bytes);

#endif
