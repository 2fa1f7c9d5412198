/* The half of `zero bench step` that needs matrix products; 0, or 1 after bench_fail. */
#ifndef TOOLS_BENCH_STEP_H
#define TOOLS_BENCH_STEP_H

#include "bench.h"

/* stage3_vs_stage0: whole training steps by stage, same batches, equal losses and parameters. */
int bench_stage_speed(const bench_options *options, bench_report *report);

#endif
