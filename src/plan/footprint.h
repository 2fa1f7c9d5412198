/* A footprint of a plan that is at hand. */
#ifndef ZI_PLAN_FOOTPRINT_H
#define ZI_PLAN_FOOTPRINT_H

#include "zero/footprint.h"

/* state: of a plan. c: resolved. made: in: activation_bytes; out: the rest. Errors: those of
 * zero_footprint_of. */
zero_status zi_footprint_of_memory(const zero_memory *state, const zero_cluster *c,
                                   zero_footprint *made);

#endif
