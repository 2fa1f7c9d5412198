/* Ranks that all do what the simulated one does. */
#ifndef ZI_SIM_SIM_COMM_H
#define ZI_SIM_SIM_COMM_H

#include "comm/comm.h"
#include "sim/sim_machine.h"

/* Rank 0 of the machine's world. */
zero_status zi_sim_world_create(zi_sim_machine *machine, zero_world **out);

extern const zi_transport zi_sim_transport;

#endif
