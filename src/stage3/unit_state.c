/* Owns the table of a unit's states. A cell that says REFUSE leaves the state as it is. */
#include "stage3/unit_state.h"

#include "core/check.h"

#define CELL(event, state, action) [ZI_ON_##event] = {ZI_UNIT_##state, ZI_DO_##action}

static const zi_unit_step table[ZI_UNIT_STATE_COUNT][ZI_UNIT_EVENT_COUNT] = {
    [ZI_UNIT_ABSENT] = {CELL(FETCH, GATHERING, GATHER), CELL(ACQUIRE, IN_USE, GATHER_AWAIT),
                        CELL(PASS, ABSENT, REFUSE), CELL(RELEASE, ABSENT, REFUSE),
                        CELL(RELEASE_LAST, ABSENT, REFUSE), CELL(EVICT, ABSENT, REFUSE),
                        CELL(INVALIDATE, ABSENT, NOTHING)},
    [ZI_UNIT_GATHERING] = {CELL(FETCH, GATHERING, NOTHING), CELL(ACQUIRE, IN_USE, AWAIT),
                           CELL(PASS, READY, NOTHING), CELL(RELEASE, GATHERING, REFUSE),
                           CELL(RELEASE_LAST, GATHERING, REFUSE), CELL(EVICT, ABSENT, FREE),
                           CELL(INVALIDATE, ABSENT, FREE)},
    [ZI_UNIT_IN_USE] = {CELL(FETCH, IN_USE, NOTHING), CELL(ACQUIRE, IN_USE, AWAIT),
                        CELL(PASS, IN_USE, NOTHING), CELL(RELEASE, IN_USE, NOTHING),
                        CELL(RELEASE_LAST, READY, NOTHING), CELL(EVICT, IN_USE, REFUSE),
                        CELL(INVALIDATE, IN_USE, REFUSE)},
    [ZI_UNIT_READY] = {CELL(FETCH, GATHERING, NOTHING), CELL(ACQUIRE, IN_USE, AWAIT),
                       CELL(PASS, READY, NOTHING), CELL(RELEASE, READY, REFUSE),
                       CELL(RELEASE_LAST, READY, REFUSE), CELL(EVICT, ABSENT, FREE),
                       CELL(INVALIDATE, ABSENT, FREE)},
};

zi_unit_step zi_unit_on(zi_unit_state state, zi_unit_event event)
{
    zi_assert((unsigned)state < ZI_UNIT_STATE_COUNT && (unsigned)event < ZI_UNIT_EVENT_COUNT);
    return table[state][event];
}

const char *zi_unit_state_name(zi_unit_state state)
{
#define ZI_TEXT_ROW(name, text) text,
    static const char *const names[] = {ZI_UNIT_STATES(ZI_TEXT_ROW)};
#undef ZI_TEXT_ROW
    zi_assert((unsigned)state < ZI_UNIT_STATE_COUNT);
    return names[state];
}
