/** @file
 *  The engine: one rank's shards, slots and streams for one model.
 *
 *  Create, fill, then per step: micro-steps around forward and backward (zero/unit.h) and one
 *  zero_step (zero/step.h). After create returns, nothing allocates but zero_engine_fill, imports
 * and exports (zero/shard.h), as long as they run, and what gives memory back and takes it again
 *  (zero/evict.h).
 *
 *  Of every call on an engine, besides the errors that it names: INVALID_ARGUMENT for NULL and for
 *  a number that is out of range. COMM, TIMEOUT, MISMATCH, DEVICE, IO and OUT_OF_MEMORY are also
 *  those of what earlier calls have enqueued. They leave ranks or streams out of step, unless a
 *  call says otherwise: from then on every call is POISONED with the first message, and destroy
 *  still works. STATE once the world was destroyed (zero/world.h), and in a child that was forked:
 *  an engine works only in the process that made it. */
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

/** One rank's engine. Threads: one thread calls it; several engines may live in a process. */
typedef struct zero_engine zero_engine;

/** Allocate the plan and start the streams.
 *  - options: NULL: all defaults. The model is not kept; its `initial` arrays are read before this
 *    returns. Tensors without `initial` are zero until zero_engine_fill.
 *  - Collective: ranks compare model and options; MISMATCH names the rank and the first unit,
 *    tensor or option that differs. Other errors: those of zero_plan_create; INVALID_ARGUMENT for
 *    directories that will not do; UNSUPPORTED for what this build, machine or world lacks, and for
 *    ZERO_OPTIMIZER_CALLBACK on a GPU; STATE where another engine has a directory for this rank;
 *    OUT_OF_MEMORY, DEVICE, IO, COMM, TIMEOUT. A create that some rank refuses, by what it was
 *    given or by what this rank's machine lacks, fails on all ranks (MISMATCH or COMM with that
 *    rank's message where it is another's) and leaves the world as it was: the next create may
 *    succeed.
 *  - Ownership: the caller destroys the engine before the world. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_create(zero_world *world, const zero_model *model,
                                                        const zero_engine_options *options,
                                                        zero_engine **engine);

/** Wait for what is under way and free everything. Accepts NULL. Never fails, and does not hang
 * when other ranks are gone. Other ranks that wait for this one in the engine's collectives get
 * COMM. In a child that was forked it does nothing. */
ZERO_API void zero_engine_destroy(zero_engine *engine);

/** Gives `count` initial values of a tensor, from element `first`, as fp32 in host memory. The same
 * element must get the same value whatever the range, so key random numbers by index
 * (zero/random.h). */
typedef void (*zero_fill_fn)(void *user, uint32_t tensor, uint64_t first, uint64_t count,
                             float *values);

/** Set this rank's shards of every tensor from `fn`. Values are rounded to nearest even for
 *  low-precision parameters; the master takes the fp32 value. No rank needs the whole model.
 *  - Collective: ranks wait for one another before and after.
 *  - Memory: 256 KiB of host memory until it returns.
 *  - Errors: STATE inside a micro-step, before its step is taken, while a unit is acquired, in a
 *    capture or a replay (zero/capture.h), and while roles are evicted (zero/evict.h). */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_fill(zero_engine *engine, zero_fill_fn fn,
                                                      void *user);

/** The plan the engine was made from. NULL for NULL.
 *  - Ownership: the engine's. */
ZERO_API const zero_plan *zero_engine_plan(const zero_engine *engine);

/** What the engine has counted since create. Grows at its end. */
typedef struct zero_stats {
    size_t struct_bytes;    /**< set by zero_stats_init() */
    uint64_t steps;         /**< zero_step calls, and known launches of captured ones */
    uint64_t steps_skipped; /**< of these, skipped for non-finite gradients (known ones) */
    uint64_t micro_steps;   /**< finished micro-steps */
    uint64_t gathers;       /**< units gathered or, where not split, loaded from another tier */
    uint64_t gathers_hit;   /**< acquires that found the unit still in its slot or on its way */
    uint64_t gathers_unforeseen; /**< acquires that the recorded order did not foresee */
    uint64_t reduces; /**< units whose gradient was reduced over a group of more than one rank; one
                         reduced twice (in the shard group, then across replicas) counts twice */
    uint64_t param_gathers;     /**< units whose updated parameters were gathered after a step */
    uint64_t gather_bytes;      /**< bytes that gathers of both kinds put together, this rank's
                                     own part among them */
    uint64_t reduce_bytes;      /**< bytes given to reductions, this rank's own part among them */
    uint64_t acquire_wait_ns;   /**< time the host stream waited in zero_unit_acquire */
    uint64_t grad_wait_ns;      /**< time it waited for a place to write a gradient to */
    uint64_t step_wait_ns;      /**< time it waited for a step's result, or for its end */
    uint64_t device_bytes;      /**< device memory held now, as counted by the allocator */
    uint64_t device_peak_bytes; /**< most device memory ever held, as counted by the allocator */
    /* Of the tiers, as counted where it happened. */
    uint64_t host_bytes;       /**< host memory held for roles on that tier or evicted there
                                    (zero/evict.h), the I/O window included */
    uint64_t disk_bytes;       /**< bytes reserved on disk */
    uint64_t disk_read_bytes;  /**< read from disk */
    uint64_t disk_write_bytes; /**< written to disk */
    uint64_t disk_read_hits; /**< ranges of state, and units or buckets, on disk that were in memory
                                when their turn came, without a read for it */
    uint64_t disk_read_wait_ns;  /**< time updates, gathers and reductions waited for reads that
                                    came too late; several may wait at once, and all count */
    uint64_t disk_write_wait_ns; /**< time they waited for writes: for those that kept memory, and
                                    for the last ones of a step */
    uint64_t update_ns; /**< time the update's kernels took on the CPU, with what they waited for
                           the GPU's memory; 0 where a GPU updates everything */
    uint64_t host_update_elements; /**< elements that the CPU updated for a GPU (zero_updater) */
    uint64_t steps_speculative; /**< speculative steps that were updated during backward; known once
                                    their result is (zero_step_wait) */
    uint64_t steps_redone; /**< speculative steps that were updated during backward and, since they
                                are clipped, again from what was there before */
    uint64_t taken_ns;     /**< when these counts were read, by a clock that never goes back */
    uint64_t steps_discarded; /**< steps that were dropped (zero_step_discard); not in `steps` */
    uint64_t steps_held_back; /**< speculative steps that were updated after backward, like others:
                                   those before them were updated twice (zero_step_predict) */
    uint64_t disk_check_ns;   /**< time it took to make and compare checksums of what is on disk */
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

/** What the engine holds, as taken from the allocators and the file systems (not from the plan).
 *  While roles are evicted (zero/evict.h) an evicted role counts on the tier where it is evicted,
 *  and one that is not kept has no bytes.
 *  - memory: in: struct_bytes, of zero_memory_init(); out: the rest, as far as the struct goes.
 *  - Local call, no waiting.
 *  - Errors: INVALID_ARGUMENT. */
ZERO_API ZERO_MUST_CHECK zero_status zero_engine_memory(const zero_engine *engine,
                                                        zero_memory *memory);

ZERO_END

#endif
