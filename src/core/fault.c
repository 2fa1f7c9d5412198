/* Owns the armed faults. Counting is on only while armed, so that normal runs pay one relaxed load.
 */
#include "core/fault.h"

#include <stdatomic.h>
#include <time.h>

static atomic_uint_fast64_t armed[ZI_FAULT_KINDS];
static atomic_uint_fast64_t counted[ZI_FAULT_KINDS];
static atomic_uint_fast64_t slow_ns[ZI_FAULT_KINDS];

void zi_fault_arm(zi_fault_kind kind, uint64_t nth)
{
    atomic_store(&counted[kind], 0);
    atomic_store(&armed[kind], nth);
}

uint64_t zi_fault_count(zi_fault_kind kind)
{
    return atomic_load(&counted[kind]);
}

bool zi_fault_hit(zi_fault_kind kind)
{
    const uint64_t nth = atomic_load_explicit(&armed[kind], memory_order_relaxed);
    if (nth == 0) {
        return false;
    }
    return atomic_fetch_add(&counted[kind], 1) + 1 == nth;
}

void zi_fault_slow(zi_fault_kind kind, uint64_t ns)
{
    atomic_store(&slow_ns[kind], ns);
}

void zi_fault_sleep(zi_fault_kind kind)
{
    const uint64_t ns = atomic_load_explicit(&slow_ns[kind], memory_order_relaxed);
    if (ns != 0) {
        const struct timespec span = {.tv_sec = (time_t)(ns / 1000000000),
                                      .tv_nsec = (long)(ns % 1000000000)};
        (void)nanosleep(&span, NULL);
    }
}
