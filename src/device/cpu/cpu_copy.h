/* Copying what is too long for the caches. */
#ifndef ZI_DEVICE_CPU_CPU_COPY_H
#define ZI_DEVICE_CPU_CPU_COPY_H

#include <stddef.h>

/* As memcpy. From ZI_CPU_COPY_FAR on the target goes past the caches: its lines need not be read
 * before they are overwritten, a third of the traffic. */
#define ZI_CPU_COPY_FAR ((size_t)2 << 20)
void zi_cpu_copy(void *target, const void *source, size_t bytes);

#endif
