/** @file
 *  The ranks that train together.
 *
 *  A world is one rank's handle on the whole set. It is made from a launcher's environment, from
 *  threads of this process, from the caller's own MPI or NCCL communicator (zero/mpi.h,
 *  zero/nccl.h), or alone.
 *
 *  **Ranks that leave.** Ranks that wait for a rank that has left get COMM with its number,
 *  whatever call they wait in:
 *
 *  - at once, if it destroyed its engine or its world, or if its function returned;
 *  - within a second, on every host, if its process died or ended in another way; the message has
 *    its process number and its host;
 *  - at the deadline, as TIMEOUT, if it stands still: stopped by a signal or a debugger, or its
 *    host or network is gone. Within 2 s of that the log (zero/log.h) warns on every other rank
 *    that waits, and with several hosts on every other rank. The TIMEOUT says it too.
 *
 *  What runs on a GPU over NCCL does not notice a rank that left in the first of these ways: its
 *  deadline passes (zero/nccl.h).
 *
 *  **Forks.** A world works in the process that made it. In a forked child every call on the world
 *  or its engines is a STATE error, except calls that only read. Destroying them there does
 *  nothing. Create new ones in the child. Children of vfork or clone are not detected. */
#ifndef ZERO_WORLD_H
#define ZERO_WORLD_H

#include "zero/export.h"
#include "zero/status.h"
#include <stdint.h>

ZERO_BEGIN

/** One rank's membership. Threads: used by the rank's own thread. */
typedef struct zero_world zero_world;

/** The work of one rank; see zero_world_run. A status that is not ZERO_OK aborts the other
 *  ranks. */
typedef zero_status (*zero_rank_fn)(zero_world *world, void *user);

/** A world of one rank.
 *  - Local call.
 *  - Ownership: the caller destroys it.
 *  - Errors: INVALID_ARGUMENT for NULL; OUT_OF_MEMORY. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_create_self(zero_world **world);

/** Run `fn` on `rank_count` threads of this process, each with its own world, and wait for all.
 *  - rank_count: in [1, 65536]; as many as the host has threads for.
 *  - deadline_ms: how long a collective waits for the other ranks; 0 is 600000.
 *  - fn: what each rank runs. It destroys the engines that it made, and leaves the world to this
 *    call. A rank whose fn returned ZERO_OK has left: others that wait for it get COMM.
 *  - user: handed to fn.
 *  - Errors: the first failure that a rank found itself, whose message names the rank; COMM,
 *    TIMEOUT or POISONED only where every failure is one of these. INVALID_ARGUMENT for more ranks
 *    than the system's limits allow threads, naming the limit; STATE where an engine is left alive;
 *    DEVICE when a thread cannot be started. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_run(uint32_t rank_count, uint32_t deadline_ms,
                                                    zero_rank_fn fn, void *user);

/** Join the world that the launcher described: mpirun, srun, or RANK/WORLD_SIZE/LOCAL_RANK as
 *  torchrun sets them. Without any of these: a world of one rank.
 *  - deadline_ms: as in zero_world_run.
 *  - Collective over the launched processes.
 *  - Several hosts without MPI (torchrun): every rank needs NCCL and a GPU, which is the calling
 *    thread's current one, so call cudaSetDevice by LOCAL_RANK first. The ranks meet at
 *    MASTER_ADDR, at the port after MASTER_PORT, where rank 0 listens as long as the world lives;
 *    at the port after that of NCCL_COMM_ID=host:port if the environment has it. Ranks whose
 *    TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT or ZERO_JOB_TOKEN differ do not meet.
 *  - Errors: INVALID_ARGUMENT for a half-described environment (WORLD_SIZE without RANK, rank >=
 *    size, several hosts without MASTER_PORT, another MASTER_ADDR than localhost without
 *    LOCAL_WORLD_SIZE), UNSUPPORTED when the build or the machine lacks what the launcher needs,
 *    STATE when MPI's rank or size differs from the launcher's, TIMEOUT when a rank does not come,
 *    COMM when rank 0 cannot listen at its address, MISMATCH when ranks differ in the library's
 *    version or WORLD_SIZE. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_create_launched(uint32_t deadline_ms,
                                                                zero_world **world);

/** No communicator, in place of one of Fortran's. */
#define ZERO_MPI_COMM_NONE (-1)

/** zero_world_create_mpi of zero/mpi.h, for callers without mpi.h: a communicator by the number
 * that Fortran has for it (MPI_Comm_c2f), which means the same in every MPI.
 *  - comm: ZERO_MPI_COMM_NONE where MPI is not initialised or there is no communicator.
 *  - All else: as there. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_create_mpi_fortran(int32_t comm,
                                                                   uint32_t deadline_ms,
                                                                   zero_world **world);

/** 1 if a launcher described more than one rank in this process's environment, else 0. Reads
 *  only. */
ZERO_API int32_t zero_world_is_launched(void);

/** Leave the world. Accepts NULL.
 *  - Collective unless a rank failed.
 *  - Ownership: destroy the world's engines first. While one lives the world lives on without its
 *    handle, calls on the engine are STATE errors, and the last zero_engine_destroy ends both.
 *  - In a forked child it does nothing. */
ZERO_API void zero_world_destroy(zero_world *world);

/** This rank, 0-based. 0 for NULL. */
ZERO_API uint32_t zero_world_rank(const zero_world *world);

/** Number of ranks. 0 for NULL. */
ZERO_API uint32_t zero_world_size(const zero_world *world);

/** Number of ranks of this world on this host. 0 for NULL. */
ZERO_API uint32_t zero_world_local_size(const zero_world *world);

/** CPUs for this rank's threads, at least 1. It counts the CPUs that the rank's thread was allowed
 *  to run on when the world was made (taskset, Slurm, mpirun's binding), takes at most the CPU
 *  quota of its cgroup (containers), rounded up, and divides by the ranks that share them.
 *  - world: NULL: the CPUs that the calling thread may use now, undivided.
 *  - Local call. */
ZERO_API uint32_t zero_world_cpus(const zero_world *world);

/** Backend of the collectives: "self", "local", "shm", "mpi", "nccl"; "none" for NULL. Never
 *  NULL. */
ZERO_API const char *zero_world_backend(const zero_world *world);

/** Wait until every rank has called this.
 *  - Collective.
 *  - Errors: INVALID_ARGUMENT for NULL; TIMEOUT, COMM; MISMATCH when another rank is in
 *    zero_world_gather; STATE after the world was destroyed. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_barrier(zero_world *world);

/** Gather a few bytes of every rank, such as losses or seeds, on all ranks.
 *  - send: this rank's bytes, host memory.
 *  - recv: out, host memory for bytes * size: what all ranks sent, in rank order.
 *  - bytes: per rank, the same on all.
 *  - Collective. It blocks until all have called it.
 *  - Errors: INVALID_ARGUMENT for NULL, of send and recv unless bytes is 0; TIMEOUT, COMM,
 *    MISMATCH; STATE after the world was destroyed. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_gather(zero_world *world, const void *send,
                                                       void *recv, uint32_t bytes);

/** The mean of a number of every rank, such as a loss, the same bits on all ranks.
 *  - value: this rank's.
 *  - mean: out: the sum in rank order, divided by zero_world_size. Not finite if one value is not.
 *  - Collective. It blocks until all have called it.
 *  - Errors: INVALID_ARGUMENT for NULL; TIMEOUT, COMM, MISMATCH; STATE after the world was
 *    destroyed. `mean` is untouched then. */
ZERO_API ZERO_MUST_CHECK zero_status zero_world_mean(zero_world *world, double value, double *mean);

/** Tell the other ranks that this one cannot go on: their collectives return COMM at once instead
 *  of waiting for the deadline.
 *  - Local call. The message is the calling thread's last error. Accepts NULL. */
ZERO_API void zero_world_abort(zero_world *world);

ZERO_END

#endif
