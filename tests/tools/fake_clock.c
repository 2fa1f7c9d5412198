/* What `zero bench gpu` asks the CUDA runtime beyond what the library does, for the fake. All
 * events are a millisecond apart: the figures say nothing, but every case runs and is checked. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

/* Of every pair of events: times must only be positive. */
#define FAKE_MILLISECONDS 1.0f
#define FAKE_MEMORY ((size_t)1 << 36)

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    *ms = FAKE_MILLISECONDS;
    const cudaError_t code = cudaEventQuery(start);
    return code == cudaSuccess ? cudaEventQuery(end) : code;
}

/* The fake's own requests would be counted for the library's. */
uint64_t bench_allocations(void)
{
    return 0;
}

/* Every look finds less. */
cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    static atomic_size_t looks;
    *total = FAKE_MEMORY;
    *available = FAKE_MEMORY - (atomic_fetch_add(&looks, 1) << 20) % FAKE_MEMORY;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *driverVersion)
{
    *driverVersion = 13000;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    *runtimeVersion = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    (void)device;
    memset(prop, 0, sizeof *prop);
    (void)snprintf(prop->name, sizeof prop->name, "none, \"faked\"");
    prop->major = 9;
    prop->multiProcessorCount = 2;
    prop->l2CacheSize = 1 << 20;
    prop->totalGlobalMem = FAKE_MEMORY;
    return cudaSuccess;
}
