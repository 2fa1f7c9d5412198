/* A timeline: what a rank does and when, as spans on tracks. A track is a stream, the calling
 * thread, or a place for one transfer of a disk; the spans of a track nest or follow one another.
 *
 * Spans are in a ring that is made once, so the oldest are overwritten. A span whose times are
 * still to come keeps its place; a new one that would need it is lost instead.
 *
 * Threads: spans begin and end on any thread. Writing (format/timeline_file.h) needs that nobody
 * begins or ends one meanwhile. */
#ifndef ZI_CORE_TIMELINE_H
#define ZI_CORE_TIMELINE_H

#include <stdatomic.h>
#include <stdint.h>

#include "core/clock.h"
#include "zero/status.h"

/* X(name, text): what a span is about; its category in a file, and in NVTX. */
#define ZI_SPANS(X)                                                     \
    X(ACQUIRE, "acquire")                                               \
    X(RELEASE, "release")                                               \
    X(PARAMS_ACQUIRE, "params acquire")                                 \
    X(PARAMS_RELEASE, "params release")                                 \
    X(GRADS_ACQUIRE, "grads acquire")                                   \
    X(GRADS_READY, "grads ready")                                       \
    X(MICRO_BEGIN, "micro begin")                                       \
    X(MICRO_END, "micro end")                                           \
    X(STEP, "step")                                                     \
    X(EVICT, "evict")                                                   \
    X(RESTORE, "restore")                                               \
    X(COLLECTIVE, "collective") /* of a thread that issues; for NVTX */ \
    X(GATHER, "gather")         /* from here on: of a stream */         \
    X(REDUCE, "reduce")                                                 \
    X(FOLD, "fold") /* of gradients within a rank */                    \
    X(LOAD, "load") /* of an offloaded shard */                         \
    X(STORE, "store")                                                   \
    X(CAST, "cast")                                                     \
    X(NORM, "norm")                                                     \
    X(CLEAR, "clear")   /* of memory */                                 \
    X(DECIDE, "decide") /* whether and how a step is taken */           \
    X(UPDATE, "update")                                                 \
    X(READ, "read") /* of a disk, with the next two */                  \
    X(WRITE, "write")                                                   \
    X(WAIT, "disk wait") /* until a transfer is done */

#define ZI_SPAN_ROW(name, text) ZI_SPAN_##name,
typedef enum zi_span { ZI_SPANS(ZI_SPAN_ROW) ZI_SPAN_COUNT } zi_span;
#undef ZI_SPAN_ROW

const char *zi_span_text(zi_span span);

/* One batch of collectives: the same on all members of its group. */
typedef struct zi_span_batch {
    const char *group; /* NULL: the span is of no collective */
    uint32_t leader;   /* the lowest world rank of the group */
    uint32_t ranks;
    uint64_t number; /* of the group's batches */
} zi_span_batch;

/* The record of a span. */
typedef struct zi_mark {
    uint64_t begin_ns; /* set as times (core/clock.h) */
    uint64_t end_ns;
    const char *name; /* a unit's, or static; lives as long as the timeline. "" is fine */
    uint64_t bytes;   /* 0: it is not about bytes */
    zi_span_batch batch;
    uint32_t span;
    uint32_t track;
} zi_mark;

/* Tracks of a timeline, at most. What would need more is lost. */
#define ZI_TRACKS_MAX 128
#define ZI_TRACK_TEXT 48
/* The calling thread's. */
#define ZI_TRACK_HOST 0
/* How deep spans of the calling thread nest. */
#define ZI_SPAN_DEPTH 8

typedef struct zi_timeline_desc {
    uint32_t marks;              /* of the ring */
    uint64_t (*now)(void *user); /* the time on the calling thread; any thread */
    const char *(*unit_name)(const void *user, uint32_t unit); /* for batches */
    void *user;
    const void *host; /* key of the calling thread's track: its stream */
} zi_timeline_desc;

typedef struct zi_track {
    const void *key;
    char text[ZI_TRACK_TEXT];
} zi_track;

typedef struct zi_timeline {
    zi_timeline_desc desc;
    atomic_uint_fast64_t head; /* spans that began */
    atomic_uint track_count;   /* written under the lock */
    atomic_flag lock;
    zi_track tracks[ZI_TRACKS_MAX];
    uint32_t depth; /* of the calling thread's spans, with the next */
    zi_mark *open[ZI_SPAN_DEPTH];
    zi_mark marks[]; /* desc.marks */
} zi_timeline;

/* Its bytes are those of the struct and of desc.marks marks. */
zero_status zi_timeline_create(const zi_timeline_desc *desc, zi_timeline **out);
void zi_timeline_destroy(zi_timeline *timeline); /* accepts NULL */

/* The track of what `key` points to, made by the first call; ZI_TRACKS_MAX: there is no room.
 * - text: for people; copied. */
uint32_t zi_timeline_track(zi_timeline *timeline, const void *key, const char *text);

/* A place for a span that its caller sets the times of; NULL: it is lost. */
zi_mark *zi_timeline_mark(zi_timeline *timeline, uint32_t track, zi_span span, const char *name,
                          uint64_t bytes);

/* A span of what is now. */
zi_mark *zi_timeline_begin(zi_timeline *timeline, uint32_t track, zi_span span, const char *name,
                           uint64_t bytes);
void zi_timeline_end(zi_timeline *timeline, zi_mark *mark); /* accepts mark NULL */

#endif
