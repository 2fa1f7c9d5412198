/* Owns the order of the kernels' measurements. A case that fails does not keep others from being
 * measured. */
#include "bench_gpu.h"
#include "bench_gpu_rig.h"

int bench_gpu_kernels(const bench_options *options, bench_report *report)
{
    gpu_rig rig;
    int failed = gpu_rig_open(&rig, options, report);
    if (!failed) {
        failed = bench_gpu_adam(&rig);
        failed |= bench_gpu_fold(&rig);
    }
    gpu_rig_close(&rig);
    return failed;
}
