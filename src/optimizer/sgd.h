/* SGD with momentum: Sutskever et al., "On the importance of initialization and momentum in deep
 * learning", 2013, sections 2 and 2.1, in the form of PyTorch's torch.optim.SGD without dampening,
 * whose momentum does not contain the learning rate. */
#ifndef ZI_OPTIMIZER_SGD_H
#define ZI_OPTIMIZER_SGD_H

#include <math.h>

#include "core/lane.h"
#include "optimizer/element.h"
#include "zero/step.h"

#define ZI_SGD_MOMENTS 1
#define ZI_SGD_CODE1 ZERO_DTYPE_I8
#define ZI_SGD_CODE2 ZERO_DTYPE_NONE
#define ZI_SGD_NUMBERS(X)               \
    X(lr, NOT_NEGATIVE, 1e-3f)          \
    X(momentum, BELOW_ONE, 0.0f)        \
    X(weight_decay, NOT_NEGATIVE, 0.0f) \
    X(nesterov, FLAG, 0.0f)

typedef struct zi_sgd_coeffs {
    float lr;
    float momentum;
    float weight_decay;
    float of_momentum; /* the direction is this times the new momentum */
    float of_grad;     /* and this times the gradient */
} zi_sgd_coeffs;

/* carried: nothing. */
ZI_LANE zi_sgd_coeffs zi_sgd_decide(zero_sgd sgd, double *carried)
{
    const int nesterov = sgd.nesterov != 0.0f;
    zi_sgd_coeffs coeffs;
    (void)carried;
    coeffs.lr = sgd.lr;
    coeffs.momentum = sgd.momentum;
    coeffs.weight_decay = sgd.weight_decay;
    coeffs.of_momentum = nesterov ? sgd.momentum : 1.0f;
    coeffs.of_grad = nesterov ? 1.0f : 0.0f;
    return coeffs;
}

ZI_LANE zi_sgd_coeffs zi_sgd_undecayed(zi_sgd_coeffs coeffs)
{
    coeffs.weight_decay = 0.0f;
    return coeffs;
}

ZI_LANE zi_element_state zi_sgd_lane(zi_element_state state, float grad, zi_sgd_coeffs coeffs)
{
    zi_element_state next = state;
    const float decayed = fmaf(coeffs.weight_decay, state.p, grad);
    next.m = fmaf(coeffs.momentum, state.m, decayed);
    next.p = fmaf(-coeffs.lr, fmaf(coeffs.of_momentum, next.m, coeffs.of_grad * decayed), state.p);
    return next;
}

#endif
