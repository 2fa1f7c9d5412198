/* One element of AdamW. The order of operations is part of the contract: the same bits wherever it
 * is compiled with contraction off. */
#ifndef ZI_KERNELS_MATH_ADAMW_H
#define ZI_KERNELS_MATH_ADAMW_H

#include <math.h>

#include "core/lane.h"
#include "kernels/math/step.h"

typedef struct zi_adamw_state {
    float p; /* parameter */
    float m; /* first moment */
    float v; /* second moment */
} zi_adamw_state;

/* grad: already unscaled and clipped. decay: coeffs.decay, or 1 for a tensor without decay. */
ZI_LANE zi_adamw_state zi_adamw_lane(zi_adamw_state state, float grad, zi_adamw_coeffs coeffs,
                                     float decay)
{
    zi_adamw_state next;
    next.m = fmaf(coeffs.beta1, state.m, coeffs.one_minus_beta1 * grad);
    next.v = fmaf(coeffs.beta2, state.v, coeffs.one_minus_beta2 * grad * grad);
    const float denominator = sqrtf(next.v) * coeffs.c2_scale + coeffs.eps;
    next.p = fmaf(-coeffs.step_size, next.m / denominator, state.p * decay);
    return next;
}

#endif
