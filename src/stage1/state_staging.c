/* Owns the two streams of copies and the staging buffers. Invariant: a buffer whose bit is in
 * `filled` was filled in this step, and its `stored` fires when it is free again. */
#include "stage1/state_staging.h"

#include "core/error.h"
#include "core/memory.h"

typedef struct staging_events {
    zi_event *fetched; /* the chunk's state is in the buffer */
    zi_event *updated; /* the step stream is done with it */
    zi_event *stored;  /* it is back in host memory */
} staging_events;

struct zi_state_staging {
    zi_state_staging_desc desc;
    zi_stream *in;
    zi_stream *out;
    staging_events events[ZI_STATE_STAGING];
    zi_event *begun; /* the step's chunks may come */
    zi_event *ended; /* all of them are back */
    uint32_t filled; /* buffers, bit by buffer */
};

static const zi_device_ops *state_staging_ops_of(const zi_state_staging *staging)
{
    return staging->desc.device->ops;
}

static void *state_staging_self_of(const zi_state_staging *staging)
{
    return staging->desc.device->self;
}

static zero_status open_all(zi_state_staging *staging)
{
    const zi_device_ops *ops = state_staging_ops_of(staging);
    void *self = state_staging_self_of(staging);
    ZI_TRY(ops->stream_create(self, "zero state in", &staging->in));
    ZI_TRY(ops->stream_create(self, "zero state out", &staging->out));
    ZI_TRY(ops->event_create(self, &staging->begun));
    ZI_TRY(ops->event_create(self, &staging->ended));
    for (uint32_t i = 0; i < ZI_STATE_STAGING; i++) {
        staging_events *events = &staging->events[i];
        ZI_TRY(ops->event_create(self, &events->fetched));
        ZI_TRY(ops->event_create(self, &events->updated));
        ZI_TRY(ops->event_create(self, &events->stored));
    }
    return ZERO_OK;
}

zero_status zi_state_staging_create(const zi_state_staging_desc *desc, zi_state_staging **out)
{
    zi_state_staging *staging = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *staging, (void **)&staging));
    staging->desc = *desc;
    const zero_status status = open_all(staging);
    if (status != ZERO_OK) {
        zi_state_staging_destroy(staging);
        return status;
    }
    *out = staging;
    return ZERO_OK;
}

void zi_state_staging_destroy(zi_state_staging *staging)
{
    if (staging == NULL) {
        return;
    }
    const zi_device_ops *ops = state_staging_ops_of(staging);
    void *self = state_staging_self_of(staging);
    ops->stream_destroy(self, staging->in);
    ops->stream_destroy(self, staging->out);
    ops->event_destroy(self, staging->begun);
    ops->event_destroy(self, staging->ended);
    for (uint32_t i = 0; i < ZI_STATE_STAGING; i++) {
        ops->event_destroy(self, staging->events[i].fetched);
        ops->event_destroy(self, staging->events[i].updated);
        ops->event_destroy(self, staging->events[i].stored);
    }
    zi_free(staging);
}

/* How the chunk's state lies; none where that is not in host memory. */
static zi_codec codec_of(const zi_state_staging *staging, uint32_t p, uint32_t state)
{
    const zi_layout *layout = staging->desc.layout;
    const zero_role role = zi_state_role(state);
    return zi_role_tier(layout, role) == ZERO_TIER_HOST
               ? layout->flats[layout->chunks[p].flat].kept[role]
               : (zi_codec){0};
}

/* Of a chunk's states, one behind the other, the one at *at; *bytes: 0 where there is none. */
static unsigned char *state_staging_place_of(const zi_state_staging *staging, uint32_t p,
                                             uint32_t state, uint64_t *bytes)
{
    const uint64_t count = staging->desc.layout->chunks[p].count;
    unsigned char *at =
        staging->desc.buffers + p % ZI_STATE_STAGING * staging->desc.layout->state_staging_bytes;
    for (uint32_t before = 0; before < state; before++) {
        at += zi_codec_padded_bytes(codec_of(staging, p, before), count);
    }
    *bytes = zi_codec_bytes(codec_of(staging, p, state), count);
    return at;
}

void *zi_state_staging_buffer(const zi_state_staging *staging, uint32_t p, zero_role role)
{
    uint64_t bytes = 0;
    unsigned char *place = state_staging_place_of(staging, p, zi_role_state(role), &bytes);
    return bytes != 0 ? place : NULL;
}

/* Work put on `after` from now on comes after the work that is on `before` now. */
static zero_status state_staging_follow(const zi_state_staging *staging, zi_stream *after,
                                        zi_event *event, zi_stream *before)
{
    ZI_TRY(
        state_staging_ops_of(staging)->event_record(state_staging_self_of(staging), event, before));
    return state_staging_ops_of(staging)->stream_wait(state_staging_self_of(staging), after, event,
                                                      NULL);
}

zero_status zi_state_staging_begin(zi_state_staging *staging)
{
    staging->filled = 0;
    return state_staging_follow(staging, staging->in, staging->begun, staging->desc.step_stream);
}

zero_status zi_state_staging_fetch(zi_state_staging *staging, uint32_t p,
                                   void *const host[ZI_STATES])
{
    const uint32_t buffer = p % ZI_STATE_STAGING;
    const staging_events *events = &staging->events[buffer];
    if ((staging->filled & 1U << buffer) != 0) {
        ZI_TRY(state_staging_ops_of(staging)->stream_wait(state_staging_self_of(staging),
                                                          staging->in, events->stored, NULL));
    }
    staging->filled |= 1U << buffer;
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        uint64_t bytes = 0;
        unsigned char *place = state_staging_place_of(staging, p, state, &bytes);
        if (bytes != 0) {
            ZI_TRY(state_staging_ops_of(staging)->copy(state_staging_self_of(staging), staging->in,
                                                       place, host[state], bytes));
        }
    }
    return state_staging_follow(staging, staging->desc.step_stream, events->fetched, staging->in);
}

zero_status zi_state_staging_store(zi_state_staging *staging, uint32_t p,
                                   void *const host[ZI_STATES])
{
    const staging_events *events = &staging->events[p % ZI_STATE_STAGING];
    ZI_TRY(state_staging_follow(staging, staging->out, events->updated, staging->desc.step_stream));
    for (uint32_t state = 0; state < ZI_STATES; state++) {
        uint64_t bytes = 0;
        const unsigned char *place = state_staging_place_of(staging, p, state, &bytes);
        if (bytes != 0) {
            ZI_TRY(state_staging_ops_of(staging)->copy(state_staging_self_of(staging), staging->out,
                                                       host[state], place, bytes));
        }
    }
    return state_staging_ops_of(staging)->event_record(state_staging_self_of(staging),
                                                       events->stored, staging->out);
}

zero_status zi_state_staging_drop(zi_state_staging *staging, uint32_t p)
{
    const staging_events *events = &staging->events[p % ZI_STATE_STAGING];
    ZI_TRY(state_staging_follow(staging, staging->out, events->updated, staging->desc.step_stream));
    return state_staging_ops_of(staging)->event_record(state_staging_self_of(staging),
                                                       events->stored, staging->out);
}

zero_status zi_state_staging_end(zi_state_staging *staging)
{
    return staging->filled != 0 ? state_staging_follow(staging, staging->desc.step_stream,
                                                       staging->ended, staging->out)
                                : ZERO_OK;
}
