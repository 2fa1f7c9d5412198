/* Owns what a figure of a GPU must name: which one it was, and how fast pinned memory is copied,
 * which bounds whatever lives in host memory. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_gpu.h"
#include "bench_gpu_clock.h"

typedef struct pinned_pair {
    void *host;
    void *gpu;
} pinned_pair;

/* Copies both ways on streams of their own. */
typedef struct pinned_rig {
    gpu_clock clock;
    cudaStream_t other; /* of the second direction */
    cudaEvent_t forked;
    cudaEvent_t joined;
    pinned_pair pair[2];
    size_t bytes; /* of each */
} pinned_rig;

enum { TO_GPU, TO_HOST };

static int copy_on(const pinned_rig *rig, int direction, cudaStream_t stream)
{
    const pinned_pair *pair = &rig->pair[direction];
    void *target = direction == TO_GPU ? pair->gpu : pair->host;
    const void *source = direction == TO_GPU ? pair->host : pair->gpu;
    return bench_gpu_check(cudaMemcpyAsync(target, source, rig->bytes, cudaMemcpyDefault, stream),
                           "cudaMemcpyAsync");
}

static int to_gpu(void *argument)
{
    const pinned_rig *rig = argument;
    return copy_on(rig, TO_GPU, rig->clock.stream);
}

static int to_host(void *argument)
{
    const pinned_rig *rig = argument;
    return copy_on(rig, TO_HOST, rig->clock.stream);
}

/* The second direction begins after the clock's first event and ends before its last. */
static int both(void *argument)
{
    const pinned_rig *rig = argument;
    const cudaStream_t stream = rig->clock.stream;
    return bench_gpu_check(cudaEventRecord(rig->forked, stream), "cudaEventRecord") ||
           bench_gpu_check(cudaStreamWaitEvent(rig->other, rig->forked, 0),
                           "cudaStreamWaitEvent") ||
           copy_on(rig, TO_GPU, stream) || copy_on(rig, TO_HOST, rig->other) ||
           bench_gpu_check(cudaEventRecord(rig->joined, rig->other), "cudaEventRecord") ||
           bench_gpu_check(cudaStreamWaitEvent(stream, rig->joined, 0), "cudaStreamWaitEvent");
}

static double time_to_gpu(void *argument)
{
    const pinned_rig *rig = argument;
    return gpu_clock_time(&rig->clock, to_gpu, argument, 1);
}

static double time_to_host(void *argument)
{
    const pinned_rig *rig = argument;
    return gpu_clock_time(&rig->clock, to_host, argument, 1);
}

static double time_both(void *argument)
{
    const pinned_rig *rig = argument;
    return gpu_clock_time(&rig->clock, both, argument, 1);
}

static int open_pair(pinned_pair *pair, size_t bytes)
{
    void *host = NULL;
    if (posix_memalign(&host, (size_t)sysconf(_SC_PAGESIZE), bytes) != 0) {
        return bench_fail("gpu: no memory left for %zu MiB to copy", bytes >> 20);
    }
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
        ((uint64_t *)host)[i] = (i + 1) * UINT64_C(0x9E3779B97F4A7C15);
    }
    if (bench_gpu_check(cudaHostRegister(host, bytes, cudaHostRegisterPortable),
                        "cudaHostRegister") != 0) {
        free(host);
        return 1;
    }
    pair->host = host;
    return bench_gpu_check(cudaMalloc(&pair->gpu, bytes), "cudaMalloc");
}

static void close_pair(pinned_pair *pair)
{
    if (pair->host != NULL) {
        (void)cudaHostUnregister(pair->host);
    }
    free(pair->host);
    if (pair->gpu != NULL) {
        (void)cudaFree(pair->gpu);
    }
}

static int open_rig(pinned_rig *rig, size_t bytes)
{
    cudaStream_t stream = NULL;
    *rig = (pinned_rig){.bytes = bytes};
    return bench_gpu_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                           "cudaStreamCreateWithFlags") ||
           gpu_clock_open(&rig->clock, stream) ||
           bench_gpu_check(cudaStreamCreateWithFlags(&rig->other, cudaStreamNonBlocking),
                           "cudaStreamCreateWithFlags") ||
           bench_gpu_check(cudaEventCreateWithFlags(&rig->forked, cudaEventDisableTiming),
                           "cudaEventCreateWithFlags") ||
           bench_gpu_check(cudaEventCreateWithFlags(&rig->joined, cudaEventDisableTiming),
                           "cudaEventCreateWithFlags") ||
           open_pair(&rig->pair[TO_GPU], bytes) || open_pair(&rig->pair[TO_HOST], bytes) ||
           /* What goes back was set, and is not zeros. */
           bench_gpu_check(cudaMemcpy(rig->pair[TO_HOST].gpu, rig->pair[TO_HOST].host, bytes,
                                      cudaMemcpyHostToDevice),
                           "cudaMemcpy");
}

static void close_rig(pinned_rig *rig)
{
    const cudaStream_t stream = rig->clock.stream;
    if (stream != NULL) {
        (void)cudaStreamSynchronize(stream);
    }
    if (rig->other != NULL) {
        (void)cudaStreamSynchronize(rig->other);
        (void)cudaStreamDestroy(rig->other);
    }
    if (rig->forked != NULL) {
        (void)cudaEventDestroy(rig->forked);
    }
    if (rig->joined != NULL) {
        (void)cudaEventDestroy(rig->joined);
    }
    gpu_clock_close(&rig->clock);
    if (stream != NULL) {
        (void)cudaStreamDestroy(stream);
    }
    close_pair(&rig->pair[TO_GPU]);
    close_pair(&rig->pair[TO_HOST]);
}

static int measure_copies(const bench_options *options, bench_gpu_facts *facts)
{
    static const size_t sizes[] = {(size_t)1 << 30, (size_t)1 << 28, (size_t)1 << 16};
    pinned_rig rig;
    const bench_side sides[3] = {{time_to_gpu, &rig}, {time_to_host, &rig}, {time_both, &rig}};
    bench_stat stats[3];
    const int failed = open_rig(&rig, sizes[options->scale]) ||
                       bench_interleave(sides, 3, options->repetitions, stats);
    if (!failed) {
        const double gigabytes = (double)rig.bytes * 1e-9;
        facts->to_gpu_gb_per_s = gigabytes / stats[0].median;
        facts->to_host_gb_per_s = gigabytes / stats[1].median;
        facts->both_gb_per_s = 2.0 * gigabytes / stats[2].median;
    }
    close_rig(&rig);
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
    struct cudaDeviceProp properties;
    memset(&properties, 0, sizeof properties);
    if (bench_gpu_check(cudaGetDeviceCount(&count), "cudaGetDeviceCount") != 0 ||
        bench_gpu_check(cudaGetDevice(&ordinal), "cudaGetDevice") != 0 ||
        bench_gpu_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties") !=
            0 ||
        bench_gpu_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion") != 0 ||
        bench_gpu_check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion") != 0) {
        return 1;
    }
    (void)snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    (void)snprintf(facts->compute_capability, sizeof facts->compute_capability, "%d.%d",
                   properties.major, properties.minor);
    version_text(driver, facts->driver);
    version_text(runtime, facts->runtime);
    facts->gpu_count = (uint32_t)count;
    facts->sm_count = (uint32_t)properties.multiProcessorCount;
    facts->l2_bytes = (uint64_t)properties.l2CacheSize;
    facts->memory_bytes = properties.totalGlobalMem;
    return 0;
}

int bench_gpu_machine(const bench_options *options, bench_gpu_facts *facts)
{
    return read_facts(facts) || measure_copies(options, facts);
}
