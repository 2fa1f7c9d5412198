/* Telling a process from a child that it forked: the parent's threads do not exist in the child,
 * and memory and files that both hold are the parent's. */
#ifndef ZI_CORE_FORK_H
#define ZI_CORE_FORK_H

#include <stdint.h>

/* Forks that lie between this process and the one that called zi_fork_watch first, from 1 on. A
 * plain load: cheap enough for every call. Written in a new child alone, before anything runs
 * there. */
extern uint32_t zi_fork_generation;

/* Count forks from now on. Any thread, any number of times. */
void zi_fork_watch(void);

#endif
