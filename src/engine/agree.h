/* Comparisons between ranks outside the collectives of a step. (agree.c) */
#ifndef ZI_ENGINE_AGREE_H
#define ZI_ENGINE_AGREE_H

#include "engine/engine_internal.h"

/* Why a decision refused a step: MISMATCH where ranks gave different numbers to it, else
 * INVALID_ARGUMENT; OK where it did not. */
zero_status zi_engine_check_refusal(const zero_engine *engine, const zi_step_refusal *refusal);
/* Words of engine->agreement. */
size_t zi_engine_agreement_words(uint32_t world_size);
/* Ranks compare their layouts; MISMATCH names the first difference. planned: status of making the
 * layout on this rank; if it is not OK (layout NULL) it is returned, and told as below.
 * Collective. */
zero_status zi_engine_agree_layout(zero_engine *engine, zero_status planned);
/* Ranks of one of the engine's worlds exchange whether their local allocations succeeded. mine:
 * this rank's status; if it is not OK it is returned, and the others get its status and message,
 * of the first rank that did not itself learn of it from another (zi_error_set_other).
 * world NULL: `mine` is returned. Collective. */
zero_status zi_engine_agree_ready(zero_engine *engine, zero_world *world, zero_status mine);
/* Ranks of the engine's worlds exchange how something ended that leaves the engine usable. mine:
 * this rank's status; told as above. Collective over the mesh. */
zero_status zi_engine_agree_done(zero_engine *engine, zero_status mine);
/* Words := their sums over all ranks of the engine's worlds, modulo 2^64; at most 32. Collective
 * over the mesh. */
zero_status zi_engine_add_up(zero_engine *engine, uint64_t *words, uint32_t count);
/* The parts of the model compare the options that their common decision depends on; MISMATCH names
 * the first difference. Collective over the model-parallel world, where there is one. */
zero_status zi_engine_agree_parts(zero_engine *engine);
/* Ranks of one of the engine's worlds compare their arguments by a hash; INVALID_ARGUMENT names the
 * first rank that differs. checked: status of this rank's own check, told as above. `what` is in
 * the message. world NULL: as above.
 * Collective. */
zero_status zi_engine_agree_given(zero_engine *engine, zero_world *world, zero_status checked,
                                  uint64_t hash, const char *what);
/* Remove gathers that no rank needed from the recorded orders. Collective. */
zero_status zi_engine_agree_schedules(zero_engine *engine);

#endif
