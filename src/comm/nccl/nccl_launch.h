/* The backend "nccl" for launchers: without <nccl.h>, which not every build has. */
#ifndef ZI_COMM_NCCL_NCCL_LAUNCH_H
#define ZI_COMM_NCCL_NCCL_LAUNCH_H

#include "comm/bootstrap.h"
#include "comm/comm.h"

/* OK when this rank can connect to the others over NCCL: the library is there and the thread has a
 * GPU. Else UNSUPPORTED with all remedies. Local. */
zero_status zi_nccl_can_launch(const zi_launch *launch);

/* A comm of all launched ranks, over NCCL alone. NCCL_COMM_ID must be `address` in the environment
 * of all ranks until this returns. The GPU is the thread's current one. Errors: TIMEOUT when a rank
 * does not come within the deadline or fails alone; COMM with NCCL's words. */
zero_status zi_nccl_launch(const zi_launch *launch, uint32_t deadline_ms, const char *address,
                           zi_comm **out);

#endif
