/** @file
 *  Worlds on the caller's MPI communicator; needs mpi.h. The library itself is not linked with MPI:
 *  it loads a plug-in that is compiled for the program's MPI (docs/launch.md). */
#ifndef ZERO_MPI_H
#define ZERO_MPI_H

#include "zero/world.h"
#include <mpi.h>

ZERO_BEGIN

/** A world over the ranks of `comm`, for example the data-parallel dimension of a larger mesh.
 *  - comm: initialised with MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED; duplicated, so the caller
 *    may free its own at once.
 *  - deadline_ms: as in zero_world_run.
 *  - Collective over comm.
 *  - Ownership: zero_world_destroy does not finalise MPI.
 *  - Network: with ranks on several hosts rank 0 also listens for TCP connections of the others, at
 *    a port that the system chooses, on all its interfaces.
 *  - Errors: UNSUPPORTED without a plug-in for this MPI; INVALID_ARGUMENT for NULL; STATE when MPI
 *    is not initialised, was finalised, or its thread level is too low; TIMEOUT when a rank does
 * not call this or cannot reach rank 0 by TCP; OUT_OF_MEMORY, COMM.
 *  - Threads: with ranks on several hosts a thread of the library calls MPI while the world exists.
 *    With MPI_THREAD_MULTIPLE the program may call MPI too. With MPI_THREAD_SERIALIZED the program
 *    must not call MPI, nor make a second world, before zero_world_destroy has returned. With all
 *    ranks on one host MPI is called in create and destroy only. */
ZERO_MUST_CHECK static inline zero_status zero_world_create_mpi(MPI_Comm comm, uint32_t deadline_ms,
                                                                zero_world **world)
{
    int initialised = 0;
    int finalised = 0;
    (void)MPI_Initialized(&initialised);
    (void)MPI_Finalized(&finalised);
    /* Only then may a handle be converted. */
    if (!initialised || finalised || comm == MPI_COMM_NULL) {
        return zero_world_create_mpi_fortran(ZERO_MPI_COMM_NONE, deadline_ms, world);
    }
    return zero_world_create_mpi_fortran((int32_t)MPI_Comm_c2f(comm), deadline_ms, world);
}

ZERO_END

#endif
