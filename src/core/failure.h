/* Failures that ranks share. One value carries a failure wherever it goes: through memory that
 * threads or processes share, and in messages between hosts. It has all that its finder knew:
 * status, text, and the place in the source where it was found. */
#ifndef ZI_CORE_FAILURE_H
#define ZI_CORE_FAILURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "zero/status.h"

#define ZI_FAILURE_FILE_BYTES 40
/* For zi_failure.rank: no rank is named. */
#define ZI_FAILURE_NO_RANK UINT32_MAX

/* Zeros: there is none. Values only: processes map it anywhere, and hosts send it as bytes. */
typedef struct zi_failure {
    int32_t status; /* of the rank that found it */
    int32_t others; /* the status that other ranks return */
    int32_t native;
    int32_t line;
    uint32_t rank; /* that found it, or ZI_FAILURE_NO_RANK */
    uint32_t of_other;
    char file[ZI_FAILURE_FILE_BYTES];
    char message[232];
} zi_failure;

_Static_assert(sizeof(zi_failure) == 296, "no padding: sent as bytes");

/* The status of the others when a rank aborts with `status`: COMM, but MISMATCH stays MISMATCH,
 * since the difference is one between all of them. */
static inline zero_status zi_abort_status(zero_status status)
{
    return status == ZERO_ERR_MISMATCH ? ZERO_ERR_MISMATCH : ZERO_ERR_COMM;
}

/* ---- from errors, and back ---- */

/* The failure with which rank `rank` aborts. Where `error` is another rank's, which it names, the
 * failure is that rank's again. */
zi_failure zi_failure_of_abort(uint32_t rank, const zero_error *error);

/* A failure that all ranks have alike, whoever found it. */
zi_failure zi_failure_of_all(const zero_error *error);

/* The failure as an error of rank `own`: the message of another rank's begins with that rank's
 * name, and of_other is 2. */
zero_error zi_failure_error(const zi_failure *failure, uint32_t own);

/* Make bytes that came from another process or host a failure, whatever they are: texts end, and
 * there is an error. */
void zi_failure_received(zi_failure *failure);

/* ---- in exchanges ---- */

/* How something ended on this rank. status: of this thread; if it is not OK, with its last error.
 */
zi_failure zi_failure_tell(zero_status status);

/* Take what rank `rank` has told as the calling thread's error of another rank, and return its
 * status. world: "" or the words before "rank", for ranks of another world. */
zero_status zi_failure_hear(const zi_failure *told, const char *world, uint32_t rank);

/* Of `count` ranks, whose words are `stride` bytes apart: the first that has found an error itself,
 * else the first that failed; `count` where none did. */
uint32_t zi_failure_first_cause(const zi_failure *told, size_t stride, uint32_t count);

/* ---- in shared memory ---- */

/* How near to the cause a failure is, the nearest first. */
typedef enum zi_failure_kind {
    ZI_FAILURE_CAUSE = 0,   /* the rank has found it itself */
    ZI_FAILURE_MISSING = 1, /* another rank did not come, or is gone: COMM, TIMEOUT */
    ZI_FAILURE_FOLLOWS = 2  /* another rank has failed, or this one before */
} zi_failure_kind;
#define ZI_FAILURE_KINDS 3

/* Why something shared has failed. The first failure of each kind is written; of these the one
 * nearest to the cause counts, whenever it came. Zeros: nothing has failed. */
typedef struct zi_failure_cell {
    atomic_uint states[ZI_FAILURE_KINDS]; /* 0: there is none; 1: being written; 2: complete */
    zi_failure failures[ZI_FAILURE_KINDS];
} zi_failure_cell;

/* Set it, unless one of its kind or a nearer one is there; returns whether this call did. Any
 * thread. */
bool zi_failure_set(zi_failure_cell *cell, const zi_failure *failure);

/* True if there is one that is complete; *failure: the one that counts, may be NULL. Any thread;
 * never blocks. */
bool zi_failure_get(const zi_failure_cell *cell, zi_failure *failure);

#endif
