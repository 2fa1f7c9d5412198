/* Copies that are too long for the caches. */
#ifndef ZI_DEVICE_CPU_CPU_COPY_H
#define ZI_DEVICE_CPU_CPU_COPY_H

#include <stddef.h>

/* As memcpy. From ZI_CPU_COPY_NON_TEMPORAL bytes on the target is written by non-temporal stores:
 * its cache lines are not read before they are overwritten, which saves a third of the traffic. */
#define ZI_CPU_COPY_NON_TEMPORAL ((size_t)2 << 20)
void zi_cpu_copy(void *target, const void *source, size_t bytes);

#endif
