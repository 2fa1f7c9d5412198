/* The rate of a tensor by two norms: what optimizers with layer-wise rates have in common. The
 * norms are of a whole tensor, over the shards of all ranks, from before its update. */
#ifndef ZI_OPTIMIZER_LAYERWISE_H
#define ZI_OPTIMIZER_LAYERWISE_H

#include <float.h>

#include "core/lane.h"

/* L2 norms of one tensor. */
typedef struct zi_layer_norms {
    double param;
    double direction; /* of what the optimizer compares it with: its update, or the gradient */
} zi_layer_norms;

/* True if rates can be made of both: neither is 0, infinite or NaN. */
ZI_LANE int zi_layer_norms_count(zi_layer_norms norms)
{
    return norms.param > 0.0 && norms.param <= DBL_MAX && norms.direction > 0.0 &&
           norms.direction <= DBL_MAX;
}

#endif
