/* Owns what a build without NCCL returns for its groups, worlds and memory. */
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_launch.h"
#include "comm/nccl/nccl_memory.h"
#include "core/error.h"

zero_status zi_nccl_base_get(zero_world *world)
{
    (void)world;
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "the engine joins the GPUs of several processes and this build has no NCCL; configure "
            "with -Dnccl=enabled, or set tuning.transport = ZERO_TRANSPORT_HOST to stage through "
            "host memory");
}

static zero_status refuse_memory(void)
{
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "tuning.nccl_memory is ZERO_NCCL_MEMORY_REGISTERED and this build has no NCCL; "
            "configure with -Dnccl=enabled, or leave it at ZERO_NCCL_MEMORY_NONE");
}

/* A group, without which hints mean nothing, is refused. */
zero_status zi_nccl_options_check(const zi_capabilities *asked)
{
    return asked->registered || asked->copy_engines ? refuse_memory() : ZERO_OK;
}

zero_status zi_nccl_memory_alloc(const zi_device *device, size_t bytes, void **out)
{
    (void)device;
    (void)bytes;
    *out = NULL;
    return refuse_memory();
}

void zi_nccl_memory_free(void *pointer)
{
    (void)pointer;
}

zero_status zi_nccl_group_create(zero_world *world, const zi_group_desc *desc, zi_group **out)
{
    (void)desc;
    *out = NULL;
    return zi_nccl_base_get(world);
}

zero_status zi_nccl_can_launch(const zi_launch *launch)
{
    ZI_FAIL(ZERO_ERR_UNSUPPORTED,
            "torchrun's %u ranks are on several hosts (%u here, rank 0 on '%.60s') and this build "
            "has no NCCL; configure with -Dnccl=enabled for ranks with GPUs, or start the ranks "
            "with mpirun",
            launch->size, launch->local_size, launch->address);
}

zero_status zi_nccl_launch(const zi_launch *launch, uint32_t deadline_ms,
                           const zi_control_endpoint *endpoint, zi_comm **out)
{
    (void)deadline_ms;
    (void)endpoint;
    *out = NULL;
    return zi_nccl_can_launch(launch);
}
