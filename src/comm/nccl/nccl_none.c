/* Stands where groups over NCCL, and memory from it, would in a build without it. */
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_memory.h"
#include "core/error.h"

zero_status zi_nccl_memory_check(zero_nccl_memory kind, bool zero_cta)
{
    if (kind == ZERO_NCCL_MEMORY_NONE && !zero_cta) {
        return ZERO_OK;
    }
    ZI_FAIL(ZERO_UNSUPPORTED,
            "options.nccl_memory is %d and this build has no NCCL; configure with -Dnccl=enabled, "
            "or leave it at ZERO_NCCL_MEMORY_NONE",
            (int)kind);
}

zero_status zi_nccl_memory_alloc(const zi_device *device, size_t bytes, void **out)
{
    (void)device;
    (void)bytes;
    *out = NULL;
    return zi_nccl_memory_check(ZERO_NCCL_MEMORY_REGISTERED, false);
}

void zi_nccl_memory_free(void *pointer)
{
    (void)pointer;
}

zero_status zi_nccl_group_create(const zi_nccl_group_desc *desc, zi_group **out)
{
    *out = NULL;
    ZI_FAIL(ZERO_UNSUPPORTED,
            "group '%.23s' joins the GPUs of several processes and this build has no NCCL; "
            "configure with -Dnccl=enabled, or set options.transport = ZERO_TRANSPORT_HOST to "
            "stage through host memory",
            desc->name);
}
