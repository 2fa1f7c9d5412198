/* Ranks that MPI started, on one host or several. Within a host ranks read one another's memory
 * (shm/); only groups that span hosts use MPI. */
#ifndef ZI_COMM_MPI_MPI_COMM_H
#define ZI_COMM_MPI_MPI_COMM_H

#include <stdbool.h>

#include "comm/comm.h"

typedef struct zi_mpi_options {
    uint32_t ranks_per_host; /* 0: the hosts as they are; else pretend that so many successive ranks
                                share one */
    bool finalize;           /* destroy calls MPI_Finalize */
} zi_mpi_options;

/* A comm over the ranks of `parent`, as Fortran numbers it (MPI_Comm_c2f), which is duplicated.
 * Collective over it. */
zero_status zi_mpi_comm_create(int parent, uint32_t deadline_ms, const zi_mpi_options *options,
                               zi_comm **out);

#endif
