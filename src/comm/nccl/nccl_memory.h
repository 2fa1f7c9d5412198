/* Memory that NCCL knows: from its allocator, registered with the communicators of groups
 * (zi_group_desc.memory), so that GPUs read and write it directly. */
#ifndef ZI_COMM_NCCL_NCCL_MEMORY_H
#define ZI_COMM_NCCL_NCCL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"
#include "zero/options.h"

/* UNSUPPORTED, with the version that is there and the one that is needed, when the headers of this
 * build or the NCCL that is loaded cannot do what the options ask for. OK for nothing asked. */
zero_status zi_nccl_memory_check(zero_nccl_memory kind, bool zero_cta);

/* Zeroed memory of the calling thread's current GPU, which is `device`'s, from ncclMemAlloc. NCCL
 * rounds bytes up. OUT_OF_MEMORY, DEVICE, or as zi_nccl_memory_check. */
zero_status zi_nccl_memory_alloc(const zi_device *device, size_t bytes, void **out);

/* After all groups that have registered it. Accepts NULL. */
void zi_nccl_memory_free(void *pointer);

#endif
