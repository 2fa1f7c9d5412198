/* Steps that are begun before they are decided. (announce.c) */
#ifndef ZI_ENGINE_ANNOUNCE_H
#define ZI_ENGINE_ANNOUNCE_H

#include "engine/engine_internal.h"

/* The last micro-step begins: so does the step that was announced, if one was. */
zero_status zi_engine_begin_announced(zero_engine *engine);
/* The turn's last step was awaited and another takes its place: note what came of its drafts.
 * */
void zi_engine_note_drafts(zero_engine *engine, uint32_t turn);
/* After anything that may have enqueued reductions: draft what they are of. */
zero_status zi_engine_draft(zero_engine *engine);
/* INVALID_ARGUMENT where the step is not the one that was announced. */
zero_status zi_engine_check_announced(const zero_engine *engine, const zi_step_input *input,
                                      const float *weight);

#endif
