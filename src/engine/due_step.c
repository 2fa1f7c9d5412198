/* Owns what may happen to a step that is due besides taking it: computing its norm, and dropping
 * it. Invariant: neither changes the step's state. */
#include "engine/due_step.h"

#include "core/error.h"
#include "engine/agree.h"
#include "engine/guard.h"
#include "engine/input.h"
#include "engine/outcome.h"
#include "engine/shard.h"

/* These decisions work on a copy of the state. */
static zero_status copy_state(const zero_engine *engine)
{
    const zi_device *device = engine->device;
    return device->ops->copy(device->self, engine->step_stream, engine->aside.state,
                             engine->decide.state, sizeof *engine->aside.state);
}

static zero_status copy_outcome(const zero_engine *engine, zi_step_decision *outcome)
{
    const zi_device *device = engine->device;
    return device->ops->copy(device->self, engine->step_stream, outcome, engine->aside.decision,
                             sizeof *outcome);
}

zero_status zi_engine_predict_decision(zero_engine *engine, const zi_step_input *input,
                                       zi_step_decision *outcome)
{
    zi_decide_job job = engine->aside;
    job.input = input;
    job.messages.count = 0;
    job.parts = job.part;
    job.part_count = 1;
    job.phases = ZI_DECIDE_COLLECT | ZI_DECIDE_CONCLUDE;
    ZI_TRY(copy_state(engine));
    ZI_TRY(engine->kernels.ops->decide(engine->kernels.self, engine->step_stream, &job));
    return copy_outcome(engine, outcome);
}

static zero_status grad_norm(zero_engine *engine, const zero_step_params *params,
                             zero_stream caller_stream, double *norm)
{
    engine_step_buffer *query = &engine->host->query;
    const uint64_t refused = query->outcome.refused;
    zi_decide_job job = engine->aside;
    const float *weight = NULL;
    zi_stream *caller = NULL;
    if (norm == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "norm is NULL; pass the address of a double");
    }
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_NORM, "zero_grad_norm"));
    ZI_TRY(zi_engine_take_input(engine, params, &query->input, &weight));
    ZI_TRY(zi_engine_wrap(engine, caller_stream, &caller));
    zi_engine_resolve_divisor(engine, &query->input, weight, engine->micro_index);
    job.input = &query->input;
    ZI_TRY(zi_engine_put_message(engine, caller, query, ENGINE_GRAPH_BUFFER + 1, weight));
    ZI_TRY(copy_state(engine));
    ZI_TRY(zi_engine_decide(engine, job, &engine->norm_query, &engine->part_query));
    ZI_TRY(copy_outcome(engine, &query->outcome));
    ZI_TRY(zi_engine_await_stream(engine, engine->step_stream));
    if (query->outcome.refusal.kind != ZI_REFUSAL_WEIGHT || query->outcome.refused != refused) {
        ZI_TRY(zi_engine_check_refusal(engine, &query->outcome.refusal));
    }
    *norm = query->outcome.norm;
    return ZERO_OK;
}

zero_status zero_grad_norm(zero_engine *engine, const zero_step_params *params, zero_stream stream,
                           double *norm)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_GRAD_NORM);
    return zi_engine_finish(engine, grad_norm(engine, params, stream, norm));
}

/* Discard what was predicted and computed speculatively of the step that is due. */
static zero_status discard_speculation(zero_engine *engine)
{
    const zi_device *device = engine->device;
    engine_speculation *speculation = &engine->speculation;
    if (speculation->begun) {
        zi_optim_end_speculation(engine->optim);
        ZI_TRY(zi_optim_discard(engine->optim));
        /* By then the prediction has read the step buffer's input, which may be replaced.
         */
        ZI_TRY(device->ops->event_record(device->self, engine->decided[engine->step_buffer],
                                         engine->step_stream));
    }
    speculation->given = false;
    speculation->begun = false;
    return ZERO_OK;
}

zero_status zi_engine_drop_step(zero_engine *engine)
{
    const zi_device *device = engine->device;
    ZI_TRY(zi_grads_wait_reduced(engine->grads, engine->step_stream));
    ZI_TRY(discard_speculation(engine));
    ZI_TRY(zi_grads_consumed(engine->grads, engine->step_stream));
    ZI_TRY(device->ops->event_record(device->self, engine->stepped, engine->step_stream));
    engine->micro_index = 0;
    engine->evicted.grads_lost = false;
    engine->stats.steps_discarded++;
    return ZERO_OK;
}

static zero_status due_step_discard(zero_engine *engine)
{
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_DISCARD, "zero_step_discard"));
    return zi_engine_drop_step(engine);
}

zero_status zero_step_discard(zero_engine *engine)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_STEP_DISCARD);
    return zi_engine_leave(engine, ZI_CALL_DISCARD, due_step_discard(engine));
}
