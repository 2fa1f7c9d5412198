/* The simulated backend of one rank: machine, device, kernels, storage, transport. */
#ifndef ZI_SIM_SIM_BACKEND_H
#define ZI_SIM_SIM_BACKEND_H

#include "engine/backend.h"
#include "sim/sim_device.h"
#include "sim/sim_kernels.h"

typedef struct zi_sim {
    zi_sim_machine machine;
    zi_sim_device device;
    zi_sim_kernels device_kernels;
    zi_sim_kernels host_kernels;
    zi_storage storage;
} zi_sim;

/* cluster: checked. host_memory: as zi_capabilities. */
zero_status zi_sim_create(const zero_cluster *cluster, bool host_memory, zi_sim **out);
/* After its engine. Accepts NULL. */
void zi_sim_destroy(zi_sim *sim);

/* The backend that an engine of the world (zi_sim_world_create) runs on. can: as the options
 * say. */
zi_backend zi_sim_backend(zi_sim *sim, const zi_capabilities *can);

#endif
