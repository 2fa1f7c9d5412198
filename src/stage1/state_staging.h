/* A GPU's update of state that is in host memory. Its copy engines move a chunk's state into a
 * staging buffer in the GPU's memory and back, beside the updates of other chunks:
 *
 *    stream "in"      host memory --copy--> buffer
 *    step stream                            buffer --update--> buffer
 *    stream "out"                                              buffer --copy--> host memory
 *
 * Buffers are used in turn: chunk p is in buffer p modulo ZI_STATE_STAGING. Between begin and end
 * of a step a buffer is filled again once what was in it is back in host memory; outside of a step
 * nothing is in flight but what the step stream waits for, so a step can be captured.
 *
 * Threads: all calls come from the rank's. */
#ifndef ZI_STAGE1_STATE_STAGING_H
#define ZI_STAGE1_STATE_STAGING_H

#include "device/device.h"
#include "layout/layout.h"

typedef struct zi_state_staging zi_state_staging;

typedef struct zi_state_staging_desc {
    const zi_layout *layout;
    const zi_device *device;
    zi_stream *step_stream;
    unsigned char *buffers; /* ZI_STATE_STAGING of layout->state_staging_bytes each; borrowed */
} zi_state_staging_desc;

zero_status zi_state_staging_create(const zi_state_staging_desc *desc, zi_state_staging **out);
/* Accepts NULL. Waits for the copies under way. */
void zi_state_staging_destroy(zi_state_staging *staging);

/* The buffer in which the update of chunk p has a state whose tier is HOST; NULL: the chunk has no
 * such state. */
void *zi_state_staging_buffer(const zi_state_staging *staging, uint32_t p, zero_role role);

/* A step's first chunk comes: copies follow what is on the step stream now. */
zero_status zi_state_staging_begin(zi_state_staging *staging);
/* Copy chunk p in; what is put on the step stream from now on comes after that. host: its states,
 * from MASTER on, as far as their tier is HOST. */
zero_status zi_state_staging_fetch(zi_state_staging *staging, uint32_t p,
                                   void *const host[ZI_STATES]);
/* Copy chunk p back, after what is on the step stream now. */
zero_status zi_state_staging_store(zi_state_staging *staging, uint32_t p,
                                   void *const host[ZI_STATES]);
/* Instead: what was copied in has not changed. */
zero_status zi_state_staging_drop(zi_state_staging *staging, uint32_t p);
/* Let all work put on the step stream from now on come after all copies. */
zero_status zi_state_staging_end(zi_state_staging *staging);

#endif
