/** @file
 *  Time of a step before there is a machine, as an interval and by what takes it.
 *
 *  What moves is counted over the engine's own plan (zero/plan.h): which units are gathered again,
 *  over how many ranks each state is split, on which tier it is. Operations and bytes of the model
 *  itself are counted from its dimensions. A zero_cluster says how fast each of them goes.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of libzero-plan. */
#ifndef ZERO_ESTIMATE_H
#define ZERO_ESTIMATE_H

#include "zero/cluster.h"
#include "zero/export.h"
#include "zero/footprint.h"
#include "zero/options.h"
#include "zero/status.h"
#include "zero/transformer.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** A term of a step's time. */
typedef enum zero_estimate_term {
    ZERO_ESTIMATE_PRODUCTS = 0,   /**< matrix products and attention, forward, backward and again
                                       where activations are recomputed */
    ZERO_ESTIMATE_ELEMENTS = 1,   /**< the operations between products: norms, activation functions,
                                       sums, the loss; bound by the GPU's memory */
    ZERO_ESTIMATE_GATHERS = 2,    /**< parameters, over links */
    ZERO_ESTIMATE_REDUCTIONS = 3, /**< gradients, over links */
    ZERO_ESTIMATE_HOST_LINK = 4,  /**< between GPU and host memory */
    ZERO_ESTIMATE_DISK_READS = 5,
    ZERO_ESTIMATE_DISK_WRITES = 6,
    ZERO_ESTIMATE_UPDATE = 7,      /**< bound by the memory of the GPU or of the host */
    ZERO_ESTIMATE_ACTIVATIONS = 8, /**< sent between ranks of tensor, pipeline, context and expert
                                        parallelism, over links */
    ZERO_ESTIMATE_BUBBLE = 9,      /**< of pipeline parallelism: a rank has no micro-step yet, or no
                                        more */
    ZERO_ESTIMATE_TERMS = 10       /**< how many there are */
} zero_estimate_term;

/** Room for terms to come. */
#define ZERO_ESTIMATE_TERMS_MAX 16

/** A term's name, for example "gathers"; NULL for an unknown one. */
ZERO_API const char *zero_estimate_term_name(zero_estimate_term term);

/** A step of a rank. Grows at its end. */
typedef struct zero_estimate {
    size_t struct_bytes;                       /**< set by zero_estimate_init() */
    uint64_t term_ns[ZERO_ESTIMATE_TERMS_MAX]; /**< by zero_estimate_term, at the shares of rates
                                                    that the cluster's permilles say, with
                                                    latencies */
    uint64_t low_ns;  /**< no step is faster: all rates are full, everything overlaps, and the
                           busiest resource is what it takes */
    uint64_t high_ns; /**< nothing overlaps: the sum of the terms. zero_estimate.expected_ns is what
                           to reckon with */
    zero_estimate_term bound; /**< the largest term */
    uint64_t local_bytes;     /**< that a rank receives over links of its node */
    uint64_t fabric_bytes;    /**< that a rank receives from other nodes: its share of the node's */
    uint64_t host_link_bytes; /**< both ways */
    uint64_t disk_read_bytes; /**< at most */
    uint64_t disk_write_bytes; /**< likewise */
    uint64_t tokens;           /**< of all ranks */
    double flops;              /**< of a rank: three times forward's products, without what is
                                    recomputed, as published rates count them; the mean of pipeline
                                    stages */
    uint64_t expected_ns;      /**< what to reckon with, between both ends: collectives and copies
                                    overlap with the pass that the engine issues them in, as far as
                                    it lasts, and those that run beside compute slow it */
    uint64_t likely_low_ns;  /**< between this and the next lie 80 % of the runs of a trainer and a
                                  machine that the cluster's rates were not measured on, as far
                                  as published runs tell (docs/feasibility.md). At least low_ns,
                                  at most 2^63 - 1 */
    uint64_t likely_high_ns; /**< likewise. It depends on zero_batch.fused, and is far away where
                                  something is offloaded */
} zero_estimate;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_estimate_init_sized(zero_estimate *estimate, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_estimate zero_estimate_init(void)
{
    zero_estimate estimate;
    zero_estimate_init_sized(&estimate, sizeof estimate);
    return estimate;
}

/** How long a step takes that trains the transformer on the cluster. Whether it fits is
 *  zero_footprint_of's to say.
 *
 *  The mesh around the engine is that of Narayanan et al., 2021: neighbouring ranks are those of
 *  tensor parallelism, then those of context parallelism, then those that have other samples, of
 *  which neighbours share experts;
 *  pipeline stages are furthest apart. Each micro-step takes as long as in the slowest stage, and
 *  filling and draining the pipeline as long as in the others (section 2.2).
 *  - options, batch: as in zero_footprint_of.
 *  - estimate: in: struct_bytes, of zero_estimate_init(); out: the rest, as far as the struct goes.
 *  - Local call. Memory: the plan's own while it is made.
 *  - Errors: those of zero_footprint_of; INVALID_ARGUMENT naming a rate of the cluster that is
 *    needed and 0, and for a step of 2^63 ns or tokens.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_estimate_of(const zero_transformer *transformer,
                                                      const zero_cluster *cluster,
                                                      const zero_engine_options *options,
                                                      const zero_batch *batch,
                                                      zero_estimate *estimate);

ZERO_END

#endif
