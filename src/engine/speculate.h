/* Speculative steps. (speculate.c) */
#ifndef ZI_ENGINE_SPECULATE_H
#define ZI_ENGINE_SPECULATE_H

#include "engine/engine_internal.h"

/* The last micro-step begins: start the step that was predicted, if one was. */
zero_status zi_engine_begin_speculation(zero_engine *engine);
/* Before the step buffer is reused: count whether its last step was clipped. */
void zi_engine_note_outcome(zero_engine *engine, uint32_t step_buffer);
/* After calls that may have enqueued reductions: enqueue the speculative updates of their units. */
zero_status zi_engine_speculate(zero_engine *engine);
/* INVALID_ARGUMENT where the step is not the one that was predicted. */
zero_status zi_engine_check_predicted(const zero_engine *engine, const zi_step_input *input,
                                      const float *weight);

#endif
