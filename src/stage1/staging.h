/* The CPU's update of a chunk for an engine on a GPU. State on disk passes through host memory, and
 * other state may live there, so that is where it is updated; only what the GPU keeps goes over the
 * bus:
 *
 *    gradient, state on the GPU  --copy-->  room  --update-->  room  --copy-->  parameter, that
 *                                                                               state
 *
 * Two rooms take turns, so that one chunk's arrays come while another is updated. A chunk is known
 * by its job. All calls but create and destroy come from tasks of the stream of the copies. */
#ifndef ZI_STAGE1_STAGING_H
#define ZI_STAGE1_STAGING_H

#include "device/device.h"
#include "kernels/kernels.h"
#include "zero/plan.h"

typedef struct zi_staging zi_staging;

typedef struct zi_staging_desc {
    const zi_device *device;
    zi_stream *stream;                /* of the copies */
    const zi_kernels *kernels;        /* the CPU's */
    bool on_device[ZERO_SHARD_ROLES]; /* by role: whether it is the GPU's memory */
    unsigned char *rooms; /* two, one behind the other, that the device reaches; borrowed */
    uint64_t room_bytes;  /* of each: enough for the largest chunk */
} zi_staging_desc;

/* A chunk: its job as the GPU would be given it, but for state that is not on the device, which is
 * host memory; and host memory for what both read. */
typedef struct zi_staged_chunk {
    const zi_update_job *job;
    const zi_segment *segments;
    const zi_step_decision *decision;
} zi_staged_chunk;

zero_status zi_staging_create(const zi_staging_desc *desc, zi_staging **out);
void zi_staging_destroy(zi_staging *staging); /* accepts NULL */

/* The rooms are elsewhere from now on; nothing is under way. */
void zi_staging_rebind(zi_staging *staging, unsigned char *rooms);

/* Update a chunk, and leave what it gives back under way. next: the job of the chunk after it,
 * whose gradient begins to come meanwhile, or NULL; where that chunk's state on disk is does not
 * matter yet. */
zero_status zi_staging_update(zi_staging *staging, const zi_staged_chunk *chunk,
                              const zi_update_job *next);

#endif
