/* Owns the backend "nccl": worlds whose ranks share no host memory and no MPI. What they exchange
 * on the host goes over the control plane; device memory over NCCL. Invariant: the world has failed
 * when its control plane or its base has, with the same error. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/control_group.h"
#include "comm/nccl/nccl_base.h"
#include "comm/nccl/nccl_launch.h"
#include "comm/peer/peer.h"
#include "comm/world.h"
#include "core/error.h"
#include "core/failure.h"
#include "core/host.h"
#include "core/memory.h"
#include "core/sizes.h"
#include "device/cuda/cuda_device.h"
#include "zero/nccl.h"

/* How long a rank tries to reach rank 0, which serves already. */
#define REACH_MS 30000

typedef struct nccl_comm {
    zi_comm base;
    zi_peer_space alone;         /* for groups of this rank only */
    zi_control *_Atomic control; /* NULL: one rank, or not joined yet: the watcher asks meanwhile */
} nccl_comm;

static zero_status nccl_world_check(zi_comm *base)
{
    const nccl_comm *comm = (nccl_comm *)base;
    if (comm->control != NULL) {
        ZI_TRY(zi_control_check(comm->control));
    }
    return base->parent != NULL ? zi_nccl_check(zi_nccl_base_of(base)) : ZERO_OK;
}

/* The watcher of NCCL's groups asks `check`, and aborts them. */
static void nccl_world_abort_all(zi_comm *base, const zero_error *error)
{
    const nccl_comm *comm = (nccl_comm *)base;
    if (comm->control != NULL) {
        zi_control_abort(comm->control, error);
    } else if (base->parent != NULL) {
        zero_error reported = *error;
        reported.status = zi_abort_status(error->status);
        (void)zi_nccl_set_error(zi_nccl_base_of(base), &reported);
    }
}

static zero_status nccl_world_group_create(zi_comm *base, const zi_kernels *kernels,
                                           const uint32_t *members, uint32_t size, const char *name,
                                           zi_group **out)
{
    nccl_comm *comm = (nccl_comm *)base;
    bool all = kernels->device->ops->host_memory && size == base->size;
    *out = NULL;
    if (size == 1 && (base->size == 1 || !kernels->device->ops->host_memory)) {
        return zi_peer_group_create_alone(base, &comm->alone, kernels, name, out);
    }
    for (uint32_t i = 0; i < size && all; i++) {
        all = members[i] == i;
    }
    if (!all) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "group %s: ranks that have only NCCL in common share no host memory to exchange "
                "through; leave tuning.transport at ZERO_TRANSPORT_DEFAULT",
                name);
    }
    return zi_control_group_create(base, comm->control, kernels, name, out);
}

static zero_status nccl_world_memory_alloc(zi_comm *comm, size_t bytes, void **out)
{
    *out = NULL;
    if (comm->size > 1) {
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "a world over NCCL has no host memory that ranks share, which engines on the CPU "
                "need; set options.device = ZERO_DEVICE_CUDA, or make the world with mpirun or "
                "zero_world_create_mpi");
    }
    return zi_pages_alloc(bytes, out);
}

/* NCCL's communicators go first, while the others still hear of this rank. */
static void nccl_world_destroy(zi_comm *base)
{
    zi_comm_destroy_parent(base);
    zi_control_leave(((nccl_comm *)base)->control);
    zi_silence_destroy(base->silence);
    zi_free(base);
}

static const zi_comm_ops nccl_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "nccl",
    .group_create = nccl_world_group_create,
    .memory_alloc = nccl_world_memory_alloc,
    .memory_free = zi_comm_pages_free,
    .abort = nccl_world_abort_all,
    .destroy = nccl_world_destroy,
    .check = nccl_world_check,
};

static zero_status nccl_world_make_comm(uint32_t rank, uint32_t size, uint32_t deadline_ms,
                                        nccl_comm **out)
{
    nccl_comm *comm = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    comm->base = (zi_comm){
        .ops = &nccl_ops,
        .rank = rank,
        .size = size,
        .local_size = 1,
        .deadline_ms = deadline_ms,
        .submit_waits = true,
    };
    const zero_status status = zi_silence_create(size, &comm->base.silence);
    if (status != ZERO_OK) {
        zi_free(comm);
        return status;
    }
    comm->alone = (zi_peer_space){.one_address_space = true, .world_rank = rank};
    *out = comm;
    return ZERO_OK;
}

/* Join the control plane, and count the ranks of this host. served: rank 0's, which this owns. */
static zero_status nccl_world_join(nccl_comm *comm, const zi_control_endpoint *endpoint,
                                   zi_control *served, uint32_t join_ms)
{
    const zi_control_desc desc = {
        .endpoint = endpoint,
        .rank = comm->base.rank,
        .size = comm->base.size,
        .deadline_ms = comm->base.deadline_ms,
        .join_ms = join_ms,
        .served = served,
        .silence = comm->base.silence,
    };
    const uint64_t mine = zi_host_id();
    zi_control *control = NULL;
    ZI_TRY(zi_control_join(&desc, &control));
    comm->control = control;
    ZI_TRY(zi_control_gather(control, &mine, sizeof mine, "the meeting of the ranks"));
    comm->base.local_size = 0;
    for (uint32_t i = 0; i < comm->base.size; i++) {
        comm->base.local_size += memcmp(zi_control_record(control, i), &mine, sizeof mine) == 0;
    }
    return ZERO_OK;
}

/* Hand the comm out, or abort and destroy it where `status` is a failure. */
static zero_status nccl_world_keep_comm(nccl_comm *comm, zero_status status, zi_comm **out)
{
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        nccl_world_abort_all(&comm->base, &error);
        nccl_world_destroy(&comm->base);
        return zi_error_adopt(&error);
    }
    *out = &comm->base;
    return ZERO_OK;
}

zero_status zi_nccl_can_launch(const zi_launch *launch)
{
    const zi_nccl_api *api = NULL;
    int version = 0;
    int ordinal = 0;
    zero_status status = zi_nccl_api_get(&api, &version);
    if (status == ZERO_OK) {
        status = zi_cuda_check(cudaGetDevice(&ordinal), "cudaGetDevice");
    }
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        ZI_FAIL(ZERO_ERR_UNSUPPORTED,
                "torchrun's %u ranks are on several hosts, where they need NCCL and a GPU each "
                "(%.120s); or start CPU ranks with mpirun",
                launch->size, error.message);
    }
    return ZERO_OK;
}

zero_status zi_nccl_launch(const zi_launch *launch, uint32_t deadline_ms,
                           const zi_control_endpoint *endpoint, zi_comm **out)
{
    nccl_comm *comm = NULL;
    zi_control *served = NULL;
    zi_control_endpoint own = *endpoint;
    *out = NULL;
    ZI_TRY(nccl_world_make_comm(launch->rank, launch->size, deadline_ms, &comm));
    zero_status status = ZERO_OK;
    if (launch->rank == 0) {
        status = zi_control_serve(&own, launch->size, deadline_ms, &served);
    }
    if (status == ZERO_OK) {
        status = nccl_world_join(comm, &own, served, deadline_ms);
    }
    return nccl_world_keep_comm(comm, status, out);
}

/* Make the base of the caller's communicator, and learn over it where rank 0 serves. */
static zero_status build_on(nccl_comm *comm, ncclComm_t borrowed)
{
    zi_control *served = NULL;
    struct {
        zi_control_endpoint endpoint;
        zi_failure told;
    } said = {.told.status = ZERO_OK};
    ZI_TRY(zi_nccl_base_make(&comm->base, borrowed));
    if (comm->base.size == 1) {
        return ZERO_OK;
    }
    zero_status status = ZERO_OK;
    if (comm->base.rank == 0) {
        status = zi_control_serve(&said.endpoint, comm->base.size, comm->base.deadline_ms, &served);
    }
    const zero_error error = *zero_last_error();
    said.told = zi_failure_tell(status);
    const zero_status shared = zi_nccl_base_share(zi_nccl_base_of(&comm->base), &said, sizeof said);
    if (status != ZERO_OK) {
        return zi_error_adopt(&error);
    }
    if (shared != ZERO_OK || said.told.status != ZERO_OK) {
        zi_control_leave(served);
        ZI_TRY(shared);
        return zi_failure_hear(&said.told, "", 0);
    }
    return nccl_world_join(comm, &said.endpoint, served,
                           (uint32_t)zi_min_u64(comm->base.deadline_ms, REACH_MS));
}

zero_status zero_world_create_nccl(ncclComm_t comm, uint32_t deadline_ms, zero_world **world)
{
    ZI_TRY(zi_world_clear(world));
    if (comm == NULL) {
        ZI_FAIL(ZERO_ERR_INVALID_ARGUMENT, "comm is NULL; pass a communicator of this rank");
    }
    const uint32_t deadline = deadline_ms != 0 ? deadline_ms : ZI_DEADLINE_DEFAULT_MS;
    int rank = 0;
    int size = 0;
    nccl_comm *made = NULL;
    zi_comm *kept = NULL;
    ZI_TRY(zi_nccl_borrowed_rank(comm, deadline, &rank, &size));
    ZI_TRY(nccl_world_make_comm((uint32_t)rank, (uint32_t)size, deadline, &made));
    ZI_TRY(nccl_world_keep_comm(made, build_on(made, comm), &kept));
    return zi_world_create(kept, world);
}
