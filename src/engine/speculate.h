/* Steps that are begun before they are decided. (predict.c) */
#ifndef ZI_ENGINE_SPECULATE_H
#define ZI_ENGINE_SPECULATE_H

#include "engine/engine_internal.h"

/* The last micro-step begins: so does the step that was predicted, if one was. */
zero_status zi_engine_begin_speculation(zero_engine *engine);
/* The step slot's last step was awaited and another takes its place: note what came of its
 * speculative updates.
 * */
void zi_engine_note_speculation(zero_engine *engine, uint32_t step_slot);
/* After anything that may have enqueued reductions: update what they are of. */
zero_status zi_engine_speculate(zero_engine *engine);
/* INVALID_ARGUMENT where the step is not the one that was predicted. */
zero_status zi_engine_check_predicted(const zero_engine *engine, const zi_step_input *input,
                                      const float *weight);

#endif
