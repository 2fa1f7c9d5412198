/** @file
 *  The engine: one rank's shards, slots and streams for one model.
 *
 *  Create, fill, then per step: micro-steps around forward and backward (zero/unit.h) and one
 *  zero_step (zero/step.h). After create returns memory is allocated only by zero_engine_fill,
 *  imports and exports (zero/shard.h), for as long as they run, and by zero_engine_restore
 *  (zero/evict.h).
 *
 *  **Errors of every call on an engine**, besides those that it names:
 *
 *  - INVALID_ARGUMENT for NULL and for a number that is out of range.
 *  - COMM, TIMEOUT, MISMATCH, DEVICE, IO and OUT_OF_MEMORY, also of work that earlier calls
 *    enqueued. They leave ranks or streams out of step, unless a call says otherwise. From then on
 *    every call is POISONED with the first message; zero_engine_destroy still works.
 *  - STATE after the world was destroyed (zero/world.h), and in a forked child: an engine works
 *    only in the process that made it.
 *  - STATE in a callback of zero_engine_fill, and after one that did not return.
 *
 *  **Collective calls that only some ranks make.** Each exchange of ranks carries the public call
 *  that it is part of. If ranks meet in one exchange and are in different calls, all get MISMATCH
 *  with both names. If they wait in different ones, it is TIMEOUT; where ranks share a host it also
 *  says which call this rank and the first late one began last.
 *
 *  **Callbacks return.** No longjmp and no C++ exception may leave zero_fill_fn, zero_update_fn,
 *  zero_device_alloc_fn, zero_device_free_fn, zero_log_fn or zero_rank_fn: the library would be
 *  left in the middle of a collective, with locks held. In C++ catch everything inside them. A
 *  zero_fill_fn that was left is noticed: from then on every call on its engine is STATE, which
 *  says so, and zero_engine_destroy still works and frees everything. zero_update_fn and
 *  zero_rank_fn run on threads of the library, where an exception ends the process. Of
 *  zero_log_fn nothing is noticed. */
#ifndef ZERO_ENGINE_H
#define ZERO_ENGINE_H

#include "zero/dtype.h"
#include "zero/export.h"
#include "zero/model.h"
#include "zero/options.h"
#include "zero/plan.h"
#include "zero/status.h"
#include "zero/world.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** One rank's engine. Several may live in a process.
 *  - Threads: one at a time calls it, any of the process; the caller orders the calls, for example
 *    by a lock. So backward may run on another thread than forward. Two calls at once are undefined
 *    but where a call says "Threads: any". On a GPU each of the threads has made it current
 *    (zero/cuda.h). zero_last_error is of the thread that made the call. */
typedef struct zero_engine zero_engine;

/** Allocate the plan and start the streams.
 *  - model: not kept. Its `initial` arrays are read before this returns; tensors without one are
 *    zero until zero_engine_fill. They are the same on every rank, or only rank 0's are read
 *    (tuning.broadcast_initial).
 *  - options: NULL: all defaults.
 *  - Collective: ranks compare model, options and, of each `initial` array, a sample of at most
 *    4096 values. If one rank refuses, all fail, and the world is
 *    as good as before: the next create may succeed.
 *  - Ownership: the caller destroys the engine before the world.
 *  - Memory: the plan's bytes.
 *  - Errors: those of zero_plan_create; INVALID_ARGUMENT for unusable directories; UNSUPPORTED for
 *    what this build, machine or world lacks, and for ZERO_OPTIMIZER_CALLBACK on a GPU; STATE where
 *    another engine has a directory for this rank; MISMATCH naming the rank and the first unit,
 *    tensor or option that differs; OUT_OF_MEMORY, DEVICE, IO, COMM, TIMEOUT. Where another rank
 *    refused it is that rank's status and message. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_create(zero_world *world, const zero_model *model,
                                                        const zero_engine_options *options,
                                                        zero_engine **engine);

/** Wait for enqueued work and free everything. Accepts NULL.
 *  - Local call. It never fails, and does not hang when other ranks are gone. Ranks that wait for
 *    this one in the engine's collectives get COMM.
 *  - Where ranks are threads whose GPUs read one another's memory, kernels of other ranks may still
 *    read this one's after a failure: synchronize the device on all ranks before any destroys.
 *  - In a forked child it does nothing. */
ZERO_API void zero_engine_destroy(zero_engine *engine);

/** Writes the initial values of a tensor's elements [first, first + count) as fp32 to host memory.
 *  An element must get the same value in whatever range and on whatever rank it is asked for, so
 *  key random numbers by index (zero/random.h). It must return, and it must not call the engine
 *  that is filled; other engines it may. */
typedef void (*zero_fill_fn)(void *user, uint32_t tensor, uint64_t first, uint64_t count,
                             float *values);

/** Set this rank's shards of every tensor from `fn`. Values are rounded to nearest even for
 *  low-precision parameters; the master takes the fp32 value. Finite values beyond the range of the
 *  parameter's type become infinite, and rank 0 logs a warning with their number. No rank needs the
 *  whole model: `fn` is asked for this rank's elements and, on every rank, for a sample of at most
 *  4096 of each tensor, which ranks compare. With tuning.broadcast_initial only rank 0's is called,
 *  for all elements.
 *  - Collective: ranks wait for one another before and after.
 *  - Memory: 256 KiB of host memory until it returns.
 *  - Errors: INVALID_ARGUMENT naming the first tensor of which ranks give different values; nothing
 *    has changed then. STATE inside a micro-step, while a step is due, while a unit is acquired, in
 *    a capture or a replay (zero/capture.h), and while roles are evicted (zero/evict.h). */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fn,
                                                      void *user);

/** The plan the engine was made from. NULL for NULL.
 *  - Ownership: the engine's. */
ZERO_API const zero_plan *zero_engine_plan(const zero_engine *engine);

/** The engine's counters since create. Grows at its end. */
typedef struct zero_stats {
    size_t struct_bytes;    /**< set by zero_stats_init() */
    uint64_t steps;         /**< zero_step calls, and known launches of captured ones */
    uint64_t steps_skipped; /**< of these, skipped for non-finite gradients, as far as known */
    uint64_t micro_steps;   /**< finished micro-steps */
    uint64_t gathers;       /**< units gathered or, where not split, loaded from another tier */
    uint64_t gathers_hit;   /**< acquires that found the unit still in its slot or on its way */
    uint64_t gathers_unforeseen; /**< acquires that the recorded order did not foresee */
    uint64_t reduces; /**< units whose gradient was reduced over a group of more than one rank;
                         one reduced twice (in the shard group, then across replicas) counts
                         twice */
    uint64_t param_gathers;     /**< units whose updated parameters were gathered after a step */
    uint64_t gather_bytes;      /**< bytes that gathers of both kinds assembled, this rank's own
                                   shard included */
    uint64_t reduce_bytes;      /**< bytes given to reductions, this rank's own shard included */
    uint64_t acquire_wait_ns;   /**< time the host stream waited in zero_unit_acquire */
    uint64_t grad_wait_ns;      /**< time it waited for a gradient slot */
    uint64_t step_wait_ns;      /**< time it waited for a step's result, or for its end */
    uint64_t device_bytes;      /**< device memory held now, as counted by the allocator */
    uint64_t device_peak_bytes; /**< most device memory ever held, as counted by the allocator */
    /* Of the tiers, as counted where it happened. */
    uint64_t host_bytes;         /**< host memory held for roles on that tier or evicted there
                                    (zero/evict.h), the I/O window included */
    uint64_t disk_bytes;         /**< bytes reserved on disk */
    uint64_t disk_read_bytes;    /**< read from disk */
    uint64_t disk_write_bytes;   /**< written to disk */
    uint64_t disk_read_hits;     /**< extents of state, and units or buckets, on disk that were in
                                    memory when they were acquired, so that nothing was read for
                                    them */
    uint64_t disk_read_wait_ns;  /**< time that updates, gathers and reductions waited for reads;
                                    those that wait at once all count */
    uint64_t disk_write_wait_ns; /**< time they waited for writes: to reuse memory, and at a
                                    step's end */
    uint64_t update_ns; /**< time the update's kernels took on the CPU, waits for a GPU's memory
                           included; 0 where a GPU updates everything */
    uint64_t host_update_elements; /**< elements that the CPU updated for a GPU (zero_updater) */
    uint64_t steps_speculative;    /**< speculative steps that were committed; known once their
                                      result is (zero_step_wait) */
    uint64_t steps_redone;      /**< speculative steps that were discarded because of clipping and
                                   updated again */
    uint64_t taken_ns;          /**< when these counts were read, by a monotonic clock */
    uint64_t steps_discarded;   /**< steps that zero_step_discard or zero_micro_abandon dropped; not
                                   in `steps` */
    uint64_t steps_held_back;   /**< predicted steps that were updated after backward like others,
                                   because steps before them had been clipped
                                   (zero_step_predict) */
    uint64_t disk_check_ns;     /**< time to compute and compare checksums of what is on disk */
    uint64_t values_overflowed; /**< finite values that became infinite because they were beyond
                                   the range of the type that a create, fill, import, export or
                                   load rounded them to. Of values that all ranks were given each
                                   is counted by one rank */
} zero_stats;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_stats_init_sized(zero_stats *stats, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_stats zero_stats_init(void)
{
    zero_stats stats;
    zero_stats_init_sized(&stats, sizeof stats);
    return stats;
}

/** Counters so far.
 *  - stats: in: struct_bytes, of zero_stats_init(); out: the rest, as far as the struct goes.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_stats(const zero_engine *engine,
                                                       zero_stats *stats);

/** Get the bytes that the engine holds, as counted by allocators and file systems, not taken from
 *  the plan. While roles are evicted (zero/evict.h) a role that is kept counts on the tier that it
 *  was evicted to, and one that is not kept has no bytes.
 *  - memory: in: struct_bytes, of zero_memory_init(); out: the rest, as far as the struct goes.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_memory(const zero_engine *engine,
                                                        zero_memory *memory);

ZERO_END

#endif
