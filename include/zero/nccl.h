/** @file
 *  Worlds on the caller's NCCL communicator; needs nccl.h and a build with NCCL, without which
 *  the library has no such function. */
#ifndef ZERO_NCCL_H
#define ZERO_NCCL_H

#include "zero/world.h"
#include <nccl.h>

ZERO_BEGIN

/** A world over the ranks of `comm`, for example the data-parallel dimension of a larger mesh: its
 *  rank n is rank n of comm. Its engines are for ZERO_DEVICE_CUDA, with tuning.transport left
 *  alone; ZERO_DEVICE_CPU is refused with UNSUPPORTED when the engine is created. comm blocking or
 *  not, of the libnccl.so.2 that the process loads, without an error. Its GPU must be the calling
 *  thread's current one, now and when engines are created.
 *  - Collective over comm. The world keeps a communicator of all ranks and one for
 *    zero_world_barrier, zero_world_gather and the like, which pass through a few KiB of pinned
 *    host memory and of the GPU. Failures: a rank that aborts is COMM with its message for ranks
 *    that wait for it on the host, or do so within a second; others, and all when a rank is killed,
 *    learn of it by NCCL's own error (COMM) or by the deadline (TIMEOUT), without the rank's
 *    number.
 *  - Ownership: borrowed until zero_world_destroy; it is split once, within this call, and never
 *    aborted, finalised or destroyed. Nobody else may use it during the call. When it was made with
 *    config.splitShare, an abort of the world aborts it too: leave that at 0. deadline_ms as in
 *    zero_world_run.
 *  - Errors: INVALID_ARGUMENT for NULL or when another GPU is current; UNSUPPORTED when NCCL cannot
 *    be loaded or is too old; COMM with NCCL's words; TIMEOUT when a rank does not call this, or
 *    fails alone, and then comm is good for nothing but ncclCommAbort.
 *  - Threads: the rank's own. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_create_nccl(ncclComm_t comm, uint32_t deadline_ms,
                                                            zero_world **world);

ZERO_END

#endif
