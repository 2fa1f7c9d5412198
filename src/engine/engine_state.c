/* Owns the table of an engine's states. A call that a row does not list is refused with the row's
 * own remedy; a refusal leaves the state as it is. */
#include "engine/engine_state.h"

#include <stddef.h>

#include "core/check.h"

#define MOVE(call, state) [ZI_CALL_##call] = {.verdict = MOVES, .next = ZI_ENGINE_##state}
#define STAY(call) [ZI_CALL_##call] = {.verdict = STAYS}
#define NO(call, text) [ZI_CALL_##call] = {.remedy = (text)}

#define ROW(state, text, ...) [ZI_ENGINE_##state] = {.remedy = (text), .cells = {__VA_ARGS__}}

#define CLOSE \
    "end the step's last micro-step first; zero_micro_begin(engine, ZERO_MICRO_LAST) begins it"
#define FINISH "finish the step with zero_step first"
#define IN_TRAINING "inside a micro-step the pass is forward or backward, not eval"
#define TOO_LATE "predict a step before its last micro-step begins"
#define NOTHING_RUNS                                                           \
    "inside a capture nothing runs, so nothing can be waited for; ask before " \
    "zero_capture_prepare or after the launch"
#define LAUNCHED "what is dropped cannot be launched; take the captured step with zero_step"
#define NO_OVERLAP "a captured step cannot be predicted; predict plain steps only"
#define ONE_STEP "a capture holds one step; take it with zero_step first"

/* The second call of a pair needs the first. */
#define NO_PAIRS                                                            \
    NO(RESTORE, "nothing is evicted; zero_engine_evict has to come first"), \
        NO(LAUNCH, "zero_replay_begin has to come first"),                  \
        NO(REPLAY_END, "zero_replay_begin has to come first")
#define NO_CAPTURE                                               \
    NO(CAPTURE_BEGIN, "zero_capture_prepare has to come first"), \
        NO(CAPTURE_END, "zero_capture_prepare and zero_capture_begin have to come first")
/* Calls that are legal only between steps. */
#define NO_CHANGES                                                                \
    NO(STATE_SET, FINISH), NO(SAVE, FINISH), NO(LOAD, FINISH), NO(EVICT, FINISH), \
        NO(PREPARE, FINISH), NO(REPLAY_BEGIN, FINISH)
#define NO_WAITS                                                                             \
    NO(WAIT, NOTHING_RUNS), NO(NORM, NOTHING_RUNS), NO(STATE_SET, NOTHING_RUNS),             \
        NO(FILL, NOTHING_RUNS), NO(SHARD_READ, NOTHING_RUNS), NO(SHARD_WRITE, NOTHING_RUNS), \
        NO(SAVE, NOTHING_RUNS), NO(LOAD, NOTHING_RUNS), NO(EVICT, NOTHING_RUNS),             \
        NO(DISCARD, LAUNCHED), NO(ABANDON, LAUNCHED), NO(PREPARE, ONE_STEP),                 \
        NO(CAPTURE_BEGIN, ONE_STEP), NO(CAPTURE_END, ONE_STEP), NO(REPLAY_BEGIN, ONE_STEP),  \
        NO(PREDICT, NO_OVERLAP)

typedef enum verdict { REFUSES = 0, STAYS, MOVES } verdict;

typedef struct cell {
    verdict verdict;
    zi_engine_state next; /* of MOVES */
    const char *remedy;   /* of REFUSES; NULL: the row's */
} cell;

typedef struct row {
    const char *remedy;
    cell cells[ZI_ENGINE_CALL_COUNT];
} row;

static const row table[ZI_ENGINE_STATE_COUNT] = {
    ROW(IDLE, "call zero_micro_begin first", MOVE(MICRO_BEGIN, MICRO), MOVE(LAST_BEGIN, LAST_MICRO),
        MOVE(EVICT, EVICTED), MOVE(PREPARE, PREPARED), MOVE(REPLAY_BEGIN, REPLAYING), STAY(EVAL),
        STAY(RELEASE), STAY(PREDICT), STAY(WAIT), STAY(STATE_SET), STAY(FILL), STAY(SAVE),
        STAY(LOAD), STAY(SHARD_READ), STAY(SHARD_WRITE), NO(STEP, CLOSE), NO(DISCARD, CLOSE),
        NO(NORM, CLOSE), NO_PAIRS, NO_CAPTURE),
    ROW(MICRO, "call zero_micro_end first", MOVE(MICRO_END, ACCUMULATING), MOVE(ABANDON, IDLE),
        STAY(TRAIN), STAY(RELEASE), STAY(GRADS), STAY(PREDICT), STAY(WAIT), NO(EVAL, IN_TRAINING),
        NO_CHANGES, NO_PAIRS, NO_CAPTURE),
    ROW(ACCUMULATING, "call zero_micro_begin first", MOVE(MICRO_BEGIN, MICRO),
        MOVE(LAST_BEGIN, LAST_MICRO), MOVE(ABANDON, IDLE), STAY(EVAL), STAY(RELEASE), STAY(PREDICT),
        STAY(WAIT), STAY(FILL), STAY(SHARD_READ), STAY(SHARD_WRITE), NO(STEP, CLOSE),
        NO(DISCARD, CLOSE), NO(NORM, CLOSE), NO_CHANGES, NO_PAIRS, NO_CAPTURE),
    ROW(LAST_MICRO, "call zero_micro_end first", MOVE(MICRO_END, STEP_DUE), MOVE(ABANDON, IDLE),
        STAY(TRAIN), STAY(RELEASE), STAY(GRADS), STAY(WAIT), NO(EVAL, IN_TRAINING),
        NO(PREDICT, TOO_LATE), NO_CHANGES, NO_PAIRS, NO_CAPTURE),
    ROW(STEP_DUE, "call zero_step, or zero_step_discard, first", MOVE(STEP, IDLE),
        MOVE(DISCARD, IDLE), MOVE(ABANDON, IDLE), STAY(EVAL), STAY(RELEASE), STAY(NORM), STAY(WAIT),
        NO(PREDICT, TOO_LATE), NO_PAIRS, NO_CAPTURE),
    ROW(EVICTED, "call zero_engine_restore first", MOVE(RESTORE, IDLE), STAY(EVAL), STAY(RELEASE),
        STAY(PREDICT), STAY(WAIT), STAY(STATE_SET), STAY(SHARD_READ), STAY(SHARD_WRITE)),
    ROW(PREPARED, "call zero_capture_begin inside it, or zero_capture_end to give it up",
        MOVE(CAPTURE_BEGIN, CAPTURING), MOVE(CAPTURE_END, IDLE)),
    ROW(CAPTURING, "call zero_micro_begin first", MOVE(MICRO_BEGIN, CAPTURING_MICRO),
        MOVE(LAST_BEGIN, CAPTURING_LAST_MICRO), STAY(EVAL), STAY(RELEASE), NO(STEP, CLOSE),
        NO_WAITS, NO_PAIRS),
    ROW(CAPTURING_MICRO, "call zero_micro_end first", MOVE(MICRO_END, CAPTURING_ACCUMULATING),
        STAY(TRAIN), STAY(RELEASE), STAY(GRADS), NO(EVAL, IN_TRAINING), NO_WAITS, NO_PAIRS),
    ROW(CAPTURING_ACCUMULATING, "call zero_micro_begin first", MOVE(MICRO_BEGIN, CAPTURING_MICRO),
        MOVE(LAST_BEGIN, CAPTURING_LAST_MICRO), STAY(EVAL), STAY(RELEASE), NO(STEP, CLOSE),
        NO_WAITS, NO_PAIRS),
    ROW(CAPTURING_LAST_MICRO, "call zero_micro_end first", MOVE(MICRO_END, CAPTURING_STEP_DUE),
        STAY(TRAIN), STAY(RELEASE), STAY(GRADS), NO(EVAL, IN_TRAINING), NO_WAITS, NO_PAIRS),
    ROW(CAPTURING_STEP_DUE, "call zero_step first", MOVE(STEP, CAPTURED), STAY(EVAL), STAY(RELEASE),
        NO_WAITS, NO_PAIRS),
    ROW(CAPTURED, "a capture holds one step; call zero_capture_end", MOVE(CAPTURE_END, IDLE)),
    ROW(REPLAYING, "call zero_replay_end first", MOVE(REPLAY_END, IDLE), STAY(LAUNCH)),
    ROW(POISONED, "destroy it", {.verdict = REFUSES}),
};

/* Name, text and streams of each state. */
static const struct {
    const char *name;
    const char *text;
    zi_engine_streams streams;
} facts[] = {
#define ZI_FACTS_ROW(name, label, text, streams) {label, text, ZI_STREAMS_##streams},
    ZI_ENGINE_STATES(ZI_FACTS_ROW)
#undef ZI_FACTS_ROW
};

zi_engine_cell zi_engine_on(zi_engine_state state, zi_engine_call call)
{
    zi_assert((unsigned)state < ZI_ENGINE_STATE_COUNT && (unsigned)call < ZI_ENGINE_CALL_COUNT);
    const row *of = &table[state];
    const cell *found = &of->cells[call];
    if (found->verdict == REFUSES) {
        return (zi_engine_cell){.next = state,
                                .remedy = found->remedy != NULL ? found->remedy : of->remedy};
    }
    return (zi_engine_cell){.legal = true, .next = found->verdict == MOVES ? found->next : state};
}

uint32_t zi_engine_call_needs(zi_engine_call call)
{
#define ZI_NEEDS_ROW(name, label, functions, needs) (needs),
    static const uint8_t of[] = {ZI_ENGINE_CALLS(ZI_NEEDS_ROW)};
#undef ZI_NEEDS_ROW
    zi_assert((unsigned)call < ZI_ENGINE_CALL_COUNT);
    return of[call];
}

const char *zi_engine_state_name(zi_engine_state state)
{
    zi_assert((unsigned)state < ZI_ENGINE_STATE_COUNT);
    return facts[state].name;
}

const char *zi_engine_state_text(zi_engine_state state)
{
    zi_assert((unsigned)state < ZI_ENGINE_STATE_COUNT);
    return facts[state].text;
}

zi_engine_streams zi_engine_state_streams(zi_engine_state state)
{
    zi_assert((unsigned)state < ZI_ENGINE_STATE_COUNT);
    return facts[state].streams;
}

bool zi_engine_state_owes(zi_engine_state state)
{
    return zi_engine_on(state, ZI_CALL_MICRO_END).legal || zi_engine_on(state, ZI_CALL_STEP).legal;
}
