/* Why something that threads or processes share has failed. The first failure that is set stays,
 * with all that its finder knew: status, text, and where in the source it was found. Values only,
 * so that processes may map it anywhere. */
#ifndef ZI_CORE_FAILURE_H
#define ZI_CORE_FAILURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "zero/status.h"

#define ZI_FAILURE_FILE_BYTES 40
/* For zi_failure_set: a failure that no rank is named for. */
#define ZI_FAILURE_NO_RANK UINT32_MAX

/* Zeros: there is none. */
typedef struct zi_failure {
    atomic_uint state; /* 0: there is none; 1: it is being written; 2: it is complete */
    uint32_t rank;     /* that found it, or ZI_FAILURE_NO_RANK */
    int32_t status;
    int32_t native;
    int32_t line;
    uint32_t of_other;
    char file[ZI_FAILURE_FILE_BYTES];
    char message[256];
} zi_failure;

/* Set it, unless there is one; returns whether this call did. Any thread. */
bool zi_failure_set(zi_failure *failure, uint32_t rank, const zero_error *error);

/* True if it is there, and complete. Any thread; never blocks. */
bool zi_failure_is_set(const zi_failure *failure);

/* The failure, which is set, as an error of rank `own`: the message of another rank's begins with
 * that rank's name. */
zero_error zi_failure_error(const zi_failure *failure, uint32_t own);

#endif
