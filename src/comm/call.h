/* The public calls that a rank may be in, by number. A rank notes each call that it begins in
 * memory which the other ranks of its host can read. So an exchange says in its terms which call it
 * is part of, and the error of a rank that waits in vain says which calls it and the late rank made
 * last. */
#ifndef ZI_COMM_CALL_H
#define ZI_COMM_CALL_H

#include <stdatomic.h>
#include <stdint.h>

/* X(name, text); zero_save_begin is part of zero_save. */
#define ZI_PUBLIC_CALLS(X)                        \
    X(NONE, "no call on an engine")               \
    X(ENGINE_CREATE, "zero_engine_create")        \
    X(ENGINE_FILL, "zero_engine_fill")            \
    X(MICRO_BEGIN, "zero_micro_begin")            \
    X(MICRO_END, "zero_micro_end")                \
    X(MICRO_ABANDON, "zero_micro_abandon")        \
    X(ACQUIRE, "zero_unit_acquire")               \
    X(RELEASE, "zero_unit_release")               \
    X(PARAMS_ACQUIRE, "zero_unit_params_acquire") \
    X(PARAMS_RELEASE, "zero_unit_params_release") \
    X(GRADS_ACQUIRE, "zero_unit_grads_acquire")   \
    X(GRADS_READY, "zero_unit_grads_ready")       \
    X(STEP, "zero_step")                          \
    X(STEP_DISCARD, "zero_step_discard")          \
    X(STEP_WAIT, "zero_step_wait")                \
    X(GRAD_NORM, "zero_grad_norm")                \
    X(STATE_SET, "zero_step_state_set")           \
    X(SAVE, "zero_save")                          \
    X(SAVE_END, "zero_save_end")                  \
    X(LOAD, "zero_load")                          \
    X(TENSOR_IMPORT, "zero_tensor_import")        \
    X(TENSOR_EXPORT, "zero_tensor_export")        \
    X(EVICT, "zero_engine_evict")                 \
    X(RESTORE, "zero_engine_restore")             \
    X(CAPTURE_PREPARE, "zero_capture_prepare")    \
    X(CAPTURE_BEGIN, "zero_capture_begin")        \
    X(CAPTURE_END, "zero_capture_end")            \
    X(REPLAY_BEGIN, "zero_replay_begin")          \
    X(REPLAY_END, "zero_replay_end")

#define ZI_CALL_ROW(name, text) ZI_IN_##name,
typedef enum zi_public_call { ZI_PUBLIC_CALLS(ZI_CALL_ROW) ZI_PUBLIC_CALL_COUNT } zi_public_call;
#undef ZI_CALL_ROW

/* Also of a number that another version of the library has written. (collective.c) */
const char *zi_public_call_text(uint32_t call);

/* A rank's note of its calls: a line of the cache, since every hook writes to it. */
typedef struct zi_call_note {
    _Atomic uint32_t call; /* zi_public_call */
    uint32_t unused[15];
} zi_call_note;

static inline void zi_call_set(zi_call_note *note, zi_public_call call)
{
    atomic_store_explicit(&note->call, (uint32_t)call, memory_order_relaxed);
}

static inline uint32_t zi_call_get(const zi_call_note *note)
{
    return atomic_load_explicit(&note->call, memory_order_relaxed);
}

#endif
