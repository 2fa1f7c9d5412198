/* Decisions that do not change the step's state. (control.c) */
#ifndef ZI_ENGINE_CONTROL_H
#define ZI_ENGINE_CONTROL_H

#include "engine/engine_internal.h"

/* Enqueue the decision that zero gradients lead to; the state stays as it is. input, outcome: host
 * memory that the device reaches. */
zero_status zi_engine_predict_decision(zero_engine *engine, const zi_step_input *input,
                                       zi_step_decision *outcome);

#endif
