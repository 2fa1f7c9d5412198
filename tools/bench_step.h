/* The two halves of `zero bench step`; each returns 0, or 1 after bench_fail. */
#ifndef TOOLS_BENCH_STEP_H
#define TOOLS_BENCH_STEP_H

#include "bench.h"

/* stage3_vs_stage0: whole training steps by stage, same batches, equal losses and parameters. */
int bench_stage_speed(const bench_options *options, bench_report *report);

/* peak_memory_vs_plan: what the allocator counted and what the process grew by, against the plan.
 */
int bench_peak_memory(const bench_options *options, bench_report *report);

#endif
