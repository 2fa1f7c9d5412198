/* Owns `zero bench gpu`: is there one, what it is, and the order of what is measured on it. */
#include "bench_gpu.h"

#include "bench_gpu_clock.h"
#include "bench_target.h"
#include "zero/cuda.h"

/* Fail or skip: a GPU is wanted, and none is there. */
static int refuse(const bench_options *options, bench_report *report, const char *why)
{
    char reason[256];
    (void)snprintf(reason, sizeof reason,
                   "no GPU that CUDA can use (%s); look at nvidia-smi and CUDA_VISIBLE_DEVICES",
                   why);
    return options->named ? bench_fail("gpu: %s", reason) : bench_skip(report, "gpu", NULL, reason);
}

static int wait_for_stream(const bench_target *target)
{
    return GPU_TRY(cudaStreamSynchronize(target->stream.native));
}

static int fetch(const bench_target *target, void *host, const void *data, size_t bytes)
{
    return gpu_fetch(host, data, bytes, target->stream.native);
}

static uint64_t used_bytes(void)
{
    size_t left = 0;
    size_t all = 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? all - left : 0;
}

/* A measurement of engines on a target. */
typedef int (*measure_fn)(const bench_target *target, const bench_options *options,
                          bench_report *report);

/* Measure what the CPU is measured by too. */
static int measure_engines(const bench_options *options, bench_report *report, measure_fn first,
                           measure_fn second)
{
    cudaStream_t stream = NULL;
    if (gpu_stream_open(&stream) != 0) {
        return 1;
    }
    const bench_target target = {
        .device = ZERO_DEVICE_CUDA,
        .stream = zero_stream_cuda(stream),
        .suffix = ", GPU",
        .used = "memory in use",
        .hook_units = 32, /* their calls fit into the queue of a stream */
        .hook_calls = 100000,
        .wait = wait_for_stream,
        .fetch = fetch,
        .used_start = used_bytes,
        .used_most = used_bytes,
    };
    const int first_failed = first(&target, options, report);
    const int second_failed = second != NULL && second(&target, options, report);
    gpu_stream_close(stream);
    return first_failed || second_failed;
}

/* NULL, or why CUDA has no GPU. */
static const char *missing(void)
{
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    return code != cudaSuccess ? cudaGetErrorString(code) : count == 0 ? "none" : NULL;
}

int bench_footprint_gpu(const bench_options *options, bench_report *report)
{
    const char *why = missing();
    return why != NULL ? refuse(options, report, why)
                       : measure_engines(options, report, bench_footprint_at, NULL);
}

int bench_gpu(const bench_options *options, bench_report *report)
{
    const char *why = missing();
    if (why != NULL) {
        return refuse(options, report, why);
    }
    if (bench_gpu_machine(options, report) != 0) {
        return 1;
    }
    const int kernels_failed = bench_gpu_kernels(options, report);
    const int engines_failed =
        measure_engines(options, report, bench_peak_memory_at, bench_hooks_at);
    const int steps_failed = bench_gpu_steps(options, report);
    const int stream_failed = bench_gpu_stream(options, report);
    return kernels_failed || engines_failed || steps_failed || stream_failed;
}
