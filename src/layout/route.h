/* The routes of parameters and gradients over the ranks, for each way to split units: which ranks
 * exchange what, when, and between which degrees of sharding. They are derived once, from the
 * degrees (route.c); whoever moves, sizes or counts what crosses ranks reads them, and adds nothing
 * about that by itself.
 *
 *   GATHER    parameter shard  -> slot             param -> 1          before a unit is used
 *   SCATTER   slot             -> gradient shard   1 -> grad           every micro-step
 *   BOUNDARY  gradient shard   -> optimizer shard  grad -> optimizer   last micro-step of a step
 *   REPLICA   optimizer shard  -> sum of replicas  optimizer -> world  likewise
 *   UPDATED   optimizer shard  -> parameter shard  optimizer -> param  after the update
 *
 * The codec in which a flat's elements cross is zi_hop_wire's answer (layout.h). */
#ifndef ZI_LAYOUT_ROUTE_H
#define ZI_LAYOUT_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "zero/plan.h"
#include "zero/role.h"

typedef enum zi_hop_kind {
    ZI_HOP_GATHER,
    ZI_HOP_SCATTER,
    ZI_HOP_BOUNDARY,
    ZI_HOP_REPLICA,
    ZI_HOP_UPDATED
} zi_hop_kind;

#define ZI_HOPS 5

typedef struct zi_hop {
    zero_role role; /* PARAM or GRAD: of what crosses */
    /* Degrees, `low` divides `high`: groups of high / low ranks, which hold the parts of degree
     * `high` of one shard of degree `low` (zi_shard_members). A sum goes up, a gather down. */
    uint32_t low;
    uint32_t high;
    bool sums;
    bool whole;    /* of a sum: every rank receives all of it, not only its part */
    bool boundary; /* of a sum: once in a step, of what several micro-steps may have added up */
    bool summed;   /* of a sum: an earlier hop has crossed ranks, so this one adds sums, in the
                      accumulator's type */
    bool ends;     /* of a sum: no later hop crosses ranks */
} zi_hop;

/* The hops of one way to split units, by kind. */
void zi_route_make(const zero_sharding *sharding, zi_hop hops[ZI_HOPS]);

/* Ranks of a group; 1: nothing crosses. */
static inline uint32_t zi_hop_size(const zi_hop *hop)
{
    return hop->high / hop->low;
}

static inline bool zi_hop_crosses(const zi_hop *hop)
{
    return hop->high != hop->low;
}

/* Degree of what a rank gives, and of what it receives. */
static inline uint32_t zi_hop_given(const zi_hop *hop)
{
    return hop->sums ? hop->low : hop->high;
}

static inline uint32_t zi_hop_received(const zi_hop *hop)
{
    return hop->sums && !hop->whole ? hop->high : hop->low;
}

#endif
