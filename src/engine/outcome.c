/* Owns the outcomes of steps: it enqueues decisions, waits for them, counts them and reports them.
 * A decision that was made is in host memory, in its step buffer. */
#include <inttypes.h>
#include <stddef.h>

#include "core/error.h"
#include "core/log.h"
#include "core/sized.h"
#include "core/sizes.h"
#include "engine/agree.h"
#include "engine/guard.h"
#include "engine/input.h"
#include "engine/outcome.h"

zero_status zi_engine_put_message(zero_engine *engine, zi_stream *caller,
                                  engine_step_buffer *buffer, uint32_t step_buffer,
                                  const float *weight)
{
    const zi_device *device = engine->device;
    const zi_layout *layout = engine->layout;
    zi_stream *stream = engine->step_stream;
    zi_step_message *message =
        (zi_step_message *)(void *)(engine->arena[ZERO_ROLE_STEP] + layout->message_at);
    if (weight != NULL) { /* copied on the caller's stream, which may overwrite it afterwards */
        ZI_TRY(device->ops->copy(device->self, caller, &engine->weights[step_buffer], weight,
                                 sizeof *weight));
    }
    ZI_TRY(device->ops->event_record(device->self, engine->caller, caller));
    ZI_TRY(device->ops->stream_wait(device->self, stream, engine->caller, NULL));
    ZI_TRY(zi_grads_wait_reduced(engine->grads, stream));
    buffer->given.micro_total = engine->stats.micro_steps;
    buffer->given.micro_steps = (uint32_t)engine->micro_index;
    zi_engine_give(engine, &buffer->input, &buffer->given);
    ZI_TRY(device->ops->copy(device->self, stream, &message->given, &buffer->given,
                             offsetof(zi_step_given, hyper) +
                                 layout->hyper_count * sizeof buffer->given.hyper[0]));
    if (weight != NULL) {
        ZI_TRY(device->ops->copy(device->self, stream, &message->given.grad_weight,
                                 &engine->weights[step_buffer], sizeof *weight));
    }
    if (!layout->replicates) {
        return ZERO_OK;
    }
    return device->ops->copy(device->self, stream, &message->replica_infinite,
                             &engine->replicas->infinite_chunks,
                             2 * sizeof message->replica_infinite);
}

static zero_status outcome_decide(const zero_engine *engine, const zi_decide_job *job)
{
    const zi_kernels *kernels = &engine->kernels;
    zi_mark *mark = NULL;
    ZI_TRY(zi_stream_begin(engine->device, engine->step_stream, ZI_SPAN_DECIDE, "", 0, &mark));
    ZI_TRY(kernels->ops->decide(kernels->self, engine->step_stream, job));
    return zi_stream_end(engine->device, engine->step_stream, mark);
}

zero_status zi_engine_decide(zero_engine *engine, zi_decide_job job, const zi_collective *messages,
                             const zi_collective *parts)
{
    zi_stream *stream = engine->step_stream;
    ZI_TRY(zi_group_submit(engine->groups.norm, stream, messages, 1));
    job.phases = ZI_DECIDE_COLLECT | ZI_DECIDE_CONCLUDE;
    if (engine->groups.mesh != NULL) {
        job.phases = ZI_DECIDE_COLLECT;
        ZI_TRY(outcome_decide(engine, &job));
        ZI_TRY(zi_group_submit(engine->groups.mesh, stream, parts, 1));
        job.phases = ZI_DECIDE_CONCLUDE;
    }
    return outcome_decide(engine, &job);
}

/* Steps up to the decided one, which is included; 0: none was. */
static uint64_t steps_of(const zi_step_decision *outcome)
{
    return outcome->update + outcome->skipped;
}

/* A norm of exactly 0 means that no gradient was added anywhere. Rank 0 says so, once. */
static void warn_of_norm(zero_engine *engine, const zi_step_decision *outcome)
{
    if (outcome->norm != 0.0 || outcome->skip || engine->norm_warned ||
        engine->layout->bucket_count == 0 || zero_world_rank(engine->world) != 0) {
        return;
    }
    engine->norm_warned = true;
    zi_log(ZERO_LOG_WARN,
           "step %" PRIu64 ": the norm of the gradient is exactly 0, so nothing is learned; add "
           "gradients to the views that zero_unit_acquire gives in backward, before "
           "zero_unit_release (said once)",
           steps_of(outcome));
}

/* Elements of this rank's optimizer shards; 0 where some are rounded stochastically, of which many
 * stay as they are in any case. */
static uint64_t exact_elements(const zi_layout *layout)
{
    uint64_t count = 0;
    for (uint32_t f = 0; f < layout->flat_count; f++) {
        const zi_flat *flat = &layout->flats[f];
        const bool own = flat->dtype == ZERO_DTYPE_F32;
        if (flat->trained && ((!own && !flat->has_master) ||
                              flat->kept[ZERO_ROLE_MASTER].dtype == ZERO_DTYPE_REMAINDER8)) {
            return 0;
        }
        count += flat->trained ? zi_optimizer_shard_count(layout, flat) : 0;
    }
    return count;
}

/* Updates that change nothing are lost work. One may be meant, as the first of a warm-up from 0;
 * rank 0 says so after two in a row, once. */
static void warn_of_stalled(zero_engine *engine, const zi_step_decision *outcome)
{
    if (steps_of(outcome) <= engine->stalled_step || engine->stalled_steps >= 2 ||
        zero_world_rank(engine->world) != 0) {
        return;
    }
    const uint64_t all = outcome->stalled != 0 ? exact_elements(engine->layout) : 0;
    engine->stalled_step = steps_of(outcome);
    engine->stalled_steps = outcome->stalled > all / 2 && all != 0 ? engine->stalled_steps + 1 : 0;
    if (engine->stalled_steps == 2) {
        zi_log(ZERO_LOG_WARN,
               "step %" PRIu64 ": the update before left %" PRIu64 " of %" PRIu64
               " elements as they were although they have gradients: the learning rate is below "
               "the smallest step of their masters; raise it, or ignore this where it is 0 on "
               "purpose (said once)",
               steps_of(outcome), outcome->stalled, all);
    }
}

zero_status zi_engine_await_step_buffer(zero_engine *engine, uint32_t step_buffer)
{
    const zi_step_decision *outcome = &engine->step_buffers[step_buffer].outcome;
    ZI_TRY(zi_engine_await(engine, engine->decided[step_buffer]));
    if (outcome->refused > engine->refused) {
        engine->refused = outcome->refused;
        engine->refusal = outcome->refusal;
    }
    if (outcome->refusal.kind != ZI_REFUSAL_WEIGHT) {
        ZI_TRY(zi_engine_check_refusal(engine, &outcome->refusal));
    }
    if (steps_of(outcome) != 0) {
        warn_of_norm(engine, outcome);
        warn_of_stalled(engine, outcome);
        engine->stats.steps_skipped =
            zi_max_u64(engine->stats.steps_skipped, outcome->skipped - engine->other_skipped);
    }
    return ZERO_OK;
}

zero_status zi_engine_report_refused(zero_engine *engine)
{
    const zi_step_refusal refusal = engine->refusal;
    engine->refusal.kind = ZI_REFUSAL_NONE;
    return zi_engine_check_refusal(engine, &refusal);
}

/* Wait for the outcome of the last step, a plain one or a launch of the graph. Only the device
 * knows how often the graph was launched. */
static zero_status await_outcome(zero_engine *engine, const zi_step_decision **outcome)
{
    const zi_step_decision *plain = &engine->step_buffers[engine->last_step_buffer].outcome;
    const zi_step_decision *graph = &engine->step_buffers[ENGINE_GRAPH_BUFFER].outcome;
    ZI_TRY(zi_engine_await_step_buffer(engine, engine->last_step_buffer));
    ZI_TRY(zi_engine_await_step_buffer(engine, ENGINE_GRAPH_BUFFER));
    *outcome = steps_of(graph) > steps_of(plain) ? graph : plain;
    if (steps_of(*outcome) != 0) {
        engine->stats.steps = steps_of(*outcome) - engine->other_steps;
    }
    return ZERO_OK;
}

zero_status zi_engine_wait_outcomes(zero_engine *engine)
{
    const zi_step_decision *last = NULL;
    for (uint32_t step_buffer = 0; step_buffer <= ENGINE_GRAPH_BUFFER; step_buffer++) {
        ZI_TRY(zi_engine_await_step_buffer(engine, step_buffer));
    }
    return await_outcome(engine, &last);
}

zero_status zi_engine_take_result(zero_engine *engine, zero_step_result *result)
{
    const zi_step_decision *decision = NULL;
    ZI_TRY(await_outcome(engine, &decision));
    ZI_TRY(zi_engine_report_refused(engine));
    if (steps_of(decision) == 0 && result != NULL) {
        ZI_FAIL(ZERO_ERR_STATE, "no step was taken yet; call zero_step first");
    }
    const zero_step_result found = {.step = steps_of(decision),
                                    .updates = decision->update,
                                    .norm = decision->norm,
                                    .clip = decision->clip,
                                    .loss_scale = decision->loss_scale,
                                    .skipped = decision->skip,
                                    .skipped_in_a_row = decision->skipped_in_a_row,
                                    .stalled = decision->stalled};
    return ZI_SIZED_OUT(zero_step_result, result, &found);
}

zero_status zero_step_wait(zero_engine *engine, zero_step_result *result)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_STEP_WAIT);
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_WAIT, "zero_step_wait"));
    return zi_engine_finish(engine, zi_engine_take_result(engine, result));
}

zero_status zero_loss_scale(zero_engine *engine, float *scale)
{
    ZI_TRY(zi_engine_check(engine));
    if (scale == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "scale is NULL; pass the address of a float");
    }
    *scale = engine->first_scale;
    if (!engine->layout->tuning.loss_scale_static) {
        const zi_step_decision *decision = NULL;
        ZI_TRY(zi_engine_admit(engine, ZI_CALL_WAIT, "zero_loss_scale"));
        ZI_TRY(zi_engine_finish(engine, await_outcome(engine, &decision)));
        ZI_TRY(zi_engine_report_refused(engine));
        *scale = steps_of(decision) != 0 ? decision->loss_scale : *scale;
    }
    return ZERO_OK;
}
