/* What a caller gives to a step. (input.c) */
#ifndef ZI_ENGINE_INPUT_H
#define ZI_ENGINE_INPUT_H

#include "engine/engine_internal.h"

/* A step's hyper-parameters as the device reads them. input->divisor: 0 where the caller gave no
 * number. weight: where the caller has its rank's weight, or NULL. */
zero_status zi_engine_take_input(const zero_engine *engine, const zero_step_params *params,
                                 zi_step_input *input, const float **weight);
/* What the other ranks are told of a step's input, but for the micro-steps. */
void zi_engine_give(const zero_engine *engine, const zi_step_input *input, zi_step_given *given);
/* Settle by what a step of this many micro-steps is divided, where nothing else was given. (step.c)
 */
void zi_engine_resolve_divisor(const zero_engine *engine, zi_step_input *input, const float *weight,
                               uint64_t micro_steps);

#endif
