/* Cores that compute: a pool's threads do the same work each, in their first-level cache. What
 * takes time from them is seen in how long that lasts, which a sleep in the place of a model's work
 * does not show. */
#ifndef TOOLS_BENCH_BUSY_H
#define TOOLS_BENCH_BUSY_H

#include <stdint.h>

#include "core/thread.h"

/* Let every thread of the pool do so many rounds, and wait for all. */
void bench_busy(zi_pool *pool, uint64_t rounds);

/* The rounds that take so long where nothing else runs, at least one. */
uint64_t bench_busy_rounds(zi_pool *pool, double seconds);

#endif
