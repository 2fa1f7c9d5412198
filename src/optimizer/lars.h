/* LARS: You et al., "Large batch training of convolutional networks", 2017, algorithm 1, with an
 * eps in the divisor. */
#ifndef ZI_OPTIMIZER_LARS_H
#define ZI_OPTIMIZER_LARS_H

#include <math.h>

#include "core/lane.h"
#include "optimizer/element.h"
#include "optimizer/layerwise.h"
#include "zero/step.h"

#define ZI_LARS_MOMENTS 1
#define ZI_LARS_CODE1 ZERO_DTYPE_I8
#define ZI_LARS_CODE2 ZERO_DTYPE_NONE
#define ZI_LARS_MEASURED_MOMENTS 0
#define ZI_LARS_NUMBERS(X)              \
    X(lr, NOT_NEGATIVE, 1e-1f)          \
    X(momentum, BELOW_ONE, 0.9f)        \
    X(weight_decay, NOT_NEGATIVE, 0.0f) \
    X(trust, POSITIVE, 1e-3f)           \
    X(eps, NOT_NEGATIVE, 1e-8f)         \
    X(adapt_undecayed, FLAG, 0.0f)

typedef struct zi_lars_coeffs {
    float lr; /* times the tensor's local rate, once that is known */
    float momentum;
    float weight_decay;
    float trust; /* 0: the local rate is 1 */
    float eps;
    float adapt_undecayed;
} zi_lars_coeffs;

/* carried: nothing. */
ZI_LANE zi_lars_coeffs zi_lars_decide(zero_lars lars, double *carried)
{
    zi_lars_coeffs coeffs;
    (void)carried;
    coeffs.lr = lars.lr;
    coeffs.momentum = lars.momentum;
    coeffs.weight_decay = lars.weight_decay;
    coeffs.trust = lars.trust;
    coeffs.eps = lars.eps;
    coeffs.adapt_undecayed = lars.adapt_undecayed;
    return coeffs;
}

ZI_LANE zi_lars_coeffs zi_lars_undecayed(zi_lars_coeffs coeffs)
{
    coeffs.weight_decay = 0.0f;
    coeffs.trust = coeffs.adapt_undecayed != 0.0f ? coeffs.trust : 0.0f;
    return coeffs;
}

ZI_LANE zi_lars_coeffs zi_lars_trust(zi_lars_coeffs coeffs, zi_layer_norms norms)
{
    if (coeffs.trust > 0.0f && zi_layer_norms_count(norms)) {
        const double decay = (double)coeffs.weight_decay * norms.param;
        const double local =
            (double)coeffs.trust * norms.param / (norms.direction + decay + (double)coeffs.eps);
        coeffs.lr = (float)((double)coeffs.lr * local);
    }
    return coeffs;
}

/* The gradient, whose norm is measured. */
ZI_LANE float zi_lars_direction(zi_element_state state, float grad, zi_lars_coeffs coeffs)
{
    (void)state;
    (void)coeffs;
    return grad;
}

ZI_LANE zi_element_state zi_lars_lane(zi_element_state state, float grad, zi_lars_coeffs coeffs)
{
    zi_element_state next = state;
    const float decayed = fmaf(coeffs.weight_decay, state.p, grad);
    next.m = fmaf(coeffs.momentum, state.m, coeffs.lr * decayed);
    next.p = state.p - next.m;
    return next;
}

#endif
