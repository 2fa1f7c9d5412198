/* Owns what a figure of a GPU must name: which one it was, and how fast pinned memory is copied,
 * which bounds whatever lives in host memory. */
#include <string.h>

#include "bench_gpu.h"
#include "bench_gpu_clock.h"
#include "bench_gpu_pinned.h"

static int measure_copies(const bench_options *options, bench_gpu_facts *facts)
{
    static const size_t sizes[] = {(size_t)1 << 30, (size_t)1 << 28, (size_t)1 << 16};
    gpu_pinned rig;
    const bench_side sides[3] = {
        {gpu_pinned_to_gpu, &rig}, {gpu_pinned_to_host, &rig}, {gpu_pinned_both, &rig}};
    bench_stat stats[3];
    const int failed = gpu_pinned_open(&rig, sizes[options->scale]) ||
                       bench_interleave(sides, 3, options->repetitions, stats);
    if (!failed) {
        const double gigabytes = (double)rig.bytes * 1e-9;
        facts->to_gpu_gb_per_s = gigabytes / stats[0].median;
        facts->to_host_gb_per_s = gigabytes / stats[1].median;
        facts->both_gb_per_s = 2.0 * gigabytes / stats[2].median;
    }
    gpu_pinned_close(&rig);
    return failed;
}

/* CUDA's versions are 1000 major + 10 minor. */
static void version_text(int version, char text[32])
{
    (void)snprintf(text, 32, "%d.%d", version / 1000, version % 1000 / 10);
}

static int read_facts(bench_gpu_facts *facts)
{
    int count = 0;
    int ordinal = 0;
    int driver = 0;
    int runtime = 0;
    int sm_khz = 0;
    int memory_khz = 0;
    struct cudaDeviceProp properties;
    memset(&properties, 0, sizeof properties);
    if (bench_gpu_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount") != 0 ||
        bench_gpu_check(cudaGetDevice(&ordinal), "cudaGetDevice") != 0 ||
        bench_gpu_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties") !=
            0 ||
        bench_gpu_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion") != 0 ||
        bench_gpu_check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion") != 0 ||
        bench_gpu_check(cudaDeviceGetAttribute(&sm_khz, cudaDevAttrClockRate, ordinal),
                        "cudaDeviceGetAttribute") != 0 ||
        bench_gpu_check(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, ordinal),
                        "cudaDeviceGetAttribute") != 0) {
        return 1;
    }
    (void)snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    (void)snprintf(facts->compute_capability, sizeof facts->compute_capability, "%d.%d",
                   properties.major, properties.minor);
    version_text(driver, facts->driver);
    version_text(runtime, facts->runtime);
    facts->gpu_count = (uint32_t)count;
    facts->sm_count = (uint32_t)properties.multiProcessorCount;
    facts->sm_clock_max_mhz = (uint32_t)sm_khz / 1000;
    facts->memory_clock_max_mhz = (uint32_t)memory_khz / 1000;
    facts->l2_bytes = (uint64_t)properties.l2CacheSize;
    facts->memory_bytes = properties.totalGlobalMem;
    return 0;
}

int bench_gpu_machine(const bench_options *options, bench_gpu_facts *facts)
{
    return read_facts(facts) || measure_copies(options, facts);
}
