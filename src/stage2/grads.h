/* The gradient shard: gives backward slots, reduces bucket by bucket as gradients become
 * complete, accumulates micro-steps, and has the last reduction sum the squares.
 *
 * A bucket's gradient goes through up to three reductions, each over the ranks by which the degree
 * of sharding grows:
 *
 *   slot            --(1 -> grad)-->          gradient shard         every micro-step; accumulates
 *   gradient shard  --(grad -> optimizer)-->  the optimizer shard    at the boundary
 *   that shard      --(optimizer -> world)--> summed over replicas   at the boundary
 *
 * A group of one makes a reduction an identity. Where the first is one and the types agree,
 * backward writes straight into the shard and there is no slot. The first reduction that crosses
 * ranks uses the wire type: that of single gradients, or of sums over several micro-steps where
 * those are what crosses. Later ones use the accumulator's.
 *
 * Buckets are reduced in one order on all ranks, that of backward through the units as described. A
 * bucket that does not come is reduced as zeros: when backward has gone so far that its slot, or an
 * earlier one's, must have been reused; when it holds up the slots of later ones; or at the end of
 * the micro-step. The first rule keeps ranks that leave units out from waiting in a circle: who
 * waits for a slot waits for the reduction of a bucket that every rank has enqueued before it waits
 * for anything further on.
 *
 * Events:
 *   ready     per bucket; recorded on the caller's stream, at each gradient ready;
 *             awaited by the reduce stream, before the reduction; by the caller's stream that
 *             records it next, as its streams may differ; and where a tied unit adds once more
 *   reduced   per bucket; recorded on the reduce stream, after it;
 *             awaited by the step stream, before the update
 *   emptied   per slot; recorded on the reduce stream, after the reduction of its bucket;
 *             awaited by the caller's stream, before the slot is reused
 *   consumed  recorded on the step stream, after the update;
 *             awaited by the reduce and the caller's stream, before shards are overwritten
 *
 * Where gradients are offloaded, backward adds in place to a slot that holds the sum meanwhile; it
 * is loaded when the slot is taken, unless this is the first micro-step, and stored after. What is
 * added to a sum of another type is added in the window where one rank sums; else the bucket's
 * shards are loaded into a staging buffer, reduced into and stored. What crosses ranks after the
 * first reduction waits until the micro-step is over where backward waits for loads: so it only
 * ever waits for this rank (zi_grads_end_late). One event on top:
 *   filled    per bucket; recorded on the reduce stream, after a slot was loaded;
 *             awaited by the caller's stream, before backward adds to it
 * It is also recorded on the caller's stream after zeros, and awaited by the caller's stream for
 * another unit of the bucket, and by zi_grads_destroy where `ready` has not been recorded since. */
#ifndef ZI_STAGE2_GRADS_H
#define ZI_STAGE2_GRADS_H

#include "comm/comm.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "layout/layout.h"
#include "offload/shards.h"
#include "zero/engine.h"

typedef struct zi_grads zi_grads;

typedef struct zi_grads_desc {
    const zi_layout *layout;
    const zi_device *device;
    const zi_kernels *kernels;
    uint32_t rank;
    zi_stream *reduce_stream;
    const zi_shards *shards; /* of ZERO_ROLE_GRAD; borrowed */
    unsigned char *slots;    /* arena of ZERO_ROLE_GRAD_SLOT */
    zi_norm_sum *norm;       /* device memory: this rank's squares of its optimizer shard */
    zi_norm_sum *replicas;   /* likewise, of what another rank counts */
    zi_norm_sum *so_far;     /* host memory that the device reaches, by bucket: `norm` after its
                                reduction at a boundary; NULL: nobody asks */
    bool counts[ZI_SHARDINGS_MAX]; /* by sharding: this rank's squares of it count, and not a
                                      replica's */
    zero_stats *stats;
    zi_group *groups[ZI_SHARDINGS_MAX][ZI_HOPS]; /* by sharding and hop */
} zi_grads_desc;

zero_status zi_grads_create(const zi_grads_desc *desc, zi_grads **out);
void zi_grads_destroy(zi_grads *grads); /* accepts NULL; the reduce stream is idle or gone */

/* Connect for every bucket's reductions; shards are zeros and stay so. Before any other call,
 * collective over the groups. */
zero_status zi_grads_connect(zi_grads *grads);

/* Backward has come to `unit`: buckets too far behind to keep a slot are left out on this rank. */
zero_status zi_grads_pass(zi_grads *grads, uint32_t unit);
/* Backward has left the unit out on this rank: its gradient is ready, unless it came after all. */
zero_status zi_grads_left_out(zi_grads *grads, uint32_t unit);
/* first: of this step. last: the boundary. */
void zi_grads_micro_begin(zi_grads *grads, bool first, bool last);
/* True if the unit has a gradient: it or a unit it ties to has a trained tensor. */
bool zi_grads_trained(const zi_grads *grads, uint32_t unit);
/* A refusal leaves no count raised and no slot taken. */
zero_status zi_grads_acquire(zi_grads *grads, uint32_t unit, zi_stream *stream);
zero_status zi_grads_ready(zi_grads *grads, uint32_t unit, zi_stream *stream);
/* Reduce what is left, missing gradients as zeros. STATE when a unit's gradient is still acquired.
 */
zero_status zi_grads_micro_end(zi_grads *grads);

/* Units with trained tensors of their own whose gradient this rank has never acquired. first: the
 * lowest of them, if there is any. came: how many others there are. */
uint32_t zi_grads_never_came(const zi_grads *grads, uint32_t *first, uint32_t *came);

/* The first tensor whose gradient was assigned instead of added, as far as tuning.check_added has
 * seen, once; ZI_NO_INDEX: none. */
uint32_t zi_grads_take_assigned(zi_grads *grads);
/* No gradient is acquired: later ones are not checked so. */
void zi_grads_marks_end(zi_grads *grads);

/* A trained tensor's gradient while its unit's is acquired, else NULL. */
void *zi_grads_data(const zi_grads *grads, uint32_t tensor);
bool zi_grads_in_use(const zi_grads *grads, uint32_t unit);
/* Acquires by the unit's own name that are not ready. */
uint32_t zi_grads_own_count(const zi_grads *grads, uint32_t unit);
/* The slot of the unit's bucket, or ZI_NO_INDEX: between two calls of zi_grads_rebind the gradients
 * of a unit move only where this changes. */
uint32_t zi_grads_slot(const zi_grads *grads, uint32_t unit);

/* Work on other slots, and shards that were bound anew. Between steps, the reduce stream idle; not
 * where gradients are offloaded. */
void zi_grads_rebind(zi_grads *grads, unsigned char *slots);

/* Elements of the flat's gradient shard before this rank's optimizer shard. */
uint64_t zi_grads_shard_first(const zi_grads *grads, uint32_t flat);
/* Buckets whose last reduction of the boundary is enqueued so far: those from the first on. */
uint32_t zi_grads_reduced_count(const zi_grads *grads);
/* Let `stream` wait until the bucket's is done. */
zero_status zi_grads_wait_bucket(zi_grads *grads, uint32_t bucket, zi_stream *stream);
/* Let `stream` wait until the boundary's reductions are done. */
zero_status zi_grads_wait_reduced(zi_grads *grads, zi_stream *stream);
/* The work on `stream` so far was the last to read the reduced gradients. */
zero_status zi_grads_consumed(zi_grads *grads, zi_stream *stream);

#endif
