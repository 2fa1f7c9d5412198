/* Owns the backend "shm": the table that maps a comm's functions to the memory its ranks share. */
#include "comm/shm/shm_comm.h"

#include "core/error.h"
#include "core/memory.h"

static zi_shared *shared_of(zi_comm *comm)
{
    return ((zi_shm_comm *)comm)->shared;
}

static zero_status shm_comm_group_create(zi_comm *comm, const zi_kernels *kernels,
                                         const uint32_t *members, uint32_t size, const char *name,
                                         zi_group **out)
{
    return zi_shared_group_create(shared_of(comm), kernels, members, size, name, out);
}

static zero_status shm_comm_memory_alloc(zi_comm *comm, size_t bytes, void **out)
{
    return zi_shared_window_alloc(shared_of(comm), bytes, out);
}

static void shm_comm_memory_free(zi_comm *comm, void *pointer, size_t bytes)
{
    zi_shared_window_free(shared_of(comm), pointer, bytes);
}

static void shm_comm_abort_all(zi_comm *comm, const zero_error *error)
{
    zi_shared_abort(shared_of(comm), comm->rank, error);
}

static void shm_comm_destroy(zi_comm *comm)
{
    if (comm != NULL) {
        zi_shared_leave(shared_of(comm));
        zi_silence_destroy(comm->silence);
        zi_free(comm);
    }
}

static zero_status shm_comm_check(zi_comm *comm)
{
    return zi_shared_poll(shared_of(comm), "a collective of GPUs");
}

static const zi_comm_ops shm_ops = {
    .struct_bytes = sizeof(zi_comm_ops),
    .name = "shm",
    .group_create = shm_comm_group_create,
    .memory_alloc = shm_comm_memory_alloc,
    .memory_free = shm_comm_memory_free,
    .abort = shm_comm_abort_all,
    .destroy = shm_comm_destroy,
    .check = shm_comm_check,
};

zero_status zi_shm_comm_create(const zi_shm_place *place, uint32_t deadline_ms, zi_comm **out)
{
    *out = NULL;
    zi_shm_comm *comm = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    zi_silence *silence = NULL;
    zero_status status = zi_silence_create(place->size, &silence);
    const zi_shared_desc desc = {
        .name = place->name,
        .index = place->rank,
        .size = place->size,
        .launcher = place->launcher,
        .deadline_ms = deadline_ms,
        .crowded = &comm->base.crowded,
        .silence = silence,
        .watches_stops = true,
    };
    if (status == ZERO_OK) {
        status = zi_shared_join(&desc, &comm->shared);
    }
    if (status != ZERO_OK) {
        zi_silence_destroy(silence);
        zi_free(comm);
        return status;
    }
    comm->base = (zi_comm){
        .ops = &shm_ops,
        .silence = silence,
        .rank = place->rank,
        .size = place->size,
        .local_size = place->size,
        .deadline_ms = deadline_ms,
        .submit_waits = true,
        .call = zi_shared_call(comm->shared),
    };
    *out = &comm->base;
    return ZERO_OK;
}
