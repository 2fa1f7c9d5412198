/* Owns the optimizer step: from the boundary's reductions to published parameters, all of it on the
 * step stream: wait for the reductions and the last readers, gather the squares, decide; then for
 * each unit update, publish, record `updated`. */
#include "zero/step.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/trace.h"
#include "engine/engine_internal.h"

/* Take the caller's struct, older or newer; as options.c does. */
static zero_status take_params(const zero_step_params *in, zero_step_params *out)
{
    *out = zero_step_params_init();
    if (in == NULL) {
        return ZERO_OK;
    }
    if (in->struct_bytes < sizeof in->struct_bytes || in->struct_bytes > 4096) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "params.struct_bytes is %zu; fill the parameters with "
                "zero_step_params_init()",
                in->struct_bytes);
    }
    const unsigned char *bytes = (const unsigned char *)in;
    for (size_t i = sizeof *out; i < in->struct_bytes; i++) {
        if (bytes[i] != 0) {
            ZI_FAIL(ZERO_UNSUPPORTED,
                    "params has %zu bytes and sets one beyond the %zu this library "
                    "knows; link a newer library",
                    in->struct_bytes, sizeof *out);
        }
    }
    memset(out, 0, sizeof *out);
    memcpy(out, in, in->struct_bytes < sizeof *out ? in->struct_bytes : sizeof *out);
    return ZERO_OK;
}

static zero_status check_number(uint32_t group, const char *name, float value, bool legal)
{
    if (!isfinite(value) || !legal) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "group %" PRIu32 ": %s %g is outside its bounds (see zero_adamw)", group, name,
                (double)value);
    }
    return ZERO_OK;
}

static zero_status check_adamw(uint32_t group, const zero_adamw *a)
{
    ZI_TRY(check_number(group, "lr", a->lr, a->lr >= 0.0f));
    ZI_TRY(check_number(group, "beta1", a->beta1, a->beta1 >= 0.0f && a->beta1 < 1.0f));
    ZI_TRY(check_number(group, "beta2", a->beta2, a->beta2 >= 0.0f && a->beta2 < 1.0f));
    ZI_TRY(check_number(group, "eps", a->eps, a->eps > 0.0f));
    return check_number(group, "weight_decay", a->weight_decay, a->weight_decay >= 0.0f);
}

/* The decision's input: every group's numbers, the divisor and the limit. */
static zero_status make_input(const zero_engine *engine, const zero_step_params *params,
                              zi_step_input *input)
{
    const zero_engine_options *options = &engine->layout->options;
    if (!isfinite(params->max_norm) || params->max_norm < 0.0f) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "max_norm %g is not finite and >= 0",
                (double)params->max_norm);
    }
    if (params->group_count > ZI_GROUPS_MAX ||
        (params->group_count != 0 && params->groups == NULL)) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "group_count %" PRIu32 " needs as many groups, at most %d",
                params->group_count, ZI_GROUPS_MAX);
    }
    input->group_count = ZI_GROUPS_MAX;
    for (uint32_t g = 0; g < ZI_GROUPS_MAX; g++) {
        const zero_adamw *adamw = g < params->group_count ? &params->groups[g] : &params->adamw;
        if (options->optimizer == ZERO_OPTIMIZER_ADAMW) {
            ZI_TRY(check_adamw(g, adamw));
        }
        input->groups[g] = *adamw;
    }
    input->max_norm = (double)params->max_norm;
    input->divisor = options->grad_divisor != 0.0f
                         ? (double)options->grad_divisor
                         : (double)engine->layout->sharding.world * (double)engine->micro_index;
    return ZERO_OK;
}

/* The turn of step `step`, counted from 0. */
static uint32_t turn_of(uint64_t step)
{
    return (uint32_t)(step % ENGINE_TURNS);
}

static zero_status enqueue_decision(zero_engine *engine, zi_stream *caller, uint32_t turn)
{
    const zi_device *device = engine->device;
    engine_turn *room = &engine->turns[turn];
    zi_decide_job job = engine->decide;
    job.input = &room->input;
    zi_stream *stream = engine->step_stream;
    ZI_TRY(zi_params_step_begin(engine->params, stream));
    ZI_TRY(device->ops->event_record(device->self, engine->caller, caller));
    ZI_TRY(device->ops->stream_wait(device->self, stream, engine->caller, NULL));
    ZI_TRY(zi_grads_wait_reduced(engine->grads, stream));
    ZI_TRY(zi_group_submit(engine->groups.norm, stream, &engine->norm_gather, 1));
    ZI_TRY(engine->kernels.ops->decide(engine->kernels.self, stream, &job));
    ZI_TRY(device->ops->copy(device->self, stream, &room->outcome, job.decision,
                             sizeof room->outcome));
    return device->ops->event_record(device->self, engine->decided[turn], stream);
}

static zero_status enqueue_update(zero_engine *engine)
{
    const zi_device *device = engine->device;
    for (uint32_t u = 0; u < engine->layout->unit_count; u++) {
        ZI_TRY(zi_optim_step_unit(engine->optim, u));
        ZI_TRY(zi_params_updated(engine->params, u, engine->step_stream));
    }
    ZI_TRY(zi_grads_consumed(engine->grads, engine->step_stream));
    return device->ops->event_record(device->self, engine->stepped, engine->step_stream);
}

/* Until the last step that used the turn is decided, if any did. */
static zero_status await_turn(zero_engine *engine, uint32_t turn)
{
    ZI_TRY(zi_engine_await(engine, engine->decided[turn]));
    const uint64_t skipped = engine->turns[turn].outcome.skipped;
    if (skipped > engine->stats.steps_skipped) {
        engine->stats.steps_skipped = skipped;
    }
    return ZERO_OK;
}

/* The last step's outcome; a step was taken. */
static zero_status await_outcome(zero_engine *engine, const zi_step_decision **outcome)
{
    const uint32_t turn = turn_of(engine->stats.steps - 1);
    *outcome = &engine->turns[turn].outcome;
    return await_turn(engine, turn);
}

/* After steps 1, 2, 4, 8, ...: often while the order settles, then hardly ever. */
static bool is_power_of_two(uint64_t number)
{
    return (number & (number - 1)) == 0;
}

static zero_status check_now(const zero_engine *engine)
{
    if (engine->micro_open) {
        ZI_FAIL(ZERO_STATE, "a micro-step is open; call zero_micro_end before zero_step");
    }
    if (!engine->step_due) {
        ZI_FAIL(ZERO_STATE, "no boundary is closed: the last micro-step of a step begins with "
                            "zero_micro_begin(engine, 1)");
    }
    const uint32_t used = zi_params_first_in_use(engine->params);
    if (used != ZI_NO_INDEX) {
        ZI_FAIL(ZERO_STATE,
                "unit %" PRIu32 " \"%.60s\" is still acquired; release it before the step", used,
                engine->layout->unit_infos[used].name);
    }
    return ZERO_OK;
}

static zero_status take_step(zero_engine *engine, const zero_step_params *caller_params,
                             zero_stream stream)
{
    zero_step_params params;
    zi_step_input input;
    zi_stream *caller = NULL;
    ZI_TRY(check_now(engine));
    ZI_TRY(take_params(caller_params, &params));
    ZI_TRY(make_input(engine, &params, &input));
    ZI_TRY(engine->device->ops->stream_wrap(engine->device->self, stream, &caller));
    const uint32_t turn = turn_of(engine->stats.steps);
    ZI_TRY(await_turn(engine, turn));
    engine->turns[turn].input = input;
    ZI_TRY(enqueue_decision(engine, caller, turn));
    ZI_TRY(enqueue_update(engine));
    engine->step_due = false;
    engine->micro_index = 0;
    engine->stats.steps++;
    if (is_power_of_two(engine->stats.steps)) {
        ZI_TRY(zi_engine_agree_schedules(engine));
    }
    return zi_params_step_end(engine->params);
}

zero_status zero_step(zero_engine *engine, const zero_step_params *params, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_span_begin(ZI_SPAN_STEP, "");
    const zero_status status = take_step(engine, params, stream);
    zi_span_end();
    return zi_engine_finish(engine, status);
}

zero_status zero_step_wait(zero_engine *engine, zero_step_result *result)
{
    ZI_TRY(zi_engine_check(engine));
    if (engine->stats.steps == 0 || result == NULL) {
        ZI_FAIL(result == NULL ? ZERO_INVALID_ARGUMENT : ZERO_STATE,
                "no step was taken yet, or the place for its result (%p) is NULL", (void *)result);
    }
    const zi_step_decision *decision = NULL;
    ZI_TRY(zi_engine_finish(engine, await_outcome(engine, &decision)));
    *result = (zero_step_result){.step = engine->stats.steps,
                                 .updates = decision->update,
                                 .norm = decision->norm,
                                 .clip = decision->clip,
                                 .loss_scale = decision->loss_scale,
                                 .skipped = decision->skip};
    return ZERO_OK;
}

zero_status zero_loss_scale(zero_engine *engine, float *scale)
{
    ZI_TRY(zi_engine_check(engine));
    if (scale == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "scale is NULL; pass the address of a float");
    }
    *scale = engine->layout->options.loss_scale;
    if (!engine->layout->options.loss_scale_static && engine->stats.steps != 0) {
        const zi_step_decision *decision = NULL;
        ZI_TRY(zi_engine_finish(engine, await_outcome(engine, &decision)));
        *scale = decision->loss_scale;
    }
    return ZERO_OK;
}
