/* Owns captures and launches: the engine's streams fork off the caller's and join it, and event
 * records before an edge of a capture are forgotten after it. */
#include "zero/capture.h"

#include "core/error.h"
#include "engine/guard.h"
#include "engine/input.h"
#include "engine/outcome.h"
#include "engine/replicas.h"

static zi_stream *own_stream(const zero_engine *engine, uint32_t i)
{
    zi_stream *const streams[ENGINE_STREAMS] = {engine->gather_stream, engine->reduce_stream,
                                                engine->step_stream};
    return streams[i];
}

/* Let `stream` wait for all on the engine's streams. */
static zero_status capture_join(zero_engine *engine, zi_stream *stream)
{
    const zi_device *device = engine->device;
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        ZI_TRY(device->ops->event_record(device->self, engine->joined[i], own_stream(engine, i)));
        ZI_TRY(device->ops->stream_wait(device->self, stream, engine->joined[i], NULL));
    }
    return ZERO_OK;
}

/* Let the engine's streams wait for all on `stream`. */
static zero_status fork_streams(zero_engine *engine, zi_stream *stream)
{
    const zi_device *device = engine->device;
    ZI_TRY(device->ops->event_record(device->self, engine->caller, stream));
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        ZI_TRY(device->ops->stream_wait(device->self, own_stream(engine, i), engine->caller, NULL));
    }
    return ZERO_OK;
}

static zero_status capture_prepare(zero_engine *engine)
{
    const zi_device *device = engine->device;
    bool captured = false;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_PREPARE, "zero_capture_prepare"));
    if (zi_engine_uses_host(engine)) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "the host has a part in this engine's steps, which a graph cannot hold: a disk or "
                "an update; use ZERO_TIER_HOST and ZERO_UPDATER_GPU, or take plain steps");
    }
    ZI_TRY(zi_engine_compare_replicas(engine));
    ZI_TRY(device->ops->captured(device->self, engine->step_stream, &captured));
    ZI_TRY(zi_params_forget(engine->params));
    zi_grads_marks_end(engine->grads);
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        ZI_TRY(device->ops->event_record(device->self, engine->joined[i], own_stream(engine, i)));
        ZI_TRY(zi_engine_await(engine, engine->joined[i]));
    }
    device->ops->forget(device->self);
    return ZERO_OK;
}

zero_status zero_capture_prepare(zero_engine *engine)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_CAPTURE_PREPARE);
    return zi_engine_leave(engine, ZI_CALL_PREPARE, capture_prepare(engine));
}

static zero_status capture_begin(zero_engine *engine, zero_stream stream)
{
    const zi_device *device = engine->device;
    zi_stream *caller = NULL;
    bool captured = false;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_CAPTURE_BEGIN, "zero_capture_begin"));
    ZI_TRY(zi_engine_wrap(engine, stream, &caller));
    ZI_TRY(device->ops->captured(device->self, caller, &captured));
    if (!captured) {
        ZI_FAIL(ZERO_ERR_STATE,
                "the stream is not being captured; call %s before zero_capture_begin",
                device->ops->capture_text);
    }
    /* At once, so that no stream of the engine runs work of the graph. */
    return fork_streams(engine, caller);
}

zero_status zero_capture_begin(zero_engine *engine, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_CAPTURE_BEGIN);
    return zi_engine_leave(engine, ZI_CALL_CAPTURE_BEGIN, capture_begin(engine, stream));
}

static zero_status capture_end(zero_engine *engine, zero_stream stream)
{
    zi_stream *caller = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_CAPTURE_END, "zero_capture_end"));
    if (engine->state == ZI_ENGINE_PREPARED) {
        return ZERO_OK; /* canceled */
    }
    ZI_TRY(zi_engine_wrap(engine, stream, &caller));
    ZI_TRY(capture_join(engine, caller));
    engine->device->ops->forget(engine->device->self);
    engine->has_graph = true;
    return ZERO_OK;
}

zero_status zero_capture_end(zero_engine *engine, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_CAPTURE_END);
    return zi_engine_leave(engine, ZI_CALL_CAPTURE_END, capture_end(engine, stream));
}

static zero_status replay_begin(zero_engine *engine, zero_stream stream)
{
    zi_stream *caller = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_REPLAY_BEGIN, "zero_replay_begin"));
    if (stream.native == NULL) {
        ZI_FAIL(ZERO_ERR_STATE, "the host stream launches no graph; pass %s that does",
                engine->device->ops->stream_text);
    }
    ZI_TRY(zi_engine_wrap(engine, stream, &caller));
    /* Launches change the parameters. */
    ZI_TRY(zi_params_forget(engine->params));
    ZI_TRY(capture_join(engine, caller));
    engine->evicted.grads_lost = false; /* launches make new ones */
    return ZERO_OK;
}

zero_status zero_replay_begin(zero_engine *engine, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_REPLAY_BEGIN);
    return zi_engine_leave(engine, ZI_CALL_REPLAY_BEGIN, replay_begin(engine, stream));
}

/* The graph's step buffer is decided when all on `stream` so far has run. */
static zero_status mark_launches(zero_engine *engine, zero_stream stream)
{
    const zi_device *device = engine->device;
    zi_stream *caller = NULL;
    ZI_TRY(zi_engine_wrap(engine, stream, &caller));
    return device->ops->event_record(device->self, engine->decided[ENGINE_GRAPH_BUFFER], caller);
}

static zero_status replay_params(zero_engine *engine, zero_stream stream,
                                 const zero_step_params *params)
{
    engine_step_buffer *step_buffer = &engine->step_buffers[ENGINE_GRAPH_BUFFER];
    zi_step_input next;
    const float *weight = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_LAUNCH, "zero_replay_params"));
    ZI_TRY(zi_engine_take_input(engine, params, &next, &weight));
    if (weight != engine->graph_weight) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT,
                "grad_weight is %p and was captured as %p, which every launch reads; put the "
                "weight there",
                (const void *)weight, (const void *)engine->graph_weight);
    }
    zi_engine_resolve_divisor(engine, &next, weight, step_buffer->given.micro_steps);
    ZI_TRY(mark_launches(engine, stream));
    ZI_TRY(zi_engine_await_step_buffer(engine, ENGINE_GRAPH_BUFFER));
    step_buffer->input = next;
    zi_engine_give(engine, &step_buffer->input, &step_buffer->given);
    return ZERO_OK;
}

zero_status zero_replay_params(zero_engine *engine, zero_stream stream,
                               const zero_step_params *params)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, replay_params(engine, stream, params));
}

static zero_status replay_result(zero_engine *engine, zero_stream stream, zero_step_result *result)
{
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_LAUNCH, "zero_replay_result"));
    ZI_TRY(mark_launches(engine, stream));
    return zi_engine_take_result(engine, result);
}

zero_status zero_replay_result(zero_engine *engine, zero_stream stream, zero_step_result *result)
{
    ZI_TRY(zi_engine_check(engine));
    return zi_engine_finish(engine, replay_result(engine, stream, result));
}

static zero_status replay_end(zero_engine *engine, zero_stream stream)
{
    const zi_device *device = engine->device;
    zi_stream *caller = NULL;
    ZI_TRY(zi_engine_admit(engine, ZI_CALL_REPLAY_END, "zero_replay_end"));
    ZI_TRY(mark_launches(engine, stream));
    ZI_TRY(zi_engine_wrap(engine, stream, &caller));
    ZI_TRY(fork_streams(engine, caller));
    /* For hooks on other streams: an acquire waits for the unit's gather or for this event. */
    for (uint32_t u = 0; u < engine->layout->unit_count; u++) {
        ZI_TRY(zi_params_updated(engine->params, u, engine->step_stream));
    }
    ZI_TRY(device->ops->event_record(device->self, engine->stepped, engine->step_stream));
    return zi_params_step_end(engine->params);
}

zero_status zero_replay_end(zero_engine *engine, zero_stream stream)
{
    ZI_TRY(zi_engine_check(engine));
    zi_engine_enter_call(engine, ZI_IN_REPLAY_END);
    return zi_engine_leave(engine, ZI_CALL_REPLAY_END, replay_end(engine, stream));
}
