/* Owns one in-process rank's comm. All memory of the process is readable by its ranks, so windows
 * need no registration; what is collective is only the agreement that every rank got its part. */
#include "comm/local/local_hub.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

typedef struct local_comm {
    zi_comm base;
    zi_local_hub *hub;
    zi_peer_space space;
} local_comm;

static void block_free(void *owner, zi_peer_block *shared)
{
    zi_local_block *block = owner;
    zi_assert(zi_local_block_shared(block) == shared);
    zi_local_block_leave(block);
}

static zero_status group_create(zi_comm *base, const zi_kernels *kernels, const uint32_t *members,
                                uint32_t size, const char *name, zi_group **out)
{
    local_comm *comm = (local_comm *)base;
    zi_peer_group_desc desc = {
        .kernels = kernels,
        .space = &comm->space,
        .members = members,
        .size = size,
        .deadline_ms = base->deadline_ms,
        .crowded = &base->crowded,
        .name = name,
    };
    *out = NULL;
    zi_local_block *block = NULL;
    if (size > 1) {
        ZI_TRY(zi_local_block_join(comm->hub, base->rank, members, size, &block));
        desc.block = zi_local_block_shared(block);
        desc.block_free = block_free;
        desc.owner = block;
    }
    const zero_status status = zi_peer_group_create(&desc, out);
    if (status != ZERO_OK && block != NULL) {
        zi_peer_block_abort(desc.block, base->rank, zero_last_error());
        zi_local_block_leave(block);
    }
    return status;
}

static zero_status memory_alloc(zi_comm *base, size_t bytes, void **out)
{
    const local_comm *comm = (local_comm *)base;
    const zero_status mine = zi_pages_alloc(bytes, out);
    const zero_status agreed = zi_local_hub_agree(comm->hub, base->rank, bytes, mine);
    if (agreed != ZERO_OK) {
        zi_pages_free(*out, bytes);
        *out = NULL;
    }
    return agreed;
}

static void memory_free(zi_comm *comm, void *pointer, size_t bytes)
{
    (void)comm;
    zi_pages_free(pointer, bytes);
}

static void abort_all(zi_comm *base, const zero_error *error)
{
    const local_comm *comm = (local_comm *)base;
    zi_local_hub_abort(comm->hub, base->rank, error);
}

static zero_status check(zi_comm *base)
{
    zero_error error;
    if (!zi_local_hub_error(((local_comm *)base)->hub, &error)) {
        return ZERO_OK;
    }
    error.status =
        zi_abort_status(error.status); /* as for all who wait for the rank that aborted */
    return zi_error_adopt(&error);
}

static void destroy(zi_comm *base)
{
    local_comm *comm = (local_comm *)base;
    zi_local_hub_part(comm->hub, base->rank);
    zi_local_hub_release(comm->hub);
    zi_free(comm);
}

static const zi_comm_ops local_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "local",
    .group_create = group_create,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .abort = abort_all,
    .destroy = destroy,
    .check = check,
};

zero_status zi_local_comm_create(zi_local_hub *hub, uint32_t rank, zi_comm **out)
{
    *out = NULL;
    local_comm *comm = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    const uint32_t rank_count = zi_local_hub_ranks(hub);
    zi_assert_cmp(rank, <, rank_count);
    zi_local_hub_retain(hub);
    comm->base = (zi_comm){
        .ops = &local_ops,
        .rank = rank,
        .size = rank_count,
        .local_size = rank_count,
        .deadline_ms = zi_local_hub_deadline_ms(hub),
        .submit_waits = rank_count > 1,
        .one_process = true,
    };
    comm->hub = hub;
    comm->space.one_address_space = true;
    comm->space.world_rank = rank;
    *out = &comm->base;
    return ZERO_OK;
}
