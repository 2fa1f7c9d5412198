/* Owns what calls begin and end with: whether the engine is alive and in the mode for it, streams
 * and numbers that callers give, and what a failure does. */
#include <inttypes.h>

#include "core/error.h"
#include "core/log.h"
#include "engine/engine_internal.h"

zero_status zi_engine_check_given(const zero_engine *engine)
{
    if (engine == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "engine is NULL; make one with zero_engine_create");
    }
    return ZERO_OK;
}

zero_status zi_engine_check(const zero_engine *engine)
{
    ZI_TRY(zi_engine_check_given(engine));
    if (engine->poisoned) {
        ZI_FAIL(ZERO_POISONED, "%.240s", engine->poison.message);
    }
    return zi_world_check_open(engine->world);
}

zero_status zi_engine_finish(zero_engine *engine, zero_status status)
{
    switch (status) {
    case ZERO_OK:
    case ZERO_INVALID_ARGUMENT:
    case ZERO_STATE:
    case ZERO_UNSUPPORTED:
    case ZERO_POISONED:
        return status;
    case ZERO_OUT_OF_MEMORY:
    case ZERO_DEVICE:
    case ZERO_COMM:
    case ZERO_IO:
    case ZERO_CORRUPT:
    case ZERO_MISMATCH:
    case ZERO_TIMEOUT:
        break;
    }
    engine->poisoned = true;
    engine->poison = *zero_last_error();
    zi_log(ZERO_LOG_ERROR, "rank %" PRIu32 ": %s", zero_world_rank(engine->world),
           engine->poison.message);
    engine->world->comm->ops->abort(engine->world->comm, &engine->poison);
    return status;
}

zero_status zi_engine_await(zero_engine *engine, zi_event *event)
{
    ZI_TRY(
        engine->device->ops->event_wait(engine->device->self, event, &engine->stats.step_wait_ns));
    return zi_engine_check_groups(engine);
}

zero_status zi_engine_check_mode(const zero_engine *engine)
{
    switch (engine->mode) {
    case ENGINE_PLAIN:
    case ENGINE_CAPTURING:
        return ZERO_OK;
    case ENGINE_PREPARED:
        ZI_FAIL(ZERO_STATE, "a capture is prepared; call zero_capture_begin inside it, or "
                            "zero_capture_end to give it up");
    case ENGINE_CAPTURED:
        ZI_FAIL(ZERO_STATE, "a capture holds one step, which is taken; call zero_capture_end");
    case ENGINE_REPLAYING:
        break;
    }
    ZI_FAIL(ZERO_STATE, "a captured step is being launched; call zero_replay_end first");
}

zero_status zi_engine_check_waits(const zero_engine *engine)
{
    if (engine->mode == ENGINE_CAPTURING) {
        ZI_FAIL(ZERO_STATE, "inside a capture nothing runs, so nothing can be waited for; ask "
                            "before zero_capture_prepare or after the launch");
    }
    return zi_engine_check_mode(engine);
}

zero_status zi_engine_wrap(zero_engine *engine, zero_stream stream, zi_stream **out)
{
    const zi_device *device = engine->device;
    const bool capturing = engine->mode == ENGINE_CAPTURING || engine->mode == ENGINE_CAPTURED;
    ZI_TRY(device->ops->stream_wrap(device->self, stream, out));
    if (engine->mode != ENGINE_PLAIN && stream.native == NULL) {
        ZI_FAIL(ZERO_STATE, "the host stream cannot be captured and launches no graph; pass "
                            "zero_stream_cuda of a CUDA stream");
    }
    bool captured = false;
    if (capturing) {
        ZI_TRY(device->ops->captured(device->self, *out, &captured));
    }
    if (capturing && !captured) {
        ZI_FAIL(ZERO_STATE, "a hook inside a capture was given a stream outside it; pass the "
                            "captured stream or one that waited for an event of it");
    }
    return ZERO_OK;
}

zero_status zi_engine_check_unit(const zero_engine *engine, uint32_t unit)
{
    if (unit >= engine->layout->unit_count) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "unit %" PRIu32 " is not one of the engine's %" PRIu32, unit,
                engine->layout->unit_count);
    }
    return ZERO_OK;
}

zero_status zi_engine_check_tensor(const zero_engine *engine, uint32_t tensor)
{
    if (tensor >= engine->layout->tensor_count) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "tensor %" PRIu32 " is not one of the engine's %" PRIu32,
                tensor, engine->layout->tensor_count);
    }
    return ZERO_OK;
}
