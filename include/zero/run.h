/** @file
 *  The costs of a whole run of training: time, money, energy, and what failures of nodes take.
 *
 *  Experimental: it may change in any release 0.x (docs/stability.md). Part of libzero-plan. */
#ifndef ZERO_RUN_H
#define ZERO_RUN_H

#include "zero/cluster.h"
#include "zero/export.h"
#include "zero/footprint.h"
#include "zero/options.h"
#include "zero/status.h"
#include "zero/transformer.h"
#include <stddef.h>
#include <stdint.h>

ZERO_BEGIN

/** Used where restart_seconds is 0. A guess: a scheduler's new job, processes, compilation and the
 *  load of a checkpoint. Measure yours. */
#define ZERO_RUN_RESTART_SECONDS 600

/** A run of training. Grows at its end. */
typedef struct zero_run {
    size_t struct_bytes;    /**< set by zero_run_init() */
    double tokens;          /**< that it trains on, in (0, 10^18] */
    double gpu_hour_price;  /**< money for a GPU and an hour. 0: no price is made */
    double gpu_watts;       /**< of a GPU with its share of all else. 0: no energy is counted */
    double node_mtbf_hours; /**< mean time between failures of one node. 0: none fails */
    double save_seconds;    /**< that a checkpoint takes. 0: its bytes at the rate at which the
                                 cluster's disks write */
    double restart_seconds; /**< from a failure until training goes on, apart from what is done
                                 again. 0: ZERO_RUN_RESTART_SECONDS */
} zero_run;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_run_init_sized(zero_run *run, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_run zero_run_init(void)
{
    zero_run run;
    zero_run_init_sized(&run, sizeof run);
    return run;
}

/** The costs of a run. Grows at its end. */
typedef struct zero_run_cost {
    size_t struct_bytes;          /**< set by zero_run_cost_init() */
    double steps;                 /**< a whole number */
    double low_seconds;           /**< of all steps, at the lower end of the estimate */
    double train_seconds;         /**< of all steps, as they are expected */
    double wall_seconds;          /**< train_seconds with saves, restarts and what is done again */
    double gpu_hours;             /**< of all ranks, for wall_seconds */
    double price;                 /**< of gpu_hours */
    double mwh;                   /**< megawatt-hours of gpu_hours */
    uint64_t checkpoint_bytes;    /**< of one checkpoint, all ranks' */
    double save_seconds;          /**< of one checkpoint; 0 without failures */
    double restart_seconds;       /**< as used; 0 without failures */
    double mtbf_seconds;          /**< between failures of any of the nodes */
    double save_interval_seconds; /**< of training between two saves, the best */
    double failures;              /**< expected in wall_seconds */
    double goodput;               /**< train_seconds / wall_seconds */
} zero_run_cost;

/** As zero_engine_options_init_sized: 0 in every field, struct_bytes set. */
ZERO_API void zero_run_cost_init_sized(zero_run_cost *cost, size_t struct_bytes);

/** All 0, with the caller's size. */
static inline zero_run_cost zero_run_cost_init(void)
{
    zero_run_cost cost;
    zero_run_cost_init_sized(&cost, sizeof cost);
    return cost;
}

/** The costs of a run.
 *
 *  Nodes fail independently, at a constant rate, also during saves and restarts. With a mean time M
 *  between failures of any node, and saves of d seconds, the best interval between saves is, for
 *  d < 2 M,
 *
 *      sqrt(2 d M) (1 + sqrt(d / 2 M) / 3 + d / 18 M) - d,
 *
 *  else M (Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
 *  2006; its first term is Young's, "A first order approximation to the optimum checkpoint
 *  interval", 1974). With the interval t and restarts of R seconds, T seconds of training take
 *  M exp(R / M) (exp((t + d) / M) - 1) T / t (Daly again). Training stands still while a checkpoint
 *  is written; zero_save_begin lets it go on, so this is the longest.
 *  - transformer, cluster, options, batch: as in zero_estimate_of.
 *  - cost: in: struct_bytes, of zero_run_cost_init(); out: the rest, as far as the struct goes.
 *  - Local call. Memory: the plan's own while it is made.
 *  - Errors: those of zero_estimate_of; INVALID_ARGUMENT naming a field of the run that is no
 * number or out of bounds; where a checkpoint's time is not given and the cluster has no rate of
 * disks; and where failures are so frequent that the run does not end.
 *  - Threads: any. */
ZERO_API ZERO_MUST_CHECK zero_status zero_run_cost_of(const zero_run *run,
                                                      const zero_transformer *transformer,
                                                      const zero_cluster *cluster,
                                                      const zero_engine_options *options,
                                                      const zero_batch *batch, zero_run_cost *cost);

ZERO_END

#endif
