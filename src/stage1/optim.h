/* The optimizer shard: master copies and moments of this rank's shard of every trained flat, the
 * update, and the all-gather of updated parameters over the ranks that hold the same parameter
 * shard.
 *
 * A job updates one chunk. Its pointers are set at create, except those to what is on disk: the
 * update acquires the extents of the chunk first and releases them after. So a step is a list of
 * jobs that only wait for their decision and, on disk, for windows that read ahead. A skipped step
 * leaves the disk alone. Where offloaded parameters are gathered after their update, chunks are
 * updated in a staging buffer, gathered there and stored.
 *
 * Where ranks exchange updated parameters in another type than shards have, each rank rounds its
 * part to that in the wire buffer, and all make all parts values again, so they have the same. This
 * changes nothing where it is done again, after a skipped step.
 *
 * A step may begin before it is decided. Then the *speculative* update of each unit is computed as
 * soon as its gradient is reduced, with a decision that is predicted: gradients are finite and not
 * clipped. State goes to its second place on disk and parameters go to host memory, so nothing that
 * the step replaces is touched. Once the step is decided, speculative updates are committed, which
 * only copies the parameters; or they are discarded, and the step is computed from where it was.
 *
 * For an engine on a GPU the CPU updates what is on disk, in the same task, through bounce buffers
 * (staging.h). What is in host memory the GPU updates, chunk by chunk in buffers of its own
 * (state_staging.h), or, where it is asked to, the CPU, alone or together with the GPU, on a stream
 * of its own (share.h). */
#ifndef ZI_STAGE1_OPTIM_H
#define ZI_STAGE1_OPTIM_H

#include "comm/comm.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "offload/shards.h"
#include "zero/engine.h"

typedef struct zi_optim zi_optim;

typedef struct zi_optim_desc {
    const zi_layout *layout;
    const zi_device *device;
    const zi_kernels *kernels;
    uint32_t rank;
    zi_stream *step_stream;
    const zi_shards *shards; /* by role; borrowed */
    zi_window *window;       /* of states, used on the step stream; NULL: none is on disk */
    /* Memory of the device for chunks on their way to other ranks, where the layout has it. */
    unsigned char *param_staging;
    /* Likewise for updated parameters as ranks send them, where that is not how they are kept. */
    unsigned char *param_wire;
    /* Likewise for chunks of state that is in host memory; NULL: the update has it in place. */
    unsigned char *state_staging;
    const zi_kernels *host_kernels; /* the CPU's, for extents of the window; may be `kernels` */
    unsigned char *workspace;  /* arena of ZERO_ROLE_IO_WINDOW, for bounce buffers and speculative
                                  updates; or NULL */
    unsigned char *segments;   /* in the arena of ZERO_ROLE_STEP */
    unsigned char *step_arena; /* that arena */
    const zi_step_decision *decision; /* likewise */
    /* Host memory, where the layout has room for speculative updates: the decision that they
     * assume. */
    const zi_step_decision *predicted;
    /* Memory of the device: zi_update_job.stalled of updates, and of speculative ones. */
    uint64_t *stalled;
    zero_stats *stats;
    zi_group *groups[ZI_SHARDINGS_MAX][ZI_HOPS]; /* by sharding and hop */
    zi_group *norm_group;                        /* all ranks */
    /* Of all ranks' sums every peer_stride-th one from peer_first on covers each element once, as
     * far as ranks measure only units whose sharding counts. */
    uint32_t peer_first;
    uint32_t peer_stride;
    bool counts[ZI_SHARDINGS_MAX];
} zi_optim_desc;

zero_status zi_optim_create(const zi_optim_desc *desc, zi_optim **out);
void zi_optim_destroy(zi_optim *optim); /* accepts NULL; the step stream is idle or gone */

/* Connect for the gather of every unit's updated parameters; they are zeros and stay so. Collective
 * over the group. */
zero_status zi_optim_connect(zi_optim *optim);

/* A step that goes up through the units, or down, comes next: begin to read its first extents.
 * Every other step goes the other way, and begins with what the one before left in memory. */
zero_status zi_optim_look_ahead(zi_optim *optim, bool down);
/* Instead, where the layout has room for speculative updates: the step begins now, with what is
 * predicted once what is on the step stream so far has run. It then goes up, whether speculative
 * updates are committed or not. max_norm: the step's, or 0. */
zero_status zi_optim_begin_speculation(zi_optim *optim, double max_norm);
/* Enqueue the speculative update of a unit, whose reduced gradient is there when the stream comes
 * to it. squares: host memory; then has squares that the step's are no less than. Once they say
 * that the step will be clipped or skipped, what was updated is discarded, and nothing more is
 * until the step is decided. For every unit that has anything trained, from the last to the first
 * as far as gradients become ready in that order. */
zero_status zi_optim_speculate_unit(zi_optim *optim, uint32_t unit, const zi_norm_sum *squares);
/* The step is due: units whose speculative updates have not begun are updated once it is decided.
 */
void zi_optim_end_speculation(zi_optim *optim);
/* Enqueue, before the first unit of a step that began with speculative updates: commit or discard
 * them, by its outcome as below. */
zero_status zi_optim_validate(zi_optim *optim, const zi_step_decision *outcome);
/* Enqueue, instead of a step that began with speculative updates: discard them. */
zero_status zi_optim_discard(zi_optim *optim);
/* Enqueue, before the first unit of a step: the norms that layer-wise optimizers go by. Nothing to
 * do where there are none. Collective. */
zero_status zi_optim_measure(zi_optim *optim);
/* Enqueue a unit's update and the gather of its parameters. outcome: host memory that has the
 * step's decision once what is on the step stream so far has run. */
zero_status zi_optim_step_unit(zi_optim *optim, uint32_t unit, const zi_step_decision *outcome);
/* The step's last unit is enqueued: what is put on the step stream from now on comes after the
 * state in host memory is back there. */
zero_status zi_optim_join(zi_optim *optim);
/* And then: write what is dirty to disk. */
zero_status zi_optim_flush(zi_optim *optim);
/* Enqueue: the last update's count of the CPU's elements is added to a decision that is in host
 * memory then. Nothing to do where it updates none for a GPU. */
zero_status zi_optim_add_stalled(zi_optim *optim, zi_step_decision *outcome);
/* Leave nothing in flight, whatever has failed; the stream's last task. */
zero_status zi_optim_drain(zi_optim *optim);

/* Time that updates took on the CPU, and elements that it updated for a GPU. Any thread. */
uint64_t zi_optim_update_ns(const zi_optim *optim);
uint64_t zi_optim_host_elements(const zi_optim *optim);
/* Steps whose speculative updates were committed, and whose speculative updates were discarded for
 * another update. Any thread. */
uint64_t zi_optim_kept(const zi_optim *optim);
uint64_t zi_optim_redone(const zi_optim *optim);

/* Let all jobs work on other memory: shards that were bound anew. The step stream is idle. */
void zi_optim_rebind(zi_optim *optim, unsigned char *workspace);

/* Elements [*first, *first + *count) of the flat are this rank's optimizer shard. */
void zi_optim_range(const zi_optim *optim, uint32_t flat, uint64_t *first, uint64_t *count);

#endif
