/* A number that only grows, and the threads that wait until it has: a timeline semaphore. */
#ifndef ZI_CORE_COUNTER_H
#define ZI_CORE_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

/* Of one process. All zeros is a counter at 0. */
typedef struct zi_counter {
    atomic_uint_least64_t word; /* value * 2, + 1 while a thread sleeps */
} zi_counter;

/* With all that was written before the counter was raised to it. */
uint64_t zi_counter_get(zi_counter *counter);

/* Raise it to `value`; it stays where it is higher. Any thread. The counter is not read once others
 * can see the value, so they may free it. */
void zi_counter_raise(zi_counter *counter, uint64_t value);

/* Block until it is `value` or higher. Any thread. */
void zi_counter_await(zi_counter *counter, uint64_t value);

#endif
