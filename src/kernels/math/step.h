/* The decision of a step: from the summed squares to what every element is multiplied by. */
#ifndef ZI_KERNELS_MATH_STEP_H
#define ZI_KERNELS_MATH_STEP_H

#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/norm.h"
#include "zero/step.h"

#define ZI_GROUPS_MAX 64

/* The loss scale is not doubled beyond this, so that it stays finite. */
#define ZI_LOSS_SCALE_MAX 0x1p126f

/* AdamW's scalars of one group for one step, computed once, in double, then rounded. */
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

/* Device-resident outcome of a step's decision. */
typedef struct zi_step_decision {
    uint64_t update;  /* number of this update, from 1; of the last one when skipped */
    uint64_t skipped; /* steps skipped so far */
    double norm;      /* of the mean gradient, before clipping */
    double clip;      /* 1 when not clipped */
    float grad_scale; /* clip / (divisor * loss scale): what the reduced sum is multiplied by */
    int32_t skip;     /* 1: leave everything as it is */
    float loss_scale; /* of the next step */
    uint32_t group_count;
    zi_adamw_coeffs groups[ZI_GROUPS_MAX];
} zi_step_decision;

/* The loss scale and what moves it. */
typedef struct zi_loss_scaler {
    float scale;         /* of the losses of the step under way, > 0 */
    float min;           /* halving stops here */
    uint32_t window;     /* good steps in a row before it doubles, >= 1 */
    uint32_t hysteresis; /* from this many overflows in a row on, each halves it; >= 1 */
    uint32_t good_steps; /* in a row, since the scale last changed */
    uint32_t overflows;  /* in a row */
    int32_t dynamic;     /* 0: the scale never changes */
} zi_loss_scaler;

/* What one step leaves to the next. */
typedef struct zi_step_state {
    uint64_t updates; /* steps so far that were not skipped */
    uint64_t skipped; /* and that were */
    zi_loss_scaler scaler;
    double beta1_product[ZI_GROUPS_MAX]; /* over those updates, by group; 1 at the start */
    double beta2_product[ZI_GROUPS_MAX];
} zi_step_state;

/* What the caller gives to one step. */
typedef struct zi_step_input {
    double divisor;       /* of the reduced sum: ranks x micro-steps, or the caller's; > 0 */
    double max_norm;      /* 0: no clipping */
    uint32_t group_count; /* in [1, ZI_GROUPS_MAX]; the same at every step */
    zero_adamw groups[ZI_GROUPS_MAX];
} zi_step_input;

/* The state before the first step. */
ZI_LANE void zi_step_state_init(zi_step_state *state, zi_loss_scaler scaler)
{
    state->updates = 0;
    state->skipped = 0;
    state->scaler = scaler;
    for (uint32_t i = 0; i < ZI_GROUPS_MAX; i++) {
        state->beta1_product[i] = 1.0;
        state->beta2_product[i] = 1.0;
    }
}

/* The scaler after a step that overflowed, or did not. */
ZI_LANE zi_loss_scaler zi_loss_scaler_next(zi_loss_scaler scaler, int overflow)
{
    scaler.overflows = overflow ? scaler.overflows + 1 : 0;
    scaler.good_steps = overflow ? 0 : scaler.good_steps + 1;
    if (!scaler.dynamic) {
        return scaler;
    }
    if (overflow && scaler.overflows >= scaler.hysteresis) {
        const float half = scaler.scale * 0.5f;
        /* A first scale below the floor is not raised. */
        const float floor = scaler.scale < scaler.min ? scaler.scale : scaler.min;
        scaler.scale = half > floor ? half : floor;
    }
    if (!overflow && scaler.good_steps >= scaler.window) {
        scaler.good_steps = 0;
        scaler.scale = scaler.scale < ZI_LOSS_SCALE_MAX ? scaler.scale * 2.0f : scaler.scale;
    }
    return scaler;
}

/* The products include this update. */
ZI_LANE zi_adamw_coeffs zi_adamw_coeffs_of(zero_adamw adamw, double beta1_product,
                                           double beta2_product)
{
    zi_adamw_coeffs coeffs;
    coeffs.beta1 = adamw.beta1;
    coeffs.one_minus_beta1 = (float)(1.0 - (double)adamw.beta1);
    coeffs.beta2 = adamw.beta2;
    coeffs.one_minus_beta2 = (float)(1.0 - (double)adamw.beta2);
    coeffs.decay = (float)(1.0 - (double)adamw.lr * (double)adamw.weight_decay);
    coeffs.step_size = (float)((double)adamw.lr / (1.0 - beta1_product));
    coeffs.c2_scale = (float)(1.0 / sqrt(1.0 - beta2_product));
    coeffs.eps = adamw.eps;
    return coeffs;
}

/* Decide a step from the summed squares of the reduced gradients. *state moves on; a skipped step
 * moves nothing in it but the loss scaler, and leaves the decision's groups as they were. */
ZI_LANE void zi_step_decide(const zi_step_input *input, const zi_norm_sum *total,
                            zi_step_state *state, zi_step_decision *decision)
{
    const double divisor = input->divisor * (double)state->scaler.scale;
    const double norm = sqrt(zi_norm_value(total)) / divisor;
    const int skip = total->nan_chunks != 0 || total->infinite_chunks != 0;
    const int clipped = input->max_norm > 0.0 && norm > input->max_norm;
    decision->norm = norm;
    decision->clip = clipped && !skip ? input->max_norm / norm : 1.0;
    decision->grad_scale = (float)(decision->clip / divisor);
    decision->skip = skip;
    decision->group_count = input->group_count;
    state->updates += skip ? 0 : 1;
    state->skipped += skip ? 1 : 0;
    decision->update = state->updates;
    decision->skipped = state->skipped;
    for (uint32_t i = 0; i < input->group_count && !skip; i++) {
        const zero_adamw adamw = input->groups[i];
        state->beta1_product[i] *= (double)adamw.beta1;
        state->beta2_product[i] *= (double)adamw.beta2;
        decision->groups[i] =
            zi_adamw_coeffs_of(adamw, state->beta1_product[i], state->beta2_product[i]);
    }
    state->scaler = zi_loss_scaler_next(state->scaler, skip);
    decision->loss_scale = state->scaler.scale;
}

#endif
