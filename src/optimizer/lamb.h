/* LAMB: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes",
 * 2019, algorithm 2, with phi(z) = z. */
#ifndef ZI_OPTIMIZER_LAMB_H
#define ZI_OPTIMIZER_LAMB_H

#include <math.h>

#include "core/lane.h"
#include "optimizer/element.h"
#include "optimizer/layerwise.h"
#include "zero/step.h"

#define ZI_LAMB_MOMENTS 2
#define ZI_LAMB_CODE1 ZERO_DTYPE_COMPANDED8
#define ZI_LAMB_CODE2 ZERO_DTYPE_U8_ROOT
#define ZI_LAMB_MEASURED_MOMENTS 2
#define ZI_LAMB_NUMBERS(X)              \
    X(lr, NOT_NEGATIVE, 1e-3f)          \
    X(beta1, BELOW_ONE, 0.9f)           \
    X(beta2, BELOW_ONE, 0.999f)         \
    X(eps, POSITIVE, 1e-6f)             \
    X(weight_decay, NOT_NEGATIVE, 0.0f) \
    X(min_ratio, NOT_NEGATIVE, 0.0f)    \
    X(max_ratio, NOT_NEGATIVE, 0.0f)    \
    X(adapt_undecayed, FLAG, 0.0f)

typedef struct zi_lamb_coeffs {
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float c1_scale; /* 1 / c1 */
    float c2_scale; /* 1 / sqrt(c2) */
    float eps;
    float weight_decay;
    float lr; /* times the tensor's ratio, once that is known */
    float min_ratio;
    float max_ratio; /* infinite: none */
    float adapt_undecayed;
} zi_lamb_coeffs;

/* carried: as AdamW's. */
ZI_LANE zi_lamb_coeffs zi_lamb_decide(zero_lamb lamb, double *carried)
{
    zi_lamb_coeffs coeffs;
    carried[0] *= (double)lamb.beta1;
    carried[1] *= (double)lamb.beta2;
    coeffs.beta1 = lamb.beta1;
    coeffs.one_minus_beta1 = (float)(1.0 - (double)lamb.beta1);
    coeffs.beta2 = lamb.beta2;
    coeffs.one_minus_beta2 = (float)(1.0 - (double)lamb.beta2);
    coeffs.c1_scale = (float)(1.0 / (1.0 - carried[0]));
    coeffs.c2_scale = (float)(1.0 / sqrt(1.0 - carried[1]));
    coeffs.eps = lamb.eps;
    coeffs.weight_decay = lamb.weight_decay;
    coeffs.lr = lamb.lr;
    coeffs.min_ratio = lamb.min_ratio;
    coeffs.max_ratio = lamb.max_ratio > 0.0f ? lamb.max_ratio : (float)INFINITY;
    coeffs.adapt_undecayed = lamb.adapt_undecayed;
    return coeffs;
}

ZI_LANE zi_lamb_coeffs zi_lamb_undecayed(zi_lamb_coeffs coeffs)
{
    coeffs.weight_decay = 0.0f;
    if (coeffs.adapt_undecayed == 0.0f) {
        coeffs.min_ratio = 1.0f;
        coeffs.max_ratio = 1.0f;
    }
    return coeffs;
}

ZI_LANE zi_lamb_coeffs zi_lamb_trust(zi_lamb_coeffs coeffs, zi_layer_norms norms)
{
    double ratio = 1.0;
    if (zi_layer_norms_count(norms)) {
        ratio = norms.param / norms.direction;
        ratio = ratio < (double)coeffs.min_ratio ? (double)coeffs.min_ratio : ratio;
        ratio = ratio > (double)coeffs.max_ratio ? (double)coeffs.max_ratio : ratio;
    }
    coeffs.lr = (float)((double)coeffs.lr * ratio);
    return coeffs;
}

/* The moments after a gradient; p stays. */
ZI_LANE zi_element_state zi_lamb_moments(zi_element_state state, float grad, zi_lamb_coeffs coeffs)
{
    state.m = fmaf(coeffs.beta1, state.m, coeffs.one_minus_beta1 * grad);
    state.v = fmaf(coeffs.beta2, state.v, coeffs.one_minus_beta2 * grad * grad);
    return state;
}

ZI_LANE float zi_lamb_numerator(float m, zi_lamb_coeffs coeffs)
{
    return m * coeffs.c1_scale;
}

/* root: of the second moment. */
ZI_LANE float zi_lamb_denominator(float root, zi_lamb_coeffs coeffs)
{
    return root * coeffs.c2_scale + coeffs.eps;
}

/* quotient: of the two above. */
ZI_LANE float zi_lamb_decayed(float p, float quotient, zi_lamb_coeffs coeffs)
{
    return fmaf(coeffs.weight_decay, p, quotient);
}

ZI_LANE float zi_lamb_param(float p, float direction, zi_lamb_coeffs coeffs)
{
    return fmaf(-coeffs.lr, direction, p);
}

/* The update before its rate, whose norm is measured. */
ZI_LANE float zi_lamb_direction(zi_element_state state, float grad, zi_lamb_coeffs coeffs)
{
    const zi_element_state next = zi_lamb_moments(state, grad, coeffs);
    const float denominator = zi_lamb_denominator(sqrtf(next.v), coeffs);
    return zi_lamb_decayed(state.p, zi_lamb_numerator(next.m, coeffs) / denominator, coeffs);
}

ZI_LANE zi_element_state zi_lamb_lane(zi_element_state state, float grad, zi_lamb_coeffs coeffs)
{
    zi_element_state next = zi_lamb_moments(state, grad, coeffs);
    next.root = sqrtf(next.v);
    const float denominator = zi_lamb_denominator(next.root, coeffs);
    const float quotient = zi_lamb_numerator(next.m, coeffs) / denominator;
    next.p = zi_lamb_param(state.p, zi_lamb_decayed(state.p, quotient, coeffs), coeffs);
    return next;
}

#endif
