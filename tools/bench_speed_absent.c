/* Stands in for bench_speed.c in a build without OpenBLAS, whose matrix products are what makes the
 * steps realistic. */
#include "bench_step.h"

int bench_stage_speed(const bench_options *options, bench_report *report)
{
    (void)options;
    return bench_skip(report, "stage3_vs_stage0", NULL,
                      "built without OpenBLAS; install it and configure the build again");
}
