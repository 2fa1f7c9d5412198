/* Norms of tensors, from the squares that each rank has added up of its shards to the norm of the
 * whole. Sums are exact, so ranks may be added in any order. */
#ifndef ZI_KERNELS_MATH_LAYER_NORMS_H
#define ZI_KERNELS_MATH_LAYER_NORMS_H

#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/norm.h"
#include "optimizer/layerwise.h"

/* Squares of what a rank has of one tensor. */
typedef struct zi_layer_sums {
    zi_norm_sum param;
    zi_norm_sum direction;
} zi_layer_sums;

/* A sum as ranks send it: with no carries waiting a limb has 32 bits, and of chunks that are not
 * finite it matters whether there are any. */
typedef struct zi_packed_sum {
    uint32_t limb[ZI_NORM_LIMBS];
    uint32_t infinite;
    uint32_t nan;
} zi_packed_sum;

#define ZI_PACKED_WORDS (ZI_NORM_LIMBS + 2)

typedef struct zi_packed_sums {
    zi_packed_sum param;
    zi_packed_sum direction;
} zi_packed_sums;

ZI_LANE zi_packed_sum zi_norm_pack(zi_norm_sum sum)
{
    zi_packed_sum packed;
    zi_norm_normalise(&sum);
    for (int i = 0; i < ZI_NORM_LIMBS; i++) {
        packed.limb[i] = (uint32_t)sum.limb[i];
    }
    packed.infinite = sum.infinite_chunks != 0;
    packed.nan = sum.nan_chunks != 0;
    return packed;
}

/* sum += packed, with the carries left to wait: a group has less than 2^30 ranks. */
ZI_LANE void zi_norm_add_packed(zi_norm_sum *sum, const zi_packed_sum *packed)
{
    for (int i = 0; i < ZI_NORM_LIMBS; i++) {
        sum->limb[i] += packed->limb[i];
    }
    sum->infinite_chunks += packed->infinite;
    sum->nan_chunks += packed->nan;
}

/* The L2 norm: both roundings are IEEE's, of the exact sum to double and of its root. */
ZI_LANE double zi_layer_norm(const zi_norm_sum *sum)
{
    return sqrt(zi_norm_value(sum));
}

#endif
