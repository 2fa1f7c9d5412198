/* Owns the ring of spans and the tracks. Invariant: a mark is given to a new span only once both
 * times of its last one are known, or will not be. */
#include "core/timeline.h"

#include <stdio.h>

#include "core/error.h"
#include "core/memory.h"

const char *zi_span_text(zi_span span)
{
#define ZI_SPAN_ROW(name, text) text,
    static const char *const texts[] = {ZI_SPANS(ZI_SPAN_ROW)};
#undef ZI_SPAN_ROW
    return texts[span];
}

zero_status zi_timeline_create(const zi_timeline_desc *desc, zi_timeline **out)
{
    *out = NULL;
    zi_timeline *timeline = NULL;
    ZI_TRY(zi_calloc(1, sizeof *timeline + desc->marks * sizeof timeline->marks[0],
                     (void **)&timeline));
    timeline->desc = *desc;
    atomic_flag_clear(&timeline->lock);
    for (uint32_t i = 0; i < desc->marks; i++) {
        timeline->marks[i] = (zi_mark){.begin_ns = ZI_NO_TIME, .end_ns = ZI_NO_TIME};
    }
    (void)zi_timeline_track(timeline, desc->host, "calling thread");
    *out = timeline;
    return ZERO_OK;
}

void zi_timeline_destroy(zi_timeline *timeline)
{
    zi_free(timeline);
}

static uint32_t timeline_find(const zi_timeline *timeline, const void *key, uint32_t count)
{
    uint32_t track = 0;
    while (track < count && timeline->tracks[track].key != key) {
        track++;
    }
    return track;
}

/* Tracks are only ever added, so looking for one needs no lock. */
uint32_t zi_timeline_track(zi_timeline *timeline, const void *key, const char *text)
{
    uint32_t count = atomic_load_explicit(&timeline->track_count, memory_order_acquire);
    uint32_t track = timeline_find(timeline, key, count);
    if (track < count) {
        return track;
    }
    while (atomic_flag_test_and_set_explicit(&timeline->lock, memory_order_acquire)) {
    }
    count = atomic_load_explicit(&timeline->track_count, memory_order_relaxed);
    track = timeline_find(timeline, key, count);
    if (track == count && count < ZI_TRACKS_MAX) {
        timeline->tracks[track].key = key;
        (void)snprintf(timeline->tracks[track].text, ZI_TRACK_TEXT, "%s", text);
        atomic_store_explicit(&timeline->track_count, count + 1, memory_order_release);
    }
    atomic_flag_clear_explicit(&timeline->lock, memory_order_release);
    return track;
}

zi_mark *zi_timeline_mark(zi_timeline *timeline, uint32_t track, zi_span span, const char *name,
                          uint64_t bytes)
{
    const uint64_t number = atomic_fetch_add_explicit(&timeline->head, 1, memory_order_relaxed);
    zi_mark *mark = &timeline->marks[number % timeline->desc.marks];
    if (track == ZI_TRACKS_MAX || zi_timestamp_get(&mark->begin_ns) == 0 ||
        zi_timestamp_get(&mark->end_ns) == 0) {
        return NULL;
    }
    *mark = (zi_mark){.name = name, .bytes = bytes, .span = (uint32_t)span, .track = track};
    return mark;
}

zi_mark *zi_timeline_begin(zi_timeline *timeline, uint32_t track, zi_span span, const char *name,
                           uint64_t bytes)
{
    zi_mark *mark = zi_timeline_mark(timeline, track, span, name, bytes);
    if (mark != NULL) {
        zi_timestamp_set(&mark->begin_ns, timeline->desc.now(timeline->desc.user));
    }
    return mark;
}

void zi_timeline_end(zi_timeline *timeline, zi_mark *mark)
{
    if (mark != NULL) {
        zi_timestamp_set(&mark->end_ns, timeline->desc.now(timeline->desc.user));
    }
}
