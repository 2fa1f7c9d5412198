/* Owns the backends "shm" and "local": the table that maps a comm's functions to the memory that
 * the ranks of a host share, and the ranks that are threads. */
#include "comm/host/host_comm.h"

#include "comm/host/shared_state.h"
#include "core/check.h"
#include "core/error.h"
#include "core/memory.h"

struct zi_thread_ranks {
    atomic_uint references;
    uint32_t size;
    uint32_t deadline_ms;
    uint64_t header_bytes;
    zi_shared_header *header;
};

static zi_shared *shared_of(zi_comm *comm)
{
    return ((zi_host_comm *)comm)->shared;
}

static zero_status host_comm_group_create(zi_comm *comm, const zi_kernels *kernels,
                                          const uint32_t *members, uint32_t size, const char *name,
                                          zi_group **out)
{
    return zi_shared_group_create(shared_of(comm), comm, kernels, members, size, name, out);
}

static zero_status host_comm_memory_alloc(zi_comm *comm, size_t bytes, void **out)
{
    return zi_shared_window_alloc(shared_of(comm), bytes, out);
}

static void host_comm_memory_free(zi_comm *comm, void *pointer, size_t bytes)
{
    zi_shared_window_free(shared_of(comm), pointer, bytes);
}

static void host_comm_abort_all(zi_comm *comm, const zero_error *error)
{
    const zi_failure failure = zi_failure_of_abort(comm->rank, error);
    zi_shared_abort(shared_of(comm), &failure);
}

static void host_comm_destroy(zi_comm *base)
{
    zi_host_comm *comm = (zi_host_comm *)base;
    if (comm == NULL) {
        return;
    }
    zi_shared_leave(comm->shared);
    if (comm->threads != NULL) {
        zi_thread_ranks_release(comm->threads);
    }
    zi_silence_destroy(base->silence);
    zi_free(comm);
}

static zero_status host_comm_check(zi_comm *comm)
{
    return zi_shared_poll(shared_of(comm), "a collective of GPUs");
}

#define HOST_OPS(backend)                                                               \
    {                                                                                   \
        .struct_bytes = sizeof(zi_comm_ops), .name = (backend),                         \
        .group_create = host_comm_group_create, .memory_alloc = host_comm_memory_alloc, \
        .memory_free = host_comm_memory_free, .abort = host_comm_abort_all,             \
        .destroy = host_comm_destroy, .check = host_comm_check                          \
    }

static const zi_comm_ops process_ops = HOST_OPS("shm");
static const zi_comm_ops thread_ops = HOST_OPS("local");

/* ---- processes ---- */

zero_status zi_process_comm_create(const zi_process_rank *rank, uint32_t deadline_ms, zi_comm **out)
{
    *out = NULL;
    zi_host_comm *comm = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    zi_silence *silence = NULL;
    zero_status status = zi_silence_create(rank->size, &silence);
    const zi_shared_desc desc = {
        .name = rank->name,
        .index = rank->rank,
        .size = rank->size,
        .launcher = rank->launcher,
        .deadline_ms = deadline_ms,
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
        .ops = &process_ops,
        .silence = silence,
        .rank = rank->rank,
        .size = rank->size,
        .local_size = rank->size,
        .deadline_ms = deadline_ms,
        .submit_waits = true,
        .call = zi_shared_call(comm->shared),
    };
    *out = &comm->base;
    return ZERO_OK;
}

/* ---- threads ---- */

zero_status zi_thread_ranks_create(uint32_t size, uint32_t deadline_ms, zi_thread_ranks **out)
{
    *out = NULL;
    zi_assert_cmp(size, >=, 1);
    zi_thread_ranks *threads = NULL;
    ZI_TRY(zi_calloc(1, sizeof *threads, (void **)&threads));
    threads->header_bytes = zi_shared_header_bytes(size);
    const zero_status status = zi_pages_alloc(threads->header_bytes, (void **)&threads->header);
    if (status != ZERO_OK) {
        zi_free(threads);
        return status;
    }
    threads->header->size = size;
    atomic_store(&threads->header->state, ZI_SHARED_OPEN);
    atomic_init(&threads->references, 1);
    threads->size = size;
    threads->deadline_ms = deadline_ms;
    *out = threads;
    return ZERO_OK;
}

void zi_thread_ranks_release(zi_thread_ranks *threads)
{
    if (atomic_fetch_sub(&threads->references, 1) == 1) {
        zi_pages_free(threads->header, threads->header_bytes);
        zi_free(threads);
    }
}

void zi_thread_ranks_abort(zi_thread_ranks *threads, uint32_t rank, const zero_error *error)
{
    const zi_failure failure = zi_failure_of_abort(rank, error);
    zi_shared_set_failure(threads->header, &failure);
}

zero_status zi_thread_ranks_outcome(const zi_thread_ranks *threads)
{
    zi_failure failure;
    if (!zi_failure_get(&threads->header->failure, &failure)) {
        return ZERO_OK;
    }
    failure.others = failure.status;
    const zero_error error = zi_failure_error(&failure, ZI_FAILURE_NO_RANK);
    return zi_error_adopt(&error);
}

zero_status zi_thread_comm_create(zi_thread_ranks *threads, uint32_t rank, zi_comm **out)
{
    *out = NULL;
    zi_assert_cmp(rank, <, threads->size);
    zi_host_comm *comm = NULL;
    ZI_TRY(zi_calloc(1, sizeof *comm, (void **)&comm));
    const zi_shared_desc desc = {.index = rank,
                                 .size = threads->size,
                                 .deadline_ms = threads->deadline_ms,
                                 .header = threads->header};
    const zero_status status = zi_shared_join(&desc, &comm->shared);
    if (status != ZERO_OK) {
        zi_free(comm);
        return status;
    }
    atomic_fetch_add(&threads->references, 1);
    comm->threads = threads;
    comm->base = (zi_comm){
        .ops = &thread_ops,
        .rank = rank,
        .size = threads->size,
        .local_size = threads->size,
        .deadline_ms = threads->deadline_ms,
        .submit_waits = threads->size > 1,
        .one_process = true,
        .call = zi_shared_call(comm->shared),
    };
    *out = &comm->base;
    return ZERO_OK;
}
