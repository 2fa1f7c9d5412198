/* What steps came to. (outcome.c) */
#ifndef ZI_ENGINE_OUTCOME_H
#define ZI_ENGINE_OUTCOME_H

#include "engine/engine_internal.h"

zero_status zi_engine_tell_refused(zero_engine *engine);
/* The step stream goes on after what `caller` has; there this rank's message is put together: what
 * it was given beside its squares. step_slot: of the weight's place. */
zero_status zi_engine_put_message(zero_engine *engine, zi_stream *caller, engine_step_slot *room,
                                  uint32_t step_slot, const float *weight);
/* Enqueue a decision from all messages, and those of all parts. */
zero_status zi_engine_decide(zero_engine *engine, zi_decide_job job, const zi_collective *messages,
                             const zi_collective *parts);
/* Block until all steps so far are decided, and count them. */
zero_status zi_engine_wait_outcomes(zero_engine *engine);
/* Block until the last step that used the step_slot is decided, if any did. */
zero_status zi_engine_await_step_slot(zero_engine *engine, uint32_t step_slot);
/* The last step's result, once it is known; STATE when there is none. */
zero_status zi_engine_take_result(zero_engine *engine, zero_step_result *result);

#endif
