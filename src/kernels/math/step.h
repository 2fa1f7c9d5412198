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

/* What all ranks must give alike to a step, in the form in which they compare it. */
typedef struct zi_step_given {
    uint64_t micro_total; /* micro-steps so far: a rank that is a step ahead or behind shows */
    uint32_t micro_steps; /* of these, this step's */
    float max_norm;
    zero_adamw groups[ZI_GROUPS_MAX]; /* those that trained tensors are in, ascending; the rest
                                         is not sent */
} zi_step_given;

/* What a rank sends to all others before a step is decided. */
typedef struct zi_step_message {
    zi_norm_sum squares; /* of its part of the reduced gradients */
    zi_step_given given;
} zi_step_message;

/* The messages of all members of a group, gathered. */
typedef struct zi_step_messages {
    const unsigned char *first; /* device memory */
    uint32_t count;
    uint32_t bytes; /* from one to the next */
    /* The squares of every peer_stride-th one from peer_first on cover every element once. */
    uint32_t peer_first;
    uint32_t peer_stride;  /* >= 1 */
    uint32_t number_count; /* numbers of zi_step_given that are compared; 0: none */
} zi_step_messages;

/* Numbers of zi_step_given, in the order in which they are compared. */
enum {
    ZI_GIVEN_MICRO_STEPS = 0,
    ZI_GIVEN_MICRO_TOTAL = 1,
    ZI_GIVEN_MAX_NORM = 2,
    ZI_GIVEN_GROUPS = 3, /* from here on the five of each group */
    ZI_GIVEN_OF_A_GROUP = 5
};

/* The first number in which a member's message differs from the first member's. */
typedef struct zi_step_difference {
    uint32_t found;  /* 0: all are alike */
    uint32_t member; /* in the group; the lowest that differs */
    uint64_t number;
    double first; /* the first member's */
    double other;
} zi_step_difference;

/* No difference. */
#define ZI_STEP_ALIKE UINT32_MAX

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
    uint32_t skipped_in_a_row;  /* up to this step, itself included */
    uint32_t unused;            /* 0 */
    zi_step_difference differs; /* found: ranks gave different numbers to this step or an earlier
                                   one, which changed nothing; nor does any later one */
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
    decision->skipped_in_a_row = state->scaler.overflows;
}

ZI_LANE const zi_step_message *zi_step_message_at(const zi_step_messages *messages, uint32_t member)
{
    return (const zi_step_message *)(const void *)(messages->first +
                                                   (uint64_t)member * messages->bytes);
}

/* Exact, as long as there are less than 2^53 micro-steps. */
ZI_LANE double zi_step_given_number(const zi_step_given *given, uint32_t number)
{
    if (number == ZI_GIVEN_MICRO_STEPS) {
        return (double)given->micro_steps;
    }
    if (number == ZI_GIVEN_MICRO_TOTAL) {
        return (double)given->micro_total;
    }
    if (number == ZI_GIVEN_MAX_NORM) {
        return (double)given->max_norm;
    }
    const zero_adamw *group = &given->groups[(number - ZI_GIVEN_GROUPS) / ZI_GIVEN_OF_A_GROUP];
    switch ((number - ZI_GIVEN_GROUPS) % ZI_GIVEN_OF_A_GROUP) {
    case 0:
        return (double)group->lr;
    case 1:
        return (double)group->beta1;
    case 2:
        return (double)group->beta2;
    case 3:
        return (double)group->eps;
    default:
        return (double)group->weight_decay;
    }
}

/* Places to compare: those of the first member, the second, and so on. */
ZI_LANE uint32_t zi_step_places(const zi_step_messages *messages)
{
    return messages->count * messages->number_count;
}

/* Whether a member differs from the first at this place. */
ZI_LANE int zi_step_differs(const zi_step_messages *messages, uint32_t place)
{
    const uint32_t number = place % messages->number_count;
    const zi_step_message *other = zi_step_message_at(messages, place / messages->number_count);
    return zi_step_given_number(&zi_step_message_at(messages, 0)->given, number) !=
           zi_step_given_number(&other->given, number);
}

/* The lowest place that differs, or ZI_STEP_ALIKE. */
ZI_LANE uint32_t zi_step_compare(const zi_step_messages *messages)
{
    for (uint32_t place = messages->number_count; place < zi_step_places(messages); place++) {
        if (zi_step_differs(messages, place)) {
            return place;
        }
    }
    return ZI_STEP_ALIKE;
}

/* Decide a step from all messages. place: of zi_step_compare. Where ranks differ or ever did,
 * nothing moves but what the decision says about that. */
ZI_LANE void zi_step_conclude(const zi_step_input *input, const zi_step_messages *messages,
                              uint32_t place, zi_step_state *state, zi_step_decision *decision)
{
    zi_norm_sum total = {{0}, 0, 0};
    if (place != ZI_STEP_ALIKE && !decision->differs.found) {
        const uint32_t number = place % messages->number_count;
        const uint32_t member = place / messages->number_count;
        decision->differs.found = 1;
        decision->differs.member = member;
        decision->differs.number = number;
        decision->differs.first =
            zi_step_given_number(&zi_step_message_at(messages, 0)->given, number);
        decision->differs.other =
            zi_step_given_number(&zi_step_message_at(messages, member)->given, number);
    }
    if (decision->differs.found) {
        decision->skip = 1;
        return;
    }
    for (uint32_t i = messages->peer_first; i < messages->count; i += messages->peer_stride) {
        zi_norm_merge(&total, &zi_step_message_at(messages, i)->squares);
    }
    zi_step_decide(input, &total, state, decision);
}

#endif
