/* Time in tests: how long something took, and waits that end. */
#ifndef TESTS_WAITS_H
#define TESTS_WAITS_H

#include <time.h>

#include "core/clock.h"
#include "harness.h"

static inline uint64_t elapsed_ms(uint64_t start_ns)
{
    return (zi_clock_ns() - start_ns) / 1000000;
}

static inline void sleep_ms(uint32_t ms)
{
    const struct timespec span = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&span, NULL);
}

/* Until the condition holds; the test fails where it does not within 20 s. */
#define AWAIT(condition)                          \
    do {                                          \
        const uint64_t await_ns_ = zi_clock_ns(); \
        while (!(condition)) {                    \
            CHECK(elapsed_ms(await_ns_) < 20000); \
            sleep_ms(1);                          \
        }                                         \
    } while (0)

#endif
