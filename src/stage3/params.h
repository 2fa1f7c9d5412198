/* The parameter shard: gathers a unit's flats into a slot before it is used, ahead of time where
 * the order is known, and frees the slot when the next unit needs it.
 *
 * Events, per unit:
 *   gathered  recorded on the gather stream, after the gather;
 *             awaited by the caller's stream, in acquire
 *   released  recorded on the caller's stream, in each release;
 *             awaited by the gather stream, before the slot is reused, and by the stream of the
 *             next release, which speaks for both
 *   updated   recorded on the step stream, after the update and the gather of it;
 *             awaited by the gather stream, before the gather, and by the caller's stream where
 *             there are no slots
 *
 * Where parameters are offloaded, a gather loads this rank's shard into its place in the slot
 * first. Where ranks exchange another type than slots have, it rounds this rank's shard to that in
 * the wire buffer, gathers there, and fills the slot from it; the buffer is the next gather's then.
 * Where callers want what ranks exchange (tuning.encoded_views), the slot is that buffer, and is
 * not filled again.
 *
 * Where releases are checked (tuning.poison_released), callers get a view: a place of the unit's
 * own, which holds a copy while the unit is acquired and NaN otherwise. Gathers are as without.
 *   shown  recorded on the caller's stream, after the copy;
 *          awaited by other streams of the caller that acquire the unit too
 *
 * Which gathers happen, and in which order, follows from the schedule alone, so that all ranks
 * agree. */
#ifndef ZI_STAGE3_PARAMS_H
#define ZI_STAGE3_PARAMS_H

#include "comm/comm.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "offload/shards.h"
#include "stage3/schedule.h"
#include "zero/engine.h"
#include "zero/unit.h"

typedef struct zi_params zi_params;

typedef struct zi_params_desc {
    const zi_layout *layout;
    const zi_device *device;
    const zi_kernels *kernels;
    zi_stream *gather_stream; /* only gathers, fills and waits of this object run on it */
    const zi_shards *shards;  /* of ZERO_ROLE_PARAM; borrowed */
    unsigned char *slots;     /* arena of ZERO_ROLE_PARAM_SLOT */
    zero_stats *stats;
    /* Called when a unit's place in backward has gone by, after the gathers that a rank that uses
     * it has put on the stream by then: its gradient is left out, unless it came. NULL: nobody
     * asks. */
    zero_status (*left_out)(void *user, uint32_t unit);
    void *left_out_user;
    zi_group *groups[ZI_SHARDINGS_MAX][ZI_HOPS]; /* by sharding and hop */
} zi_params_desc;

zero_status zi_params_create(const zi_params_desc *desc, zi_params **out);
void zi_params_destroy(zi_params *params); /* accepts NULL; the gather stream is idle or gone */

/* Connect for every unit's gather; shards and slots are zeros and stay so, views are NaN. Before
 * any other call, collective over the group. */
zero_status zi_params_connect(zi_params *params);

/* via: the unit that the caller asked for, `unit` itself or one that ties to it. The pass that the
 * unit is in is zi_params_enter's to say. */
zero_status zi_params_acquire(zi_params *params, uint32_t unit, uint32_t via, zero_pass pass,
                              zi_stream *stream);
zero_status zi_params_release(zi_params *params, uint32_t unit, uint32_t via, zi_stream *stream);

/* The full tensor while its unit is in use, else NULL (also for a tensor of no elements: see
 * in_use). */
void *zi_params_data(const zi_params *params, uint32_t tensor);
/* The codes of a tensor whose flat is shown encoded, and its scales, while its unit is in use; else
 * two NULL. */
typedef struct zi_param_planes {
    const void *codes;
    const void *scales;
} zi_param_planes;

zi_param_planes zi_params_planes(const zi_params *params, uint32_t tensor);
bool zi_params_in_use(const zi_params *params, uint32_t unit);
/* Acquires by the unit's own name that are not released. */
uint32_t zi_params_own_count(const zi_params *params, uint32_t unit);
/* The slot the unit is in, or ZI_NO_INDEX: its tensors move only where this changes. */
uint32_t zi_params_slot(const zi_params *params, uint32_t unit);
/* The pass that a unit in use is in; else NONE. */
zero_pass zi_params_pass(const zi_params *params, uint32_t unit);
void zi_params_enter(zi_params *params, uint32_t unit, zero_pass pass);
/* The lowest unit in use, or ZI_NO_INDEX. */
uint32_t zi_params_first_in_use(const zi_params *params);

/* End an evaluation sweep that stopped half way, then look ahead into a micro-step. */
zero_status zi_params_micro_begin(zi_params *params);
/* Walk over what this rank left out of the passes of a micro-step. */
zero_status zi_params_pass_end(zi_params *params);
/* The same, and begin again. last: the parameters are about to change, so do not look
 * ahead. */
zero_status zi_params_micro_end(zi_params *params, bool last);

/* The shards are about to be rewritten by the host: wait for the gathers so far and forget what is
 * in the slots. */
zero_status zi_params_refill_begin(zi_params *params);
/* The slots' contents are old once the work on the gather stream so far has run. No unit is in
 * use. */
zero_status zi_params_forget(zi_params *params);
/* A step is being enqueued on `stream`: it starts after all gathers so far, and what is in the
 * slots is old. No unit is in use. */
zero_status zi_params_step_begin(zi_params *params, zi_stream *stream);
/* The unit's shard is updated, on all ranks that hold it, by what is on `stream` so far. */
zero_status zi_params_updated(zi_params *params, uint32_t unit, zi_stream *stream);
/* All units are: look ahead into the next micro-step. */
zero_status zi_params_step_end(zi_params *params);

/* The orders of training (0) and evaluation (1), for ranks to agree on; no unit is in use and no
 * sweep is under way. */
#define ZI_SCHEDULES 2
zi_schedule *zi_params_schedule(zi_params *params, int which);
void zi_params_reset_schedule(zi_params *params, int which);

#endif
