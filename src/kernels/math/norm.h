/* A sum of squares whose bits do not depend on the order or the split of the addition.
 *
 * Squares of ZI_NORM_CHUNK neighbouring elements are added in double in one fixed order; the
 * chunk's total is then added exactly to a wide fixed-point number. Exact addition commutes, so
 * ranks, threads and devices may take chunks in any order (after Kulisch, "Computer arithmetic and
 * validity", long accumulator). Limb k holds bits of weight 2^(32 k
 * - 320) and up, in 32 bits plus room for 2^32 carries. */
#ifndef ZI_KERNELS_MATH_NORM_H
#define ZI_KERNELS_MATH_NORM_H

#include <stdint.h>

#include "kernels/math/hd.h"

#define ZI_NORM_CHUNK 64
#define ZI_NORM_LIMBS 20
#define ZI_NORM_LOW_EXPONENT 320

typedef struct zi_norm_sum {
    uint64_t limb[ZI_NORM_LIMBS];
    uint64_t infinite_chunks; /* chunks whose total is infinite */
    uint64_t nan_chunks;      /* chunks whose total is NaN */
} zi_norm_sum;

#endif
