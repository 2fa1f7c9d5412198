/* Stands where the CUDA device would in a build without CUDA. */
#include "core/error.h"
#include "device/device.h"

zero_status zi_cuda_device_create(zi_device *device)
{
    *device = (zi_device){0};
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "this build has no CUDA; install the CUDA toolkit and configure with "
            "-Dcuda=enabled, or use ZERO_DEVICE_CPU");
}
