/** @file
 *  A training step on a cluster that is not at hand: how long it takes, what it waits for.
 *
 *  zero_sim_run() runs the engine itself, with all its hooks, streams, events, slots, I/O windows
 *  and groups, on a simulated machine. That machine has a virtual clock, memory that is counted and
 *  never touched, and links that carry the bytes the engine hands them at the cluster's rates. One
 *  process and one thread stand for all ranks: rank 0 is run, and the others do the same at the
 *  same time.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of libzero-plan. */
#ifndef ZERO_SIM_H
#define ZERO_SIM_H

#include "zero/cluster.h"
#include "zero/export.h"
#include "zero/footprint.h"
#include "zero/options.h"
#include "zero/role.h"
#include "zero/status.h"
#include "zero/transformer.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** A memory, link or disk that carries a rank's bytes. What the ranks of a node share is divided
 *  evenly between them. */
typedef enum zero_sim_link {
    ZERO_SIM_DEVICE_MEMORY = 0,  /**< memory of the GPU */
    ZERO_SIM_HOST_MEMORY = 1,    /**< memory of the node, this rank's share */
    ZERO_SIM_HOST_TO_DEVICE = 2, /**< the host link, to the GPU */
    ZERO_SIM_DEVICE_TO_HOST = 3, /**< and from it */
    ZERO_SIM_LOCAL = 4,          /**< to GPUs of the same node */
    ZERO_SIM_FABRIC = 5,         /**< to other nodes, this rank's share */
    ZERO_SIM_DISK_READ = 6,      /**< disks of the node, this rank's share */
    ZERO_SIM_DISK_WRITE = 7,     /**< likewise */
    ZERO_SIM_LINK_COUNT = 8      /**< how many values there are */
} zero_sim_link;

/** Entries for links in the arrays of public structs; fixed for ever. */
#define ZERO_SIM_LINK_COUNT_MAX 16

/** The cause of a wait of the caller's stream. A wait for a stream that itself waits counts as what
 *  that one waits for. */
typedef enum zero_sim_cause {
    ZERO_SIM_GATHER = 0,     /**< all-gathers of parameters */
    ZERO_SIM_REDUCTION = 1,  /**< reductions of gradients */
    ZERO_SIM_COPY = 2,       /**< copies between tiers, or within one */
    ZERO_SIM_DISK = 3,       /**< reads and writes of a disk */
    ZERO_SIM_UPDATE = 4,     /**< the optimizer's update */
    ZERO_SIM_RANKS = 5,      /**< ranks that came later to a collective: jitter */
    ZERO_SIM_OTHER = 6,      /**< all else: the step's decision, fills */
    ZERO_SIM_CAUSE_COUNT = 7 /**< how many values there are */
} zero_sim_cause;

/** Entries for causes in the arrays of public structs; fixed for ever. */
#define ZERO_SIM_CAUSE_COUNT_MAX 16

/** "device memory", "host memory", "host to device", "device to host", "local", "fabric",
 *  "disk read", "disk write". Never NULL. */
ZERO_API const char *zero_sim_link_name(zero_sim_link link);

/** "gather", "reduction", "copy", "disk", "update", "other ranks", "other". Never NULL. */
ZERO_API const char *zero_sim_cause_name(zero_sim_cause cause);

/** How a run is simulated. Grows at its end. */
typedef struct zero_sim_options {
    size_t struct_bytes;    /**< set by zero_sim_options_init() */
    uint64_t steps;         /**< that are reported, in [1, 1024], as their mean; two come before
                                  them. 0: 2, since state on disk is walked up and down in turn */
    uint64_t forward_ns;    /**< that each unit's forward takes; backward takes twice as long, and
                                 once more where it recomputes. 0: its operations at the cluster's
                                 rates, counted as zero_estimate_of counts them */
    uint64_t jitter_ns;     /**< how late a rank comes to a collective, on average: exponentially
                                 distributed. The collective begins with its last rank. 0: all
                                 come at once */
    uint64_t seed;          /**< of the jitter: the same seed gives the same run */
    const char *trace_path; /**< a file for the rank's timeline, in virtual time, as
                                 zero_engine_trace writes it. It keeps tuning.trace_events spans,
                                 or 2^20 where that is 0. NULL: none */
} zero_sim_options;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_sim_options_init_sized(zero_sim_options *options, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_sim_options zero_sim_options_init(void)
{
    zero_sim_options options;
    zero_sim_options_init_sized(&options, sizeof options);
    return options;
}

/** The costs of a rank's step, as the mean of those reported. Grows at its end. */
typedef struct zero_sim_report {
    size_t struct_bytes;                            /**< set by zero_sim_report_init() */
    uint64_t step_ns;                               /**< compute_ns and all of wait_ns */
    uint64_t compute_ns;                            /**< forward, backward and recomputation */
    uint64_t wait_ns[ZERO_SIM_CAUSE_COUNT_MAX];     /**< of the caller's stream, by cause */
    uint64_t link_bytes[ZERO_SIM_LINK_COUNT_MAX];   /**< that a link carried */
    uint64_t link_busy_ns[ZERO_SIM_LINK_COUNT_MAX]; /**< while it carried them */
    uint64_t peak_bytes[ZERO_TIER_COUNT_MAX];       /**< that the engine took, by tier */
    uint64_t planned_bytes[ZERO_TIER_COUNT_MAX];    /**< of its plan */
    double tokens_per_s;                            /**< of all ranks */
    double flops_per_s; /**< of a rank: operations of forward and backward, without recomputation.
                             0 with forward_ns */
} zero_sim_report;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_sim_report_init_sized(zero_sim_report *report, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_sim_report zero_sim_report_init(void)
{
    zero_sim_report report;
    zero_sim_report_init_sized(&report, sizeof report);
    return report;
}

/** Simulate steps of training the transformer on the cluster.
 *
 *  A transfer takes its bytes over the link's rate, and the latency beside it. Transfers that share
 *  a link take it in the order in which the engine issues them, and later ones fill what is left.
 *  Reads and writes of a disk take turns. An all-gather of B bytes over n ranks, m of them on each
 * node, moves B x (1 - 1/m) into each rank from its node and B x (1/m - 1/n) over its part of the
 * fabric, both at the same time; so does a reduce-scatter, and an all-reduce twice that. Latencies
 * count as in a ring: one for each other node, one for each other rank of the node. Products on a
 * GPU do not slow copies and collectives down. Bytes on disk have no checksums
 * (tuning.disk_unchecked), and no memory for them is counted.
 *
 *  - transformer, batch: as in zero_footprint_of.
 *  - cluster: rates of links that the run uses may not be 0.
 *  - options: of the engine; NULL: all defaults. `device` is taken as given. `threads` and
 *    `disk_directories` are not read: there are no threads and no files.
 *  - sim: NULL: all defaults.
 *  - report: in: struct_bytes, of zero_sim_report_init(); out: the rest, as far as the struct goes.
 *  - Local call. It takes seconds for a trillion parameters.
 *  - Memory: address space for all that the ranks would hold, and little of it in pages.
 *  - Errors: those of zero_footprint_of, zero_engine_create and zero_engine_trace; INVALID_ARGUMENT
 * naming a field of `sim` that is out of bounds, or the cluster's rate that is 0; UNSUPPORTED for
 *    ZERO_UPDATER_BOTH, a speculative step, an update of the caller's own, parts of a model, fp8
 *    and a peer's wire.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_sim_run(const zero_transformer *transformer,
                                                  const zero_cluster *cluster,
                                                  const zero_engine_options *options,
                                                  const zero_batch *batch,
                                                  const zero_sim_options *sim,
                                                  zero_sim_report *report);

ZERO_END

#endif
