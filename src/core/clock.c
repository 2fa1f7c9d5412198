/* Owns the one reading of the system's clock. */
#include "core/clock.h"

#include <time.h>

uint64_t zi_clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
