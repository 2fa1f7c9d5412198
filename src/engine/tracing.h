/* The engine's timeline, where tuning.trace_events asks for one. (tracing.c) */
#ifndef ZI_ENGINE_TRACING_H
#define ZI_ENGINE_TRACING_H

#include "engine/engine_internal.h"

/* Make the timeline, and let the engine's device carry it, so that all that is made on that device
 * from here on notes its spans. Nothing where there is to be none. Local. */
zero_status zi_engine_open_timeline(zero_engine *engine);
/* Name the streams' tracks. */
void zi_engine_name_streams(const zero_engine *engine);
/* Find how far this host's clock is from rank 0's. Collective over the engine's world. */
zero_status zi_engine_align_clocks(zero_engine *engine);

/* A hook begins and ends: the span of the calling thread. name: as zi_span_begin. */
static inline void zi_engine_span_begin(const zero_engine *engine, zi_span span, const char *name)
{
    zi_span_begin(engine->timeline, span, name);
}
/* status: the hook's; returned, or that of noting its end. */
zero_status zi_engine_span_end(zero_engine *engine, zero_status status);
/* The hook is on the caller's stream: what it puts there is a span of that stream too. */
zero_status zi_engine_enter_stream(zero_engine *engine, zero_stream native, zi_stream *stream);

/* A rank's clock when it came to an exchange of all ranks, and when it left it. */
typedef struct zi_clock_round {
    uint64_t entered_ns;
    uint64_t left_ns;
} zi_clock_round;

/* How far `own` is ahead of `other`, from rounds of both. Nobody leaves a round before all have
 * entered it, so each round bounds the offset from both sides; the bounds of all rounds are
 * intersected.
 * - error_ns: out; the offset's, at most. */
int64_t zi_clock_offset(const zi_clock_round *own, const zi_clock_round *other, uint32_t rounds,
                        uint64_t *error_ns);

#endif
