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

/* The moments after a gradient that is already unscaled and clipped; p stays. */
ZI_LANE zi_adamw_state zi_adamw_moments(zi_adamw_state state, float grad, zi_adamw_coeffs coeffs)
{
    state.m = fmaf(coeffs.beta1, state.m, coeffs.one_minus_beta1 * grad);
    state.v = fmaf(coeffs.beta2, state.v, coeffs.one_minus_beta2 * grad * grad);
    return state;
}

/* root: of the second moment. */
ZI_LANE float zi_adamw_denominator(float root, zi_adamw_coeffs coeffs)
{
    return root * coeffs.c2_scale + coeffs.eps;
}

/* direction: the first moment over the denominator. */
ZI_LANE float zi_adamw_param(float p, float direction, zi_adamw_coeffs coeffs, float decay)
{
    return fmaf(-coeffs.step_size, direction, p * decay);
}

/* decay: coeffs.decay, or 1 for a tensor without decay. */
ZI_LANE zi_adamw_state zi_adamw_lane(zi_adamw_state state, float grad, zi_adamw_coeffs coeffs,
                                     float decay)
{
    zi_adamw_state next = zi_adamw_moments(state, grad, coeffs);
    const float denominator = zi_adamw_denominator(sqrtf(next.v), coeffs);
    next.p = zi_adamw_param(state.p, next.m / denominator, coeffs, decay);
    return next;
}

#endif
