/* Owns the optimizer step: from the boundary's reductions to published parameters, all of it on the
 * step stream: wait for the reductions and the last readers, gather the squares and what ranks were
 * given, decide; then for each unit update, publish, record `updated`. */
#include "zero/step.h"

#include <inttypes.h>
#include <math.h>

#include "core/error.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "core/trace.h"
#include "engine/engine_internal.h"

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

/* Whether these are numbers of the engine's optimizer. A callback has its own. */
static zero_status check_hyper(uint32_t group, zero_optimizer optimizer, const zero_hyper *hyper)
{
    if (hyper->kind != ZERO_OPTIMIZER_DEFAULT && hyper->kind != optimizer) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "group %" PRIu32 ": kind %d is not options.optimizer, %d; give the engine's, or "
                "ZERO_OPTIMIZER_DEFAULT",
                group, (int)hyper->kind, (int)optimizer);
    }
    if (hyper->reserved0 != 0) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "group %" PRIu32 ": reserved0 is %" PRIu32 "; this library knows nothing but 0 "
                "there",
                group, hyper->reserved0);
    }
    return optimizer == ZERO_OPTIMIZER_ADAMW ? check_adamw(group, &hyper->adamw) : ZERO_OK;
}

static zero_status check_limits(const zero_step_params *params)
{
    if (!isfinite(params->max_norm) || params->max_norm < 0.0f) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "max_norm %g is not finite and >= 0",
                (double)params->max_norm);
    }
    if (!isfinite(params->grad_divisor) || params->grad_divisor < 0.0) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
                "grad_divisor %g is not finite and > 0, nor 0 for ranks x micro-steps",
                params->grad_divisor);
    }
    if (params->grad_divisor != 0.0 && params->grad_weight != NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT,
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
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "group_count %" PRIu32 " needs as many groups, at most %d",
                params->group_count, ZI_GROUPS_MAX);
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

void zi_engine_settle_divisor(const zero_engine *engine, zi_step_input *input, const float *weight,
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

zero_status zi_engine_put_message(zero_engine *engine, zi_stream *caller, engine_turn *room,
                                  uint32_t turn, const float *weight)
{
    const zi_device *device = engine->device;
    const zi_layout *layout = engine->layout;
    zi_stream *stream = engine->step_stream;
    zi_step_message *message =
        (zi_step_message *)(void *)(engine->arena[ZERO_ROLE_STEP] + layout->message_at);
    if (weight != NULL) { /* on the caller's stream, which may overwrite it from then on */
        ZI_TRY(device->ops->copy(device->self, caller, &engine->weights[turn], weight,
                                 sizeof *weight));
    }
    ZI_TRY(device->ops->event_record(device->self, engine->caller, caller));
    ZI_TRY(device->ops->stream_wait(device->self, stream, engine->caller, NULL));
    ZI_TRY(zi_grads_wait_reduced(engine->grads, stream));
    room->given.micro_total = engine->stats.micro_steps;
    room->given.micro_steps = (uint32_t)engine->micro_index;
    zi_engine_give(engine, &room->input, &room->given);
    ZI_TRY(device->ops->copy(device->self, stream, &message->given, &room->given,
                             offsetof(zi_step_given, groups) +
                                 layout->group_count * sizeof room->given.groups[0]));
    if (weight != NULL) {
        ZI_TRY(device->ops->copy(device->self, stream, &message->given.grad_weight,
                                 &engine->weights[turn], sizeof *weight));
    }
    if (!layout->replicates) {
        return ZERO_OK;
    }
    return device->ops->copy(device->self, stream, &message->replica_infinite,
                             &engine->replicas->infinite_chunks,
                             2 * sizeof message->replica_infinite);
}

zero_status zi_engine_decide(zero_engine *engine, zi_decide_job job, const zi_collective *messages,
                             const zi_collective *parts)
{
    const zi_kernels *kernels = &engine->kernels;
    zi_stream *stream = engine->step_stream;
    ZI_TRY(zi_group_submit(engine->groups.norm, stream, messages, 1));
    job.phases = ZI_DECIDE_COLLECT | ZI_DECIDE_CONCLUDE;
    if (engine->groups.mesh != NULL) {
        job.phases = ZI_DECIDE_COLLECT;
        ZI_TRY(kernels->ops->decide(kernels->self, stream, &job));
        ZI_TRY(zi_group_submit(engine->groups.mesh, stream, parts, 1));
        job.phases = ZI_DECIDE_CONCLUDE;
    }
    return kernels->ops->decide(kernels->self, stream, &job);
}

static zero_status enqueue_decision(zero_engine *engine, zi_stream *caller, uint32_t turn,
                                    const float *weight)
{
    const zi_device *device = engine->device;
    engine_turn *room = &engine->turns[turn];
    zi_decide_job job = engine->decide;
    job.input = &room->input;
    zi_stream *stream = engine->step_stream;
    ZI_TRY(zi_params_step_begin(engine->params, stream));
    ZI_TRY(zi_engine_put_message(engine, caller, room, turn, weight));
    ZI_TRY(zi_engine_decide(engine, job, &engine->norm_gather, &engine->part_gather));
    ZI_TRY(device->ops->copy(device->self, stream, &room->outcome, job.decision,
                             sizeof room->outcome));
    if (engine->announced.begun) {
        ZI_TRY(zi_optim_judge(engine->optim, &room->outcome, &room->drafts));
    }
    return device->ops->event_record(device->self, engine->decided[turn], stream);
}

/* Gathers wait for all of a step where parameters are on disk: what they read ahead would be old,
 * and take the window from it. */
static zero_status enqueue_update(zero_engine *engine, uint32_t turn)
{
    const zi_device *device = engine->device;
    zi_stream *stream = engine->step_stream;
    const uint32_t units = engine->layout->unit_count;
    const bool down = zi_engine_steps_down(engine);
    const bool disk = zi_role_tier(engine->layout, ZERO_ROLE_PARAM) == ZERO_TIER_DISK;
    for (uint32_t i = 0; i < units; i++) {
        const uint32_t unit = down ? units - 1 - i : i;
        ZI_TRY(zi_optim_step_unit(engine->optim, unit, &engine->turns[turn].outcome));
        ZI_TRY(disk ? ZERO_OK : zi_params_updated(engine->params, unit, stream));
    }
    for (uint32_t unit = 0; unit < units && disk; unit++) {
        ZI_TRY(zi_params_updated(engine->params, unit, stream));
    }
    ZI_TRY(zi_grads_consumed(engine->grads, stream));
    ZI_TRY(device->ops->event_record(device->self, engine->stepped, stream));
    return zi_optim_rest(engine->optim);
}

/* Steps up to the one decided, itself included; 0: none was. */
static uint64_t steps_of(const zi_step_decision *outcome)
{
    return outcome->update + outcome->skipped;
}

zero_status zi_engine_await_turn(zero_engine *engine, uint32_t turn)
{
    const zi_step_decision *outcome = &engine->turns[turn].outcome;
    ZI_TRY(zi_engine_await(engine, engine->decided[turn]));
    if (outcome->refused > engine->refused) {
        engine->refused = outcome->refused;
        engine->refusal = outcome->refusal;
    }
    if (outcome->refusal.kind != ZI_REFUSAL_WEIGHT) {
        ZI_TRY(zi_engine_check_refusal(engine, &outcome->refusal));
    }
    if (steps_of(outcome) != 0) {
        engine->stats.steps_skipped =
            zi_max_u64(engine->stats.steps_skipped, outcome->skipped - engine->other_skipped);
    }
    return ZERO_OK;
}

/* INVALID_ARGUMENT, once, where a step was refused for its weights since the caller was told last.
 */
static zero_status tell_refused(zero_engine *engine)
{
    const zi_step_refusal refusal = engine->refusal;
    engine->refusal.kind = ZI_REFUSAL_NONE;
    return zi_engine_check_refusal(engine, &refusal);
}

/* The last step's outcome, a plain one's or a launch's of the graph. Only the device knows how
 * often that was launched. */
static zero_status await_outcome(zero_engine *engine, const zi_step_decision **outcome)
{
    const zi_step_decision *plain = &engine->turns[engine->last_turn].outcome;
    const zi_step_decision *graph = &engine->turns[ENGINE_GRAPH_TURN].outcome;
    ZI_TRY(zi_engine_await_turn(engine, engine->last_turn));
    ZI_TRY(zi_engine_await_turn(engine, ENGINE_GRAPH_TURN));
    *outcome = steps_of(graph) > steps_of(plain) ? graph : plain;
    if (steps_of(*outcome) != 0) {
        engine->stats.steps = steps_of(*outcome) - engine->other_steps;
    }
    return ZERO_OK;
}

zero_status zi_engine_settle_outcomes(zero_engine *engine)
{
    const zi_step_decision *last = NULL;
    for (uint32_t turn = 0; turn <= ENGINE_GRAPH_TURN; turn++) {
        ZI_TRY(zi_engine_await_turn(engine, turn));
    }
    return await_outcome(engine, &last);
}

/* After steps 1, 2, 4, 8, ...: often while the order settles, then hardly ever. */
static bool is_power_of_two(uint64_t number)
{
    return (number & (number - 1)) == 0;
}

/* A plain step is enqueued: count it, agree, look ahead. */
static zero_status step_taken(zero_engine *engine)
{
    engine->last_turn = engine->turn;
    engine->turn = (engine->turn + 1) % ENGINE_TURNS;
    engine->stats.steps++;
    engine->plain_steps++;
    engine->park.grads_lost = false;
    if (is_power_of_two(engine->plain_steps)) {
        ZI_TRY(zi_engine_agree_schedules(engine));
    }
    return zi_params_step_end(engine->params);
}

static zero_status take_step(zero_engine *engine, const zero_step_params *caller_params,
                             zero_stream stream)
{
    zi_step_input input;
    const float *weight = NULL;
    zi_stream *caller = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_STEP, "zero_step"));
    ZI_TRY(zi_engine_take_input(engine, caller_params, &input, &weight));
    ZI_TRY(zi_engine_wrap(engine, stream, &caller));
    const bool captured = engine->state == ZI_ENGINE_CAPTURING_STEP_DUE;
    const uint32_t turn = captured ? ENGINE_GRAPH_TURN : engine->turn;
    ZI_TRY(zi_engine_check_announced(engine, &input, weight));
    zi_engine_settle_divisor(engine, &input, weight, engine->micro_index);
    if (!captured) { /* the graph's was left alone by zero_capture_prepare */
        ZI_TRY(zi_engine_await_turn(engine, turn));
        ZI_TRY(tell_refused(engine));
    }
    if (!captured && !engine->announced.begun) {
        zi_engine_note_drafts(engine, turn);
    }
    if (!engine->announced.begun) { /* else it is there, and read by what was presumed */
        engine->turns[turn].input = input;
    }
    ZI_TRY(enqueue_decision(engine, caller, turn, weight));
    ZI_TRY(enqueue_update(engine, turn));
    engine->announced.given = false;
    engine->announced.begun = false;
    engine->micro_index = 0;
    if (captured) {
        engine->graph_weight = weight;
        return ZERO_OK;
    }
    return step_taken(engine);
}

zero_status zero_step(zero_engine *engine, const zero_step_params *params, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_span_begin(ZI_SPAN_STEP, "");
    const zero_status status = take_step(engine, params, stream);
    zi_span_end();
    return zi_engine_leave(engine, ZI_CALL_STEP, status);
}

zero_status zero_step_wait(zero_engine *engine, zero_step_result *result)
{
    ZI_TRY(zi_engine_check(engine));
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_WAIT, "zero_step_wait"));
    return zi_engine_finish(engine, zi_engine_take_result(engine, result));
}

zero_status zi_engine_take_result(zero_engine *engine, zero_step_result *result)
{
    const zi_step_decision *decision = NULL;
    ZI_TRY(await_outcome(engine, &decision));
    ZI_TRY(tell_refused(engine));
    if (steps_of(decision) == 0 && result != NULL) {
        ZI_FAIL(ZERO_STATE, "no step was taken yet; call zero_step first");
    }
    const zero_step_result found = {.step = steps_of(decision),
                                    .updates = decision->update,
                                    .norm = decision->norm,
                                    .clip = decision->clip,
                                    .loss_scale = decision->loss_scale,
                                    .skipped = decision->skip,
                                    .skipped_in_a_row = decision->skipped_in_a_row};
    return ZI_SIZED_OUT(zero_step_result, result, &found);
}

zero_status zero_loss_scale(zero_engine *engine, float *scale)
{
    ZI_TRY(zi_engine_check(engine));
    if (scale == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "scale is NULL; pass the address of a float");
    }
    *scale = engine->first_scale;
    if (!engine->layout->tuning.loss_scale_static) {
        const zi_step_decision *decision = NULL;
        ZI_TRY(zi_engine_admit(engine, ZI_CALL_WAIT, "zero_loss_scale"));
        ZI_TRY(zi_engine_finish(engine, await_outcome(engine, &decision)));
        ZI_TRY(tell_refused(engine));
        *scale = steps_of(decision) != 0 ? decision->loss_scale : *scale;
    }
    return ZERO_OK;
}
