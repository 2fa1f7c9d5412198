/* stage1/share: every unit of a step is taken once, wherever the two ends meet; nobody waits for
 * one who has failed or for a step that does not come. */
#include "harness.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/error.h"
#include "stage1/share.h"

#define UNITS 12
#define STEPS 300

/* The CPU's side of a test. */
typedef struct cpu_side {
    zi_share *share;
    uint64_t steps;
    uint32_t take_max; /* of a step; it stops there until `gate` is open */
    atomic_bool gate;
    bool fails;
    atomic_uint taken[UNITS]; /* over all steps */
    atomic_uint count;
} cpu_side;

static void *run_cpu(void *argument)
{
    cpu_side *cpu = argument;
    for (uint64_t step = 1; step <= cpu->steps; step++) {
        uint32_t unit = 0;
        while (zi_share_take(cpu->share, step, &unit)) {
            atomic_fetch_add(&cpu->taken[unit], 1);
            const uint32_t count = atomic_fetch_add(&cpu->count, 1) + 1;
            while (count == cpu->take_max && !atomic_load(&cpu->gate)) {
                sched_yield();
            }
            const zero_status status = cpu->fails ? zi_error_set(ZERO_ERR_IO, 5, __FILE__, __LINE__,
                                                                 "unit %u is lost", unit)
                                                  : ZERO_OK;
            zi_share_done(cpu->share, status);
            if (status != ZERO_OK) {
                return NULL;
            }
        }
    }
    return NULL;
}

static pthread_t start(cpu_side *cpu)
{
    pthread_t thread;
    CHECK_OK(zi_share_create(UNITS, &cpu->share));
    CHECK_EQ(pthread_create(&thread, NULL, run_cpu, cpu), 0);
    return thread;
}

static void finish(cpu_side *cpu, pthread_t thread)
{
    CHECK_EQ(pthread_join(thread, NULL), 0);
    zi_share_destroy(cpu->share);
}

TEST(every_unit_once)
{
    cpu_side cpu = {.steps = STEPS, .gate = true};
    const pthread_t thread = start(&cpu);
    uint32_t mine[UNITS] = {0};
    for (uint64_t step = 1; step <= STEPS; step++) {
        zi_share_open(cpu.share, step);
        for (uint32_t unit = 0; unit < UNITS; unit++) {
            if ((unit + step) % 4 == 0) {
                sched_yield();
            }
            const bool claimed = zi_share_claim(cpu.share, unit);
            mine[unit] += claimed;
            CHECK_OK(claimed ? ZERO_OK : zi_share_await(cpu.share, unit));
        }
        zi_share_close(cpu.share, step);
    }
    finish(&cpu, thread);
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        CHECK_EQ(mine[unit] + cpu.taken[unit], STEPS);
    }
}

TEST(a_gpu_that_is_slow)
{
    cpu_side cpu = {.steps = 1, .gate = true};
    const pthread_t thread = start(&cpu);
    zi_share_open(cpu.share, 1);
    while (atomic_load(&cpu.count) == 0) {
        sched_yield();
    }
    while (atomic_load(&cpu.count) < UNITS) {
        sched_yield(); /* it takes all, the first included */
    }
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        CHECK(!zi_share_claim(cpu.share, unit));
        CHECK_OK(zi_share_await(cpu.share, unit));
    }
    zi_share_close(cpu.share, 1);
    finish(&cpu, thread);
}

TEST(a_cpu_that_is_slow)
{
    cpu_side cpu = {.steps = 1, .take_max = 1};
    const pthread_t thread = start(&cpu);
    zi_share_open(cpu.share, 1);
    while (atomic_load(&cpu.count) == 0) {
        sched_yield();
    }
    for (uint32_t unit = 0; unit < UNITS - 1; unit++) {
        CHECK(zi_share_claim(cpu.share, unit));
    }
    CHECK(!zi_share_claim(cpu.share, UNITS - 1));
    atomic_store(&cpu.gate, true);
    CHECK_OK(zi_share_await(cpu.share, UNITS - 1));
    finish(&cpu, thread);
    CHECK_EQ(cpu.count, 1);
}

TEST(a_cpu_that_fails)
{
    cpu_side cpu = {.steps = 1, .gate = true, .fails = true};
    const pthread_t thread = start(&cpu);
    zi_share_open(cpu.share, 1);
    while (atomic_load(&cpu.count) == 0) {
        sched_yield();
    }
    CHECK(zi_share_claim(cpu.share, 0)); /* it stopped at its first, the last */
    CHECK(!zi_share_claim(cpu.share, UNITS - 1));
    CHECK_FAILS(zi_share_await(cpu.share, UNITS - 1), ZERO_ERR_IO, "unit 11 is lost");
    finish(&cpu, thread);
}

TEST(a_step_that_never_comes)
{
    cpu_side cpu = {.steps = 2, .gate = true};
    const pthread_t thread = start(&cpu);
    zi_share_close(cpu.share, 1); /* one that is skipped, say */
    zi_share_close(cpu.share, UINT64_MAX);
    finish(&cpu, thread);
    CHECK_EQ(cpu.count, 0);
}
