/* Owns what is done with a step that is due besides taking it: telling its norm ahead, and dropping
 * it. Invariant: neither moves the step's state. */
#include "core/error.h"
#include "engine/engine_internal.h"

zero_status zi_engine_decide_aside(zero_engine *engine, const zi_step_input *input, bool summed,
                                   zi_step_decision *outcome)
{
    const zi_device *device = engine->device;
    zi_stream *stream = engine->step_stream;
    zi_decide_job job = engine->aside;
    job.input = input;
    job.messages = engine->decide.messages;
    job.messages.number_count = 0; /* ranks were given nothing yet that could differ */
    job.messages.count = summed ? job.messages.count : 0;
    ZI_TRY(device->ops->copy(device->self, stream, job.state, engine->decide.state,
                             sizeof *job.state));
    ZI_TRY(engine->kernels.ops->decide(engine->kernels.self, stream, &job));
    return device->ops->copy(device->self, stream, outcome, job.decision, sizeof *job.decision);
}

static zero_status grad_norm(zero_engine *engine, double *norm)
{
    engine_host *host = engine->host;
    zi_stream *stream = engine->step_stream;
    if (norm == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "norm is NULL; pass the address of a double");
    }
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_NORM, "zero_grad_norm"));
    /* The norm depends on no hyper-parameters, so no group needs any. */
    host->asked = (zi_step_input){.divisor = zi_engine_divisor(engine, engine->micro_index)};
    ZI_TRY(zi_grads_wait_reduced(engine->grads, stream));
    ZI_TRY(zi_group_submit(engine->groups.norm, stream, &engine->norm_query, 1));
    ZI_TRY(zi_engine_decide_aside(engine, &host->asked, true, &host->answer));
    ZI_TRY(zi_engine_await_stream(engine, stream));
    *norm = host->answer.norm;
    return ZERO_OK;
}

zero_status zero_grad_norm(zero_engine *engine, double *norm)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, grad_norm(engine, norm));
}

/* The turn of the step that is due is not taken by a step. */
static zero_status leave_turn(zero_engine *engine)
{
    const zi_device *device = engine->device;
    engine_announced *announced = &engine->announced;
    if (announced->begun) {
        ZI_TRY(zi_optim_discard(engine->optim));
        announced->drafted[engine->turn] = false;
        announced->unknown--;
        /* What was presumed has read the turn's input then, and another may take its place. */
        ZI_TRY(device->ops->event_record(device->self, engine->decided[engine->turn],
                                         engine->step_stream));
    }
    announced->given = false;
    announced->begun = false;
    return ZERO_OK;
}

static zero_status discard(zero_engine *engine)
{
    const zi_device *device = engine->device;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_DISCARD, "zero_step_discard"));
    ZI_TRY(zi_grads_wait_reduced(engine->grads, engine->step_stream));
    ZI_TRY(leave_turn(engine));
    ZI_TRY(zi_grads_consumed(engine->grads, engine->step_stream));
    ZI_TRY(device->ops->event_record(device->self, engine->stepped, engine->step_stream));
    engine->micro_index = 0;
    engine->park.grads_lost = false;
    engine->stats.steps_discarded++;
    return ZERO_OK;
}

zero_status zero_step_discard(zero_engine *engine)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_leave(engine, ZI_CALL_DISCARD, discard(engine));
}
