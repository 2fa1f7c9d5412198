/* Owns pinned memory and the copies from and to it, both ways on streams of their own. */
#include "bench_gpu_pinned.h"

#include <stdlib.h>
#include <unistd.h>

enum { TO_GPU, TO_HOST };

static int copy_on(const gpu_pinned *rig, int direction, cudaStream_t stream)
{
    const gpu_pinned_pair *pair = &rig->pair[direction];
    void *target = direction == TO_GPU ? pair->gpu : pair->host;
    const void *source = direction == TO_GPU ? pair->host : pair->gpu;
    return bench_gpu_check(cudaMemcpyAsync(target, source, rig->bytes, cudaMemcpyDefault, stream),
                           "cudaMemcpyAsync");
}

static int to_gpu(void *argument)
{
    const gpu_pinned *rig = argument;
    return copy_on(rig, TO_GPU, rig->clock.stream);
}

static int to_host(void *argument)
{
    const gpu_pinned *rig = argument;
    return copy_on(rig, TO_HOST, rig->clock.stream);
}

/* The second direction begins after the clock's first event and ends before its last. */
static int both(void *argument)
{
    const gpu_pinned *rig = argument;
    const cudaStream_t stream = rig->clock.stream;
    return bench_gpu_check(cudaEventRecord(rig->forked, stream), "cudaEventRecord") ||
           bench_gpu_check(cudaStreamWaitEvent(rig->other, rig->forked, 0),
                           "cudaStreamWaitEvent") ||
           copy_on(rig, TO_GPU, stream) || copy_on(rig, TO_HOST, rig->other) ||
           bench_gpu_check(cudaEventRecord(rig->joined, rig->other), "cudaEventRecord") ||
           bench_gpu_check(cudaStreamWaitEvent(stream, rig->joined, 0), "cudaStreamWaitEvent");
}

double gpu_pinned_to_gpu(void *argument)
{
    const gpu_pinned *rig = argument;
    return gpu_clock_time(&rig->clock, to_gpu, argument, 1);
}

double gpu_pinned_to_host(void *argument)
{
    const gpu_pinned *rig = argument;
    return gpu_clock_time(&rig->clock, to_host, argument, 1);
}

double gpu_pinned_both(void *argument)
{
    const gpu_pinned *rig = argument;
    return gpu_clock_time(&rig->clock, both, argument, 1);
}

static int open_pair(gpu_pinned_pair *pair, size_t bytes)
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

static void close_pair(gpu_pinned_pair *pair)
{
    if (pair->host != NULL) {
        (void)cudaHostUnregister(pair->host);
    }
    free(pair->host);
    if (pair->gpu != NULL) {
        (void)cudaFree(pair->gpu);
    }
}

int gpu_pinned_open(gpu_pinned *rig, size_t bytes)
{
    cudaStream_t stream = NULL;
    *rig = (gpu_pinned){.bytes = bytes};
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

void gpu_pinned_close(gpu_pinned *rig)
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
