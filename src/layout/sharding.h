/* Over how many ranks each state is split, who holds which slice, and which ranks talk to each
 * other.
 *
 * The degrees form a chain, each dividing the next: 1 | a | b | optimizer | world, where a and b
 * are the degrees of parameters and gradients in ascending order. A flat is world slices; a shard
 * of degree D is world / D neighbouring ones. Rank r, written in the chain's mixed radix with its
 * lowest digit first, owns the slice whose index is the same digits read with the first as the most
 * significant: so a rank's optimizer shard lies inside its gradient and parameter shards, and
 * neighbours in rank form the parameter groups. For stages 0-3 slice r belongs to rank r. */
#ifndef ZI_LAYOUT_SHARDING_H
#define ZI_LAYOUT_SHARDING_H

#include <stdint.h>

#include "zero/options.h"
#include "zero/plan.h"

/* Degrees from stage and group sizes. The only reader of the stage. unit_group: the shard group of
 * units that have one of their own, or 0. */
zero_status zi_sharding_resolve(const zero_engine_options *options, uint32_t world,
                                uint32_t unit_group, zero_sharding *sharding);

/* Over how many ranks a role is split; 1 for slots, which every rank has whole. */
uint32_t zi_role_degree(const zero_sharding *sharding, zero_role role);

/* Index of the shard that `rank` holds of a flat split over `degree` ranks (one of the chain's
 * degrees). */
uint32_t zi_shard_index(const zero_sharding *sharding, uint32_t rank, uint32_t degree);

/* Which of the optimizer shards in a shard of this degree is the rank's own, in their order. */
uint32_t zi_optimizer_shard_index(const zero_sharding *sharding, uint32_t rank, uint32_t degree);

/* The ranks that hold the parts, of degree `to`, of the shard of degree `from` that `rank` holds;
 * members[i] holds the i-th part. Writes to / from members. */
void zi_shard_members(const zero_sharding *sharding, uint32_t rank, uint32_t from, uint32_t to,
                      uint32_t *members);

#endif
