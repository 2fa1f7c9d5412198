/* Decisions of steps and their results. (outcome.c) */
#ifndef ZI_ENGINE_OUTCOME_H
#define ZI_ENGINE_OUTCOME_H

#include "engine/engine_internal.h"

/* INVALID_ARGUMENT once for steps that were refused for their weights since the last report. */
zero_status zi_engine_report_refused(zero_engine *engine);
/* Let the step stream wait for `caller`, and complete this rank's message there: its squares and
 * what its caller gave. step_buffer: index of its weight. */
zero_status zi_engine_put_message(zero_engine *engine, zi_stream *caller,
                                  engine_step_buffer *buffer, uint32_t step_buffer,
                                  const float *weight);
/* Enqueue a decision from the messages of all ranks, then of all parts. */
zero_status zi_engine_decide(zero_engine *engine, zi_decide_job job, const zi_collective *messages,
                             const zi_collective *parts);
/* Block until all steps so far are decided, and count them. */
zero_status zi_engine_wait_outcomes(zero_engine *engine);
/* Block until the last step that used the step buffer is decided, if any did. */
zero_status zi_engine_await_step_buffer(zero_engine *engine, uint32_t step_buffer);
/* Wait for the last step's result. STATE when there is none. */
zero_status zi_engine_take_result(zero_engine *engine, zero_step_result *result);

#endif
