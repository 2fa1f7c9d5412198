/* Owns what a build without MPI returns in place of the backend "mpi". */
#include "comm/mpi/mpi_launch.h"
#include "core/error.h"

zero_status zi_mpi_launch(const zi_launch *launch, uint32_t deadline_ms, zi_comm **out)
{
    (void)deadline_ms;
    *out = NULL;
    ZI_FAIL(ZERO_UNSUPPORTED,
            "%s started %u ranks but this library was built without MPI; install an MPI library "
            "(libopenmpi-dev) and configure with -Dmpi=enabled",
            launch->launcher, launch->size);
}
