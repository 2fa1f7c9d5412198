/* The activations that forward keeps for backward. */
#ifndef ZI_PLAN_ACTIVATIONS_H
#define ZI_PLAN_ACTIVATIONS_H

#include "plan/transformer.h"
#include "zero/footprint.h"

/* As zero_activation_bytes, of one micro-step of a stage's rank. t, b: resolved. */
zero_status zi_activation_bytes(const zero_transformer *t, const zero_batch *b, zi_stage stage,
                                uint64_t *bytes);

#endif
