/* Owns the times of spans on streams. */
#include "device/stream_span.h"

#include "core/error.h"

zero_status zi_stream_mark_begin(const zi_device *device, zi_stream *stream, zi_span span,
                                 const char *name, uint64_t bytes, zi_mark **mark)
{
    const uint32_t track = zi_timeline_track(device->timeline, stream, "another stream");
    *mark = zi_timeline_mark(device->timeline, track, span, name, bytes);
    return *mark != NULL ? device->ops->timestamp(device->self, stream, &(*mark)->begin_ns)
                         : ZERO_OK;
}

zero_status zi_stream_mark_end(const zi_device *device, zi_stream *stream, zi_mark *mark)
{
    return device->ops->timestamp(device->self, stream, &mark->end_ns);
}
