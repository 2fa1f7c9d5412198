/* Owns what is said of benchmarks that this build is without. Invariant: a function here is
 * replaced by the one of its own file where meson compiles that. */
#include "bench_calibrate.h"

#define ABSENT __attribute__((weak))

int bench_skip_comm(bench_report *report, const char *reason)
{
    static const char *const metrics[] = {"reduce_scatter_vs_mpi", "reduce_scatter_vs_limit",
                                          "all_gather_vs_mpi", "all_gather_vs_limit",
                                          "host_levels_vs_at_once"};
    int failed = 0;
    for (int i = 0; i < 5 && !failed; i++) {
        failed = bench_skip(report, metrics[i], NULL, reason);
    }
    return failed;
}

ABSENT int bench_comm(const bench_options *options, bench_report *report)
{
    (void)options;
    return bench_skip_comm(report,
                           "built without MPI; install libopenmpi-dev, configure -Dmpi=enabled");
}

ABSENT int bench_stage_speed(const bench_options *options, bench_report *report)
{
    static const char reason[] = "built without OpenBLAS; install it and configure the build again";
    (void)options;
    return bench_skip(report, "stage3_vs_stage0", NULL, reason) ||
           bench_skip(report, "traced_vs_untraced", NULL, reason);
}

static const char no_cuda[] =
    "UNSUPPORTED: built without CUDA; install the CUDA toolkit, configure with -Dcuda=enabled";

ABSENT int bench_footprint_gpu(const bench_options *options, bench_report *report)
{
    (void)options;
    (void)report;
    return bench_fail("memory: %s", no_cuda);
}

ABSENT int bench_gpu(const bench_options *options, bench_report *report)
{
    return options->named ? bench_fail("gpu: %s", no_cuda)
                          : bench_skip(report, "gpu", NULL, no_cuda);
}

ABSENT calibrate_product *calibrate_product_create(const calibration *all, const char **missing)
{
    (void)all;
    *missing = "built without OpenBLAS; install it, or set this by hand";
    return NULL;
}

ABSENT void calibrate_product_destroy(calibrate_product *product)
{
    (void)product;
}

ABSENT double calibrate_product_flops(const calibrate_product *product, calibrate_shape shape)
{
    (void)product;
    (void)shape;
    return 0.0;
}

ABSENT void calibrate_product_run(const calibrate_product *product, calibrate_shape shape,
                                  uint32_t share, uint32_t shares)
{
    (void)product;
    (void)shape;
    (void)share;
    (void)shares;
}

ABSENT uint32_t calibrate_gpu_count(void)
{
    return 0;
}

ABSENT int calibrate_gpu_use(uint32_t gpu)
{
    (void)gpu;
    return bench_fail("calibrate: built without CUDA");
}

ABSENT int calibrate_gpu_memory(double *bytes, double *taken)
{
    (void)bytes;
    (void)taken;
    return bench_fail("calibrate: built without CUDA");
}
