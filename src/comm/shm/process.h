/* Telling a living process from one whose number was given to another. */
#ifndef ZI_COMM_SHM_PROCESS_H
#define ZI_COMM_SHM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* When the process started, in the kernel's ticks; 0: it is gone, or has ended and only waits to be
 * collected. */
uint64_t zi_process_start(uint64_t pid);

/* True while the very process that had this start time runs. */
bool zi_process_alive(uint64_t pid, uint64_t start);

#endif
