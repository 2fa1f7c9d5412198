/* The decision of a step: from the summed squares to what every element is multiplied by. */
#ifndef ZI_KERNELS_MATH_STEP_H
#define ZI_KERNELS_MATH_STEP_H

#include <stdint.h>

#include "kernels/math/hd.h"

#define ZI_GROUPS_MAX 64

/* AdamW's scalars of one group for one step, computed once, in double, then rounded. */
typedef struct zi_adamw_coeffs {
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float decay;     /* 1 - lr * weight_decay */
    float step_size; /* lr / c1 */
    float c2_root;   /* sqrt(c2) */
    float eps;
} zi_adamw_coeffs;

/* Device-resident outcome of a step's decision. */
typedef struct zi_step_decision {
    uint64_t update;  /* number of this update, from 1 */
    double norm;      /* of the mean gradient, before clipping */
    double clip;      /* 1 when not clipped */
    float grad_scale; /* clip / (divisor * loss scale): what the reduced sum is multiplied by */
    int32_t skip;     /* 1: leave everything as it is */
    float loss_scale; /* of the next step */
    uint32_t group_count;
    zi_adamw_coeffs groups[ZI_GROUPS_MAX];
} zi_step_decision;

#endif
