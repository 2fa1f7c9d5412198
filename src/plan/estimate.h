/* The time of a step whose plan is at hand. */
#ifndef ZI_PLAN_ESTIMATE_H
#define ZI_PLAN_ESTIMATE_H

#include "zero/estimate.h"
#include "zero/plan.h"

/* The part of a collective that is paid for though it runs beside compute: its kernels take
 * processors and memory of the GPU, and compute waits for the slowest rank. One figure for all
 * clusters (docs/feasibility.md). */
#define ZI_BESIDE_COMPUTE 0.6
/* The same of what ranks of a mesh send where it goes in parts, while products run. */
#define ZI_BESIDE_PRODUCTS 0.3

/* As zero_estimate_of, of a plan for the engine's world. plan: NULL: without all that an engine
 * moves and updates, which is what every plan takes besides. */
zero_status zi_estimate_of_plan(const zero_transformer *transformer, const zero_cluster *cluster,
                                const zero_plan *plan, const zero_batch *batch,
                                zero_estimate *made);

#endif
