/* Disks whose accesses take their time and move nothing. */
#ifndef ZI_SIM_SIM_STORAGE_H
#define ZI_SIM_SIM_STORAGE_H

#include "sim/sim_machine.h"
#include "storage/storage.h"

/* Before it is used zi_sim_check_link has found that the disks have rates. */
zi_storage zi_sim_storage(zi_sim_machine *machine);

#endif
