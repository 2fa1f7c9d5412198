/* Owns the hooks of forward and backward: it checks that a call is legal and passes it to the stage
 * that owns the state. */
#include "zero/unit.h"

#include <inttypes.h>

#include "core/block_codec.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/due_step.h"
#include "engine/guard.h"
#include "engine/replicas.h"
#include "engine/speculate.h"
#include "engine/tiers.h"
#include "engine/tracing.h"
#include "engine/unit_views.h"
#include "zero/encoded.h"

static const char *hooks_unit_name(const zero_engine *engine, uint32_t unit)
{
    return engine->layout->unit_infos[unit].name;
}

/* For a span, which begins before the number is checked. */
static const char *span_name(const zero_engine *engine, uint32_t unit)
{
    return unit < engine->layout->unit_count ? hooks_unit_name(engine, unit) : "no such unit";
}

/* The end of hooks that leave the engine's state as it is. */
static zero_status hooks_leave(zero_engine *engine, zero_status status)
{
    return zi_engine_finish(engine, zi_engine_span_end(engine, status));
}

static zero_status micro_begin(zero_engine *engine, zi_engine_call call)
{
    const bool last = call == ZI_CALL_LAST_BEGIN;
    ZI_TRY(zi_engine_admit(engine, call, "zero_micro_begin"));
    ZI_TRY(zi_engine_compare_replicas(engine)); /* before a capture zero_capture_prepare has */
    ZI_TRY(zi_params_micro_begin(engine->params));
    zi_grads_micro_begin(engine->grads, engine->micro_index == 0, last);
    return last ? zi_engine_begin_speculation(engine) : ZERO_OK;
}

zero_status zero_micro_begin(zero_engine *engine, zero_micro micro)
{
    const zi_engine_call call = micro == ZERO_MICRO_LAST ? ZI_CALL_LAST_BEGIN : ZI_CALL_MICRO_BEGIN;
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_MICRO_BEGIN);
    if (micro != ZERO_MICRO_EARLIER && micro != ZERO_MICRO_LAST) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "micro %d is no micro-step; pass ZERO_MICRO_EARLIER or ZERO_MICRO_LAST",
                (int)micro);
    }
    zi_engine_span_begin(engine, ZI_SPAN_MICRO_BEGIN,
                         micro == ZERO_MICRO_LAST ? "last" : "not last");
    const zero_status status = zi_engine_span_end(engine, micro_begin(engine, call));
    return zi_engine_leave(engine, call, status);
}

/* Such a gradient loses what tied units and earlier micro-steps have added, in silence. */
static void warn_of_assigned(zero_engine *engine)
{
    const uint32_t tensor = zi_grads_take_assigned(engine->grads);
    if (tensor != ZI_NO_INDEX && zero_world_rank(engine->world) == 0) {
        zi_log(ZERO_LOG_WARN,
               "tensor %" PRIu32 " \"%.60s\": backward assigned its gradient or cleared it first; "
               "add to what the view holds, as a GEMM with beta 1 does, and clear nothing (the "
               "first such tensor, said once)",
               tensor, engine->layout->tensor_infos[tensor].name);
    }
}

/* Everything that ranks do together at the end of a micro-step. No gradient is acquired. */
static zero_status close_micro(zero_engine *engine)
{
    const zi_engine_state next = zi_engine_on(engine->state, ZI_CALL_MICRO_END).next;
    const bool last = zi_engine_on(next, ZI_CALL_STEP).legal;
    if (engine->layout->tuning.left_out_at_once != 0) {
        ZI_TRY(zi_params_pass_end(engine->params)); /* which leaves out what never came */
    }
    ZI_TRY(zi_grads_micro_end(engine->grads));
    warn_of_assigned(engine);
    ZI_TRY(zi_params_micro_end(engine->params, last));
    ZI_TRY(zi_engine_speculate(engine));
    if (last && !engine->speculation.begun) {
        /* Read the first extents of state while gradients are still being reduced. */
        ZI_TRY(zi_optim_look_ahead(engine->optim, zi_engine_steps_down(engine)));
    }
    engine->micro_index++;
    engine->stats.micro_steps++;
    return ZERO_OK;
}

static zero_status micro_end(zero_engine *engine)
{
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_MICRO_END, "zero_micro_end"));
    return close_micro(engine);
}

zero_status zero_micro_end(zero_engine *engine)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_MICRO_END);
    zi_engine_span_begin(engine, ZI_SPAN_MICRO_END, "");
    const zero_status status = zi_engine_span_end(engine, micro_end(engine));
    return zi_engine_leave(engine, ZI_CALL_MICRO_END, status);
}

/* Of an acquire that names none: forward if a micro-step is open. */
static zero_pass infer_pass(const zero_engine *engine, zero_pass pass)
{
    if (pass != ZERO_PASS_NONE) {
        return pass;
    }
    return zi_engine_on(engine->state, ZI_CALL_TRAIN).legal ? ZERO_PASS_FORWARD : ZERO_PASS_EVAL;
}

static zero_status check_pass(const zero_engine *engine, uint32_t unit, zero_pass pass)
{
    switch (pass) {
    case ZERO_PASS_FORWARD:
        return zi_engine_admit_unit(engine, ZI_CALL_TRAIN, "pass forward", unit);
    case ZERO_PASS_BACKWARD:
        return zi_engine_admit_unit(engine, ZI_CALL_TRAIN, "pass backward", unit);
    case ZERO_PASS_EVAL:
        return zi_engine_admit_unit(engine, ZI_CALL_EVAL, "pass eval", unit);
    case ZERO_PASS_NONE:
        break;
    }
    ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "pass %d of unit \"%.60s\" is not forward, backward or eval",
            (int)pass, hooks_unit_name(engine, unit));
}

/* Checks of the calls that acquire parameters. target: out, the caller's stream. */
static zero_status check_acquire(zero_engine *engine, uint32_t unit, zero_pass pass,
                                 zero_stream stream, zi_stream **target)
{
    ZI_TRY(zi_engine_check_unit(engine, unit));
    ZI_TRY(check_pass(engine, unit, pass));
    return zi_engine_wrap(engine, stream, target);
}

/* Checks of the other calls on a unit. */
static zero_status hooks_check_call(zero_engine *engine, zi_engine_call call, const char *name,
                                    uint32_t unit, zero_stream stream, zi_stream **target)
{
    ZI_TRY(zi_engine_check_unit(engine, unit));
    ZI_TRY(zi_engine_admit_unit(engine, call, name, unit));
    return zi_engine_wrap(engine, stream, target);
}

static zero_status release_params(zero_engine *engine, uint32_t unit, zi_stream *stream)
{
    const zi_unit_place *place = &engine->layout->units[unit];
    ZI_TRY(zi_params_release(engine->params, unit, unit, stream));
    for (uint32_t i = 0; i < place->owner_count; i++) {
        ZI_TRY(zi_params_release(engine->params, engine->layout->owners[place->owner_first + i],
                                 unit, stream));
    }
    return ZERO_OK;
}

/* Acquire the parameters of the unit and of those it ties to, or of none of them. */
static zero_status acquire_params(zero_engine *engine, uint32_t unit, zero_pass pass,
                                  zi_stream *stream)
{
    if (pass == ZERO_PASS_BACKWARD && engine->layout->tuning.left_out_at_once == 0) {
        ZI_TRY(zi_grads_pass(engine->grads, unit));
        ZI_TRY(zi_engine_speculate(engine));
    }
    const zi_unit_place *place = &engine->layout->units[unit];
    const uint32_t *owners = engine->layout->owners + place->owner_first;
    uint32_t taken = 0;
    zero_status status = ZERO_OK;
    while (status == ZERO_OK && taken < place->owner_count) {
        status = zi_params_acquire(engine->params, owners[taken], unit, pass, stream);
        taken += status == ZERO_OK;
    }
    if (status == ZERO_OK) {
        status = zi_params_acquire(engine->params, unit, unit, pass, stream);
    }
    if (status != ZERO_OK) {
        /* Release what was acquired, so that a refusal changes nothing, and report its own error.
         */
        const zero_error error = *zero_last_error();
        while (taken > 0) {
            (void)zi_params_release(engine->params, owners[--taken], unit, stream);
        }
        return zi_error_adopt(&error);
    }
    return ZERO_OK;
}

/* Release whatever the caller holds of a unit: its gradient first, so that the events of its
 * reduction are recorded while its parameters are still held. */
static zero_status release_all(zero_engine *engine, uint32_t unit, zi_stream *stream)
{
    engine_unit *it = &engine->views.units[unit];
    it->depth = 0;
    it->backward_depth = 0;
    it->view.grads = NULL;
    while (zi_grads_own_count(engine->grads, unit) != 0) {
        ZI_TRY(zi_grads_ready(engine->grads, unit, stream));
    }
    while (zi_params_own_count(engine->params, unit) != 0) {
        ZI_TRY(release_params(engine, unit, stream));
    }
    return ZERO_OK;
}

/* Other ranks may be further on in the micro-step or not as far, so this one takes part in all that
 * is left of it. */
static zero_status micro_abandon(zero_engine *engine, zero_stream stream)
{
    zi_stream *target = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_ABANDON, "zero_micro_abandon"));
    ZI_TRY(zi_engine_wrap(engine, stream, &target));
    for (uint32_t u = engine->layout->unit_count; u-- > 0;) { /* as backward does */
        ZI_TRY(release_all(engine, u, target));
    }
    if (zi_engine_on(engine->state, ZI_CALL_MICRO_END).legal) {
        ZI_TRY(close_micro(engine));
    }
    return zi_engine_drop_step(engine);
}

zero_status zero_micro_abandon(zero_engine *engine, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_MICRO_ABANDON);
    zi_engine_span_begin(engine, ZI_SPAN_MICRO_END, "abandoned");
    const zero_status status = zi_engine_span_end(engine, micro_abandon(engine, stream));
    return zi_engine_leave(engine, ZI_CALL_ABANDON, status);
}

static zero_status acquire_grads(zero_engine *engine, uint32_t unit, zi_stream *stream)
{
    ZI_TRY(zi_grads_acquire(engine->grads, unit, stream));
    return zi_engine_speculate(engine);
}

static zero_status ready_grads(zero_engine *engine, uint32_t unit, zi_stream *stream)
{
    ZI_TRY(zi_grads_ready(engine->grads, unit, stream));
    return zi_engine_speculate(engine);
}

/* Note the pass of the unit and of those it ties to, which are acquired. */
static void hooks_enter(zero_engine *engine, uint32_t unit, zero_pass pass)
{
    const zi_unit_place *place = &engine->layout->units[unit];
    for (uint32_t i = 0; i < place->owner_count; i++) {
        zi_params_enter(engine->params, engine->layout->owners[place->owner_first + i], pass);
    }
    zi_params_enter(engine->params, unit, pass);
}

static zero_status hooks_acquire(zero_engine *engine, uint32_t unit, zero_pass pass,
                                 zero_stream stream)
{
    zi_stream *target = NULL;
    ZI_TRY(check_acquire(engine, unit, pass, stream, &target));
    ZI_TRY(acquire_params(engine, unit, pass, target));
    engine_unit *it = &engine->views.units[unit];
    const bool opens_backward = pass == ZERO_PASS_BACKWARD && it->backward_depth == 0;
    if (opens_backward && zi_grads_trained(engine->grads, unit)) {
        const zero_status status = acquire_grads(engine, unit, target);
        if (status != ZERO_OK) {
            const zero_error error = *zero_last_error();
            (void)release_params(engine, unit, target);
            return zi_error_adopt(&error);
        }
    }
    hooks_enter(engine, unit, pass);
    it->depth++;
    zi_engine_view_params(engine, unit);
    if (opens_backward) {
        it->backward_depth = it->depth;
        zi_engine_view_grads(engine, unit);
    }
    return ZERO_OK;
}

zero_status zero_unit_acquire(zero_engine *engine, uint32_t unit, zero_pass pass,
                              zero_stream stream, const zero_unit_view **view)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_ACQUIRE);
    zi_engine_span_begin(engine, ZI_SPAN_ACQUIRE, span_name(engine, unit));
    const zero_status status = hooks_acquire(engine, unit, infer_pass(engine, pass), stream);
    if (status == ZERO_OK && view != NULL) {
        *view = &engine->views.units[unit].view;
    }
    return hooks_leave(engine, status);
}

static zero_status hooks_release(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    zi_stream *target = NULL;
    ZI_TRY(hooks_check_call(engine, ZI_CALL_RELEASE, "zero_unit_release", unit, stream, &target));
    engine_unit *it = &engine->views.units[unit];
    if (it->depth == 0 && zi_params_own_count(engine->params, unit) != 0) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.60s\" is acquired by zero_unit_params_acquire only; call "
                "zero_unit_params_release",
                unit, hooks_unit_name(engine, unit));
    }
    if (it->depth != 0 && it->depth == it->backward_depth) {
        it->backward_depth = 0;
        it->view.grads = NULL;
        if (zi_grads_trained(engine->grads, unit)) {
            ZI_TRY(ready_grads(engine, unit, target));
        }
    }
    ZI_TRY(release_params(engine, unit, target));
    it->depth--;
    return ZERO_OK;
}

zero_status zero_unit_release(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_RELEASE);
    zi_engine_span_begin(engine, ZI_SPAN_RELEASE, span_name(engine, unit));
    return hooks_leave(engine, hooks_release(engine, unit, stream));
}

static zero_status params_acquire(zero_engine *engine, uint32_t unit, zero_pass pass,
                                  zero_stream stream)
{
    zi_stream *target = NULL;
    ZI_TRY(check_acquire(engine, unit, pass, stream, &target));
    ZI_TRY(acquire_params(engine, unit, pass, target));
    hooks_enter(engine, unit, pass);
    return ZERO_OK;
}

zero_status zero_unit_params_acquire(zero_engine *engine, uint32_t unit, zero_pass pass,
                                     zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_PARAMS_ACQUIRE);
    zi_engine_span_begin(engine, ZI_SPAN_PARAMS_ACQUIRE, span_name(engine, unit));
    return hooks_leave(engine, params_acquire(engine, unit, infer_pass(engine, pass), stream));
}

static zero_status params_release(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    zi_stream *target = NULL;
    ZI_TRY(hooks_check_call(engine, ZI_CALL_RELEASE, "zero_unit_params_release", unit, stream,
                            &target));
    const uint32_t depth = engine->views.units[unit].depth;
    if (depth != 0 && depth == zi_params_own_count(engine->params, unit)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.60s\" is acquired by zero_unit_acquire only; call "
                "zero_unit_release",
                unit, hooks_unit_name(engine, unit));
    }
    return release_params(engine, unit, target);
}

zero_status zero_unit_params_release(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_PARAMS_RELEASE);
    zi_engine_span_begin(engine, ZI_SPAN_PARAMS_RELEASE, span_name(engine, unit));
    return hooks_leave(engine, params_release(engine, unit, stream));
}

zero_status zero_unit_pass(const zero_engine *engine, uint32_t unit, zero_pass *pass)
{
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(zi_engine_check_unit(engine, unit));
    if (pass == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "pass is NULL; pass the address of a zero_pass");
    }
    *pass = zi_params_pass(engine->params, unit);
    return ZERO_OK;
}

static zero_status check_view(const zero_engine *engine, uint32_t tensor, const zero_view *view)
{
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(zi_engine_check_tensor(engine, tensor));
    if (view == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "view is NULL; pass the address of a zero_view");
    }
    return ZERO_OK;
}

static zero_status check_in_use(const zero_engine *engine, uint32_t tensor)
{
    const zi_tensor_info *info = &engine->layout->tensor_infos[tensor];
    if (!zi_params_in_use(engine->params, info->unit)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "tensor %" PRIu32 " \"%.60s\": its unit \"%.60s\" is not acquired; call "
                "zero_unit_acquire first",
                tensor, info->name, hooks_unit_name(engine, info->unit));
    }
    return ZERO_OK;
}

static const zi_flat *shown_flat_of(const zero_engine *engine, uint32_t tensor)
{
    return &engine->layout->flats[engine->layout->tensors[tensor].flat];
}

zero_status zero_tensor_encoded(zero_engine *engine, uint32_t tensor, zero_encoded *out)
{
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(zi_engine_check_tensor(engine, tensor));
    if (out == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "out is NULL; pass the address of a zero_encoded");
    }
    const zi_tensor_info *info = &engine->layout->tensor_infos[tensor];
    const zero_dtype dtype = shown_flat_of(engine, tensor)->slot[ZERO_ROLE_PARAM].dtype;
    if (!zi_dtype_is_block(dtype)) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor %" PRIu32 " \"%.60s\" is acquired as %s, without codes; call "
                "zero_tensor_data, or set tuning.encoded_views",
                tensor, info->name, zero_dtype_name(dtype));
    }
    ZI_TRY(check_in_use(engine, tensor));
    const zi_param_planes planes = zi_params_planes(engine->params, tensor);
    *out = (zero_encoded){.codes = planes.codes,
                          .scales = planes.scales,
                          .count = info->count,
                          .scale_count = zi_div_up(info->count, zi_block_elements(dtype)),
                          .dtype = dtype,
                          .block = zi_block_elements(dtype)};
    return ZERO_OK;
}

zero_status zero_tensor_data(zero_engine *engine, uint32_t tensor, zero_view *view)
{
    ZI_TRY(check_view(engine, tensor, view));
    const zi_tensor_info *info = &engine->layout->tensor_infos[tensor];
    ZI_TRY(check_in_use(engine, tensor));
    if (zi_flat_shown_encoded(shown_flat_of(engine, tensor))) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor %" PRIu32 " \"%.60s\" is acquired as codes and scales, by "
                "tuning.encoded_views; call zero_tensor_encoded, or leave the option 0",
                tensor, info->name);
    }
    *view = (zero_view){
        .data = zi_params_data(engine->params, tensor), .count = info->count, .dtype = info->dtype};
    return ZERO_OK;
}

static zero_status grads_acquire(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    zi_stream *target = NULL;
    ZI_TRY(
        hooks_check_call(engine, ZI_CALL_GRADS, "zero_unit_grads_acquire", unit, stream, &target));
    return acquire_grads(engine, unit, target);
}

zero_status zero_unit_grads_acquire(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_GRADS_ACQUIRE);
    zi_engine_span_begin(engine, ZI_SPAN_GRADS_ACQUIRE, span_name(engine, unit));
    return hooks_leave(engine, grads_acquire(engine, unit, stream));
}

zero_status zero_tensor_grad(zero_engine *engine, uint32_t tensor, zero_view *view)
{
    ZI_TRY(check_view(engine, tensor, view));
    const zi_tensor_info *info = &engine->layout->tensor_infos[tensor];
    if ((info->flags & ZERO_TENSOR_FROZEN) != 0) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "tensor %" PRIu32 " \"%.60s\" is frozen: it has no gradient", tensor, info->name);
    }
    if (!zi_grads_in_use(engine->grads, info->unit)) {
        ZI_FAIL(ZERO_ERR_STATE,
                "tensor %" PRIu32
                " \"%.60s\": the gradient of unit \"%.60s\" is not acquired; acquire "
                "the unit with ZERO_PASS_BACKWARD",
                tensor, info->name, hooks_unit_name(engine, info->unit));
    }
    *view = (zero_view){
        .data = zi_grads_data(engine->grads, tensor),
        .count = info->count,
        .dtype =
            engine->layout->flats[engine->layout->tensors[tensor].flat].slot[ZERO_ROLE_GRAD].dtype};
    return ZERO_OK;
}

static zero_status grads_ready(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    zi_stream *target = NULL;
    ZI_TRY(hooks_check_call(engine, ZI_CALL_GRADS, "zero_unit_grads_ready", unit, stream, &target));
    if (engine->views.units[unit].backward_depth != 0 &&
        zi_grads_own_count(engine->grads, unit) == 1) {
        ZI_FAIL(ZERO_ERR_STATE,
                "unit %" PRIu32 " \"%.60s\": its gradient is acquired by zero_unit_acquire only; "
                "zero_unit_release says that it is ready",
                unit, hooks_unit_name(engine, unit));
    }
    return ready_grads(engine, unit, target);
}

zero_status zero_unit_grads_ready(zero_engine *engine, uint32_t unit, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_GRADS_READY);
    zi_engine_span_begin(engine, ZI_SPAN_GRADS_READY, span_name(engine, unit));
    return hooks_leave(engine, grads_ready(engine, unit, stream));
}
