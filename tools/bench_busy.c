/* Owns the work that keeps cores busy: so much of it, however long that takes. */
#include "bench_busy.h"

#include "bench.h"

#define FLOATS 2048
#define CALIBRATIONS 5
#define CALIBRATED_S 0.02

static void do_rounds(void *argument, uint32_t share, uint32_t shares)
{
    const uint64_t rounds = *(const uint64_t *)argument;
    float values[FLOATS];
    (void)shares;
    for (uint32_t i = 0; i < FLOATS; i++) {
        values[i] = (float)(share + i);
    }
    for (uint64_t r = 0; r < rounds; r++) {
        /* To 1, so that none becomes subnormal, which would take longer. */
        for (uint32_t i = 0; i < FLOATS; i++) {
            values[i] = values[i] * 0.5f + 0.5f;
        }
        __asm__ volatile("" : : "r"(values) : "memory"); /* no round is left out */
    }
}

void bench_busy(zi_pool *pool, uint64_t rounds)
{
    zi_pool_run(pool, do_rounds, &rounds);
}

uint64_t bench_busy_rounds(zi_pool *pool, double seconds)
{
    double fastest = 0.0; /* rounds a second */
    for (uint32_t i = 0; i < CALIBRATIONS; i++) {
        uint64_t rounds = 1;
        double taken = 0.0;
        while (taken < CALIBRATED_S) {
            rounds *= 2;
            const double begin = bench_now();
            bench_busy(pool, rounds);
            taken = bench_now() - begin;
        }
        fastest = (double)rounds / taken > fastest ? (double)rounds / taken : fastest;
    }
    return 1 + (uint64_t)(fastest * seconds);
}
