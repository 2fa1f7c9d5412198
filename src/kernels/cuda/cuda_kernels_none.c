/* Owns what a build without CUDA returns in place of the kernels. */
#include "core/error.h"
#include "kernels/kernels.h"

zero_status zi_cuda_kernels_create(const zi_device *device, zi_kernels *kernels)
{
    (void)device;
    *kernels = (zi_kernels){0};
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "this build has no CUDA; install the CUDA toolkit and configure with "
            "-Dcuda=enabled, or use ZERO_DEVICE_CPU");
}
