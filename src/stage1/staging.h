/* The CPU's update of a chunk for an engine on a GPU. State on disk passes through host memory, and
 * other state may live there, so that is where it is updated. Only what is in the GPU's memory
 * crosses the bus, through a bounce buffer in pinned host memory:
 *
 *    gradient, state on the GPU  --copy-->  bounce   --update-->  bounce   --copy-->  parameter,
 *                                           buffer                buffer              that state
 *
 * Two bounce buffers take turns, so that the arrays of one chunk are copied while another chunk is
 * updated. A chunk is known by its job.
 *
 * Threads: all calls but create and destroy come from tasks of the stream of the copies. */
#ifndef ZI_STAGE1_STAGING_H
#define ZI_STAGE1_STAGING_H

#include "core/role.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "zero/plan.h"

typedef struct zi_staging zi_staging;

typedef struct zi_staging_desc {
    const zi_device *device;
    zi_stream *stream;              /* of the copies */
    const zi_kernels *kernels;      /* the CPU's */
    bool on_device[ZI_SHARD_ROLES]; /* by role: whether it is in the GPU's memory */
    unsigned char *buffers;         /* two, end to end, which the device reaches; borrowed */
    uint64_t buffer_bytes;          /* of each: enough for the largest chunk */
} zi_staging_desc;

/* A chunk: its job as the GPU would be given it, except that state which is not on the device is in
 * host memory; and host memory of what both read. */
typedef struct zi_staged_chunk {
    const zi_update_job *job;
    const zi_segment *segments;
    const zi_step_decision *decision;
    uint64_t *stalled;
} zi_staged_chunk;

zero_status zi_staging_create(const zi_staging_desc *desc, zi_staging **out);
void zi_staging_destroy(zi_staging *staging); /* accepts NULL */

/* Use these bounce buffers from now on; nothing is in flight. */
void zi_staging_rebind(zi_staging *staging, unsigned char *buffers);

/* Update a chunk; its results are still being copied to the device on return.
 *  - next: the job of the chunk that is updated after it, whose arrays are copied from the device
 *    meanwhile, or NULL. Where its state on disk is does not matter yet. */
zero_status zi_staging_update(zi_staging *staging, const zi_staged_chunk *chunk,
                              const zi_update_job *next);

#endif
