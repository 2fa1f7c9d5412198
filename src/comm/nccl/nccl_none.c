/* Stands where groups over NCCL would in a build without it. */
#include "comm/nccl/nccl_group.h"
#include "core/error.h"

zero_status zi_nccl_group_create(const zi_nccl_group_desc *desc, zi_group **out)
{
    *out = NULL;
    ZI_FAIL(ZERO_UNSUPPORTED,
            "group '%.23s' joins the GPUs of several processes and this build has no NCCL; "
            "configure with -Dnccl=enabled, or set options.transport = ZERO_TRANSPORT_HOST to "
            "stage through host memory",
            desc->name);
}
