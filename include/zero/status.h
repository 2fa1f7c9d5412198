/** @file
 *  Status codes and the error record.
 *
 *  Every call that can fail returns a zero_status. When it is not ZERO_OK, zero_last_error() gives
 *  the calling thread what happened, with the values involved and what to do about it. */
#ifndef ZERO_STATUS_H
#define ZERO_STATUS_H

#include "zero/export.h"
#include <stdint.h>

ZERO_BEGIN

/** One row per status of a failure: X(NAME, value, text). Values never change. */
#define ZERO_ERR_LIST(X)                                                           \
    X(INVALID_ARGUMENT, 1, "an argument is outside what the function accepts")     \
    X(STATE, 2, "the call is not legal now")                                       \
    X(UNSUPPORTED, 3, "not available in this build or on this machine")            \
    X(OUT_OF_MEMORY, 4, "memory could not be allocated, or a budget is too small") \
    X(DEVICE, 5, "the device reported a fault")                                    \
    X(COMM, 6, "a collective failed")                                              \
    X(IO, 7, "a file operation failed")                                            \
    X(CORRUPT, 8, "stored data is damaged or not of this library")                 \
    X(MISMATCH, 9, "ranks disagree")                                               \
    X(TIMEOUT, 10, "a rank did not arrive within the deadline")                    \
    X(POISONED, 11, "an earlier failure made this object unusable")

/** One row as an enumerator. */
#define ZERO_ERR_ENUM_(name, value, text) ZERO_ERR_##name = value,
/** The outcome of a call: ZERO_OK, or the kind of failure. */
typedef enum zero_status {
    ZERO_OK = 0, /**< nothing failed */
    ZERO_ERR_LIST(ZERO_ERR_ENUM_)
} zero_status;
#undef ZERO_ERR_ENUM_

/** The calling thread's last failure. Meaningful only after a call returned something but ZERO_OK.
 *  The library's own: it grows at its end. */
typedef struct zero_error {
    zero_status status; /**< the status that was returned */
    int32_t native;     /**< errno, code of MPI, CUDA or NCCL, or 0 */
    int32_t line;       /**< source line where the fault was found */
    const char *file;   /**< source file where the fault was found */
    char message[256];  /**< values and remedy, one line, cut at its end when too long */
    uint32_t of_other;  /**< 1: the fault was found on another rank, which the message names first,
                             and all ranks agreed on it; 2: another rank, named first, has failed,
                             and this one could not go on without it; 0: any other fault */
} zero_error;

/** The calling thread's error record.
 *  - Ownership: thread-local storage of the library, overwritten by the thread's next failure.
 *  - Threads: each has its own. Never NULL, never fails. */
ZERO_API const zero_error *zero_last_error(void);

/** A status's name, for example "TIMEOUT". Never NULL; unknown values give "UNKNOWN". */
ZERO_API const char *zero_status_name(zero_status status);

/** A status's one-line meaning. Never NULL. */
ZERO_API const char *zero_status_text(zero_status status);

ZERO_END

#endif
