/* The backend "nccl" for launchers: without <nccl.h>, which not every build has. */
#ifndef ZI_COMM_NCCL_NCCL_LAUNCH_H
#define ZI_COMM_NCCL_NCCL_LAUNCH_H

#include "comm/bootstrap.h"
#include "comm/comm.h"

/* OK when this rank can connect to the others over NCCL: the library is there and the thread has a
 * GPU. Else UNSUPPORTED with all remedies. Local. */
zero_status zi_nccl_can_launch(const zi_launch *launch);

/* A comm of all launched ranks, which meet at `endpoint`, where rank 0 serves the control plane.
 * - Collective over the ranks.
 * - Errors: those of zi_control_serve, zi_control_join and zi_control_gather. */
zero_status zi_nccl_launch(const zi_launch *launch, uint32_t deadline_ms,
                           const zi_control_endpoint *endpoint, zi_comm **out);

#endif
