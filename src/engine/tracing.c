/* Owns the engine's timeline: where its times come from, the spans of hooks, and how clocks of
 * hosts are compared. */
#include "engine/tracing.h"

#include "core/error.h"
#include "core/sizes.h"

/* Exchanges that compare clocks: the shortest way there and back counts. */
#define CLOCK_ROUNDS 8

static uint64_t now(void *user)
{
    const zero_engine *engine = user;
    uint64_t ns = 0;
    const zero_status status =
        engine->device->ops->timestamp(engine->device->self, engine->host_stream, &ns);
    return status == ZERO_OK ? ns : ZI_NO_TIME;
}

static const char *tracing_unit_name(const void *user, uint32_t unit)
{
    const zi_layout *layout = ((const zero_engine *)user)->layout;
    return unit < layout->unit_count ? layout->unit_infos[unit].name : "";
}

/* The world's device is shared with whoever else uses the world, so the engine then has a value of
 * its own for it. */
zero_status zi_engine_open_timeline(zero_engine *engine)
{
    const uint32_t marks = engine->layout->tuning.trace_events;
    if (marks == 0) {
        return ZERO_OK;
    }
    const zi_device *device = engine->device;
    ZI_TRY(device->ops->stream_wrap(device->self, zero_stream_host(), &engine->host_stream));
    const zi_timeline_desc desc = {.marks = marks,
                                   .now = now,
                                   .unit_name = tracing_unit_name,
                                   .user = engine,
                                   .host = engine->host_stream};
    ZI_TRY(zi_timeline_create(&desc, &engine->timeline));
    engine->noted_device = *device;
    engine->noted_device.timeline = engine->timeline;
    engine->device = &engine->noted_device;
    /* The first time that is asked of a device makes what it needs for others. */
    uint64_t ns = 0;
    return device->ops->timestamp(device->self, engine->host_stream, &ns);
}

void zi_engine_name_streams(const zero_engine *engine)
{
    zi_stream_name(engine->device, engine->gather_stream, "gather stream");
    zi_stream_name(engine->device, engine->reduce_stream, "reduce stream");
    zi_stream_name(engine->device, engine->step_stream, "step stream");
}

zero_status zi_engine_enter_stream(zero_engine *engine, zero_stream native, zi_stream *stream)
{
    zi_timeline *timeline = engine->timeline;
    const zi_mark *hook = timeline != NULL && timeline->depth == 1 ? timeline->open[0] : NULL;
    if (hook == NULL || stream == engine->host_stream || engine->entered != NULL) {
        return ZERO_OK;
    }
    /* Two streams of a caller may be one zi_stream in turn. */
    const uint32_t track = zi_timeline_track(timeline, native.native, "caller's stream");
    zi_mark *mark = zi_timeline_mark(timeline, track, (zi_span)hook->span, hook->name, 0);
    engine->entered = mark;
    engine->entered_stream = stream;
    return mark != NULL
               ? engine->device->ops->timestamp(engine->device->self, stream, &mark->begin_ns)
               : ZERO_OK;
}

zero_status zi_engine_span_end(zero_engine *engine, zero_status status)
{
    zi_mark *mark = engine->entered;
    engine->entered = NULL;
    if (mark != NULL && status == ZERO_OK) {
        status = engine->device->ops->timestamp(engine->device->self, engine->entered_stream,
                                                &mark->end_ns);
    } else if (mark != NULL) {
        zi_timestamp_set(&mark->end_ns, ZI_NO_TIME);
    }
    zi_span_end(engine->timeline);
    return status;
}

/* ---- clocks ---- */

int64_t zi_clock_offset(const zi_clock_round *own, const zi_clock_round *other, uint32_t rounds,
                        uint64_t *error_ns)
{
    int64_t low = INT64_MIN;
    int64_t high = INT64_MAX;
    for (uint32_t i = 0; i < rounds; i++) {
        const int64_t least = (int64_t)(own[i].entered_ns - other[i].left_ns);
        const int64_t most = (int64_t)(own[i].left_ns - other[i].entered_ns);
        low = least > low ? least : low;
        high = most < high ? most : high;
    }
    *error_ns = (uint64_t)(high > low ? high - low : low - high) / 2 + 1;
    return low + (high - low) / 2;
}

zero_status zi_engine_align_clocks(zero_engine *engine)
{
    zero_world *world = engine->world;
    zi_clock_round own[CLOCK_ROUNDS + 1] = {{0}};
    zi_clock_round first[CLOCK_ROUNDS + 1];
    zi_clock_round *all = (zi_clock_round *)(void *)engine->agreement;
    /* Ranks of one host read the same clock. */
    if (engine->timeline == NULL || world->comm->local_size == world->comm->size) {
        return ZERO_OK;
    }
    /* A round carries when it was entered and when the one before was left. */
    for (uint32_t i = 0; i <= CLOCK_ROUNDS; i++) {
        own[i].entered_ns = zi_clock_ns();
        const zi_clock_round sent = {own[i].entered_ns, i != 0 ? own[i - 1].left_ns : 0};
        ZI_TRY(zi_world_gather(world, &sent, all, sizeof sent));
        own[i].left_ns = zi_clock_ns();
        first[i].entered_ns = all[0].entered_ns;
        if (i != 0) {
            first[i - 1].left_ns = all[0].left_ns;
        }
    }
    if (zero_world_rank(world) != 0) {
        engine->clock_offset_ns =
            zi_clock_offset(own, first, CLOCK_ROUNDS, &engine->clock_error_ns);
    }
    return ZERO_OK;
}
