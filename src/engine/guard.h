/* The begin and the end of every call on an engine. (guard.c) */
#ifndef ZI_ENGINE_GUARD_H
#define ZI_ENGINE_GUARD_H

#include "engine/engine_internal.h"

/* INVALID_ARGUMENT for NULL. Calls that only read start here: they work on poisoned engines too. */
zero_status zi_engine_check_given(const zero_engine *engine);
/* POISONED with the first failure's message, or INVALID_ARGUMENT for NULL. Every public call starts
 * here. */
zero_status zi_engine_check(const zero_engine *engine);
/* STATE where the table of engine_state.h refuses the call or one of its needs is not met. The
 * message has the call's name, the state and the table's remedy. */
zero_status zi_engine_admit(const zero_engine *engine, zi_engine_call call, const char *name);
/* The same for a call on one of the engine's units, which the message names. */
zero_status zi_engine_admit_unit(const zero_engine *engine, zi_engine_call call, const char *name,
                                 uint32_t unit);
/* The same for a call on the shards of a role: STATE too while they are evicted or accumulated.
 */
zero_status zi_engine_admit_role(const zero_engine *engine, zi_engine_call call, const char *name,
                                 zero_role role);
/* Note a failure that leaves ranks or streams out of step; returns `status`. Every public call ends
 * here, or in the next. */
zero_status zi_engine_finish(zero_engine *engine, zero_status status);
/* The engine can be used no more, because of this failure; returns `status`. */
zero_status zi_engine_poison(zero_engine *engine, zero_status status);
/* As zi_engine_finish; after OK the engine is in the state that the table says the call leads to.
 */
zero_status zi_engine_leave(zero_engine *engine, zi_engine_call call, zero_status status);
/* The names of a set of roles, with commas, cut where they do not fit. Returns text. */
const char *zi_engine_roles_text(uint32_t roles, char *text, size_t text_bytes);
/* Block the host until the event has fired, then check the groups: on a GPU the work of a failed
 * group ends like any other. */
zero_status zi_engine_await(zero_engine *engine, zi_event *event);
/* Wrap the caller's stream of a hook. STATE where the engine's state needs another kind of stream.
 */
zero_status zi_engine_wrap(zero_engine *engine, zero_stream stream, zi_stream **out);
zero_status zi_engine_check_unit(const zero_engine *engine, uint32_t unit);
zero_status zi_engine_check_tensor(const zero_engine *engine, uint32_t tensor);
/* INVALID_ARGUMENT for roles without shards. */
zero_status zi_engine_check_role(zero_role role);
/* Make the collectives of all ranks of the engine's worlds fail, because this rank cannot go on. */
void zi_engine_abort(const zero_engine *engine, const zero_error *error);

#endif
