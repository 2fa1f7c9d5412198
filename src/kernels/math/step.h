/* The decision of a step: from the summed squares to the factor of every element. */
#ifndef ZI_KERNELS_MATH_STEP_H
#define ZI_KERNELS_MATH_STEP_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "core/lane.h"
#include "kernels/math/norm.h"
#include "optimizer/optimizer.h"

#define ZI_GROUPS_MAX ZERO_STEP_GROUPS

/* The loss scale is not doubled beyond this, so that it stays finite. */
#define ZI_LOSS_SCALE_MAX 0x1p126f

/* The inputs of a step that must be equal on all ranks, in the form in which they compare them. */
typedef struct zi_step_given {
    uint64_t micro_total; /* micro-steps so far: a rank that is a step ahead or behind shows */
    double divisor;       /* as zi_step_input */
    uint32_t micro_steps; /* of these, this step's */
    uint32_t rank;        /* in the world; not compared */
    float max_norm;
    float grad_weight; /* this rank's, where the divisor is 0; not compared */
    /* The hyper-parameters of the groups that trained tensors are in, group by group, ascending;
     * the rest is not sent. */
    float hyper[ZI_GROUPS_MAX * ZI_HYPER_NUMBERS_MAX];
} zi_step_given;

/* A rank's message to all others before a step is decided. */
typedef struct zi_step_message {
    zi_norm_sum squares; /* of its part of the reduced gradients */
    /* Chunks that are not finite in gradients of replicated tensors, whose squares do not count. */
    uint64_t replica_infinite;
    uint64_t replica_nan;
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
    ZI_GIVEN_DIVISOR = 3,
    ZI_GIVEN_HYPER = 4 /* from here on */
};

/* Numbers of zi_step_part, in the order in which they are compared. */
enum {
    ZI_PART_UPDATES = 0,
    ZI_PART_SKIPPED = 1,
    ZI_PART_LOSS_SCALE = 2,
    ZI_PART_MAX_NORM = 3,
    ZI_PART_DIVISOR = 4,
    ZI_PART_NUMBERS = 5
};

/* Why a step is refused by its decision. */
typedef enum zi_refusal_kind {
    ZI_REFUSAL_NONE = 0,
    ZI_REFUSAL_RANKS = 1, /* ranks of one world gave different numbers: this and all later steps */
    ZI_REFUSAL_PARTS = 2, /* parts of the model would decide differently: likewise */
    ZI_REFUSAL_WEIGHT = 3 /* weights that nothing can be divided by: this step alone */
} zi_refusal_kind;

typedef struct zi_step_refusal {
    uint32_t kind;
    uint32_t part;       /* RANKS, WEIGHT: the part of the model whose ranks these are */
    uint32_t first_rank; /* in the world of that part; PARTS: in the model-parallel world */
    uint32_t other_rank; /* the lowest that differs from it; WEIGHT: whose weight it is */
    uint64_t number;     /* of zi_step_given or zi_step_part */
    double first;
    double other; /* WEIGHT: that weight, or 0 where their sum is 0 */
} zi_step_refusal;

/* The outcome of the ranks that split one part of the model; all parts decide together. */
typedef struct zi_step_part {
    zi_norm_sum squares; /* of all its reduced gradients that count */
    uint64_t updates;    /* of its state */
    uint64_t skipped;
    double divisor; /* of its gradients; 0 with ZI_REFUSAL_WEIGHT */
    float max_norm;
    float loss_scale;
    zi_step_refusal refusal;
} zi_step_part;

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
    uint32_t skipped_in_a_row; /* up to this step, itself included */
    uint32_t unused;           /* 0 */
    uint64_t refused;          /* steps so far that were refused for their weights */
    uint64_t stalled;          /* elements that the update before this step left as they were */
    zi_step_refusal refusal;   /* of the last step that was refused, this or an earlier one */
    zi_coeffs groups[ZI_GROUPS_MAX];
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

/* The state that one step leaves to the next. */
typedef struct zi_step_state {
    uint64_t updates; /* steps so far that were not skipped */
    uint64_t skipped; /* and that were */
    zi_loss_scaler scaler;
    double carried[ZI_GROUPS_MAX][ZI_CARRIED]; /* as in zero_step_state */
} zi_step_state;

/* The caller's inputs of one step. */
typedef struct zi_step_input {
    double divisor;       /* of the reduced sum: ranks x micro-steps, or the caller's; 0: the sum
                             of the ranks' weights */
    double max_norm;      /* 0: no clipping */
    uint32_t group_count; /* in [1, ZI_GROUPS_MAX]; the same at every step */
    zi_hyper groups[ZI_GROUPS_MAX];
} zi_step_input;

/* The state before the first step. */
ZI_LANE void zi_step_state_init(zi_step_state *state, zi_loss_scaler scaler)
{
    state->updates = 0;
    state->skipped = 0;
    state->scaler = scaler;
    for (uint32_t i = 0; i < ZI_GROUPS_MAX; i++) {
        for (uint32_t k = 0; k < ZI_CARRIED; k++) {
            state->carried[i][k] = 1.0;
        }
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

/* Decide a step from the summed squares of the reduced gradients, all but its groups. *state moves
 * on; a skipped step moves nothing in it but the loss scaler. Returns how many groups are to follow
 * by zi_step_decide_group: none when it is skipped. */
ZI_LANE uint32_t zi_step_decide_scalars(const zi_step_input *input, double grad_divisor,
                                        const zi_norm_sum *total, zi_step_state *state,
                                        zi_step_decision *decision)
{
    const double divisor = grad_divisor * (double)state->scaler.scale;
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
    state->scaler = zi_loss_scaler_next(state->scaler, skip);
    decision->loss_scale = state->scaler.scale;
    decision->skipped_in_a_row = state->scaler.overflows;
    return skip ? 0 : input->group_count;
}

/* One group of a step that is not skipped; groups may come in any order. */
ZI_LANE void zi_step_decide_group(const zi_step_input *input, uint32_t group, zi_step_state *state,
                                  zi_step_decision *decision)
{
    zi_optimizer_decide(input->groups[group], state->carried[group], &decision->groups[group]);
}

/* Decide a whole step. A skipped one leaves the decision's groups as they were. */
ZI_LANE void zi_step_decide(const zi_step_input *input, double grad_divisor,
                            const zi_norm_sum *total, zi_step_state *state,
                            zi_step_decision *decision)
{
    const uint32_t groups = zi_step_decide_scalars(input, grad_divisor, total, state, decision);
    for (uint32_t i = 0; i < groups; i++) {
        zi_step_decide_group(input, i, state, decision);
    }
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
    if (number == ZI_GIVEN_DIVISOR) {
        return given->divisor;
    }
    return (double)given->hyper[number - ZI_GIVEN_HYPER];
}

/* Places to compare: those of the first member, the second, and so on. */
ZI_LANE uint32_t zi_step_places(const zi_step_messages *messages)
{
    return messages->count * messages->number_count;
}

/* True if a member differs from the first at this place. */
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

/* The weights of a group's ranks. */
typedef struct zi_step_weights {
    zi_norm_sum sum;  /* exact, so added in any order; of nothing particular where one is refused */
    uint32_t refused; /* the first member whose weight is no number that counts, or ZI_STEP_ALIKE */
} zi_step_weights;

ZI_LANE float zi_step_weight_at(const zi_step_messages *messages, uint32_t member)
{
    return zi_step_message_at(messages, member)->given.grad_weight;
}

ZI_LANE int zi_step_is_weight(float weight)
{
    return weight >= 0.0f && weight <= FLT_MAX;
}

ZI_LANE zi_step_weights zi_step_add_weights(const zi_step_messages *messages)
{
    zi_step_weights weights = {{{0}, 0, 0}, ZI_STEP_ALIKE};
    for (uint32_t i = 0; i < messages->count; i++) {
        const float weight = zi_step_weight_at(messages, i);
        if (!zi_step_is_weight(weight)) {
            weights.refused = i;
            return weights;
        }
        zi_norm_add(&weights.sum, (double)weight);
    }
    return weights;
}

/* The sum of the weights, rounded once. 0, with the refusal that says why, where gradients cannot
 * be divided by it. */
ZI_LANE double zi_step_weigh(const zi_step_messages *messages, const zi_step_weights *weights,
                             zi_step_refusal *refusal)
{
    refusal->kind = ZI_REFUSAL_WEIGHT;
    if (weights->refused != ZI_STEP_ALIKE) {
        refusal->other_rank = zi_step_message_at(messages, weights->refused)->given.rank;
        refusal->other = (double)zi_step_weight_at(messages, weights->refused);
        return 0.0;
    }
    const double weight = zi_norm_value(&weights->sum);
    refusal->kind = weight > 0.0 ? ZI_REFUSAL_NONE : ZI_REFUSAL_WEIGHT;
    return weight;
}

/* Columns of a message, which begins with them: the words of its squares, then two counts. A column
 * is added up over all messages by itself, so columns may be added at the same time. */
#define ZI_STEP_COLUMNS (ZI_NORM_LIMBS + 4)

/* The sum of a column, in halves: a rank's limb may have all its carries waiting, so two of them
 * need not fit in 64 bits. Each half of a word is below 2^32 and a group has less than 2^30 ranks,
 * so each half of the sum is below 2^62, in whatever order words and sums are added. */
typedef struct zi_step_column {
    uint64_t low;  /* of the words' lower 32 bits */
    uint64_t high; /* of their upper 32 bits */
} zi_step_column;

/* Add a message's word. */
ZI_LANE void zi_step_column_add(zi_step_column *column, const zi_step_message *message,
                                uint32_t index)
{
    const uint64_t word = ((const uint64_t *)(const void *)message)[index];
    column->low += word & UINT32_MAX;
    column->high += word >> 32;
}

/* A count: what 64 bits hold of it. */
ZI_LANE uint64_t zi_step_column_count(zi_step_column column)
{
    return column.low + (column.high << 32);
}

/* The sum of all columns, with no carries waiting: the bits of zi_norm_merge message by message.
 * A carry is below 2^62 + 2^32 and a half below 2^62, so no addition of the two wraps. */
ZI_LANE zi_norm_sum zi_step_columns_sum(const zi_step_column *columns)
{
    zi_norm_sum sum;
    uint64_t carry = 0;
    for (int i = 0; i < ZI_NORM_LIMBS; i++) {
        const uint64_t low = columns[i].low + carry;
        sum.limb[i] = low & UINT32_MAX;
        carry = columns[i].high + (low >> 32);
    }
    sum.infinite_chunks = zi_step_column_count(columns[ZI_NORM_LIMBS]) +
                          zi_step_column_count(columns[ZI_NORM_LIMBS + 2]);
    sum.nan_chunks = zi_step_column_count(columns[ZI_NORM_LIMBS + 1]) +
                     zi_step_column_count(columns[ZI_NORM_LIMBS + 3]);
    return sum;
}

/* The totals of all messages. */
typedef struct zi_step_totals {
    zi_norm_sum squares;     /* of those that count */
    zi_step_weights weights; /* if the divisor is 0 */
    uint32_t place;          /* of zi_step_compare */
} zi_step_totals;

/* The outcome of a part of the model, from the messages of its ranks. */
ZI_LANE void zi_step_collect_totals(const zi_step_input *input, const zi_step_messages *messages,
                                    const zi_step_totals *totals, const zi_step_state *state,
                                    zi_step_part *part)
{
    const uint32_t place = totals->place;
    const zi_step_refusal none = {ZI_REFUSAL_NONE, 0, 0, 0, 0, 0.0, 0.0};
    part->squares = totals->squares;
    part->updates = state->updates;
    part->skipped = state->skipped;
    part->divisor = input->divisor;
    part->max_norm = (float)input->max_norm;
    part->loss_scale = state->scaler.scale;
    part->refusal = none;
    if (place != ZI_STEP_ALIKE) {
        const uint32_t number = place % messages->number_count;
        const zi_step_given *first = &zi_step_message_at(messages, 0)->given;
        const zi_step_given *other =
            &zi_step_message_at(messages, place / messages->number_count)->given;
        part->refusal.kind = ZI_REFUSAL_RANKS;
        part->refusal.first_rank = first->rank;
        part->refusal.other_rank = other->rank;
        part->refusal.number = number;
        part->refusal.first = zi_step_given_number(first, number);
        part->refusal.other = zi_step_given_number(other, number);
    } else if (input->divisor == 0.0) {
        part->divisor = zi_step_weigh(messages, &totals->weights, &part->refusal);
    }
}

/* The same, one message after another. place: of zi_step_compare. */
ZI_LANE void zi_step_collect(const zi_step_input *input, const zi_step_messages *messages,
                             uint32_t place, const zi_step_state *state, zi_step_part *part)
{
    zi_step_column columns[ZI_STEP_COLUMNS] = {{0, 0}};
    zi_step_totals totals;
    for (uint32_t i = messages->peer_first; i < messages->count; i += messages->peer_stride) {
        for (uint32_t k = 0; k < ZI_STEP_COLUMNS; k++) {
            zi_step_column_add(&columns[k], zi_step_message_at(messages, i), k);
        }
    }
    totals.squares = zi_step_columns_sum(columns);
    totals.weights = zi_step_add_weights(messages);
    totals.place = place;
    zi_step_collect_totals(input, messages, &totals, state, part);
}

/* Exact, as long as there are less than 2^53 steps. */
ZI_LANE double zi_step_part_number(const zi_step_part *part, uint32_t number)
{
    switch (number) {
    case ZI_PART_UPDATES:
        return (double)part->updates;
    case ZI_PART_SKIPPED:
        return (double)part->skipped;
    case ZI_PART_LOSS_SCALE:
        return (double)part->loss_scale;
    case ZI_PART_MAX_NORM:
        return (double)part->max_norm;
    default:
        return part->divisor;
    }
}

/* The refusal of the parts' step: that of the first part that has one, else the first number in
 * which a part differs from the first. */
ZI_LANE zi_step_refusal zi_step_refusal_of(const zi_step_part *parts, uint32_t count)
{
    zi_step_refusal refusal = {ZI_REFUSAL_NONE, 0, 0, 0, 0, 0.0, 0.0};
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i].refusal.kind != ZI_REFUSAL_NONE) {
            refusal = parts[i].refusal;
            refusal.part = i;
            return refusal;
        }
    }
    for (uint32_t place = 0; place < count * ZI_PART_NUMBERS; place++) {
        const uint32_t number = place % ZI_PART_NUMBERS;
        const double first = zi_step_part_number(&parts[0], number);
        const double other = zi_step_part_number(&parts[place / ZI_PART_NUMBERS], number);
        if (first != other) {
            refusal.kind = ZI_REFUSAL_PARTS;
            refusal.other_rank = place / ZI_PART_NUMBERS;
            refusal.number = number;
            refusal.first = first;
            refusal.other = other;
            return refusal;
        }
    }
    return refusal;
}

/* Decide a step from what all parts of the model have come to, in the order of their ranks, all but
 * its groups. A refused step moves nothing but what the decision says about that; after one whose
 * numbers differ nothing moves any more. Returns as zi_step_decide_scalars. */
ZI_LANE uint32_t zi_step_conclude_scalars(const zi_step_input *input, const zi_step_part *parts,
                                          uint32_t count, zi_step_state *state,
                                          zi_step_decision *decision)
{
    zi_norm_sum total = {{0}, 0, 0};
    const zi_step_refusal refusal = zi_step_refusal_of(parts, count);
    if (decision->refusal.kind == ZI_REFUSAL_RANKS || decision->refusal.kind == ZI_REFUSAL_PARTS) {
        return 0; /* for ever: skip is 1 */
    }
    if (refusal.kind != ZI_REFUSAL_NONE) {
        decision->refusal = refusal;
        decision->refused += refusal.kind == ZI_REFUSAL_WEIGHT;
        decision->skip = 1;
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        zi_norm_merge(&total, &parts[i].squares);
    }
    return zi_step_decide_scalars(input, parts[0].divisor, &total, state, decision);
}

/* Move the count of the last update to the decision of the step after it. stalled: may be NULL. */
ZI_LANE void zi_step_take_stalled(uint64_t *stalled, zi_step_decision *decision)
{
    if (stalled != 0) {
        decision->stalled = *stalled;
        *stalled = 0;
    }
}

/* The same with its groups. */
ZI_LANE void zi_step_conclude(const zi_step_input *input, const zi_step_part *parts, uint32_t count,
                              zi_step_state *state, zi_step_decision *decision)
{
    const uint32_t groups = zi_step_conclude_scalars(input, parts, count, state, decision);
    for (uint32_t i = 0; i < groups; i++) {
        zi_step_decide_group(input, i, state, decision);
    }
}

#endif
