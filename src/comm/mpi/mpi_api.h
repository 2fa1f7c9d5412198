/* The MPI of this process. */
#ifndef ZI_COMM_MPI_MPI_API_H
#define ZI_COMM_MPI_MPI_API_H

#include <stdbool.h>

#include "comm/mpi/mpi_plugin.h"
#include "zero/status.h"

#define ZI_MPI_SUCCESS 0

/* Its calls; NULL before zi_mpi_load. A process has one MPI, and never another one. */
extern const zi_mpi_plugin *zi_mpi;

/* Find the MPI that the program links, or else that of the launcher, and the plug-in for it.
 * - pmi: the launcher is MPICH's or one like it, if the program links no MPI.
 * - Errors: UNSUPPORTED, with what was tried and why it was not taken; then always the same.
 * - Threads: any. */
zero_status zi_mpi_load(bool pmi);

#endif
