/* Owns the transport "NCCL": how an engine's groups over NCCL are made. Groups of one rank do not
 * use NCCL. Built with and without NCCL: without it, what needs NCCL returns UNSUPPORTED. */
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_memory.h"
#include "core/error.h"

static zero_status nccl_transport_group_create(zero_world *world, const zi_group_desc *desc,
                                               zi_group **out)
{
    if (desc->size == 1) {
        return zi_world_transport.group_create(world, desc, out);
    }
    *out = NULL;
    ZI_TRY(zi_nccl_base_get(world));
    return zi_nccl_group_create(world, desc, out);
}

const zi_transport zi_nccl_transport = {
    .struct_bytes = sizeof(zi_transport),
    .name = "NCCL",
    .unregistered = "tuning.nccl_memory at ZERO_NCCL_MEMORY_NONE",
    .check = zi_nccl_options_check,
    .memory_alloc = zi_nccl_memory_alloc,
    .memory_free = zi_nccl_memory_free,
    .group_create = nccl_transport_group_create,
};
