/* The control plane of a world whose ranks are processes on several hosts: what they tell one
 * another beside the collectives, over one TCP connection of each other rank to rank 0.
 *
 *  - Small records are gathered from all ranks, which is their barrier too.
 *  - A rank that aborts tells the others why.
 *  - A rank whose process dies is named on all others, with its host, once its connection ends.
 *  - A rank that is silent is named by the log, and in the TIMEOUT that may follow (silence.h).
 *
 * No step of training goes over it. */
#ifndef ZI_CONTROL_CONTROL_PLANE_H
#define ZI_CONTROL_CONTROL_PLANE_H

#include "control/control_endpoint.h"
#include "control/silence.h"
#include "core/failure.h"

typedef struct zi_control zi_control;

/* A rank has aborted or died. Called once, on the control plane's thread. */
typedef void (*zi_control_lost_fn)(void *user, const zi_failure *failure);

typedef struct zi_control_desc {
    const zi_control_endpoint *endpoint; /* copied */
    uint32_t rank;
    uint32_t size;
    uint32_t deadline_ms;    /* of a gather; one on all ranks */
    uint32_t join_ms;        /* of joining */
    zi_control *served;      /* of rank 0, from zi_control_serve; NULL elsewhere */
    zi_silence *silence;     /* notes silent ranks; outlives the control */
    zi_control_lost_fn lost; /* may be NULL */
    void *user;
} zi_control_desc;

/* Serve a world of `size` ranks at the endpoint, as rank 0, which joins it afterwards; the other
 * ranks may join at once.
 * - endpoint: without hosts it is filled (zi_control_listen).
 * - deadline_ms: of gathers, and of finding the address of the endpoint.
 * - Ownership: *out is what joining returns, or is left alone.
 * - Errors: COMM naming the address; TIMEOUT, a second after the deadline, where no name server
 *   answers; OUT_OF_MEMORY; STATE where the process may not have so many
 *   files. */
zero_status zi_control_serve(zi_control_endpoint *endpoint, uint32_t size, uint32_t deadline_ms,
                             zi_control **out);

/* Join. Waits for rank 0 alone, until the deadline, and for a name server a second more; a first
 * gather finds who else is there.
 * - Errors: COMM or TIMEOUT naming address, port and the remedy; MISMATCH where another version of
 *   the library or another number of ranks serves; STATE where the rank is there already. Rank 0
 *   cannot fail. */
zero_status zi_control_join(const zi_control_desc *desc, zi_control **out);

/* Leave: waits of others for this rank fail from now on. Rank 0 waits until all that have joined
 * have left or died, for the deadline of gathers at most; a second at most after a failure, and not
 * at all where it has not joined. Accepts NULL. */
void zi_control_leave(zi_control *control);

/* The most bytes of a record. */
uint32_t zi_control_most(const zi_control *control);

/* Gather a record of every rank.
 * - what: what this rank waits in, for errors.
 * - Collective; blocks. One thread at a time.
 * - Errors: TIMEOUT naming the ranks that did not arrive; COMM naming one that left, died or
 *   aborted. After a failure all gathers fail alike. */
zero_status zi_control_gather(zi_control *control, const void *mine, uint32_t bytes,
                              const char *what);

/* The record of rank `rank` in the last gather, with zeros behind it where another's was longer.
 * Good until the next gather. */
const void *zi_control_record(const zi_control *control, uint32_t rank);

/* Tell the other ranks that this one gives up with `error`; the first failure of a world counts.
 * Any thread; never blocks. */
void zi_control_abort(zi_control *control, const zero_error *error);

/* OK, or the error that a rank has aborted with, this one or another, or died of. Any thread; never
 * blocks. */
zero_status zi_control_check(zi_control *control);

#endif
