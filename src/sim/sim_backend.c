/* Owns the parts of a simulated rank, which the engine borrows. */
#include "sim/sim_backend.h"

#include "core/error.h"
#include "core/memory.h"
#include "sim/sim_comm.h"
#include "sim/sim_storage.h"

zero_status zi_sim_create(const zero_cluster *cluster, bool host_memory, zi_sim **out)
{
    zi_sim *sim = NULL;
    *out = NULL;
    ZI_TRY(zi_calloc(1, sizeof *sim, (void **)&sim));
    zi_sim_machine_open(cluster, host_memory, &sim->machine);
    sim->device_kernels = (zi_sim_kernels){&sim->machine, host_memory};
    sim->host_kernels = (zi_sim_kernels){&sim->machine, true};
    sim->storage = zi_sim_storage(&sim->machine);
    const zero_status status = zi_sim_device_open(&sim->machine, &sim->device);
    if (status != ZERO_OK) {
        zi_sim_destroy(sim);
        return status;
    }
    *out = sim;
    return ZERO_OK;
}

void zi_sim_destroy(zi_sim *sim)
{
    if (sim != NULL) {
        zi_sim_device_close(&sim->device);
        zi_sim_machine_close(&sim->machine);
        zi_free(sim);
    }
}

static zero_status sim_backend_open_device(void *self, zi_device *device)
{
    zi_sim *sim = self;
    *device = sim->device.device;
    return ZERO_OK;
}

static zero_status open_kernels(void *self, const zi_device *device, zi_pool *pool,
                                zi_kernels *kernels)
{
    zi_sim *sim = self;
    (void)pool;
    zi_sim_kernels_open(&sim->device_kernels, device, kernels);
    return ZERO_OK;
}

static zero_status open_host_kernels(void *self, const zi_device *device, zi_pool *pool,
                                     zi_kernels *kernels)
{
    zi_sim *sim = self;
    (void)device;
    (void)pool;
    /* On the host's stream of the simulated device, not of the world's. */
    zi_sim_kernels_open(&sim->host_kernels, &sim->device.device, kernels);
    return ZERO_OK;
}

zi_backend zi_sim_backend(zi_sim *sim, const zi_capabilities *can)
{
    return (zi_backend){.can = *can,
                        .self = sim,
                        .device_create = sim_backend_open_device,
                        .kernels_create = open_kernels,
                        .host_kernels_create = open_host_kernels,
                        .transport = &zi_sim_transport,
                        .mesh_transport = &zi_sim_transport,
                        .storage = &sim->storage};
}
