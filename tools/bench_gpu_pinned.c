/* Owns pinned memory and the copies from and to it, both ways on streams of their own. */
#include "bench_gpu_pinned.h"

#include <stdlib.h>
#include <unistd.h>

static int copy_to_gpu(void *argument)
{
    const gpu_pinned *rig = argument;
    const gpu_pinned_pair *pair = &rig->pair[GPU_PINNED_TO_GPU];
    return GPU_TRY(
        cudaMemcpyAsync(pair->gpu, pair->host, rig->bytes, cudaMemcpyHostToDevice, rig->stream));
}

static int copy_to_host_on(const gpu_pinned *rig, cudaStream_t stream)
{
    const gpu_pinned_pair *pair = &rig->pair[GPU_PINNED_TO_HOST];
    return GPU_TRY(
        cudaMemcpyAsync(pair->host, pair->gpu, rig->bytes, cudaMemcpyDeviceToHost, stream));
}

static int copy_to_host(void *argument)
{
    const gpu_pinned *rig = argument;
    return copy_to_host_on(rig, rig->stream);
}

/* The second direction begins after the clock's first event and ends before its last. */
static int copy_both(void *argument)
{
    const gpu_pinned *rig = argument;
    return GPU_TRY(cudaEventRecord(rig->forked, rig->stream)) ||
           GPU_TRY(cudaStreamWaitEvent(rig->other, rig->forked, 0)) || copy_to_gpu(argument) ||
           copy_to_host_on(rig, rig->other) || GPU_TRY(cudaEventRecord(rig->joined, rig->other)) ||
           GPU_TRY(cudaStreamWaitEvent(rig->stream, rig->joined, 0));
}

bench_side gpu_pinned_side(gpu_pinned *rig, gpu_pinned_way way)
{
    static const gpu_work works[GPU_PINNED_WAYS] = {copy_to_gpu, copy_to_host, copy_both};
    rig->timed[way] = (gpu_timed){&rig->clock, works[way], rig, 1};
    return (bench_side){gpu_timed_side, &rig->timed[way]};
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
    if (GPU_TRY(cudaHostRegister(host, bytes, cudaHostRegisterPortable)) != 0) {
        free(host);
        return 1;
    }
    pair->host = host;
    return GPU_TRY(cudaMalloc(&pair->gpu, bytes));
}

static void close_pair(gpu_pinned_pair *pair)
{
    if (pair->host != NULL) {
        (void)cudaHostUnregister(pair->host);
    }
    free(pair->host);
    (void)cudaFree(pair->gpu);
}

int gpu_pinned_open(gpu_pinned *rig, size_t bytes)
{
    *rig = (gpu_pinned){.bytes = bytes};
    gpu_pinned_pair *to_host = &rig->pair[GPU_PINNED_TO_HOST];
    return gpu_stream_open(&rig->stream) || gpu_clock_open(&rig->clock, rig->stream) ||
           gpu_stream_open(&rig->other) ||
           GPU_TRY(cudaEventCreateWithFlags(&rig->forked, cudaEventDisableTiming)) ||
           GPU_TRY(cudaEventCreateWithFlags(&rig->joined, cudaEventDisableTiming)) ||
           open_pair(&rig->pair[GPU_PINNED_TO_GPU], bytes) || open_pair(to_host, bytes) ||
           /* The bytes that go back were set, and are not zeros. */
           gpu_upload(to_host->gpu, to_host->host, bytes, rig->stream);
}

void gpu_pinned_close(gpu_pinned *rig)
{
    gpu_stream_close(rig->stream);
    gpu_stream_close(rig->other);
    if (rig->forked != NULL) {
        (void)cudaEventDestroy(rig->forked);
    }
    if (rig->joined != NULL) {
        (void)cudaEventDestroy(rig->joined);
    }
    gpu_clock_close(&rig->clock);
    close_pair(&rig->pair[GPU_PINNED_TO_GPU]);
    close_pair(&rig->pair[GPU_PINNED_TO_HOST]);
}
