/* The time of a step whose plan is at hand. */
#ifndef ZI_PLAN_ESTIMATE_H
#define ZI_PLAN_ESTIMATE_H

#include "zero/estimate.h"
#include "zero/plan.h"

/* As zero_estimate_of, of a plan for the engine's world. plan: NULL: without all that an engine
 * moves and updates, which is what every plan takes besides. */
zero_status zi_estimate_of_plan(const zero_transformer *transformer, const zero_cluster *cluster,
                                const zero_plan *plan, const zero_batch *batch,
                                zero_estimate *made);

#endif
