/** @file
 *  Worlds on the caller's MPI communicator; needs mpi.h and a build with MPI. */
#ifndef ZERO_MPI_H
#define ZERO_MPI_H

#include "zero/world.h"
#include <mpi.h>

ZERO_BEGIN

/** A world over the ranks of `comm`, for example the data-parallel dimension of a larger mesh.
 *  comm        initialised with MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED; duplicated, so the
 * caller may free its own at once. deadline_ms as in zero_world_run. Collective over comm. Errors:
 * STATE when MPI is not initialised or its thread level is too low, UNSUPPORTED without MPI in the
 * build or with more than 256 ranks. MPI is not finalised by zero_world_destroy. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_create_mpi(MPI_Comm comm, uint32_t deadline_ms,
                                                           zero_world **world);

ZERO_END

#endif
