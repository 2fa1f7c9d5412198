/* Tells a living process from a later one that got the same pid. */
#ifndef ZI_COMM_SHM_PROCESS_H
#define ZI_COMM_SHM_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* When the process started, in the kernel's ticks; 0: it has ended, whether or not its parent has
 * collected it. *stopped: whether a signal or a debugger has stopped it; may be NULL. */
uint64_t zi_process_look(uint64_t pid, bool *stopped);
uint64_t zi_process_start(uint64_t pid);

/* True while the very process that had this start time runs. */
bool zi_process_alive(uint64_t pid, uint64_t start);

/* The process that started the ranks: the nearest one above the caller that was not itself started
 * with `variable` in its environment, so that a wrapper of one rank (timeout, numactl, a script) is
 * passed over. Returns a number that stands for it; 0: unknown. */
uint64_t zi_process_launcher(const char *variable);

#endif
