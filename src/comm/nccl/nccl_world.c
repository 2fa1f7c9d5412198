/* Owns the backend "nccl": worlds whose ranks have nothing in common but NCCL. Invariants: the
 * world has failed when its base has, with the same error; a link of all ranks exists from create
 * until the group `control`, which takes it over, is destroyed, and a rank that aborts sends its
 * notice over that link. */
#include <stdio.h>
#include <string.h>

#include "comm/nccl/nccl_base.h"
#include "comm/nccl/nccl_host.h"
#include "comm/nccl/nccl_launch.h"
#include "comm/peer/peer.h"
#include "comm/world.h"
#include "core/check.h"
#include "core/error.h"
#include "core/host.h"
#include "core/memory.h"
#include "device/cuda/cuda_device.h"
#include "zero/nccl.h"

typedef struct nccl_comm {
    zi_comm base;
    zi_peer_space alone; /* for groups of this rank only */
    zi_device device;    /* the GPU that messages pass through */
    zi_kernels kernels;  /* of that GPU */
    zi_group *control;   /* the first group of all ranks; borrowed */
    atomic_uint aborting;
    pthread_mutex_t mutex; /* guards `link` */
    zi_nccl_link *link;    /* of all ranks; `control` has it once that is there */
} nccl_comm;

static zero_status check(zi_comm *base)
{
    return base->parent != NULL ? zi_nccl_check(zi_nccl_base_of(base)) : ZERO_OK;
}

/* The notice goes first: once the base has failed, the watcher aborts everything else. */
static void abort_all(zi_comm *base, const zero_error *error)
{
    nccl_comm *comm = (nccl_comm *)base;
    if (atomic_exchange(&comm->aborting, 1) != 0 || base->parent == NULL) {
        return;
    }
    zero_error reported = {.status = ZERO_COMM, .native = error->native, .line = error->line};
    reported.file = error->file;
    (void)snprintf(reported.message, sizeof reported.message, "rank %u: %.230s", base->rank,
                   error->message);
    (void)pthread_mutex_lock(&comm->mutex);
    if (comm->link != NULL && check(base) == ZERO_OK) {
        zi_nccl_link_notify(comm->link, error);
    }
    (void)pthread_mutex_unlock(&comm->mutex);
    (void)zi_nccl_set_error(zi_nccl_base_of(base), &reported);
}

/* `control` is being destroyed. */
static void close_link(zi_comm *base, zi_nccl_link *link)
{
    nccl_comm *comm = (nccl_comm *)base;
    (void)pthread_mutex_lock(&comm->mutex);
    comm->link = NULL;
    comm->control = NULL;
    (void)pthread_mutex_unlock(&comm->mutex);
    zi_nccl_link_destroy(link);
}

static zero_status make_link(nccl_comm *comm, const uint32_t *members, uint32_t size,
                             const char *name, zi_nccl_link **out)
{
    const zi_nccl_group_desc desc = {
        .comm = &comm->base,
        .control = comm->control,
        .kernels = &comm->kernels,
        .members = members,
        .size = size,
        .deadline_ms = comm->base.deadline_ms,
        .name = name,
        .gathers_only = true,
    };
    return zi_nccl_link_create(&desc, out);
}

static zero_status group_create(zi_comm *base, const zi_kernels *kernels, const uint32_t *members,
                                uint32_t size, const char *name, zi_group **out)
{
    nccl_comm *comm = (nccl_comm *)base;
    const bool on_host = kernels->device->ops->host_memory;
    *out = NULL;
    if (base->size == 1 || (size == 1 && !on_host)) {
        return zi_peer_group_create_alone(base, &comm->alone, kernels, name, out);
    }
    if (!on_host) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "group %s: ranks that have only NCCL in common share no host memory to exchange "
                "through; leave tuning.transport at ZERO_TRANSPORT_DEFAULT",
                name);
    }
    zi_nccl_host_desc desc = {
        .comm = base,
        .link = comm->link,
        .kernels = kernels,
        .members = members,
        .size = size,
        .name = name,
        .close = close_link,
    };
    if (comm->control == NULL) {
        zi_assert_cmp(size, ==, base->size); /* the world's own group comes first */
        ZI_TRY(zi_nccl_host_create(&desc, &comm->control));
        *out = comm->control;
        return ZERO_OK;
    }
    desc.close = NULL;
    ZI_TRY(make_link(comm, members, size, name, &desc.link));
    return zi_nccl_host_create(&desc, out);
}

static zero_status memory_alloc(zi_comm *comm, size_t bytes, void **out)
{
    *out = NULL;
    if (comm->size > 1) {
        ZI_FAIL(ZERO_UNSUPPORTED,
                "a world over NCCL has no host memory that ranks share, which engines on the CPU "
                "need; set options.device = ZERO_DEVICE_CUDA, or make the world with mpirun or "
                "zero_world_create_mpi");
    }
    return zi_pages_alloc(bytes, out);
}

/* The control group is destroyed, or was never made. */
static void destroy(zi_comm *base)
{
    nccl_comm *comm = (nccl_comm *)base;
    zi_nccl_link_destroy(comm->link);
    zi_comm_destroy_parent(base);
    zi_kernels_destroy(&comm->kernels);
    zi_device_destroy(&comm->device);
    (void)pthread_mutex_destroy(&comm->mutex);
    zi_free(comm);
}

static const zi_comm_ops nccl_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "nccl",
    .group_create = group_create,
    .memory_alloc = memory_alloc,
    .memory_free = zi_comm_pages_free,
    .abort = abort_all,
    .destroy = destroy,
    .check = check,
};

/* The first exchange: count the ranks of this host. */
static zero_status count_local(nccl_comm *comm)
{
    const uint64_t mine = zi_host_id();
    memcpy(zi_nccl_link_own(comm->link)->payload, &mine, sizeof mine);
    ZI_TRY(zi_nccl_link_exchange(comm->link));
    for (uint32_t i = 0; i < comm->base.size; i++) {
        uint64_t theirs = 0;
        memcpy(&theirs, zi_nccl_link_message(comm->link, i)->payload, sizeof theirs);
        comm->base.local_size += theirs == mine;
    }
    return ZERO_OK;
}

static zero_status build(nccl_comm *comm, const zi_nccl_place *place)
{
    uint32_t *members = NULL;
    ZI_TRY(zi_cuda_device_create(false, &comm->device));
    ZI_TRY(zi_cuda_kernels_create(&comm->device, &comm->kernels));
    ZI_TRY(zi_nccl_base_make(&comm->base, place->borrowed));
    ZI_TRY(zi_calloc(place->size, sizeof *members, (void **)&members));
    for (uint32_t i = 0; i < place->size; i++) {
        members[i] = i;
    }
    const zero_status status = make_link(comm, members, place->size, "control", &comm->link);
    zi_free(members);
    ZI_TRY(status);
    return count_local(comm);
}

/* A comm on the thread's current GPU, with its base. Collective over the ranks. What fails on one
 * rank alone is a TIMEOUT on the others. */
static zero_status create(const zi_nccl_place *place, uint32_t deadline_ms, zi_comm **out)
{
    *out = NULL;
    nccl_comm *comm = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    comm->base = (zi_comm){
        .ops = &nccl_ops,
        .rank = place->rank,
        .size = place->size,
        .deadline_ms = deadline_ms != 0 ? deadline_ms : ZI_DEADLINE_DEFAULT_MS,
        .submit_waits = true,
    };
    comm->alone = (zi_peer_space){.one_address_space = true, .world_rank = place->rank};
    (void)pthread_mutex_init(&comm->mutex, NULL);
    const zero_status status = build(comm, place);
    if (status != ZERO_OK) {
        const zero_error error = *zero_last_error();
        abort_all(&comm->base, &error);
        destroy(&comm->base);
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
        ZI_FAIL(ZERO_UNSUPPORTED,
                "torchrun's %u ranks are on several hosts, where they need NCCL and a GPU each "
                "(%.120s); or start CPU ranks with mpirun",
                launch->size, error.message);
    }
    return ZERO_OK;
}

zero_status zi_nccl_launch(const zi_launch *launch, uint32_t deadline_ms, const char *address,
                           zi_comm **out)
{
    const zi_nccl_place place = {.rank = launch->rank, .size = launch->size};
    const zero_status status = create(&place, deadline_ms, out);
    if (status == ZERO_TIMEOUT || status == ZERO_COMM) {
        const zero_error error = *zero_last_error();
        ZI_FAIL_NATIVE(status, error.native,
                       "ranks could not meet at NCCL_COMM_ID=%.40s: %.110s; each host needs an "
                       "interface in that subnet (NCCL_SOCKET_IFNAME: for data)",
                       address, error.message);
    }
    return status;
}

zero_status zero_world_create_nccl(ncclComm_t comm, uint32_t deadline_ms, zero_world **world)
{
    ZI_TRY(zi_world_clear(world));
    if (comm == NULL) {
        ZI_FAIL(ZERO_INVALID_ARGUMENT, "comm is NULL; pass a communicator of this rank");
    }
    const uint32_t deadline = deadline_ms != 0 ? deadline_ms : ZI_DEADLINE_DEFAULT_MS;
    zi_nccl_place place;
    zi_comm *made = NULL;
    ZI_TRY(zi_nccl_borrowed_place(comm, deadline, &place));
    ZI_TRY(create(&place, deadline, &made));
    return zi_world_create(made, world);
}
