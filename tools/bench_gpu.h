/* The parts of `zero bench gpu`; each returns 0, or 1 after bench_fail. */
#ifndef TOOLS_BENCH_GPU_H
#define TOOLS_BENCH_GPU_H

#include "bench.h"

/* adamw_vs_copy, norm_extra, square_sum_vs_read, fold_vs_copy, cast_vs_copy,
 * fold_squares_vs_apart. */
int bench_gpu_kernels(const bench_options *options, bench_report *report);

/* Report what the GPU is, and the rates of pinned copies. */
int bench_gpu_machine(const bench_options *options, bench_report *report);

/* stream_vs_pinned: roles in host memory. */
int bench_gpu_stream(const bench_options *options, bench_report *report);

/* stage3_vs_stage0, hooks_vs_direct: steps of a model of GPT-2's sizes, for ranks that share the
 * GPU. */
int bench_gpu_steps(const bench_options *options, bench_report *report);

#endif
