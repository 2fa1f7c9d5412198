/* Owns the mapping from the options' names to functions: the one file of this folder that knows the
 * names. The capabilities of these backends are in layout/capabilities.c. */
#include "engine/backend.h"

#include "core/error.h"

static zero_status create_cpu_kernels(void *self, const zi_device *device, zi_pool *pool,
                                      zi_kernels *kernels)
{
    (void)self;
    return zi_cpu_kernels_create(device, pool, kernels);
}

static zero_status create_cuda_device(void *self, zi_device *device)
{
    (void)self;
    return zi_cuda_device_create(device);
}

static zero_status create_cuda_kernels(void *self, const zi_device *device, zi_pool *pool,
                                       zi_kernels *kernels)
{
    (void)self;
    (void)pool;
    return zi_cuda_kernels_create(device, kernels);
}

zero_status zi_backend_choose(const zero_world *world, const zero_world *mesh,
                              const zi_layout *layout, const zero_engine_options *options,
                              zi_backend *out)
{
    const bool cuda = layout->options.device == ZERO_DEVICE_CUDA;
    zero_engine_options given;
    zero_tuning tuning;
    *out = (zi_backend){.can = layout->can,
                        .device_create = cuda ? create_cuda_device : NULL,
                        .kernels_create = cuda ? create_cuda_kernels : create_cpu_kernels,
                        .host_kernels_create = create_cpu_kernels,
                        .transport = &zi_world_transport,
                        .mesh_transport = &zi_world_transport};
    if (!cuda) {
        return ZERO_OK;
    }
    ZI_TRY(zi_options_take(options, &given, &tuning));
    ZI_TRY(zi_transport_choose(world, tuning.transport, &out->transport));
    return mesh != NULL ? zi_transport_choose(mesh, tuning.transport, &out->mesh_transport)
                        : ZERO_OK;
}
