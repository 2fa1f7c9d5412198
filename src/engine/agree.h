/* What ranks compare with one another outside the collectives of a step. (agree.c) */
#ifndef ZI_ENGINE_AGREE_H
#define ZI_ENGINE_AGREE_H

#include "engine/engine_internal.h"

/* Why a decision refused a step: MISMATCH where ranks gave different numbers to it, else
 * INVALID_ARGUMENT; OK where it did not. */
zero_status zi_engine_check_refusal(const zero_engine *engine, const zi_step_refusal *refusal);
/* Words that agree.c needs at engine->agreement. */
size_t zi_engine_agreement_words(uint32_t world_size);
/* Ranks compare their layouts; MISMATCH names the first difference. planned: what making the layout
 * came to on this rank; when it is not OK (layout NULL), that is returned and the others get
 * MISMATCH. Collective. */
zero_status zi_engine_agree_layout(zero_engine *engine, zero_status planned);
/* Ranks of one of the engine's worlds say whether they have what each takes alone. mine: what came
 * of it here; when it is not OK, that is returned and the others get COMM with its message. world
 * NULL: `mine` is returned. Collective. */
zero_status zi_engine_agree_ready(zero_engine *engine, zero_world *world, zero_status mine);
/* The parts of the model compare what they must have alike to decide alike; MISMATCH names the
 * first difference. Collective over the model-parallel world, where there is one. */
zero_status zi_engine_agree_parts(zero_engine *engine);
/* Ranks of one of the engine's worlds compare what each was given, by a hash; INVALID_ARGUMENT
 * names the first rank that differs. checked: what the rank's own check of it came to; when it is
 * not OK, that is returned, and the others are told. `what` is in the messages. world NULL: as
 * above. Collective. */
zero_status zi_engine_agree_given(zero_engine *engine, zero_world *world, zero_status checked,
                                  uint64_t hash, const char *what);
/* Prune what has moved elsewhere from the orders of gathers. Collective. */
zero_status zi_engine_agree_schedules(zero_engine *engine);

#endif
