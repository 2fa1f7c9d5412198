/* Copying what is too long for the caches. */
#ifndef ZI_COMM_PEER_PEER_COPY_H
#define ZI_COMM_PEER_PEER_COPY_H

#include <stddef.h>

/* As memcpy. From ZI_PEER_COPY_FAR on the target goes past the caches: its lines need not be read
 * before they are overwritten, a third of the traffic. */
#define ZI_PEER_COPY_FAR ((size_t)2 << 20)
void zi_peer_copy(void *target, const void *source, size_t bytes);

#endif
