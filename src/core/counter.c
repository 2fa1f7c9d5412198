/* Owns counters. Invariant: whoever sleeps has left bit 0 set, and only the raise that clears it
 * wakes: raises that nobody waits for call no system. */
#include "core/counter.h"

#include <stdbool.h>

#include "core/futex.h"

#define SLEEPS UINT64_C(1)

uint64_t zi_counter_get(zi_counter *counter)
{
    return atomic_load_explicit(&counter->word, memory_order_acquire) >> 1;
}

/* The half of the word that has its low bits: a futex has 32. */
static const void *futex_of(const zi_counter *counter)
{
    const void *word = &counter->word;
    const uint32_t *halves = word;
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? halves : halves + 1;
}

void zi_counter_raise(zi_counter *counter, uint64_t value)
{
    uint64_t word = atomic_load_explicit(&counter->word, memory_order_relaxed);
    while (word >> 1 < value) {
        if (atomic_compare_exchange_weak_explicit(&counter->word, &word, value << 1,
                                                  memory_order_acq_rel, memory_order_relaxed)) {
            if ((word & SLEEPS) != 0) {
                zi_futex_wake_all(futex_of(counter), ZI_FUTEX_PROCESS);
            }
            return;
        }
    }
}

void zi_counter_await(zi_counter *counter, uint64_t value)
{
    uint64_t word = atomic_load_explicit(&counter->word, memory_order_acquire);
    while (word >> 1 < value) {
        if ((word & SLEEPS) != 0 ||
            atomic_compare_exchange_weak_explicit(&counter->word, &word, word | SLEEPS,
                                                  memory_order_acquire, memory_order_acquire)) {
            zi_futex_wait(futex_of(counter), (uint32_t)(word | SLEEPS), 0, ZI_FUTEX_PROCESS);
            word = atomic_load_explicit(&counter->word, memory_order_acquire);
        }
    }
}
