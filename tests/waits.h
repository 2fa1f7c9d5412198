/* Time in tests: how long something took, and waits that end. */
#ifndef TESTS_WAITS_H
#define TESTS_WAITS_H

#include <stdbool.h>
#include <time.h>

#include "core/clock.h"
#include "harness.h"

static inline uint64_t elapsed_ms(uint64_t start_ns)
{
    return (zi_clock_ns() - start_ns) / 1000000;
}

bool machine_is_on(void) __attribute__((weak)); /* NULL where the machine is not linked */

/* Of the deadlines in tests those that must not be waited for are three times as long. */
#define SLOWEST_MS 20000

/* By the deterministic machine's clock things take what they should. By the system's, what other
 * programs do counts too, and sanitizers slow down. */
static inline bool clock_is_exact(void)
{
    return machine_is_on != NULL && machine_is_on();
}

/* How long something may take that should take `ms`; SLOWEST_MS at least by the system's clock. */
static inline uint64_t allowed_ms(uint64_t ms)
{
    return clock_is_exact() || ms > SLOWEST_MS ? ms : SLOWEST_MS;
}

/* True if something that began at start_ns has taken less than `ms`, or what is allowed. */
static inline bool in_time(uint64_t start_ns, uint64_t ms)
{
    return elapsed_ms(start_ns) < allowed_ms(ms);
}

static inline void sleep_ms(uint32_t ms)
{
    const struct timespec span = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&span, NULL);
}

/* Until the condition holds; the test fails where it does not within SLOWEST_MS. */
#define AWAIT(condition)                           \
    do {                                           \
        const uint64_t await_ns_ = zi_clock_ns();  \
        while (!(condition)) {                     \
            CHECK(in_time(await_ns_, SLOWEST_MS)); \
            sleep_ms(1);                           \
        }                                          \
    } while (0)

#endif
