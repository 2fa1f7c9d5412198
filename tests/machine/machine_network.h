/* The fate of connections of the machine's threads (machine.h). Connected sockets of the internet
 * are this process's own; what a thread sends arrives at once. */
#ifndef TESTS_MACHINE_MACHINE_NETWORK_H
#define TESTS_MACHINE_MACHINE_NETWORK_H

#include <stdint.h>

/* Counts sends from now on, and breaks a connection at the nth: a part of the bytes arrives, or
 * none, and then both ends find it closed, as when the process at one end dies. 0: none breaks. */
void machine_network_break(uint64_t nth);
uint64_t machine_network_sends(void);
/* When it broke; 0: not yet. */
uint64_t machine_network_broken_ns(void);

#endif
