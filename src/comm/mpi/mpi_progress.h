/* One thread per comm that makes all its MPI calls: MPI moves data only while a thread is inside
 * it, and several threads inside slow one another down. Other threads post operations and wait for
 * them with a deadline.
 *
 * A rank whose group fails sends a notice, a small message, to each member concerned, whose
 * operations then end; what concerns the whole world goes over the control plane. An MPI collective
 * that does not finish cannot be cancelled. Once one was abandoned the thread makes no further MPI
 * call: MPI is then broken for this comm. */
#ifndef ZI_COMM_MPI_MPI_PROGRESS_H
#define ZI_COMM_MPI_MPI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "comm/mpi/mpi_api.h"

typedef struct zi_mpi_progress zi_mpi_progress;
typedef struct zi_mpi_op zi_mpi_op;

/* Runs on the progress thread: starts the operation and leaves its requests and their number in the
 * op. Returns an MPI code. May block if all others are known to do the same. */
typedef int (*zi_mpi_start_fn)(zi_mpi_op *op);

typedef enum zi_mpi_op_state {
    ZI_MPI_OP_POSTED = 0,
    ZI_MPI_OP_ACTIVE = 1,
    ZI_MPI_OP_DONE = 2
} zi_mpi_op_state;

struct zi_mpi_op {
    zi_mpi_start_fn start;
    void *argument;
    const char *what;  /* the operation that is waited in, for errors; NULL: one between hosts */
    uint64_t group_id; /* whose operation it is: a notice about it ends the op; 0: no group */
    zi_mpi_handle *requests;
    size_t request_capacity; /* of `requests`; at most two a rank of the world */
    bool *late;              /* out, on TIMEOUT: which requests were open; may be NULL */
    uint32_t request_count;  /* set by start */
    uint32_t receive_count;  /* set by start: the first so many are receives */
    bool collective;         /* set by start: a request is a collective's and cannot be cancelled */
    /* Guarded by the thread's mutex from post to DONE. */
    zi_mpi_op_state state;
    bool give_up;  /* the poster's deadline has passed */
    bool notified; /* ended by a notice or a poll: the others know already */
    zero_error error;
    zi_mpi_op *next;
};

/* Start the thread.
 * - world: a communicator of this comm's own `size` ranks, of which this is `own`; carries notices.
 */
zero_status zi_mpi_progress_create(zi_mpi_handle world, uint32_t own, uint32_t size,
                                   zi_mpi_progress **out);

/* Called about every 100 ms by a thread that waits for an op. An error ends the wait. Set before
 * any op is run. */
typedef zero_status (*zi_mpi_poll_fn)(void *user, const char *what);
void zi_mpi_progress_on_wait(zi_mpi_progress *progress, zi_mpi_poll_fn fn, void *user);

/* Does not wait for other ranks. Returns false when the thread is stuck inside MPI: it is then left
 * running, and MPI must not be called any more. Accepts NULL. */
bool zi_mpi_progress_destroy(zi_mpi_progress *progress);

/* Run the op on the thread and wait for it.
 * - Errors: TIMEOUT without a useful message, since the caller knows who is late; COMM with MPI's
 *   text or another rank's. */
zero_status zi_mpi_progress_run(zi_mpi_progress *progress, zi_mpi_op *op, uint32_t deadline_ms);

/* Send a notice to other ranks, without waiting for them. They get TIMEOUT with the same text, or
 * COMM with "rank WHO: " before it.
 * - group_id: whose operations end.
 * - members: world ranks; this rank may be among them. */
void zi_mpi_progress_notify(zi_mpi_progress *progress, uint64_t group_id, uint32_t who,
                            const uint32_t *members, uint32_t size, const zero_error *error);

/* False once MPI is broken for this comm. */
bool zi_mpi_progress_healthy(zi_mpi_progress *progress);

/* COMM naming the call and MPI's text. */
zero_status zi_mpi_error(int code, const char *call);

#endif
