/** @file
 *  The ranks that train together.
 *
 *  A world is one rank's handle on the whole set. It is made from a launcher's environment, from
 *  threads of this process, from the caller's own MPI or NCCL communicator (zero/mpi.h,
 *  zero/nccl.h), or alone.
 *
 *  A rank that goes is told to those that wait for it, as COMM with its number, whatever they wait
 *  in. One that destroyed its engine or its world, or whose function returned: at once. One whose
 *  process died or ended otherwise: within a second, on its host, and on all hosts as soon as
 *  another rank of that host waits. Where it was the only rank of its host the launcher ends the
 *  job (mpirun and srun do so unless they are told not to), or the deadline passes. A rank that
 *  stands still, stopped by a signal for example, is TIMEOUT at the deadline. Worlds of NCCL learn
 *  of it in their own way (zero/nccl.h).
 *
 *  A world works in the process that made it. In a child that was forked from it every call on the
 *  world or its engines is a STATE error, but those that only read, and destroying them does
 *  nothing: make others in the child. Children that were made by vfork or clone are not noticed. */
#ifndef ZERO_WORLD_H
#define ZERO_WORLD_H

#include "zero/export.h"
#include "zero/status.h"
#include <stdint.h>

ZERO_BEGIN

/** One rank's membership. Threads: used by the rank's own thread. */
typedef struct zero_world zero_world;

/** What one rank does; see zero_world_run. A status that is not ZERO_OK aborts the other ranks. */
typedef zero_status (*zero_rank_fn)(zero_world *world, void *user);

/** A world of one rank.
 *  - Local call.
 *  - Ownership: the caller destroys it.
 *  - Errors: INVALID_ARGUMENT for NULL; OUT_OF_MEMORY. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_create_self(zero_world **world);

/** Run `fn` on `rank_count` threads of this process, each with its own world, and wait for all.
 *  - rank_count: in [1, 65536]; as many as the host has threads for.
 *  - deadline_ms: how long a collective waits for the other ranks; 0 is 600000.
 *  - fn: leaves the world alone at its end, but destroys the engines it made. Returns the first
 *    failure in time, or the first that is not COMM where others heard of it before; its message
 *    names the rank. A rank that returns ZERO_OK has left: others that wait for it get COMM.
 *  - Errors: INVALID_ARGUMENT for more ranks than the system's limits allow threads, naming the
 *    limit; STATE where an engine is left alive; DEVICE when a thread cannot be started. No
 *    launcher, no daemon, no socket. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_run(uint32_t rank_count, uint32_t deadline_ms,
                                                    zero_rank_fn fn, void *user);

/** Join the world that the launcher described: mpirun, srun, or RANK/WORLD_SIZE/LOCAL_RANK as
 *  torchrun sets them. Without any of these: a world of one rank.
 *  - deadline_ms: as in zero_world_run.
 *  - Collective over the launched processes. Ranks of torchrun on several hosts need NCCL and a
 *    GPU each, the calling thread's current one: call cudaSetDevice by LOCAL_RANK first. They meet
 *    at NCCL_COMM_ID=host:port where the environment has it, else at MASTER_ADDR and the port after
 *    MASTER_PORT; that is set as NCCL_COMM_ID during the call, so no other thread may read or
 *    change the environment meanwhile.
 *  - Errors: INVALID_ARGUMENT for a half-described environment (WORLD_SIZE without RANK, rank >=
 *    size, several hosts without MASTER_PORT), UNSUPPORTED when the build or the machine lacks what
 *    the launcher needs, STATE when MPI counts ranks in another way than it, TIMEOUT when a rank
 *    never comes, COMM with NCCL's words. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_create_launched(uint32_t deadline_ms,
                                                                zero_world **world);

/** 1 if a launcher described more than one rank in this process's environment, else 0. Reads only.
 */
ZERO_API int32_t zero_world_is_launched(void);

/** Leave. Accepts NULL.
 *  - Collective unless a rank failed. Destroy the engines made on it first: while one lives the
 *    world goes on without its handle, calls on the engine are STATE errors, and the last
 *    zero_engine_destroy ends both. In a child that was forked it does nothing. */
ZERO_API void zero_world_destroy(zero_world *world);

/** This rank, 0-based. 0 for NULL. */
ZERO_API uint32_t zero_world_rank(const zero_world *world);

/** Number of ranks. 0 for NULL. */
ZERO_API uint32_t zero_world_size(const zero_world *world);

/** Number of ranks of this world on this host. 0 for NULL. */
ZERO_API uint32_t zero_world_local_size(const zero_world *world);

/** CPUs for this rank's threads, at least 1: those that its thread was allowed to run on when the
 *  world was made (taskset, Slurm, mpirun's binding), no more than the CPU quota of its cgroup
 *  (containers) rounded up, divided by the ranks that share them. NULL: all that the calling thread
 *  may use now, divided by nobody. */
ZERO_API uint32_t zero_world_cpus(const zero_world *world);

/** Backend of the collectives: "self", "local", "shm", "mpi", "nccl"; "none" for NULL. Never
 * NULL. */
ZERO_API const char *zero_world_backend(const zero_world *world);

/** Wait until every rank has called this.
 *  - Collective.
 *  - Errors: INVALID_ARGUMENT for NULL; TIMEOUT, COMM; MISMATCH when another is in
 *    zero_world_gather; STATE once it was destroyed. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_barrier(zero_world *world);

/** Every rank's `bytes` bytes at `send`, in rank order, to `recv` (bytes * size). Host memory.
 *  - Collective, blocking, meant for small things (losses, seeds).
 *  - Errors: INVALID_ARGUMENT for NULL, of send and recv unless bytes is 0; TIMEOUT, COMM,
 *    MISMATCH; STATE once it was destroyed. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_gather(zero_world *world, const void *send,
                                                       void *recv, uint32_t bytes);

/** Tell the other ranks that this one cannot go on: their collectives return COMM at once instead
 *  of waiting for the deadline.
 *  - Local call. The message is the calling thread's last error. Accepts NULL. */
ZERO_API void zero_world_abort(zero_world *world);

ZERO_END

#endif
