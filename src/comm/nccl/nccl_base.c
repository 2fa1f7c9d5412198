/* Owns a world's base: the communicator over all its ranks that groups are split off. Invariants: a
 * world has at most one, on one GPU; it stands first in the watcher's list, so that it is aborted
 * before its splits; when a split of it fails it fails too, since nobody can tell which ranks are
 * still in it. */
#include "comm/nccl/nccl_base.h"

#include <string.h>

#include "core/error.h"
#include "core/memory.h"

/* What the ranks tell one another before they connect. */
typedef struct base_record {
    uint32_t status; /* what getting ready came to */
    int32_t version;
    ncclUniqueId id; /* of rank 0 */
} base_record;

_Static_assert(sizeof(base_record) % sizeof(float) == 0, "gathered as fp32 elements");

zero_status zi_nccl_base_open(zi_comm *comm, uint32_t deadline_ms, zi_nccl_group **out)
{
    const zi_nccl_group_desc desc = {
        .comm = comm,
        .size = comm->size,
        .deadline_ms = deadline_ms,
        .name = "world",
    };
    ZI_TRY(zi_nccl_group_open(&desc, out));
    const zero_status status = zi_nccl_watch_add(*out);
    if (status != ZERO_OK) {
        zi_nccl_group_close(*out);
        *out = NULL;
    }
    return status;
}

zero_status zi_nccl_base_keep(zi_comm *comm, zi_nccl_group *base, zero_status status)
{
    if (status == ZERO_OK) {
        comm->parent = &base->base;
        return ZERO_OK;
    }
    const zero_error error = *zero_last_error();
    if (base != NULL) {
        zi_nccl_watch_remove(base);
        (void)zi_nccl_set_error(base, &error); /* so that close does not wait for the others */
        zi_nccl_group_close(base);
    }
    return zi_error_adopt(&error);
}

static zero_status init(zi_nccl_group *base, const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    (void)pthread_mutex_lock(&base->mutex);
    const ncclResult_t result = base->api->comm_init_rank_config(
        &base->handle, (int)base->base.size, *id, (int)base->base.rank, &config);
    (void)pthread_mutex_unlock(&base->mutex);
    return zi_nccl_wait(base, result, "ncclCommInitRankConfig");
}

static zero_status get_id(zi_nccl_group *base, ncclUniqueId *id)
{
    return zi_nccl_result(base, base->api->get_unique_id(id), "ncclGetUniqueId");
}

/* All that this rank can do alone; its record for the others. */
static zero_status get_ready(zi_comm *comm, uint32_t deadline_ms, zi_nccl_group **base,
                             base_record *mine)
{
    ZI_TRY(zi_nccl_base_open(comm, deadline_ms, base));
    mine->version = (*base)->version;
    return comm->rank == 0 ? get_id(*base, &mine->id) : ZERO_OK;
}

/* Is every rank ready, with the same NCCL? */
static zero_status compare(const zi_comm *comm, const base_record *all)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        if (all[i].status != ZERO_OK) {
            ZI_FAIL((zero_status)all[i].status,
                    "rank %u could not get ready for NCCL; see its error", i);
        }
        if (all[i].version != all[0].version) {
            ZI_FAIL(ZERO_MISMATCH,
                    "rank %u loads NCCL %d, rank 0 NCCL %d; install one version everywhere", i,
                    (int)all[i].version, (int)all[0].version);
        }
    }
    return ZERO_OK;
}

zero_status zi_nccl_base_get(zi_comm *comm, zi_group *control, uint32_t deadline_ms)
{
    if (comm->parent != NULL) {
        return ZERO_OK;
    }
    zi_nccl_group *base = NULL;
    base_record *all = NULL;
    base_record mine;
    memset(&mine, 0, sizeof mine);
    ZI_TRY(zi_calloc(comm->size, sizeof *all, (void **)&all));
    const zero_status ready = get_ready(comm, deadline_ms, &base, &mine);
    const zero_error error = *zero_last_error();
    mine.status = (uint32_t)ready;
    zero_status status = zi_nccl_exchange(control, &mine, all, sizeof mine);
    if (status == ZERO_OK) {
        status = ready != ZERO_OK ? zi_error_adopt(&error) : compare(comm, all);
    }
    if (status == ZERO_OK) {
        status = init(base, &all[0].id);
    }
    zi_free(all);
    return zi_nccl_base_keep(comm, base, status);
}

zero_status zi_nccl_base_connect(zi_comm *comm)
{
    zi_nccl_group *base = NULL;
    ncclUniqueId id;
    zero_status status = zi_nccl_base_open(comm, comm->deadline_ms, &base);
    if (status == ZERO_OK) {
        status = get_id(base, &id);
    }
    if (status == ZERO_OK) {
        status = init(base, &id);
    }
    return zi_nccl_base_keep(comm, base, status);
}

/* The base is aborted first: until then NCCL may write to its `child`, and a base may point at
 * what was being split off it. The watcher does that, with the other groups of the world. */
static void abandon_split(zi_nccl_group *base)
{
    const zero_error error = *zero_last_error();
    (void)zi_nccl_set_error(base, &error);
    zi_nccl_abort_await(base);
    if (base->child != NULL) {
        (void)base->api->comm_abort(base->child);
        base->child = NULL;
    }
    (void)zi_error_adopt(&error);
}

/* The group's communicator is to be made with what was asked for it. */
static zero_status begin_split(zi_nccl_group *base, const zi_nccl_group *group, uint32_t color)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ZI_TRY(zi_nccl_configure(group, &config));
    ncclResult_t result = ncclSuccess;
    (void)pthread_mutex_lock(&base->mutex);
    const bool gone = base->handle == NULL;
    if (!gone) {
        base->child = NULL;
        result = base->api->comm_split(base->handle, (int)color, (int)group->base.rank,
                                       &base->child, &config);
    }
    (void)pthread_mutex_unlock(&base->mutex);
    if (gone) {
        return zi_nccl_check(base);
    }
    return result == ncclInProgress ? ZERO_OK : zi_nccl_result(base, result, "ncclCommSplit");
}

zero_status zi_nccl_split(zi_nccl_group *group, uint32_t color)
{
    zi_nccl_group *base = zi_nccl_base_of(group->comm);
    zero_status status = begin_split(base, group, color);
    if (status == ZERO_OK) {
        /* The call says success when it has begun; only the base tells when the child is there. */
        status = zi_nccl_wait_of(base, group, ncclInProgress, "ncclCommSplit");
    }
    if (status == ZERO_OK && base->child == NULL) {
        status = zi_error_set(ZERO_COMM, 0, __FILE__, __LINE__,
                              "group %s: ncclCommSplit made no communicator", group->base.name);
    }
    if (status != ZERO_OK) {
        abandon_split(base);
        return status;
    }
    group->handle = base->child;
    base->child = NULL;
    return zi_nccl_wait(group, ncclInProgress, "ncclCommSplit");
}
