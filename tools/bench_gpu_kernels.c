/* Owns the order of the kernels' measurements. */
#include "bench_gpu.h"
#include "bench_gpu_rig.h"

int bench_gpu_kernels(const bench_options *options, bench_report *report)
{
    gpu_rig rig;
    const int failed =
        gpu_rig_open(&rig, options, report) || bench_gpu_adam(&rig) || bench_gpu_fold(&rig);
    gpu_rig_close(&rig);
    return failed;
}
