/* On which node of a machine with several memories pages lie. Binding makes transfers shorter and
 * never changes a result, so what cannot be bound is no error. */
#ifndef ZI_CORE_NUMA_H
#define ZI_CORE_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Nodes of this machine that have memory; 1 where the kernel does not say. */
uint32_t zi_numa_nodes(void);

/* Let the pages of [pointer, pointer + bytes) that are touched first from here on lie on `node`
 * while it has room, then on the nearest that has: whole pages that are not in use yet. node < 0:
 * none is known and nothing is done. Returns whether they are bound; the first time that they are
 * not, in a build with -Dnuma=disabled or where the kernel refuses, the log says so. Any thread. */
bool zi_numa_bind(void *pointer, size_t bytes, int node);

#endif
