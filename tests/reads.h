/* The reports of an engine or a plan, as values: so that a test reads one number of them in a
 * line. */
#ifndef TESTS_READS_H
#define TESTS_READS_H

#include "harness.h"
#include "zero/zero.h"

#define READS(type, name, subject, call)      \
    static inline type name(const subject of) \
    {                                         \
        type read = type##_init();            \
        CHECK_OK(call);                       \
        return read;                          \
    }

READS(zero_memory, plan_memory, zero_plan *, zero_plan_memory(of, &read))
READS(zero_sharding, plan_sharding, zero_plan *, zero_plan_sharding(of, &read))
READS(zero_engine_options, plan_options, zero_plan *, zero_plan_options(of, &read))
READS(zero_tuning, plan_tuning, zero_plan *, zero_plan_tuning(of, &read))
READS(zero_stats, engine_stats, zero_engine *, zero_engine_stats(of, &read))
READS(zero_memory, engine_memory, zero_engine *, zero_engine_memory(of, &read))
READS(zero_disk_path, engine_disk_path, zero_engine *, zero_engine_disk_path(of, &read))

static inline zero_path engine_path(const zero_engine *engine, zero_traffic traffic)
{
    zero_path path = zero_path_init();
    CHECK_OK(zero_engine_path(engine, traffic, &path));
    return path;
}

#endif
