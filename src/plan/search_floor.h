/* Lower bounds of what an engine holds and moves, from one plan of its stage whose states are all
 * on the device: so most combinations of a search need no plan of their own. */
#ifndef ZI_PLAN_SEARCH_FLOOR_H
#define ZI_PLAN_SEARCH_FLOOR_H

#include <stdint.h>

#include "plan/search_space.h"
#include "zero/plan.h"

/* By micro-steps, of which a search has few numbers. */
#define ZI_FLOOR_COUNTS 32

/* The plan of a split with the first mix and the first format. */
typedef struct zi_base {
    zero_plan *plan;      /* NULL: refused, and every bound is 0 */
    zero_memory memory;   /* its bytes */
    double update_shares; /* of a parameter's shard, the part that the rank updates */
    double grad_shares;   /* likewise */
    double gathered; /* of a parameter's bytes, those in units that do not stay in their slots */
    uint64_t window_bytes; /* of state on disk, what may be left in the I/O window */
    uint32_t count;
    uint32_t micro_steps[ZI_FLOOR_COUNTS];
    double links_ns[ZI_FLOOR_COUNTS];
} zi_base;

/* Measure a plan that is at hand. base->plan is set. */
zero_status zi_base_measure(const zi_space *space, const zi_mesh *mesh, zi_base *base);

/* At least so long does a step take for gathers and reductions, with all overlap there may be: the
 * same with every mix. */
zero_status zi_base_links(const zi_space *space, const zi_shape *shape, zi_base *base,
                          double *links_ns);

/* At least so many bytes of each tier, without activations and reserves. */
void zi_base_bytes(const zi_space *space, const zi_base *base, const zi_mix *mix,
                   const zi_format *format, double bytes[ZERO_TIER_COUNT]);

/* At least so long does a step take for host link, disks and update, of which copies may overlap
 * with compute. */
double zi_base_tiers_ns(const zi_space *space, const zi_base *base, const zi_mix *mix,
                        const zi_format *format, const zi_shape *shape);

#endif
