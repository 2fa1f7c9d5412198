/* Owns the bookings of a link. Invariant: a booking leaves no gap between where it may begin and
 * where it ends, so that what it touches becomes one interval. */
#include "sim/sim_calendar.h"

#include <string.h>

#include "core/sizes.h"

/* The first interval that ends at or behind `from_ns`. */
static uint32_t sim_calendar_find(const zi_sim_calendar *calendar, uint64_t from_ns)
{
    uint32_t low = 0;
    uint32_t high = calendar->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (calendar->busy[middle].end_ns < from_ns) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Put `interval` in the place of those in [first, last). */
static void replace(zi_sim_calendar *calendar, uint32_t first, uint32_t last,
                    zi_sim_interval interval)
{
    zi_sim_interval *busy = calendar->busy;
    if (first == last && calendar->count == ZI_SIM_INTERVALS) {
        const uint32_t closed = ZI_SIM_INTERVALS / 2;
        busy[closed].begin_ns = busy[0].begin_ns;
        calendar->count -= closed;
        memmove(&busy[0], &busy[closed], calendar->count * sizeof *busy);
        first -= first > closed ? closed : first;
        last = first;
    }
    memmove(&busy[first + 1], &busy[last], (calendar->count - last) * sizeof *busy);
    busy[first] = interval;
    calendar->count = calendar->count - (last - first) + 1;
}

uint64_t zi_sim_calendar_book(zi_sim_calendar *calendar, uint64_t from_ns, uint64_t ns)
{
    const zi_sim_interval *busy = calendar->busy;
    const uint32_t first = sim_calendar_find(calendar, from_ns);
    uint32_t last = first;
    zi_sim_interval merged = {from_ns, from_ns + ns};
    if (ns == 0) {
        return from_ns;
    }
    for (; last < calendar->count && busy[last].begin_ns < merged.end_ns; last++) {
        merged.end_ns += busy[last].end_ns - zi_max_u64(busy[last].begin_ns, from_ns);
        merged.begin_ns = zi_min_u64(merged.begin_ns, busy[last].begin_ns);
    }
    const uint64_t end_ns = merged.end_ns;
    if (last < calendar->count && busy[last].begin_ns == end_ns) {
        merged.end_ns = busy[last++].end_ns;
    }
    replace(calendar, first, last, merged);
    return end_ns;
}
