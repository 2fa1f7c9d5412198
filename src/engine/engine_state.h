/* The states of an engine on one rank, in program order: a table of state x call -> legal or not,
 * the next state, and what the caller should do first where it is refused.
 *
 * The state follows from the caller's earlier calls, so all ranks that make the same calls are in
 * the same state. Other conditions (a unit is acquired, a graph exists, a role is evicted) are
 * needs of the call, which src/engine/guard.c checks.
 *
 * Some functions have no column. These queries are legal in every state but POISONED:
 * zero_unit_pass, zero_tensor_data, zero_tensor_encoded, zero_tensor_grad, zero_shard_range and a
 * static zero_loss_scale, and zero_save_end. These are legal in all states: zero_engine_destroy,
 * zero_engine_plan, zero_engine_stats, zero_engine_memory, zero_engine_path, zero_engine_disk_path,
 * zero_engine_collectives_write and zero_save_poll. So is zero_engine_trace, but for those of
 * captures and launches. */
#ifndef ZI_ENGINE_ENGINE_STATE_H
#define ZI_ENGINE_ENGINE_STATE_H

#include <stdbool.h>
#include <stdint.h>

/* X(name, text, what is the case: for messages, streams that hooks may be given) */
#define ZI_ENGINE_STATES(X)                                                                  \
    X(IDLE, "idle", "no step is under way", ANY)                                             \
    X(MICRO, "micro-step", "a micro-step is open", ANY)                                      \
    X(ACCUMULATING, "accumulating", "the last micro-step of the step is still to come", ANY) \
    X(LAST_MICRO, "last micro-step", "the last micro-step is open", ANY)                     \
    X(STEP_DUE, "step due", "the step is due", ANY)                                          \
    X(EVICTED, "evicted", "roles are evicted", ANY)                                          \
    X(PREPARED, "capture prepared", "a capture is prepared", NATIVE)                         \
    X(CAPTURING, "capturing", "a capture is under way", CAPTURED)                            \
    X(CAPTURING_MICRO, "capturing a micro-step", "a micro-step is being captured", CAPTURED) \
    X(CAPTURING_ACCUMULATING, "capturing, accumulating",                                     \
      "the last micro-step of the captured step is still to come", CAPTURED)                 \
    X(CAPTURING_LAST_MICRO, "capturing the last micro-step",                                 \
      "the last micro-step is being captured", CAPTURED)                                     \
    X(CAPTURING_STEP_DUE, "capturing, step due", "the captured step is due", CAPTURED)       \
    X(CAPTURED, "step captured", "the step of the capture is taken", CAPTURED)               \
    X(REPLAYING, "replaying", "a captured step is being launched", NATIVE)                   \
    X(POISONED, "poisoned", "an earlier failure made the engine unusable", ANY)

/* X(name, text, public functions, what else they need) */
#define ZI_ENGINE_CALLS(X)                                                                       \
    X(MICRO_BEGIN, "begin", "zero_micro_begin(engine, ZERO_MICRO_EARLIER)", ZI_NEEDS_NO_UNIT)    \
    X(LAST_BEGIN, "begin last", "zero_micro_begin(engine, ZERO_MICRO_LAST)", ZI_NEEDS_NO_UNIT)   \
    X(MICRO_END, "end", "zero_micro_end", ZI_NEEDS_NO_UNIT)                                      \
    X(TRAIN, "train", "zero_unit_acquire, zero_unit_params_acquire of pass forward or backward", \
      0)                                                                                         \
    X(EVAL, "eval", "zero_unit_acquire, zero_unit_params_acquire of pass eval", 0)               \
    X(RELEASE, "release", "zero_unit_release, zero_unit_params_release", 0)                      \
    X(GRADS, "gradients", "zero_unit_grads_acquire, zero_unit_grads_ready", 0)                   \
    X(STEP, "step", "zero_step", ZI_NEEDS_NO_UNIT)                                               \
    X(DISCARD, "discard", "zero_step_discard", 0)                                                \
    X(ABANDON, "abandon", "zero_micro_abandon", 0)                                               \
    X(NORM, "norm", "zero_grad_norm", 0)                                                         \
    X(PREDICT, "predict", "zero_step_predict", 0)                                                \
    X(WAIT, "wait", "zero_step_wait, zero_step_state_get, a dynamic zero_loss_scale", 0)         \
    X(STATE_SET, "set state", "zero_step_state_set", ZI_NEEDS_NO_UNIT)                           \
    X(FILL, "fill", "zero_engine_fill", ZI_NEEDS_NO_UNIT)                                        \
    X(SAVE, "save", "zero_save_begin, zero_save", 0)                                             \
    X(LOAD, "load", "zero_load", ZI_NEEDS_NO_UNIT)                                               \
    X(SHARD_READ, "read", "zero_shard_view, zero_shard_read, zero_tensor_export", ZI_NEEDS_ROLE) \
    X(SHARD_WRITE, "write", "zero_shard_write, zero_tensor_import",                              \
      ZI_NEEDS_ROLE | ZI_NEEDS_NO_UNIT)                                                          \
    X(EVICT, "evict", "zero_engine_evict", ZI_NEEDS_NO_UNIT)                                     \
    X(RESTORE, "restore", "zero_engine_restore", 0)                                              \
    X(PREPARE, "prepare", "zero_capture_prepare", ZI_NEEDS_NO_UNIT)                              \
    X(CAPTURE_BEGIN, "begin capture", "zero_capture_begin", 0)                                   \
    X(CAPTURE_END, "end capture", "zero_capture_end", 0)                                         \
    X(REPLAY_BEGIN, "begin replay", "zero_replay_begin", ZI_NEEDS_GRAPH | ZI_NEEDS_NO_UNIT)      \
    X(LAUNCH, "launch", "zero_replay_params, zero_replay_result", 0)                             \
    X(REPLAY_END, "end replay", "zero_replay_end", 0)

#define ZI_ENUM_ROW(name, ...) ZI_ENGINE_##name,
typedef enum zi_engine_state {
    ZI_ENGINE_STATES(ZI_ENUM_ROW) ZI_ENGINE_STATE_COUNT
} zi_engine_state;
#undef ZI_ENUM_ROW
#define ZI_ENUM_ROW(name, ...) ZI_CALL_##name,
typedef enum zi_engine_call { ZI_ENGINE_CALLS(ZI_ENUM_ROW) ZI_ENGINE_CALL_COUNT } zi_engine_call;
#undef ZI_ENUM_ROW

/* The further needs of a legal call. */
typedef enum zi_engine_need {
    ZI_NEEDS_NO_UNIT = 1, /* no unit is acquired */
    ZI_NEEDS_GRAPH = 2,   /* a step was captured, and nothing was evicted since */
    ZI_NEEDS_ROLE = 4     /* the role is not evicted, and no gradient is being accumulated */
} zi_engine_need;

/* Which streams of the caller hooks accept. */
typedef enum zi_engine_streams {
    ZI_STREAMS_ANY,
    ZI_STREAMS_NATIVE,  /* not the host stream, which can neither be captured nor launch a graph */
    ZI_STREAMS_CAPTURED /* in the capture */
} zi_engine_streams;

typedef struct zi_engine_cell {
    bool legal;
    zi_engine_state next; /* the same where it is refused */
    const char *remedy;   /* where it is refused: what to do instead, or first */
} zi_engine_cell;

zi_engine_cell zi_engine_on(zi_engine_state state, zi_engine_call call);
/* Bits of zi_engine_need. */
uint32_t zi_engine_call_needs(zi_engine_call call);
/* The name, for documents and tests; the text, for messages. */
const char *zi_engine_state_name(zi_engine_state state);
const char *zi_engine_state_text(zi_engine_state state);
zi_engine_streams zi_engine_state_streams(zi_engine_state state);
/* True if other ranks may be waiting for calls that this one has still to make. */
bool zi_engine_state_owes(zi_engine_state state);

#endif
