/* The backend "mpi" for launchers. */
#ifndef ZI_COMM_MPI_MPI_LAUNCH_H
#define ZI_COMM_MPI_MPI_LAUNCH_H

#include "comm/bootstrap.h"
#include "comm/comm.h"

/* Make a comm of all MPI ranks; initialises MPI unless the program has. Where this call has
 * initialised it, destroying the comm finalises it, and a process can do that once only.
 * - Collective over the launched ranks.
 * - Errors: UNSUPPORTED without a plug-in for MPI; STATE after MPI was finalised, and when MPI has
 *   other ranks than the launcher described. */
zero_status zi_mpi_launch(const zi_launch *launch, uint32_t deadline_ms, zi_comm **out);

#endif
