/* The life of a unit's parameters on one rank, in program order: a table of state x event -> next
 * state and action.
 *
 *   ABSENT     nothing here but the rank's own shard
 *   GATHERING  its gather is enqueued, or it is here again for the schedule's next units; nobody
 *              reads it yet
 *   IN_USE     acquired, by count
 *   READY      released, or passed by without use, still in its slot
 *
 * A group of one walks the same table: its slot is the shard itself and its gather is nothing. */
#ifndef ZI_STAGE3_UNIT_STATE_H
#define ZI_STAGE3_UNIT_STATE_H

#include <stdbool.h>

/* X(name, text) */
#define ZI_UNIT_STATES(X)     \
    X(ABSENT, "absent")       \
    X(GATHERING, "gathering") \
    X(IN_USE, "in use")       \
    X(READY, "ready")

#define ZI_UNIT_EVENTS(X)           \
    X(FETCH, "fetch")               \
    X(ACQUIRE, "acquire")           \
    X(PASS, "pass by")              \
    X(RELEASE, "release")           \
    X(RELEASE_LAST, "last release") \
    X(EVICT, "evict")               \
    X(INVALIDATE, "invalidate")

#define ZI_ENUM_ROW(name, text) ZI_UNIT_##name,
typedef enum zi_unit_state { ZI_UNIT_STATES(ZI_ENUM_ROW) ZI_UNIT_STATE_COUNT } zi_unit_state;
#undef ZI_ENUM_ROW
#define ZI_ENUM_ROW(name, text) ZI_ON_##name,
typedef enum zi_unit_event { ZI_UNIT_EVENTS(ZI_ENUM_ROW) ZI_UNIT_EVENT_COUNT } zi_unit_event;
#undef ZI_ENUM_ROW

typedef enum zi_unit_action {
    ZI_DO_NOTHING,
    ZI_DO_GATHER,       /* take a slot, enqueue the gather */
    ZI_DO_AWAIT,        /* let the caller's stream wait for the gather */
    ZI_DO_GATHER_AWAIT, /* both */
    ZI_DO_FREE,         /* the slot may be reused once its readers are done */
    ZI_DO_REFUSE        /* a caller's mistake: STATE */
} zi_unit_action;

typedef struct zi_unit_step {
    zi_unit_state next;
    zi_unit_action action;
} zi_unit_step;

zi_unit_step zi_unit_on(zi_unit_state state, zi_unit_event event);
const char *zi_unit_state_name(zi_unit_state state);

#endif
