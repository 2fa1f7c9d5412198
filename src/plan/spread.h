/* How far measured runs are from what is planned. */
#ifndef ZI_PLAN_SPREAD_H
#define ZI_PLAN_SPREAD_H

#include <stdbool.h>
#include <stdint.h>

/* Ends of an interval, in percent of what is planned. */
typedef struct zi_spread {
    uint32_t low_percent;
    uint32_t high_percent;
} zi_spread;

/* Of the time of a step. offloaded: something goes to the host or to disk. */
zi_spread zi_spread_of_time(bool fused, bool offloaded);

/* Of what a trainer allocates on the device. */
zi_spread zi_spread_of_memory(void);

/* At most 2^63 - 1. */
uint64_t zi_spread_low(zi_spread spread, uint64_t planned);
uint64_t zi_spread_high(zi_spread spread, uint64_t planned);

#endif
