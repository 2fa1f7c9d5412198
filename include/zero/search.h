/** @file
 *  The fastest way to train a model on a cluster: a search over what zero_footprint_of and
 *  zero_estimate_of compare.
 *
 *  Every step of the search has the same samples, so plans are compared by the time of a step. What
 *  may differ between plans are the axes; a caller holds those that are decided already.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of libzero-plan. */
#ifndef ZERO_SEARCH_H
#define ZERO_SEARCH_H

#include "zero/cluster.h"
#include "zero/estimate.h"
#include "zero/export.h"
#include "zero/footprint.h"
#include "zero/options.h"
#include "zero/status.h"
#include "zero/transformer.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** An axis of the search, as a bit. Values are tried in this order, and of plans that take equally
 *  long the first one is better. */
typedef enum zero_search_axis {
    ZERO_SEARCH_TENSOR = 1,      /**< tensor_parallel: divisors of ranks_per_node; where it is not
                                      1, sequence_parallel is 1, unless the axis is held */
    ZERO_SEARCH_PIPELINE = 2,    /**< pipeline_parallel: divisors of the remaining ranks, at most
                                      the layers */
    ZERO_SEARCH_CONTEXT = 4,     /**< context_parallel: powers of two that divide the engine's
                                      world and the sequence */
    ZERO_SEARCH_RECOMPUTE = 8,   /**< recompute: 0, 1 */
    ZERO_SEARCH_INTERLEAVE = 16, /**< interleave: divisors of a stage's blocks that are powers of
                                      two, where pipeline_parallel divides the layers and the
                                      micro-steps (Narayanan et al., 2021, section 2.2) */
    ZERO_SEARCH_SAMPLES = 32, /**< samples: divisors of what the step leaves to a rank, the largest
                                   first */
    ZERO_SEARCH_MICRO_STEPS = 64, /**< micro_steps: likewise. It follows from samples, and is held
                                       where both are only if they agree */
    ZERO_SEARCH_STAGE = 128,      /**< stage 0 to 3, and stage 3 with each shard_group that divides
                                       the world and is a multiple or a divisor of a node's part */
    ZERO_SEARCH_TIERS = 256,  /**< tiers: of moments and the master any that the cluster has, the
                                   master no further away than moments; of gradients and
                                   parameters likewise; and with state on the host, which
                                   processor updates it (tuning.updater) */
    ZERO_SEARCH_STATES = 512, /**< master_dtype and moment_dtype: f32 and f32, remainder16 and
                                   bf16, remainder16 and i8, remainder8 and i8; of
                                   fp32 parameters, which are their own masters, the moments
                                   alone */
    ZERO_SEARCH_UNITS = 1024  /**< units, param_slots and grad_slots: as given; only where
                                   nothing fits layers, matrices, and matrices with fewer slots
                                   in turn */
} zero_search_axis;

/** The model, the machine, and what is decided already. Grows at its end. */
typedef struct zero_search_request {
    size_t struct_bytes;                 /**< set by zero_search_request_init() */
    const zero_transformer *transformer; /**< the values of axes that are held, and all else */
    const zero_cluster *cluster;         /**< with rates */
    const zero_engine_options *options;  /**< NULL: all defaults. The values of axes that are held,
                                              and of what is no axis. `device` is taken as given */
    const zero_batch *batch;             /**< likewise */
    uint64_t step_samples; /**< of all ranks in a step. 0: those of `batch` and its mesh */
    uint32_t held;         /**< axes that stay as given: bits of zero_search_axis. 0: none */
} zero_search_request;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_search_request_init_sized(zero_search_request *request, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_search_request zero_search_request_init(void)
{
    zero_search_request request;
    zero_search_request_init_sized(&request, sizeof request);
    return request;
}

/** One plan. The library fills it; it grows at its end. What it points to is the search's. */
typedef struct zero_search_plan {
    size_t struct_bytes;                 /**< bytes that the library has filled */
    const zero_transformer *transformer; /**< with tensor_parallel, pipeline_parallel, units */
    const zero_engine_options *options;  /**< with its tuning */
    const zero_batch *batch;             /**< of a rank, with the mesh's context_parallel */
    const zero_footprint *footprint;     /**< with what a rank has */
    const zero_estimate *estimate;       /**< of a step */
    uint32_t coarseness; /**< of the states' formats, as an axis lists them: 0: f32. Each counts as
                              1 % of the time in the order of plans, so a coarser format is better
                              only where it saves more than that */
} zero_search_plan;

/** A search that is over; immutable. Threads: any number may read. */
typedef struct zero_search zero_search;

/** The plans that it keeps, at most. They differ in stage, shard group, tiers, mesh or
 *  recomputation: of all that agree in these it keeps the best. */
#define ZERO_SEARCH_PLANS 3

/** Find the plans that fit and are expected to take the least time. They are
 * those that trying every combination of the axes finds: what is left out needs more memory, or
 * takes longer, already by what its plan must hold and move at least.
 *  - request: see its fields.
 *  - search: out; the caller destroys it.
 *  - Local call. Memory: the plans that it makes, until it is over.
 *  - Errors: those of zero_footprint_of and zero_estimate_of; INVALID_ARGUMENT where no combination
 *    has step_samples in a step, or where none that is left by the axes is a plan at all. That none
 *    fits is no error. UNSUPPORTED for a transformer with expert_parallel.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_search_create(const zero_search_request *request,
                                                        zero_search **search);

/** Accepts NULL. */
ZERO_API void zero_search_destroy(zero_search *search);

/** Plan `index`, 0-based, the best first; NULL behind the last one, and for NULL.
 *  - Ownership: the search's. */
ZERO_API const zero_search_plan *zero_search_plan_at(const zero_search *search, uint32_t index);

/** Plan `index` with its states in another format, all else alike; only formats with which it fits.
 *  - other: 0-based, the finest format first.
 *  - Returns NULL behind the last one, and for NULL.
 *  - Ownership: the search's. */
ZERO_API const zero_search_plan *zero_search_format_at(const zero_search *search, uint32_t index,
                                                       uint32_t other);

/** If nothing fits, the plan that lacks the fewest bytes, of all tiers together; else NULL. NULL
 * for NULL.
 *  - Ownership: the search's. */
ZERO_API const zero_search_plan *zero_search_nearest(const zero_search *search);

ZERO_END

#endif
