/* One thread per comm that makes all its MPI calls: MPI moves data only while somebody is inside
 * it, and several threads inside slow one another down. Other threads post operations and wait for
 * them with a deadline.
 *
 * Failures travel as notes: a small message to each rank concerned, which ends its operations.
 * After an MPI collective was given up in the middle the thread makes no further MPI call, since
 * such an operation cannot be taken back: MPI is then broken for this comm. */
#ifndef ZI_COMM_MPI_MPI_PROGRESS_H
#define ZI_COMM_MPI_MPI_PROGRESS_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"

typedef struct zi_mpi_progress zi_mpi_progress;
typedef struct zi_mpi_op zi_mpi_op;

/* Runs on the progress thread: starts the operation, leaves its requests and their number in the
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
    const char *what;  /* what is waited in, for errors; NULL: an operation between hosts */
    uint64_t group_id; /* a note about this group ends the op, one about group 0 ends all */
    MPI_Request *requests;
    size_t request_room;    /* of `requests`; at most two a rank of the world */
    bool *late;             /* out, on TIMEOUT: which requests were open; may be NULL */
    uint32_t request_count; /* set by start */
    uint32_t receive_count; /* set by start: the first so many are receives */
    bool collective;        /* set by start: a request is a collective's and cannot be cancelled */
    /* Guarded by the thread's mutex from post to DONE. */
    zi_mpi_op_state state;
    bool give_up; /* the poster's deadline has passed */
    bool told;    /* ended by a note or a look: the others know already */
    zero_error error;
    zi_mpi_op *next;
};

/* Start the thread. world: of this comm's own `size` ranks, of which this is `own`, for notes.
 * watch_idle: look for notes
 * while nothing is posted too, which needs MPI_THREAD_MULTIPLE if the program itself calls MPI. */
zero_status zi_mpi_progress_create(MPI_Comm world, uint32_t own, uint32_t size, bool watch_idle,
                                   zi_mpi_progress **out);

/* Called on the progress thread for each note about the whole world. */
typedef void (*zi_mpi_note_fn)(void *user, uint32_t world_rank, const zero_error *error);
void zi_mpi_progress_on_note(zi_mpi_progress *progress, zi_mpi_note_fn fn, void *user);

/* Called about every 100 ms by a thread that waits for an op: what is not OK ends the wait. Set
 * before any op is run. */
typedef zero_status (*zi_mpi_look_fn)(void *user, const char *what);
void zi_mpi_progress_on_wait(zi_mpi_progress *progress, zi_mpi_look_fn fn, void *user);

/* Accepts NULL. Does not wait for others. Returns false when the thread is stuck inside MPI: it is
 * then left behind, and MPI must not be called any more. */
bool zi_mpi_progress_destroy(zi_mpi_progress *progress);

/* Run the op on the thread and wait. TIMEOUT carries no message worth reading: the caller knows who
 * is late. COMM carries MPI's text or another rank's. */
zero_status zi_mpi_progress_run(zi_mpi_progress *progress, zi_mpi_op *op, uint32_t deadline_ms);

/* Send a note to members other than this rank, world ranks. group_id 0: everything. They get
 * TIMEOUT with the same words, or COMM with "rank WHO: " before them. Does not wait for them. */
void zi_mpi_progress_notify(zi_mpi_progress *progress, uint64_t group_id, uint32_t who,
                            const uint32_t *members, uint32_t size, const zero_error *error);

/* False once MPI is of no use to this comm any more. */
bool zi_mpi_progress_healthy(zi_mpi_progress *progress);

/* COMM naming the call and MPI's text. */
zero_status zi_mpi_error(int code, const char *call);

#endif
