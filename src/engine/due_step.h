/* Decisions that do not change the step's state, and its end without one. (due_step.c) */
#ifndef ZI_ENGINE_DUE_STEP_H
#define ZI_ENGINE_DUE_STEP_H

#include "engine/engine_internal.h"

/* Enqueue the decision that zero gradients lead to; the state stays as it is. input, outcome: host
 * memory that the device reaches. */
zero_status zi_engine_predict_decision(zero_engine *engine, const zi_step_input *input,
                                       zi_step_decision *outcome);
/* Drop the step under way, whose micro-steps are all over: its sums, its prediction, its
 * speculative update. */
zero_status zi_engine_drop_step(zero_engine *engine);

#endif
