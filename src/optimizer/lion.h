/* Lion: Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2. */
#ifndef ZI_OPTIMIZER_LION_H
#define ZI_OPTIMIZER_LION_H

#include <math.h>

#include "core/lane.h"
#include "optimizer/element.h"
#include "zero/step.h"

#define ZI_LION_MOMENTS 1
#define ZI_LION_CODE1 ZERO_DTYPE_I8
#define ZI_LION_CODE2 ZERO_DTYPE_NONE
#define ZI_LION_NUMBERS(X)     \
    X(lr, NOT_NEGATIVE, 1e-4f) \
    X(beta1, BELOW_ONE, 0.9f)  \
    X(beta2, BELOW_ONE, 0.99f) \
    X(weight_decay, NOT_NEGATIVE, 0.0f)

typedef struct zi_lion_coeffs {
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float decay; /* 1 - lr * weight_decay */
    float lr;
} zi_lion_coeffs;

/* carried: nothing. */
ZI_LANE zi_lion_coeffs zi_lion_decide(zero_lion lion, double *carried)
{
    zi_lion_coeffs coeffs;
    (void)carried;
    coeffs.beta1 = lion.beta1;
    coeffs.one_minus_beta1 = (float)(1.0 - (double)lion.beta1);
    coeffs.beta2 = lion.beta2;
    coeffs.one_minus_beta2 = (float)(1.0 - (double)lion.beta2);
    coeffs.decay = (float)(1.0 - (double)lion.lr * (double)lion.weight_decay);
    coeffs.lr = lion.lr;
    return coeffs;
}

ZI_LANE zi_lion_coeffs zi_lion_undecayed(zi_lion_coeffs coeffs)
{
    coeffs.decay = 1.0f;
    return coeffs;
}

/* -1, 1, or a value that has no sign: a zero or NaN. */
ZI_LANE float zi_lion_sign(float value)
{
    return value > 0.0f ? 1.0f : value < 0.0f ? -1.0f : value;
}

ZI_LANE zi_element_state zi_lion_lane(zi_element_state state, float grad, zi_lion_coeffs coeffs)
{
    zi_element_state next = state;
    const float between = fmaf(coeffs.beta1, state.m, coeffs.one_minus_beta1 * grad);
    next.p = fmaf(-coeffs.lr, zi_lion_sign(between), state.p * coeffs.decay);
    next.m = fmaf(coeffs.beta2, state.m, coeffs.one_minus_beta2 * grad);
    return next;
}

#endif
