/* Kernels that take the time of the bytes they read and write. */
#ifndef ZI_SIM_SIM_KERNELS_H
#define ZI_SIM_SIM_KERNELS_H

#include "kernels/kernels.h"
#include "sim/sim_machine.h"

typedef struct zi_sim_kernels {
    zi_sim_machine *machine;
    bool on_host; /* the host runs them, not the GPU */
} zi_sim_kernels;

/* kernels, device: borrowed. */
void zi_sim_kernels_open(zi_sim_kernels *kernels, const zi_device *device, zi_kernels *out);

#endif
