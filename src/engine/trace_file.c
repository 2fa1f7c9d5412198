/* Owns the files of an engine's timeline and of its last collectives: when they may be written. */
#include "zero/trace.h"

#include "core/error.h"
#include "engine/collectives_file.h"
#include "engine/guard.h"
#include "format/timeline_file.h"
#include "zero/version.h"

/* Block until all that was put on the engine's streams has run. What it failed with is not asked:
 * the timeline says what happened before. */
static void trace_file_drain(zero_engine *engine)
{
    const zi_device *device = engine->device;
    zi_stream *const streams[] = {engine->gather_stream, engine->reduce_stream,
                                  engine->step_stream};
    for (uint32_t i = 0; i < ENGINE_STREAMS; i++) {
        if (device->ops->event_record(device->self, engine->joined[i], streams[i]) == ZERO_OK) {
            (void)device->ops->event_wait(device->self, engine->joined[i], NULL);
        }
    }
}

zero_status zero_engine_trace(zero_engine *engine, const char *path)
{
    ZI_TRY(zi_engine_check_given(engine));
    ZI_TRY(zi_world_check_open(engine->world)); /* a forked child has no threads to wait for */
    if (path == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "path is NULL; give the file of this rank's timeline");
    }
    if (engine->timeline == NULL) {
        ZI_FAIL(ZERO_ERR_STATE, "zero_engine_trace: the engine has no timeline; create it with "
                                "tuning.trace_events above 0");
    }
    if (zi_engine_state_streams(engine->state) != ZI_STREAMS_ANY) { /* the driver allows no waits */
        ZI_FAIL(ZERO_ERR_STATE,
                "zero_engine_trace: %s; call zero_capture_end or zero_replay_end first",
                zi_engine_state_text(engine->state));
    }
    trace_file_drain(engine);
    (void)engine->device->ops->timestamps_flush(engine->device->self);
    const zero_world *mesh = engine->mesh;
    const zi_timeline_file file = {.version = zero_version(),
                                   .rank = zero_world_rank(engine->world),
                                   .world = zero_world_size(engine->world),
                                   .part = mesh != NULL ? zero_world_rank(mesh) : 0,
                                   .parts = mesh != NULL ? zero_world_size(mesh) : 1,
                                   .clock_offset_ns = engine->clock_offset_ns,
                                   .clock_error_ns = engine->clock_error_ns};
    return zi_timeline_write(engine->timeline, &file, path);
}

/* Another thread may be in a call on the engine, so its state is not asked. */
zero_status zero_engine_collectives_write(const zero_engine *engine, const char *path)
{
    ZI_TRY(zi_engine_check_given(engine));
    ZI_TRY(zi_world_check_open(engine->world));
    return zi_engine_write_collectives(engine, path);
}
