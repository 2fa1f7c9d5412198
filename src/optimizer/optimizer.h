/* The optimizers that compute element by element. Each has a header here with all there is of it:
 * how many moments it keeps, its hyper-parameters, what of them an element's update needs, and that
 * update. What is the same for all is written once, over this list; the caller's own optimizer
 * (ZERO_OPTIMIZER_CALLBACK) is not in it. optimizer_table.h has what is asked by the number of a
 * kind.
 *
 * A row X(KIND, name) stands for ZERO_OPTIMIZER_KIND and in NAME.h for
 *
 *   ZI_KIND_MOMENTS     moments of an element, 1 or 2
 *   ZI_KIND_CODE1, 2    the kinds of their 8-bit codes, where they are kept in those
 *   ZI_KIND_NUMBERS     its hyper-parameters, in the order of zero_NAME's floats: name, bounds
 *                       (optimizer_table.h), default
 *   zi_NAME_coeffs      what an element's update needs: at most ZI_COEFFS_MAX floats
 *   zi_NAME_decide      these for one step; moves what the steps carry on
 *   zi_NAME_undecayed   these for a tensor that does not decay
 *   zi_NAME_lane        the update of one element by an unscaled and clipped gradient
 *
 * The order of operations is part of the contract: the same bits wherever it is compiled with
 * contraction off. */
#ifndef ZI_OPTIMIZER_OPTIMIZER_H
#define ZI_OPTIMIZER_OPTIMIZER_H

#include <stdint.h>

#include "core/lane.h"
#include "optimizer/adamw.h"
#include "optimizer/lamb.h"
#include "optimizer/lars.h"
#include "optimizer/layerwise.h"
#include "optimizer/lion.h"
#include "optimizer/sgd.h"
#include "zero/options.h"

#define ZI_OPTIMIZERS(X) \
    X(ADAMW, adamw)      \
    X(LION, lion)        \
    X(SGD, sgd)          \
    ZI_LAYERWISE_OPTIMIZERS(X)

/* Of these the ones whose rate of a tensor depends on norms of the whole tensor, which are measured
 * before it is updated. Their headers have also
 *
 *   ZI_KIND_MEASURED_MOMENTS  moments that the direction depends on: all, or none
 *   zi_NAME_direction         what an element adds to the second norm, before its update
 *   zi_NAME_trust             the coefficients with the rate that both norms come to */
#define ZI_LAYERWISE_OPTIMIZERS(X) \
    X(LAMB, lamb)                  \
    X(LARS, lars)

#define ZI_MOMENTS_MAX 2
#define ZI_COEFFS_MAX 12
#define ZI_HYPER_NUMBERS_MAX 8

/* Doubles that a group's steps carry on: each 1 before the first update, and in [0, 1]. */
#define ZI_CARRIED 2

#define ZI_HYPER_MEMBER(KIND, name) zero_##name name;
#define ZI_COEFFS_MEMBER(KIND, name) zi_##name##_coeffs name;

/* The hyper-parameters of a group. */
typedef struct zi_hyper {
    uint32_t kind; /* zero_optimizer; CALLBACK has no numbers */
    union {
        float number[ZI_HYPER_NUMBERS_MAX];
        ZI_OPTIMIZERS(ZI_HYPER_MEMBER)
    };
} zi_hyper;

/* The coefficients that the updates of a group's elements need in one step: computed once, in
 * double, then rounded. */
typedef union zi_coeffs {
    float number[ZI_COEFFS_MAX];
    ZI_OPTIMIZERS(ZI_COEFFS_MEMBER)
} zi_coeffs;

/* A row of a switch over the kinds. */
#define ZI_MOMENTS_CASE(KIND, name) \
    case ZERO_OPTIMIZER_##KIND:     \
        return ZI_##KIND##_MOMENTS;
#define ZI_CODE_CASE(KIND, name) \
    case ZERO_OPTIMIZER_##KIND:  \
        return moment == 0 ? ZI_##KIND##_CODE1 : ZI_##KIND##_CODE2;
#define ZI_DECIDE_CASE(KIND, name)                              \
    case ZERO_OPTIMIZER_##KIND:                                 \
        coeffs->name = zi_##name##_decide(hyper.name, carried); \
        break;
#define ZI_UNDECAYED_CASE(KIND, name)                     \
    case ZERO_OPTIMIZER_##KIND:                           \
        coeffs.name = zi_##name##_undecayed(coeffs.name); \
        break;
#define ZI_LAYERWISE_CASE(KIND, name) \
    case ZERO_OPTIMIZER_##KIND:       \
        return 1;
#define ZI_MEASURED_CASE(KIND, name) \
    case ZERO_OPTIMIZER_##KIND:      \
        return ZI_##KIND##_MEASURED_MOMENTS;
#define ZI_DIRECTION_CASE(KIND, name) \
    case ZERO_OPTIMIZER_##KIND:       \
        return zi_##name##_direction(state, grad, coeffs.name);
#define ZI_TRUST_CASE(KIND, name)                            \
    case ZERO_OPTIMIZER_##KIND:                              \
        coeffs.name = zi_##name##_trust(coeffs.name, norms); \
        break;
#define ZI_LANE_CASE(KIND, name) \
    case ZERO_OPTIMIZER_##KIND:  \
        return zi_##name##_lane(state, grad, coeffs.name);

/* Moments of an element; of the caller's own optimizer options.update_states says it. */
ZI_LANE uint32_t zi_optimizer_moments(uint32_t kind)
{
    switch (kind) {
        ZI_OPTIMIZERS(ZI_MOMENTS_CASE)
    default:
        return 0;
    }
}

/* The kind of the 8-bit codes of a moment, 0 or 1; NONE: it has none. */
ZI_LANE zero_dtype zi_optimizer_code(uint32_t kind, uint32_t moment)
{
    switch (kind) {
        ZI_OPTIMIZERS(ZI_CODE_CASE)
    default:
        return ZERO_DTYPE_NONE;
    }
}

/* One group of a step; *coeffs stays as it is for the caller's own optimizer. */
ZI_LANE void zi_optimizer_decide(zi_hyper hyper, double *carried, zi_coeffs *coeffs)
{
    switch (hyper.kind) {
        ZI_OPTIMIZERS(ZI_DECIDE_CASE)
    default:
        break;
    }
}

/* For a tensor with these flags. */
ZI_LANE zi_coeffs zi_optimizer_coeffs(uint32_t kind, zi_coeffs coeffs, uint32_t flags)
{
    if ((flags & ZERO_TENSOR_NO_DECAY) == 0) {
        return coeffs;
    }
    switch (kind) {
        ZI_OPTIMIZERS(ZI_UNDECAYED_CASE)
    default:
        break;
    }
    return coeffs;
}

/* True if a tensor's rate depends on norms of the whole tensor. */
ZI_LANE int zi_optimizer_is_layerwise(uint32_t kind)
{
    switch (kind) {
        ZI_LAYERWISE_OPTIMIZERS(ZI_LAYERWISE_CASE)
    default:
        return 0;
    }
}

/* Moments that zi_optimizer_direction reads. */
ZI_LANE uint32_t zi_optimizer_measured_moments(uint32_t kind)
{
    switch (kind) {
        ZI_LAYERWISE_OPTIMIZERS(ZI_MEASURED_CASE)
    default:
        return 0;
    }
}

/* The coefficients for a tensor with these norms; others than layer-wise ones stay. */
ZI_LANE zi_coeffs zi_optimizer_trust(uint32_t kind, zi_coeffs coeffs, zi_layer_norms norms)
{
    switch (kind) {
        ZI_LAYERWISE_OPTIMIZERS(ZI_TRUST_CASE)
    default:
        break;
    }
    return coeffs;
}

/* One element before its update, whose squares make the norm of the direction. kind: a constant
 * wherever this is inlined. */
ZI_LANE float zi_optimizer_direction(uint32_t kind, zi_element_state state, float grad,
                                     zi_coeffs coeffs)
{
    switch (kind) {
        ZI_LAYERWISE_OPTIMIZERS(ZI_DIRECTION_CASE)
    default:
        return grad;
    }
}

/* One element. kind: a constant wherever this is inlined. */
ZI_LANE zi_element_state zi_optimizer_lane(uint32_t kind, zi_element_state state, float grad,
                                           zi_coeffs coeffs)
{
    switch (kind) {
        ZI_OPTIMIZERS(ZI_LANE_CASE)
    default:
        return state;
    }
}

#endif
