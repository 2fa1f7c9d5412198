/* Owns what a figure of a GPU must name: which one it was, and how fast pinned memory is copied,
 * which bounds whatever lives in host memory. */
#include <string.h>

#include "bench_gpu.h"
#include "bench_gpu_clock.h"
#include "bench_gpu_pinned.h"
#include "bench_report.h"

/* Rates are decimal: 1e9 bytes a second. */
static int measure_copies(const bench_options *options, json_t *gpu)
{
    static const size_t sizes[] = {(size_t)1 << 30, (size_t)1 << 28, (size_t)1 << 16};
    gpu_pinned rig;
    bench_stat stats[3];
    const int opened = gpu_pinned_open(&rig, sizes[options->scale]);
    const bench_side sides[] = {gpu_pinned_side(&rig, GPU_PINNED_TO_GPU),
                                gpu_pinned_side(&rig, GPU_PINNED_TO_HOST),
                                gpu_pinned_side(&rig, GPU_PINNED_BOTH)};
    const int failed = opened || bench_interleave(sides, 3, options->repetitions, stats);
    gpu_pinned_close(&rig);
    if (failed) {
        return 1;
    }
    const double gigabytes = (double)rig.bytes * 1e-9;
    json_t *rates =
        json_pack("{s:f, s:f, s:f}", "pinned_to_gpu_gb_per_s", gigabytes / stats[0].median,
                  "pinned_to_host_gb_per_s", gigabytes / stats[1].median, "pinned_both_gb_per_s",
                  2.0 * gigabytes / stats[2].median);
    const int lost = json_object_update(gpu, rates);
    json_decref(rates);
    return lost == 0 ? 0 : bench_fail("gpu: no memory left for the rates of copies");
}

/* CUDA's versions are 1000 major + 10 minor. */
static void version_text(int version, char text[32])
{
    (void)snprintf(text, 32, "%d.%d", version / 1000, version % 1000 / 10);
}

/* The clocks are those that it may reach, not what they are. */
static int read_facts(bench_report *report)
{
    int count = 0;
    int ordinal = 0;
    int driver_version = 0;
    int runtime_version = 0;
    int sm_khz = 0;
    int memory_khz = 0;
    struct cudaDeviceProp properties;
    memset(&properties, 0, sizeof properties);
    if (GPU_TRY(cudaGetDeviceCount(&count)) || GPU_TRY(cudaGetDevice(&ordinal)) ||
        GPU_TRY(cudaGetDeviceProperties(&properties, ordinal)) ||
        GPU_TRY(cudaDriverGetVersion(&driver_version)) ||
        GPU_TRY(cudaRuntimeGetVersion(&runtime_version)) ||
        GPU_TRY(cudaDeviceGetAttribute(&sm_khz, cudaDevAttrClockRate, ordinal)) ||
        GPU_TRY(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, ordinal))) {
        return 1;
    }
    char capability[32];
    char driver[32];
    char runtime[32];
    (void)snprintf(capability, sizeof capability, "%d.%d", properties.major, properties.minor);
    version_text(driver_version, driver);
    version_text(runtime_version, runtime);
    report->gpu = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I}", "name", properties.name,
        "compute_capability", capability, "driver", driver, "runtime", runtime, "gpus", count,
        "sm_count", properties.multiProcessorCount, "sm_clock_max_mhz", sm_khz / 1000,
        "memory_clock_max_mhz", memory_khz / 1000, "l2_bytes", (json_int_t)properties.l2CacheSize,
        "memory_bytes", (json_int_t)properties.totalGlobalMem);
    return report->gpu != NULL ? 0 : bench_fail("gpu: no memory left for what it is");
}

int bench_gpu_machine(const bench_options *options, bench_report *report)
{
    return read_facts(report) || measure_copies(options, report->gpu);
}
