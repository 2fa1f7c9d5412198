/* What an engine or a plan tells, as a value: so that a test reads one number of it in a line. */
#ifndef TESTS_READS_H
#define TESTS_READS_H

#include "harness.h"
#include "zero/zero.h"

static inline zero_memory plan_memory(const zero_plan *plan)
{
    zero_memory memory = zero_memory_init();
    CHECK_OK(zero_plan_memory(plan, &memory));
    return memory;
}

static inline zero_sharding plan_sharding(const zero_plan *plan)
{
    zero_sharding sharding = zero_sharding_init();
    CHECK_OK(zero_plan_sharding(plan, &sharding));
    return sharding;
}

static inline zero_engine_options plan_options(const zero_plan *plan)
{
    zero_engine_options options = zero_engine_options_init();
    CHECK_OK(zero_plan_options(plan, &options));
    return options;
}

static inline zero_tuning plan_tuning(const zero_plan *plan)
{
    zero_tuning tuning = zero_tuning_init();
    CHECK_OK(zero_plan_tuning(plan, &tuning));
    return tuning;
}

static inline zero_stats engine_stats(const zero_engine *engine)
{
    zero_stats stats = zero_stats_init();
    CHECK_OK(zero_engine_stats(engine, &stats));
    return stats;
}

static inline zero_memory engine_memory(const zero_engine *engine)
{
    zero_memory memory = zero_memory_init();
    CHECK_OK(zero_engine_memory(engine, &memory));
    return memory;
}

static inline zero_path engine_path(const zero_engine *engine, zero_traffic traffic)
{
    zero_path path = zero_path_init();
    CHECK_OK(zero_engine_path(engine, traffic, &path));
    return path;
}

static inline zero_disk_path engine_disk_path(const zero_engine *engine)
{
    zero_disk_path path = zero_disk_path_init();
    CHECK_OK(zero_engine_disk_path(engine, &path));
    return path;
}

#endif
