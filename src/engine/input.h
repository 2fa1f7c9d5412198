/* A caller's inputs of a step. (input.c) */
#ifndef ZI_ENGINE_INPUT_H
#define ZI_ENGINE_INPUT_H

#include "engine/engine_internal.h"

/* Convert a step's hyper-parameters to what the device reads. input->divisor: 0 where the caller
 * gave none. weight: out, the caller's grad_weight or NULL. */
zero_status zi_engine_take_input(const zero_engine *engine, const zero_step_params *params,
                                 zi_step_input *input, const float **weight);
/* Fill what ranks exchange of a step's input, except the micro-steps. */
void zi_engine_give(const zero_engine *engine, const zi_step_input *input, zi_step_given *given);
/* Set the divisor of a step of this many micro-steps to the default where none was given.
 */
void zi_engine_resolve_divisor(const zero_engine *engine, zi_step_input *input, const float *weight,
                               uint64_t micro_steps);

#endif
