/* Monotonic time. */
#ifndef ZI_CORE_CLOCK_H
#define ZI_CORE_CLOCK_H

#include <stdint.h>

uint64_t zi_clock_ns(void);

#endif
