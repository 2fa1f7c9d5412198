/* Owns how far measured runs are from what is planned. Invariant: the figures are those that
 * `scripts/feasibility.py PROGRAM --spread` makes of published runs that the planner was tuned on;
 * the test `feasibility` fails where they are others. scripts/spread.py says how. */
#include "plan/spread.h"

/* Intervals of 8 runs of 10, whoever trains: of the kinds of runs of scripts/spread.py. */
static const zi_spread fused_time = {85, 114};
static const zi_spread not_fused_time = {82, 200};
static const zi_spread offloaded_time = {22, 865};
/* Of two sources, which are too few to say anything of a third. */
static const zi_spread allocated = {72, 125};

zi_spread zi_spread_of_time(bool fused, bool offloaded)
{
    return offloaded ? offloaded_time : fused ? fused_time : not_fused_time;
}

zi_spread zi_spread_of_memory(void)
{
    return allocated;
}

static uint64_t percent_of(uint32_t percent, uint64_t planned)
{
    const double value = (double)planned / 100 * percent;
    return value < (double)INT64_MAX ? (uint64_t)value : INT64_MAX;
}

uint64_t zi_spread_low(zi_spread spread, uint64_t planned)
{
    return percent_of(spread.low_percent, planned);
}

uint64_t zi_spread_high(zi_spread spread, uint64_t planned)
{
    return percent_of(spread.high_percent, planned);
}
