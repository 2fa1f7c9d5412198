/* Stands for bench_comm.c in a build without MPI: there is nothing to compare with. */
#include "bench.h"

int bench_comm(const bench_options *options, bench_report *report)
{
    static const char *const metrics[] = {"reduce_scatter_vs_mpi", "reduce_scatter_vs_limit",
                                          "all_gather_vs_mpi", "all_gather_vs_limit"};
    (void)options;
    int failed = 0;
    for (int i = 0; i < 4 && !failed; i++) {
        failed = bench_skip(report, metrics[i], NULL,
                            "built without MPI; install libopenmpi-dev, configure -Dmpi=enabled");
    }
    return failed;
}
