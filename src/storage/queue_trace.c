/* Owns what a queue notes in a timeline. Transfers overlap and the spans of a track do not, so each
 * transfer has a track for itself while it is under way. It is over when the queue's thread sees
 * that. */
#include <inttypes.h>
#include <stdio.h>

#include "storage/queue_internal.h"

#define LANES 16

/* Keys of tracks. A queue may be made again and keeps them. */
static const char lane_keys[ZI_IO_USES][LANES];
static const char wait_keys[ZI_IO_USES];

void zi_io_note_begin(zi_io *queue, zi_io_op *op)
{
    char text[ZI_TRACK_TEXT];
    uint32_t lane = 0;
    while (lane < LANES && (queue->lanes >> lane & 1u) != 0) {
        lane++;
    }
    op->mark = NULL;
    if (queue->timeline == NULL || lane == LANES) {
        return;
    }
    (void)snprintf(text, sizeof text, "disk: %s %" PRIu32, queue->what, lane);
    const uint32_t track = zi_timeline_track(queue->timeline, &lane_keys[queue->use][lane], text);
    op->mark = zi_timeline_begin(queue->timeline, track,
                                 op->kind == ZI_IO_READ ? ZI_SPAN_READ : ZI_SPAN_WRITE, queue->what,
                                 op->bytes);
    op->lane = lane;
    queue->lanes |= op->mark != NULL ? 1u << lane : 0;
}

void zi_io_note_end(zi_io *queue, const zi_io_op *op)
{
    if (op->mark != NULL) {
        queue->lanes &= ~(1u << op->lane);
        zi_timeline_end(queue->timeline, op->mark);
    }
}

zi_mark *zi_io_note_wait(zi_io *queue, const zi_io_op *op)
{
    char text[ZI_TRACK_TEXT];
    if (queue->timeline == NULL) {
        return NULL;
    }
    (void)snprintf(text, sizeof text, "waits for disk: %s", queue->what);
    const uint32_t track = zi_timeline_track(queue->timeline, &wait_keys[queue->use], text);
    return zi_timeline_begin(queue->timeline, track, ZI_SPAN_WAIT, queue->what, op->bytes);
}
