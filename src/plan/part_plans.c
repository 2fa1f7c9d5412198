/* Owns the plans of a part's engines: one, or with expert parallelism one more for the experts,
 * whose world are the ranks that hold the same ones. */
#include "plan/part_plans.h"

#include <inttypes.h>

#include "core/error.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "layout/layout.h"

/* model: given up. NULL: no plan. */
static zero_status plan_of(zero_model *model, const zero_engine_options *options, uint32_t world,
                           zero_plan **plan)
{
    if (model == NULL) {
        return ZERO_OK;
    }
    const zero_status status = zero_plan_create(model, options, world, plan);
    zero_model_destroy(model);
    return status;
}

static zero_status check_groups(const zero_engine_options *options, uint64_t expert_parallel)
{
    zero_engine_options given = zero_engine_options_init();
    if (options != NULL) {
        ZI_TRY(ZI_SIZED_IN(zero_engine_options, options, &given));
    }
    if (given.shard_group != 0 && expert_parallel > 1) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "shard_group %" PRIu32 " with expert_parallel %" PRIu64
                ": experts are in worlds of other sizes, for which it is no group; leave it 0",
                (uint32_t)given.shard_group, expert_parallel);
    }
    return ZERO_OK;
}

zero_status zi_part_check(const zero_transformer *part, const zero_plan *plan)
{
    if ((part->tensor_parallel > 1 || part->pipeline_parallel > 1) &&
        plan->layout->layer_count != 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "tensor_parallel %" PRIu64 ", pipeline_parallel %" PRIu64
                ", and an optimizer that needs the norm of each whole tensor: an engine refuses "
                "both together; use 1 of each, or another optimizer",
                zi_max_u64(part->tensor_parallel, 1), zi_max_u64(part->pipeline_parallel, 1));
    }
    return ZERO_OK;
}

zero_status zi_part_plans_make(const zero_transformer *transformer,
                               const zero_engine_options *options, uint32_t column,
                               zi_part_plans *plans)
{
    zero_model *model = NULL;
    zero_transformer t = {.struct_bytes = sizeof t};
    *plans = (zi_part_plans){NULL, NULL};
    ZI_TRY(ZI_SIZED_IN(zero_transformer, transformer, &t));
    const uint64_t shared = zi_max_u64(t.expert_parallel, 1);
    ZI_TRY(check_groups(options, shared));
    ZI_TRY(zero_transformer_model(transformer, &model));
    ZI_TRY(plan_of(model, options, column, &plans->main));
    ZI_TRY(zi_part_check(&t, plans->main));
    ZI_TRY(zero_transformer_experts(transformer, &model));
    return plan_of(model, options, (uint32_t)(column / shared), &plans->experts);
}

void zi_part_plans_destroy(zi_part_plans *plans)
{
    zero_plan_destroy(plans->main);
    zero_plan_destroy(plans->experts);
    *plans = (zi_part_plans){NULL, NULL};
}
