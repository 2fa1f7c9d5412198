/* Owns the optimizer step, all of it on the step stream: wait for the boundary's reductions and the
 * last readers, gather the squares and what ranks were given, decide; measure tensors whose rates
 * depend on their norms; then for each unit update, all-gather the parameters, record `updated`. */
#include "zero/step.h"

#include <inttypes.h>
#include <stddef.h>

#include "core/error.h"
#include "core/log.h"
#include "engine/agree.h"
#include "engine/guard.h"
#include "engine/input.h"
#include "engine/outcome.h"
#include "engine/speculate.h"
#include "engine/tiers.h"
#include "engine/tracing.h"

static zero_status enqueue_decision(zero_engine *engine, zi_stream *caller, uint32_t step_buffer,
                                    const float *weight)
{
    const zi_device *device = engine->device;
    engine_step_buffer *buffer = &engine->step_buffers[step_buffer];
    zi_decide_job job = engine->decide;
    job.input = &buffer->input;
    zi_stream *stream = engine->step_stream;
    if (engine->speculation.begun) {
        zi_optim_end_speculation(engine->optim);
    }
    ZI_TRY(zi_params_step_begin(engine->params, stream));
    ZI_TRY(zi_engine_put_message(engine, caller, buffer, step_buffer, weight));
    ZI_TRY(zi_engine_decide(engine, job, &engine->norm_gather, &engine->part_gather));
    ZI_TRY(device->ops->copy(device->self, stream, &buffer->outcome, job.decision,
                             sizeof buffer->outcome));
    ZI_TRY(zi_optim_add_stalled(engine->optim, &buffer->outcome));
    if (engine->speculation.begun) {
        ZI_TRY(zi_optim_validate(engine->optim, &buffer->outcome));
    }
    return device->ops->event_record(device->self, engine->decided[step_buffer], stream);
}

/* With parameters on disk gathers wait for the whole step: earlier they would prefetch stale
 * extents, and evict the update's from the window. */
static zero_status enqueue_update(zero_engine *engine, uint32_t step_buffer)
{
    const zi_device *device = engine->device;
    zi_stream *stream = engine->step_stream;
    const uint32_t units = engine->layout->unit_count;
    const bool down = zi_engine_steps_down(engine);
    const bool disk = zi_role_tier(engine->layout, ZERO_ROLE_PARAM) == ZERO_TIER_DISK;
    ZI_TRY(zi_optim_measure(engine->optim));
    for (uint32_t i = 0; i < units; i++) {
        const uint32_t unit = down ? units - 1 - i : i;
        ZI_TRY(zi_optim_step_unit(engine->optim, unit, &engine->step_buffers[step_buffer].outcome));
        ZI_TRY(disk ? ZERO_OK : zi_params_updated(engine->params, unit, stream));
    }
    for (uint32_t unit = 0; unit < units && disk; unit++) {
        ZI_TRY(zi_params_updated(engine->params, unit, stream));
    }
    ZI_TRY(zi_grads_consumed(engine->grads, stream));
    ZI_TRY(zi_optim_join(engine->optim));
    ZI_TRY(device->ops->event_record(device->self, engine->stepped, stream));
    return zi_optim_flush(engine->optim);
}

/* A layer that backward forgot trains on zeros in silence. Rank 0 says so after the first step,
 * once: later the units that come are as they are meant to be. */
static void warn_of_missing(const zero_engine *engine)
{
    uint32_t first = 0;
    uint32_t came = 0;
    if (engine->plain_steps != 0 || zero_world_rank(engine->world) != 0) {
        return;
    }
    const uint32_t missing = zi_grads_never_came(engine->grads, &first, &came);
    if (missing != 0 && came != 0) {
        zi_log(ZERO_LOG_WARN,
               "step 1: rank 0 gave no gradient to unit %" PRIu32 " \"%.60s\" (%" PRIu32
               " of %" PRIu32 " trained units), which counts as zero; acquire it in backward, or "
               "ignore this where it is left out on purpose (said once)",
               first, engine->layout->unit_infos[first].name, missing, missing + came);
    }
}

/* After a plain step is enqueued: count it, agree on the order of gathers, prefetch. */
static zero_status step_taken(zero_engine *engine)
{
    warn_of_missing(engine);
    engine->speculation.unknown[engine->step_buffer] = true;
    engine->last_step_buffer = engine->step_buffer;
    engine->step_buffer = (engine->step_buffer + 1) % ENGINE_STEP_BUFFERS;
    engine->stats.steps++;
    engine->plain_steps++;
    engine->evicted.grads_lost = false;
    /* After steps 1, 2, 4, 8, ...: often while the order of gathers still changes, then hardly
     * ever. */
    if ((engine->plain_steps & (engine->plain_steps - 1)) == 0) {
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
    const uint32_t step_buffer = captured ? ENGINE_GRAPH_BUFFER : engine->step_buffer;
    ZI_TRY(zi_engine_check_predicted(engine, &input, weight));
    zi_engine_resolve_divisor(engine, &input, weight, engine->micro_index);
    if (!captured) { /* zero_capture_prepare has waited for the graph's */
        ZI_TRY(zi_engine_await_step_buffer(engine, step_buffer));
        ZI_TRY(zi_engine_report_refused(engine));
    }
    if (!captured) {
        zi_engine_note_outcome(engine, step_buffer);
    }
    if (!engine->speculation.begun) { /* else the prediction has put it there and reads it */
        engine->step_buffers[step_buffer].input = input;
    }
    ZI_TRY(enqueue_decision(engine, caller, step_buffer, weight));
    ZI_TRY(enqueue_update(engine, step_buffer));
    engine->speculation.given = false;
    engine->speculation.begun = false;
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
    zi_engine_enter_call(engine, ZI_IN_STEP);
    zi_engine_span_begin(engine, ZI_SPAN_STEP, "");
    const zero_status status = zi_engine_span_end(engine, take_step(engine, params, stream));
    return zi_engine_leave(engine, ZI_CALL_STEP, status);
}
