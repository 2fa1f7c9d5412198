/* When a link is busy. Streams book transfers in the order in which the engine issues them, which
 * is not the order of virtual time: a later booking may begin earlier. */
#ifndef ZI_SIM_SIM_CALENDAR_H
#define ZI_SIM_SIM_CALENDAR_H

#include <stdint.h>

/* Gaps that a calendar remembers; the older half of them closes when there are more. Pages of those
 * that there are not are never touched. */
#define ZI_SIM_INTERVALS (1 << 20)

typedef struct zi_sim_interval {
    uint64_t begin_ns;
    uint64_t end_ns;
} zi_sim_interval;

typedef struct zi_sim_calendar {
    uint32_t count;
    zi_sim_interval busy[ZI_SIM_INTERVALS]; /* ascending; between two of them there is a gap */
} zi_sim_calendar;

/* Book `ns` of the link's time from `from_ns` on, in as many pieces as its gaps make necessary.
 * Returns when the last one ends; from_ns for 0. */
uint64_t zi_sim_calendar_book(zi_sim_calendar *calendar, uint64_t from_ns, uint64_t ns);

#endif
