/* The measurements of `zero bench adam` of folds, the reductions that feed the step; and the values
 * that its arrays are filled with. */
#ifndef TOOLS_BENCH_FOLD_H
#define TOOLS_BENCH_FOLD_H

#include <stddef.h>

#include "bench.h"
#include "core/thread.h"
#include "zero/dtype.h"

/* Values repeat after so many elements, of which arrays have whole multiples. */
#define BENCH_PERIOD ((size_t)32768)

/* The first value of element i of an array: a small one, or its small square, that depends on
 * nothing but the two. */
float bench_first_value(size_t i, uint32_t array, bool squared);

void bench_fill(void *base, zero_dtype dtype, size_t count, uint32_t array, bool squared);

/* norm_extra and fold_squares_vs_apart on the pool's threads, in arrays laid out in `memory`. 0, or
 * 1 after bench_fail. */
int bench_fold(const bench_options *options, bench_report *report, zi_pool *pool,
               unsigned char *memory, size_t bytes);

#endif
