/* What `zero bench adam` measures of folds: the reductions that feed the step. */
#ifndef TOOLS_BENCH_FOLD_H
#define TOOLS_BENCH_FOLD_H

#include <stddef.h>

#include "bench.h"
#include "core/thread.h"

/* norm_extra and fold_squares_vs_apart on the pool's threads, in arrays laid out in `memory`. 0, or
 * 1 after bench_fail. */
int bench_fold(const bench_options *options, bench_report *report, zi_pool *pool,
               unsigned char *memory, size_t bytes);

#endif
