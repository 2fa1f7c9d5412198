/* The calls of `zero bench gpu` to the CUDA runtime beyond those of the library, for the fake. The
 * fake's times are those of its threads: the figures say nothing, but every case runs and is
 * checked. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define FAKE_MEMORY ((size_t)1 << 36)

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
