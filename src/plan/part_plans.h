/* The engines' plans of a part of a transformer: what a rank holds and moves. */
#ifndef ZI_PLAN_PART_PLANS_H
#define ZI_PLAN_PART_PLANS_H

#include "zero/options.h"
#include "zero/plan.h"
#include "zero/transformer.h"

typedef struct zi_part_plans {
    zero_plan *main;
    zero_plan *experts; /* of expert parallelism; NULL: `main` has them, or there are none */
} zi_part_plans;

/* - column: ranks that hold the same part, the experts' excepted.
 * - Ownership: zi_part_plans_destroy gives them back, after an error too.
 * - Errors: those of zero_transformer_model and zero_plan_create; INVALID_ARGUMENT for a shard
 * group with expert parallelism. */
zero_status zi_part_plans_make(const zero_transformer *transformer,
                               const zero_engine_options *options, uint32_t column,
                               zi_part_plans *plans);
/* UNSUPPORTED where an engine of the plan would refuse the model-parallel world of the part. */
zero_status zi_part_check(const zero_transformer *part, const zero_plan *plan);
void zi_part_plans_destroy(zi_part_plans *plans);

#endif
