/* The way from a launcher to the MPI backend, for a caller that may not know mpi.h. */
#ifndef ZI_COMM_MPI_MPI_LAUNCH_H
#define ZI_COMM_MPI_MPI_LAUNCH_H

#include "comm/bootstrap.h"
#include "comm/comm.h"

/* Initialise MPI unless the program has, and make a comm of all its ranks. Where this call has
 * initialised it, destroying the comm finalises it, and a process can do that once only.
 * Errors: UNSUPPORTED in a build without MPI; STATE after MPI was finalised, and when MPI sees
 * other ranks than the launcher described. */
zero_status zi_mpi_launch(const zi_launch *launch, uint32_t deadline_ms, zi_comm **out);

#endif
