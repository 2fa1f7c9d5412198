/* AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2. */
#ifndef ZI_OPTIMIZER_ADAMW_H
#define ZI_OPTIMIZER_ADAMW_H

#include <math.h>

#include "core/lane.h"
#include "optimizer/element.h"
#include "zero/step.h"

#define ZI_ADAMW_MOMENTS 2
#define ZI_ADAMW_CODE1 ZERO_DTYPE_COMPANDED8
#define ZI_ADAMW_CODE2 ZERO_DTYPE_U8_ROOT
#define ZI_ADAMW_NUMBERS(X)     \
    X(lr, NOT_NEGATIVE, 1e-3f)  \
    X(beta1, BELOW_ONE, 0.9f)   \
    X(beta2, BELOW_ONE, 0.999f) \
    X(eps, POSITIVE, 1e-8f)     \
    X(weight_decay, NOT_NEGATIVE, 0.0f)

typedef struct zi_adamw_coeffs {
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float decay;     /* 1 - lr * weight_decay */
    float step_size; /* lr / c1 */
    float c2_scale;  /* 1 / sqrt(c2) */
    float eps;
} zi_adamw_coeffs;

/* carried: the products of beta1 and of beta2 over all updates, this one included. */
ZI_LANE zi_adamw_coeffs zi_adamw_decide(zero_adamw adamw, double *carried)
{
    zi_adamw_coeffs coeffs;
    carried[0] *= (double)adamw.beta1;
    carried[1] *= (double)adamw.beta2;
    coeffs.beta1 = adamw.beta1;
    coeffs.one_minus_beta1 = (float)(1.0 - (double)adamw.beta1);
    coeffs.beta2 = adamw.beta2;
    coeffs.one_minus_beta2 = (float)(1.0 - (double)adamw.beta2);
    coeffs.decay = (float)(1.0 - (double)adamw.lr * (double)adamw.weight_decay);
    coeffs.step_size = (float)((double)adamw.lr / (1.0 - carried[0]));
    coeffs.c2_scale = (float)(1.0 / sqrt(1.0 - carried[1]));
    coeffs.eps = adamw.eps;
    return coeffs;
}

ZI_LANE zi_adamw_coeffs zi_adamw_undecayed(zi_adamw_coeffs coeffs)
{
    coeffs.decay = 1.0f;
    return coeffs;
}

/* The moments after a gradient; p stays. */
ZI_LANE zi_element_state zi_adamw_moments(zi_element_state state, float grad,
                                          zi_adamw_coeffs coeffs)
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
ZI_LANE float zi_adamw_param(float p, float direction, zi_adamw_coeffs coeffs)
{
    return fmaf(-coeffs.step_size, direction, p * coeffs.decay);
}

ZI_LANE zi_element_state zi_adamw_lane(zi_element_state state, float grad, zi_adamw_coeffs coeffs)
{
    zi_element_state next = zi_adamw_moments(state, grad, coeffs);
    next.root = sqrtf(next.v);
    const float denominator = zi_adamw_denominator(next.root, coeffs);
    next.p = zi_adamw_param(state.p, next.m / denominator, coeffs);
    return next;
}

#endif
