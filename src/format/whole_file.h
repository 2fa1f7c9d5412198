/* Files that are written at once, and names that change at once. Errors: IO, naming the file. */
#ifndef ZI_FORMAT_WHOLE_FILE_H
#define ZI_FORMAT_WHOLE_FILE_H

#include <stddef.h>

#include "zero/status.h"

/* Write a file anew, not through a symbolic link. It is on the disk when this returns. */
zero_status zi_whole_file_write(const char *path, const char *text, size_t bytes);

/* The same by way of a file of another name in the same folder, so that nobody ever reads half of
 * it. */
zero_status zi_whole_file_replace(const char *path, const char *text, size_t bytes);

/* Each of two paths of a file system names what the other did, at one moment. As a call of the
 * system: 0, or -1 and errno, EINVAL or ENOSYS where names cannot be exchanged. */
int zi_exchange_names(const char *one, const char *other);

#endif
