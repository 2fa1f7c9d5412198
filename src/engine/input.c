/* Owns the input of a step: it takes the caller's struct of any version, checks its numbers, and
 * makes what the device reads and what ranks exchange of it. */
#include <inttypes.h>
#include <math.h>

#include "core/error.h"
#include "core/sized.h"
#include "engine/input.h"

static zero_status check_number(uint32_t group, const char *name, float value, bool legal)
{
    if (!isfinite(value) || !legal) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group %" PRIu32 ": %s %g is outside its bounds (see zero_adamw)", group, name,
                (double)value);
    }
    return ZERO_OK;
}

/* A struct that was assigned in part: beta1 and beta2 may be 0 on purpose, eps never is. */
static zero_status check_filled(uint32_t group, const zero_adamw *a)
{
    if (a->beta1 == 0.0f && a->beta2 == 0.0f && a->eps == 0.0f) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group %" PRIu32 ": beta1, beta2 and eps are all 0, so this zero_adamw (lr %g) was "
                "not filled; take zero_step_params_init() (its hyper for each entry of groups), "
                "then assign single fields",
                group, (double)a->lr);
    }
    return ZERO_OK;
}

static zero_status check_adamw(uint32_t group, const zero_adamw *a)
{
    ZI_TRY(check_filled(group, a));
    ZI_TRY(check_number(group, "lr", a->lr, a->lr >= 0.0f));
    ZI_TRY(check_number(group, "beta1", a->beta1, a->beta1 >= 0.0f && a->beta1 < 1.0f));
    ZI_TRY(check_number(group, "beta2", a->beta2, a->beta2 >= 0.0f && a->beta2 < 1.0f));
    ZI_TRY(check_number(group, "eps", a->eps, a->eps > 0.0f));
    return check_number(group, "weight_decay", a->weight_decay, a->weight_decay >= 0.0f);
}

/* Whether these are numbers of the engine's optimizer. A callback has its own. */
static zero_status check_hyper(uint32_t group, zero_optimizer optimizer, const zero_hyper *hyper)
{
    if (hyper->kind != ZERO_OPTIMIZER_DEFAULT && hyper->kind != optimizer) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group %" PRIu32 ": kind %d is not options.optimizer, %d; give the engine's, or "
                "ZERO_OPTIMIZER_DEFAULT",
                group, (int)hyper->kind, (int)optimizer);
    }
    if (hyper->reserved0 != 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "group %" PRIu32 ": reserved0 is %" PRIu32 "; this library knows nothing but 0 "
                "there",
                group, hyper->reserved0);
    }
    return optimizer == ZERO_OPTIMIZER_ADAMW ? check_adamw(group, &hyper->adamw) : ZERO_OK;
}

static zero_status check_limits(const zero_step_params *params)
{
    if (!isfinite(params->max_norm) || params->max_norm < 0.0f) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "max_norm %g is not finite and >= 0",
                (double)params->max_norm);
    }
    if (!isfinite(params->grad_divisor) || params->grad_divisor < 0.0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "grad_divisor %g is not finite and > 0, nor 0 for ranks x micro-steps",
                params->grad_divisor);
    }
    if (params->grad_divisor != 0.0 && params->grad_weight != NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "grad_divisor is %g and grad_weight %p; gradients are divided by one of them",
                params->grad_divisor, (const void *)params->grad_weight);
    }
    return ZERO_OK;
}

/* The decision's input: every group's numbers, the limit, and the divisor if one is given. */
static zero_status make_input(const zero_engine *engine, const zero_step_params *params,
                              zi_step_input *input)
{
    const zero_engine_options *options = &engine->layout->options;
    ZI_TRY(check_limits(params));
    if (params->group_count > ZI_GROUPS_MAX ||
        (params->group_count != 0 && params->groups == NULL)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group_count %" PRIu32 " needs as many groups, at most %d", params->group_count,
                ZI_GROUPS_MAX);
    }
    input->group_count = ZI_GROUPS_MAX;
    for (uint32_t g = 0; g < ZI_GROUPS_MAX; g++) {
        const zero_hyper *hyper = g < params->group_count ? &params->groups[g] : &params->hyper;
        ZI_TRY(check_hyper(g, options->optimizer, hyper));
        input->groups[g] = hyper->adamw;
    }
    input->max_norm = (double)params->max_norm;
    input->divisor = params->grad_divisor;
    return ZERO_OK;
}

zero_status zi_engine_take_input(const zero_engine *engine, const zero_step_params *params,
                                 zi_step_input *input, const float **weight)
{
    zero_step_params taken = zero_step_params_init();
    if (params != NULL) {
        ZI_TRY(ZI_SIZED_IN(zero_step_params, params, &taken));
    }
    *weight = taken.grad_weight;
    return make_input(engine, &taken, input);
}

void zi_engine_resolve_divisor(const zero_engine *engine, zi_step_input *input, const float *weight,
                               uint64_t micro_steps)
{
    if (input->divisor == 0.0 && weight == NULL) {
        input->divisor = (double)engine->layout->sharding.world * (double)micro_steps;
    }
}

void zi_engine_give(const zero_engine *engine, const zi_step_input *input, zi_step_given *given)
{
    uint32_t used = 0;
    given->rank = zero_world_rank(engine->world);
    given->max_norm = (float)input->max_norm;
    given->divisor = input->divisor;
    for (uint32_t g = 0; g < ZI_GROUPS_MAX; g++) {
        if ((engine->layout->groups >> g & 1) != 0) {
            given->groups[used++] = input->groups[g];
        }
    }
}
