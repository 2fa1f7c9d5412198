/* Owns what calibration asks of CUDA itself: how many GPUs there are, and their memory. */
#include "bench_calibrate.h"
#include "bench_gpu_clock.h"

uint32_t calibrate_gpu_count(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? (uint32_t)count : 0;
}

int calibrate_gpu_use(uint32_t gpu)
{
    return GPU_TRY(cudaSetDevice((int)gpu));
}

int calibrate_gpu_memory(double *bytes, double *taken)
{
    size_t left = 0;
    size_t all = 0;
    const int failed = GPU_TRY(cudaSetDevice(0)) || GPU_TRY(cudaFree(NULL)) ||
                       GPU_TRY(cudaMemGetInfo(&left, &all));
    *bytes = (double)all;
    *taken = (double)(all - left);
    return failed;
}
