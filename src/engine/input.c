/* Owns the input of a step: it takes the caller's struct of any version, checks its numbers, and
 * makes what the device reads and what ranks exchange of it. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/sized.h"
#include "engine/input.h"
#include "optimizer/optimizer_table.h"

/* A struct that was assigned in part: numbers besides lr may be 0 on purpose, but not all of them
 * where the defaults are not. */
static zero_status check_filled(uint32_t group, const zi_optimizer *optimizer, const float *number)
{
    bool given = false;
    bool by_default = false;
    for (uint32_t i = 1; i < optimizer->number_count; i++) {
        given = given || number[i] != 0.0f;
        by_default = by_default || optimizer->numbers[i].fallback != 0.0f;
    }
    if (!given && by_default) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group %" PRIu32 ": all numbers of this zero_%s but lr %g are 0, so it was not "
                "filled; take zero_hyper_init(), or zero_step_params_init() with its hyper for "
                "each entry of groups, then assign single fields",
                group, optimizer->name, (double)number[0]);
    }
    return ZERO_OK;
}

static zero_status input_check_numbers(uint32_t group, const zi_optimizer *optimizer,
                                       const float *number)
{
    ZI_TRY(check_filled(group, optimizer, number));
    for (uint32_t i = 0; i < optimizer->number_count; i++) {
        const zi_hyper_number *rule = &optimizer->numbers[i];
        if (!zi_bounds_hold(rule->bounds, number[i])) {
            ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "group %" PRIu32 ": %s %g of %s is not %s", group,
                    rule->name, (double)number[i], optimizer->name, zi_bounds_text(rule->bounds));
        }
    }
    return ZERO_OK;
}

/* Bounds of LAMB's ratio that leave none. */
static zero_status check_ratios(uint32_t group, const zero_hyper *hyper, uint32_t optimizer)
{
    const zero_lamb *lamb = &hyper->lamb;
    if (optimizer == ZERO_OPTIMIZER_LAMB && lamb->max_ratio > 0.0f &&
        lamb->min_ratio > lamb->max_ratio) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group %" PRIu32 ": min_ratio %g of lamb is above its max_ratio %g; raise that, or "
                "make it 0, which is no bound",
                group, (double)lamb->min_ratio, (double)lamb->max_ratio);
    }
    return ZERO_OK;
}

/* Whose numbers a zero_hyper has; those of a callback are its own. */
static uint32_t input_kind_of(const zero_hyper *hyper, uint32_t optimizer)
{
    const bool open = hyper->kind == ZERO_OPTIMIZER_DEFAULT;
    return open && optimizer != ZERO_OPTIMIZER_CALLBACK ? (uint32_t)ZERO_OPTIMIZER_ADAMW
           : open                                       ? optimizer
                                                        : (uint32_t)hyper->kind;
}

static zero_status refuse_kind(uint32_t group, const zero_hyper *hyper, uint32_t optimizer)
{
    const zi_optimizer *given = zi_optimizer_of((uint32_t)hyper->kind);
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
            "group %" PRIu32 ": kind %d (%s) is not the group's optimizer, which is %d (%s); give "
            "its numbers: zero_hyper_init(), then assign single fields",
            group, (int)hyper->kind, given->name != NULL ? given->name : "none", (int)optimizer,
            zi_optimizer_of(optimizer)->name);
}

/* One group's numbers. shared: they are for all groups that have no entry of their own, of which
 * those without a trained tensor may have another optimizer. */
static zero_status take_hyper(const zi_layout *layout, uint32_t group, const zero_hyper *hyper,
                              bool shared, zi_hyper *own)
{
    const uint32_t optimizer = (uint32_t)layout->options.group_optimizer[group];
    *own = zi_hyper_default(optimizer);
    if (hyper == NULL) {
        return ZERO_OK;
    }
    if (input_kind_of(hyper, optimizer) != optimizer) {
        const bool is_used = (layout->groups >> group & 1) != 0;
        return shared && !is_used ? ZERO_OK : refuse_kind(group, hyper, optimizer);
    }
    if (hyper->reserved0 != 0) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "group %" PRIu32 ": reserved0 is %" PRIu32 "; this library knows nothing but 0 "
                "there",
                group, hyper->reserved0);
    }
    memcpy(own->number, &hyper->adamw, sizeof own->number);
    ZI_TRY(input_check_numbers(group, zi_optimizer_of(optimizer), own->number));
    return check_ratios(group, hyper, optimizer);
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

/* The decision's input: every group's numbers, the limit, and the divisor if one is given. shared:
 * numbers of groups without an entry; NULL: their optimizers' defaults. */
static zero_status make_input(const zero_engine *engine, const zero_step_params *params,
                              const zero_hyper *shared, zi_step_input *input)
{
    ZI_TRY(check_limits(params));
    if (params->group_count > ZI_GROUPS_MAX ||
        (params->group_count != 0 && params->groups == NULL)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "group_count %" PRIu32 " needs as many groups, at most %d", params->group_count,
                ZI_GROUPS_MAX);
    }
    input->group_count = ZI_GROUPS_MAX;
    for (uint32_t g = 0; g < ZI_GROUPS_MAX; g++) {
        const bool is_shared = g >= params->group_count;
        ZI_TRY(take_hyper(engine->layout, g, is_shared ? shared : &params->groups[g], is_shared,
                          &input->groups[g]));
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
    return make_input(engine, &taken, params != NULL ? &taken.hyper : NULL, input);
}

void zi_engine_resolve_divisor(const zero_engine *engine, zi_step_input *input, const float *weight,
                               uint64_t micro_steps)
{
    if (input->divisor == 0.0 && weight == NULL) {
        input->divisor = (double)engine->layout->world * (double)micro_steps;
    }
}

void zi_engine_give(const zero_engine *engine, const zi_step_input *input, zi_step_given *given)
{
    uint32_t used = 0;
    given->rank = zero_world_rank(engine->world);
    given->max_norm = (float)input->max_norm;
    given->divisor = input->divisor;
    for (uint32_t g = 0; g < ZI_GROUPS_MAX; g++) {
        const zi_hyper *hyper = &input->groups[g];
        const uint32_t count = zi_optimizer_of(hyper->kind)->number_count;
        if ((engine->layout->groups >> g & 1) != 0) {
            memcpy(&given->hyper[used], hyper->number, count * sizeof hyper->number[0]);
            used += count;
        }
    }
}
