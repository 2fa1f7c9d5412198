/* Stands for bench_gpu.c in a build without CUDA. */
#include "bench.h"

#define REASON \
    "UNSUPPORTED: built without CUDA; install the CUDA toolkit, configure with -Dcuda=enabled"

int bench_gpu(const bench_options *options, bench_report *report)
{
    return options->named ? bench_fail("gpu: %s", REASON) : bench_skip(report, "gpu", NULL, REASON);
}
