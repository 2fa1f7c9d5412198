/* The optimizer shard: master copies and moments of this rank's part of every trained flat, the
 * update, and the publishing of updated parameters to the ranks that hold the same parameter shard.
 *
 * All pointers are settled at create, so a step is a list of jobs that only wait for their
 * decision. */
#ifndef ZI_STAGE1_OPTIM_H
#define ZI_STAGE1_OPTIM_H

#include "comm/comm.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "zero/engine.h"

typedef struct zi_optim zi_optim;

/* Where a trained flat's other halves are; given by whoever composes the stages. */
typedef struct zi_optim_flat {
    unsigned char *param; /* this rank's parameter shard of the flat */
    const void *grad;     /* its reduced gradient, of degree optimizer */
} zi_optim_flat;

typedef struct zi_optim_desc {
    const zi_layout *layout;
    const zi_device *device;
    const zi_kernels *kernels;
    uint32_t rank;
    zi_group *publish; /* param -> optimizer */
    zi_stream *step_stream;
    unsigned char *master;            /* arena of ZERO_ROLE_MASTER */
    unsigned char *moment[2];         /* arenas of ZERO_ROLE_MOMENT1 and 2 */
    const zi_optim_flat *flats;       /* by flat; copied */
    unsigned char *segments;          /* in the arena of ZERO_ROLE_STEP */
    const zi_step_decision *decision; /* likewise */
    zero_stats *stats;
} zi_optim_desc;

zero_status zi_optim_create(const zi_optim_desc *desc, zi_optim **out);
void zi_optim_destroy(zi_optim *optim); /* accepts NULL; the step stream is idle or gone */

/* Enqueue a unit's update and publishing. */
zero_status zi_optim_step_unit(zi_optim *optim, uint32_t unit);

/* Elements [*first, *first + *count) of the flat are this rank's optimizer part. */
void zi_optim_part(const zi_optim *optim, uint32_t flat, uint64_t *first, uint64_t *count);

/* A flat's master or moment, of degree optimizer; NULL where there is none. */
void *zi_optim_state(const zi_optim *optim, uint32_t flat, zero_role role);

#endif
