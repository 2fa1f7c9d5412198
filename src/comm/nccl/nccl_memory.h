/* Memory from NCCL's allocator, registered with the communicators of groups (zi_group_desc.memory),
 * so that GPUs read and write one another's directly. */
#ifndef ZI_COMM_NCCL_NCCL_MEMORY_H
#define ZI_COMM_NCCL_NCCL_MEMORY_H

#include <stddef.h>

#include "core/capabilities.h"
#include "device/device.h"

/* UNSUPPORTED, with the loaded version and the needed one, when the headers of this build or the
 * loaded NCCL cannot do what the options ask for. OK where they ask for nothing. */
zero_status zi_nccl_options_check(const zi_capabilities *asked);

/* Zeroed memory of the calling thread's current GPU, which is `device`'s, from ncclMemAlloc. NCCL
 * rounds bytes up. OUT_OF_MEMORY, DEVICE, or as zi_nccl_options_check. */
zero_status zi_nccl_memory_alloc(const zi_device *device, size_t bytes, void **out);

/* Called after the groups that have registered it are destroyed. Accepts NULL. */
void zi_nccl_memory_free(void *pointer);

#endif
