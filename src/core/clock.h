/* Monotonic time, and times that are known only later. */
#ifndef ZI_CORE_CLOCK_H
#define ZI_CORE_CLOCK_H

#include <stdint.h>

/* Any process of one host reads the same clock. */
uint64_t zi_clock_ns(void);

/* A time that a stream sets when it comes there: 0 until then. */
#define ZI_NO_TIME UINT64_MAX /* it will not be known */

static inline void zi_timestamp_set(uint64_t *timestamp, uint64_t ns)
{
    __atomic_store_n(timestamp, ns, __ATOMIC_RELEASE);
}

static inline uint64_t zi_timestamp_get(const uint64_t *timestamp)
{
    return __atomic_load_n(timestamp, __ATOMIC_ACQUIRE);
}

#endif
