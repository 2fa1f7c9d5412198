/* Owns timing on the GPU. Invariant: between the two events nothing but the work timed is on the
 * stream, and the host waits for nothing. */
#include "bench_gpu_clock.h"

int bench_gpu_check(cudaError_t code, const char *call)
{
    if (code == cudaSuccess) {
        return 0;
    }
    return bench_fail("gpu: %s: %s (%s)", call, cudaGetErrorString(code), cudaGetErrorName(code));
}

int gpu_clock_open(gpu_clock *clock, cudaStream_t stream)
{
    *clock = (gpu_clock){.stream = stream};
    return bench_gpu_check(cudaEventCreateWithFlags(&clock->begin, cudaEventDefault),
                           "cudaEventCreateWithFlags") ||
           bench_gpu_check(cudaEventCreateWithFlags(&clock->end, cudaEventDefault),
                           "cudaEventCreateWithFlags");
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

double gpu_clock_time(const gpu_clock *clock, gpu_work work, void *argument, uint32_t times)
{
    float milliseconds = 0.0f;
    int failed = bench_gpu_check(cudaEventRecord(clock->begin, clock->stream), "cudaEventRecord");
    for (uint32_t i = 0; i < times && !failed; i++) {
        failed = work(argument);
    }
    failed = failed ||
             bench_gpu_check(cudaEventRecord(clock->end, clock->stream), "cudaEventRecord") ||
             bench_gpu_check(cudaEventSynchronize(clock->end), "cudaEventSynchronize") ||
             bench_gpu_check(cudaEventElapsedTime(&milliseconds, clock->begin, clock->end),
                             "cudaEventElapsedTime");
    return failed ? -1.0 : (double)milliseconds * 1e-3 / times;
}

static int copy_once(void *argument)
{
    const gpu_copy *copy = argument;
    return bench_gpu_check(cudaMemcpyAsync(copy->target, copy->source, copy->bytes,
                                           cudaMemcpyDeviceToDevice, copy->clock->stream),
                           "cudaMemcpyAsync");
}

double gpu_copy_side(void *argument)
{
    const gpu_copy *copy = argument;
    return gpu_clock_time(copy->clock, copy_once, argument, copy->times);
}
