/* Spans of what is put on streams. Whoever puts work on a stream says what it is for, before and
 * after; the stream sets both times. Without a timeline that costs a load each. */
#ifndef ZI_DEVICE_STREAM_SPAN_H
#define ZI_DEVICE_STREAM_SPAN_H

#include "core/timeline.h"
#include "device/device.h"

/* For the two below. (stream_span.c) */
zero_status zi_stream_mark_begin(const zi_device *device, zi_stream *stream, zi_span span,
                                 const char *name, uint64_t bytes, zi_mark **mark);
zero_status zi_stream_mark_end(const zi_device *device, zi_stream *stream, zi_mark *mark);

/* Work put on the stream from here on is of this span, as zi_timeline_mark. Streams other than the
 * calling thread's have been named by zi_stream_name.
 * - mark: out; NULL where nothing is noted. */
static inline zero_status zi_stream_begin(const zi_device *device, zi_stream *stream, zi_span span,
                                          const char *name, uint64_t bytes, zi_mark **mark)
{
    *mark = NULL;
    return device->timeline != NULL ? zi_stream_mark_begin(device, stream, span, name, bytes, mark)
                                    : ZERO_OK;
}

/* The span is over once what was put on the stream has run. Accepts NULL. */
static inline zero_status zi_stream_end(const zi_device *device, zi_stream *stream, zi_mark *mark)
{
    return mark != NULL ? zi_stream_mark_end(device, stream, mark) : ZERO_OK;
}

/* Give a stream its track. */
static inline void zi_stream_name(const zi_device *device, const zi_stream *stream,
                                  const char *text)
{
    if (device->timeline != NULL) {
        (void)zi_timeline_track(device->timeline, stream, text);
    }
}

#endif
