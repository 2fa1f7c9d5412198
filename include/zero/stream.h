/** @file
 *  The stream on which the caller's forward and backward run.
 *
 *  On a GPU it is a CUDA stream. A hook lets that stream wait for the library's streams by events,
 *  and returns at once: what the caller enqueues after it runs when the unit is there. On the CPU
 *  the caller's stream is the calling thread itself, so the hook waits. */
#ifndef ZERO_STREAM_H
#define ZERO_STREAM_H

#include "zero/export.h"
#include <stddef.h>

ZERO_BEGIN

/** A stream of the caller's. native == NULL is the host stream: the calling thread. Passed by
 *  value: it is one pointer for ever. */
typedef struct zero_stream {
    void *native; /**< CPU device: must be NULL; CUDA: see zero_stream_cuda in zero/cuda.h */
} zero_stream;

/** The calling thread as a stream. */
static inline zero_stream zero_stream_host(void)
{
    zero_stream stream = {NULL};
    return stream;
}

ZERO_END

#endif
