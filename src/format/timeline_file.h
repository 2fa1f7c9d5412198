/* Files of timelines: JSON in Chrome's trace event format. */
#ifndef ZI_FORMAT_TIMELINE_FILE_H
#define ZI_FORMAT_TIMELINE_FILE_H

#include <stdint.h>

#include "core/timeline.h"
#include "zero/status.h"

/* A file's facts of its rank. */
typedef struct zi_timeline_file {
    const char *version; /* of the library */
    uint32_t rank;
    uint32_t world;
    uint32_t part; /* of the model, and how many there are */
    uint32_t parts;
    int64_t clock_offset_ns; /* of this rank's clock, from rank 0's */
    uint64_t clock_error_ns; /* that offset's, at most */
} zi_timeline_file;

/* Write the spans whose times are known as JSON in Chrome's trace event format, for each track by
 * time. Errors: IO, naming the path; OUT_OF_MEMORY. */
zero_status zi_timeline_write(const zi_timeline *timeline, const zi_timeline_file *file,
                              const char *path);

#endif
