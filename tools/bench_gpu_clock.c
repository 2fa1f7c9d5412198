/* Owns timing on the GPU. Invariant: between the two events nothing but the work timed is on the
 * stream, and the host waits for nothing. */
#include "bench_gpu_clock.h"

#include <string.h>

int bench_gpu_check(cudaError_t code, const char *call)
{
    if (code == cudaSuccess) {
        return 0;
    }
    return bench_fail("gpu: %.*s: %s (%s)", (int)strcspn(call, "("), call, cudaGetErrorString(code),
                      cudaGetErrorName(code));
}

int gpu_stream_open(cudaStream_t *stream)
{
    return GPU_TRY(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
}

void gpu_stream_close(cudaStream_t stream)
{
    if (stream != NULL) {
        (void)cudaStreamSynchronize(stream);
        (void)cudaStreamDestroy(stream);
    }
}

int gpu_upload(void *data, const void *host, size_t bytes, cudaStream_t stream)
{
    return GPU_TRY(cudaMemcpyAsync(data, host, bytes, cudaMemcpyHostToDevice, stream)) ||
           GPU_TRY(cudaStreamSynchronize(stream));
}

int gpu_fetch(void *host, const void *data, size_t bytes, cudaStream_t stream)
{
    return GPU_TRY(cudaMemcpyAsync(host, data, bytes, cudaMemcpyDeviceToHost, stream)) ||
           GPU_TRY(cudaStreamSynchronize(stream));
}

int gpu_copy_inside(void *data, const void *source, size_t bytes, cudaStream_t stream)
{
    return GPU_TRY(cudaMemcpyAsync(data, source, bytes, cudaMemcpyDeviceToDevice, stream));
}

int gpu_clock_open(gpu_clock *clock, cudaStream_t stream)
{
    *clock = (gpu_clock){.stream = stream};
    return GPU_TRY(cudaEventCreateWithFlags(&clock->begin, cudaEventDefault)) ||
           GPU_TRY(cudaEventCreateWithFlags(&clock->end, cudaEventDefault));
}

void gpu_clock_close(gpu_clock *clock)
{
    if (clock->begin != NULL) {
        (void)cudaEventDestroy(clock->begin);
    }
    if (clock->end != NULL) {
        (void)cudaEventDestroy(clock->end);
    }
    *clock = (gpu_clock){0};
}

double gpu_timed_side(void *argument)
{
    const gpu_timed *timed = argument;
    const gpu_clock *clock = timed->clock;
    float milliseconds = 0.0f;
    int failed = GPU_TRY(cudaEventRecord(clock->begin, clock->stream));
    for (uint32_t i = 0; i < timed->times && !failed; i++) {
        failed = timed->work(timed->argument);
    }
    failed = failed || GPU_TRY(cudaEventRecord(clock->end, clock->stream)) ||
             GPU_TRY(cudaEventSynchronize(clock->end)) ||
             GPU_TRY(cudaEventElapsedTime(&milliseconds, clock->begin, clock->end));
    return failed ? -1.0 : (double)milliseconds * 1e-3 / timed->times;
}
